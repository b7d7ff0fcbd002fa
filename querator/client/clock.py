"""The clocks of the SDK. Delays of items and retries, and ages of producers, count from the wall
clock. The validity of locks counts by elapsed time.

They are the machine's clocks. Tests with a node that has a clock of its own replace them for the
time of the test (`querator.testing`), so that the client and its node agree.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ELAPSED: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
"""Of Linux. The clocks of other systems stop while the machine sleeps, or do not."""

_read_ns: Callable[[], int] = time.time_ns


def now_ns() -> int:
    """Nanoseconds since the Unix epoch."""
    return _read_ns()


def now() -> datetime:
    return _EPOCH + timedelta(microseconds=_read_ns() // 1_000)


def elapsed() -> float:
    """Seconds since some instant. It never goes back, and counts the time in which the machine was
    suspended, if the system can: what was leased for 15 s is not kept by a laptop that sleeps.
    """
    if _read_ns is not time.time_ns:
        return _read_ns() / 1e9
    return time.clock_gettime(_ELAPSED) if _ELAPSED is not None else time.monotonic()


@contextlib.contextmanager
def replaced(read_ns: Callable[[], int]) -> Iterator[None]:
    """Within the block, all clients of this process read `read_ns`, from any thread. Raises
    RuntimeError in a block with another clock.
    """
    global _read_ns
    if _read_ns is not time.time_ns:
        raise RuntimeError("the clock of this process's clients is replaced already")
    _read_ns = read_ns
    try:
        yield
    finally:
        _read_ns = time.time_ns
