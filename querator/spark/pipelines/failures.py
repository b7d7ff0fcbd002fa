"""Errors of Spark in one line: its own messages are pages of plans and traces."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from querator.spark.pipelines.conditions import in_words
from querator.spark.pipelines.settings import SettingsError

_OURS: Final = re.compile(r"^(querator\.[\w.]+): (.+)$", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last):"
_CAUSES_MAX: Final = 20
_THROWN: Final = re.compile(r"^([\w.$]+(?:Exception|Error)): ")
_CONDITION: Final = re.compile(r"^\[([A-Z0-9_]+(?:\.[A-Z0-9_]+)?)\] (.+)$")
_SQLSTATE: Final = re.compile(r" SQLSTATE: \w+.*$")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffd]+")
_MAGIC: Final = re.compile(r"\. Expected magic number .*$")
_LINE_MAX: Final = 600
"""Characters of a message of Spark: some have a whole file in them."""
_PLACES: Final = ("STREAM_FAILED", "FAILED_EXECUTE_UDF", "TASK_WRITE_FAILED")
"""Conditions that only say where an error was; the cause says which."""


class PipelineFailed(RuntimeError):
    """A run has failed; the message is one line. When the cause is removed, the next run
    continues.
    """


@contextmanager
def checked(what: str) -> Iterator[None]:
    """For checks of expressions and paths. Raises SettingsError."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise SettingsError(f"{what}: {reason(error)}") from error


@contextmanager
def explained() -> Iterator[None]:
    """For steps that move data. Raises PipelineFailed."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise PipelineFailed(reason(error)) from error


def reason(error: PySparkException | Py4JJavaError) -> str:
    """The line with the cause: Querator's own if there is one; else that of the innermost condition
    of Spark for which there are words; else Spark's first line with its first cause.
    """
    java = isinstance(error, Py4JJavaError)
    text = error.java_exception.toString() if java else str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1])
    causes = _causes(error.java_exception if java else getattr(error, "_origin", None))
    words = next(filter(None, map(_in_words, reversed(causes))), "")
    if not words:
        condition = None if java else error.getCondition()
        words = in_words(condition or "", _parameters(error), _functions)
    said = _line(text) or type(error).__name__
    place = _unreadable(said)
    if words:
        return f"{place}: {words}" if place else words
    cause = _line(causes[-1].toString()) if len(causes) > 1 else ""
    if place:
        return _bounded(f"{place}: {_without_condition(cause)}" if cause else place)
    if cause and said.startswith(tuple(f"[{each}]" for each in _PLACES)):
        said, cause = cause, ""
    said, cause = _without_condition(said), _without_condition(cause)
    return _bounded(said if cause in said else f"{said} ({cause})")


def _parameters(error: PySparkException | Py4JJavaError) -> dict[str, str]:
    if isinstance(error, Py4JJavaError):
        return {}
    return dict(error.getMessageParameters() or {})


def _in_words(thrown: Any) -> str:
    """The words for one Java exception; empty if it has no condition that has words."""
    with suppress(Py4JError):
        gateway = SparkContext._gateway
        if is_instance_of(gateway, thrown, "org.apache.spark.SparkThrowable"):
            parameters = thrown.getMessageParameters()
            found = {str(key): str(parameters[key]) for key in parameters}
            return in_words(thrown.getCondition() or "", found, _functions)
    return ""


def _functions() -> Sequence[str]:
    """The names of SQL functions, for similar ones."""
    session = SparkSession.getActiveSession()
    if session is None:
        return ()
    with suppress(PySparkException, Py4JError):
        return [str(row[0]) for row in session.sql("SHOW FUNCTIONS").collect()]
    return ()


def _unreadable(said: str) -> str:
    """The file or record that Spark could not read, if the message is about one."""
    if said.startswith("[MALFORMED_RECORD_IN_PARSING"):
        return "a record cannot be read"
    if not said.startswith("[FAILED_READ_FILE"):
        return ""
    found = re.search(r"reading file (?:file:(?://)?)?(\S+?)\.?(?:\s|$)", said)
    return f"file {found[1]} cannot be read" if found else "a file cannot be read"


def _line(text: str) -> str:
    """The first line. If it ends with the head of a Python traceback, the error that was raised
    replaces that head.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    first = lines[0].strip()
    if first.endswith(_TRACEBACK):
        raised = next((line for line in lines[1:] if not line[0].isspace()), "")
        first = f"{first.removesuffix(_TRACEBACK)}{raised}"
    first = _MAGIC.sub("", _SQLSTATE.sub("", first))
    while (thrown := _THROWN.match(first)) is not None:
        rest = first[thrown.end() :]
        if " " not in rest:
            # One word is no message: the name of the exception says what it is about.
            return f"{thrown[1].rpartition('.')[2]}: {rest}"
        first = rest
    return first


def _without_condition(said: str) -> str:
    """Spark's message with the name of its condition at the end, where it can be searched for."""
    found = _CONDITION.match(said)
    return said if found is None else f"{found[2].strip().rstrip('.')} (Spark: {found[1]})"


def _bounded(said: str) -> str:
    said = _UNPRINTABLE.sub("…", said)
    return said if len(said) <= _LINE_MAX else f"{said[:_LINE_MAX]}…"


def _causes(thrown: Any) -> list[Any]:
    """A Java exception and its causes, the first cause last."""
    causes: list[Any] = []
    while thrown is not None and len(causes) < _CAUSES_MAX:
        causes.append(thrown)
        thrown = thrown.getCause()
    return causes
