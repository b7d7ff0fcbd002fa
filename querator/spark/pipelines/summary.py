"""What a pipeline tells: how it goes, and what came of it.

    taken = made + left out

The two counts are of two who know nothing of each other: Spark and the queue, or the queue and the
files that were written. `left_out` is what the user's own filter has dropped, counted by Spark,
and what an operator has given back to the queue, if the user goes on without it.
"""

import threading
import time
from collections.abc import Callable

import msgspec


class Count(msgspec.Struct, frozen=True):
    """How many, and in words: of what, counted by whom."""

    value: int
    words: str


class Summary(msgspec.Struct, frozen=True):
    """Of one run. `batches` are micro-batches, or transactions."""

    pipeline: str
    taken: Count
    made: Count
    left_out: int
    batches: int
    seconds: float

    @property
    def missing(self) -> int:
        """What was taken and neither made nor left out; negative: more was made than taken."""
        return self.taken.value - self.left_out - self.made.value

    @property
    def balanced(self) -> bool:
        return self.missing == 0


class Progress(msgspec.Struct, frozen=True):
    """A batch is done: `items` of it in `seconds`. `left`: what waits in the source, None when it
    is not known.
    """

    batch: int
    items: int
    seconds: float
    left: int | None = None


class Control:
    """Between a run and whoever has begun it."""

    def __init__(self, report: Callable[[Progress], None] | None = None) -> None:
        """`report` is called after each batch, by the thread that runs the pipeline."""
        self.report = report or _silent
        self.stop = threading.Event()
        """Ends the run when it is set: what was done by then is done, and summed up."""


def _silent(progress: Progress) -> None:
    """Nobody has asked."""


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began
