"""Errors of Spark in one line: its own messages are pages of plans and traces."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from querator.spark.pipelines.settings import SettingsError

_OURS: Final = re.compile(r"^(querator\.[\w.]+): (.+)$", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last):"
_CAUSES_MAX: Final = 20
_NOISE: Final = re.compile(r"^[\w.$]+(?:Exception|Error): | SQLSTATE: \w+.*$")


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
    """The line with the cause: Querator's own if there is one, else Spark's first line with its
    first cause.
    """
    java = isinstance(error, Py4JJavaError)
    text = error.java_exception.toString() if java else str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1])
    said = _line(text) or type(error).__name__
    cause = _first_cause(error.java_exception if java else getattr(error, "_origin", None))
    return said if cause in said else f"{said} ({cause})"


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
    return _NOISE.sub("", first)


def _first_cause(thrown: Any) -> str:
    """The first cause of a Java exception, because Spark's own message may only name a place; empty
    if the exception has no cause.
    """
    cause = thrown
    for _ in range(_CAUSES_MAX):
        below = None if cause is None else cause.getCause()
        if below is None:
            break
        cause = below
    return "" if cause is thrown else _line(cause.toString())
