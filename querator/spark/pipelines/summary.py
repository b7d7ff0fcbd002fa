"""The result of a pipeline, and its progress.

    taken = made + left out

The counts of taken and made items are independent: they come from Spark and the queue, or from the
queue and the written files. `left_out` are rows that the user's filter has dropped, counted by
Spark, and items that an operator has given back to the queue, if the user continues without them.
"""

import threading
import time
from collections.abc import Callable
from datetime import datetime

import msgspec


class Count(msgspec.Struct, frozen=True):
    """A number, and words that say what was counted, and by which component."""

    value: int
    words: str


class Summary(msgspec.Struct, frozen=True):
    """The summary of one run. `batches` are micro-batches, or transactions."""

    pipeline: str
    taken: Count
    made: Count
    left_out: int
    batches: int
    seconds: float

    @property
    def missing(self) -> int:
        """Items that were taken and neither made nor left out; negative if more were made than
        taken.
        """
        return self.taken.value - self.left_out - self.made.value

    @property
    def balanced(self) -> bool:
        return self.missing == 0


class DeadGroup(msgspec.Struct, frozen=True):
    """Letters with the same reason and kind (None: no kind). `error` is the last error of one of
    the letters that died last.
    """

    reason: str
    kind: str | None
    items: int
    first_died_at: datetime
    last_died_at: datetime
    error: str


class RedriveSummary(Summary, frozen=True):
    """`groups` are the groups of the letters found, the largest first. `would_be_sent`: in a dry
    run, the letters that a run would send back, which are neither made nor left out.
    """

    would_be_sent: int = 0
    groups: tuple[DeadGroup, ...] = ()

    @property
    def missing(self) -> int:
        return self.taken.value - self.left_out - self.made.value - self.would_be_sent


class BatchProgress(msgspec.Struct, frozen=True):
    """A batch is done: `items` in `seconds`. `left`: items that wait in the source, None if
    unknown.
    """

    batch: int
    items: int
    seconds: float
    left: int | None = None


class Control:
    """The connection between a run and its caller."""

    def __init__(self, report: Callable[[BatchProgress], None] | None = None) -> None:
        """`report` is called after each batch, by the thread that runs the pipeline."""
        self.report = report or _silent
        self.stop = threading.Event()
        """Ends the run when it is set. Finished work stays, and is in the summary."""


def _silent(progress: BatchProgress) -> None:
    """The default of `report`."""


class Stopwatch:
    """Seconds since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began
