"""What went wrong in Spark, in one line: its own messages are pages of plans and traces."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from querator.spark.pipelines.settings import SettingsError

_OURS: Final = re.compile(r"^(querator\.[\w.]+): (.+)$", re.MULTILINE)
_NOISE: Final = re.compile(r"^[\w.$]+(?:Exception|Error): | SQLSTATE: \w+.*$")


class PipelineFailed(RuntimeError):
    """A run has failed, in one line. Run it again when the reason is gone: it goes on."""


@contextmanager
def checked(what: str) -> Iterator[None]:
    """While expressions and paths are looked at. Raises SettingsError."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise SettingsError(f"{what}: {reason(error)}") from error


@contextmanager
def explained() -> Iterator[None]:
    """While data moves. Raises PipelineFailed."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise PipelineFailed(reason(error)) from error


def reason(error: PySparkException | Py4JJavaError) -> str:
    """The line that says why: ours if there is one, else Spark's first."""
    java = isinstance(error, Py4JJavaError)
    text = error.java_exception.toString() if java else str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _NOISE.sub("", lines[0]) if lines else type(error).__name__
