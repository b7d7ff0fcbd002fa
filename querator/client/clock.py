"""The wall clock of the SDK: delays of items and retries, and ages of producers, count from it.

It is the machine's clock. Tests with a node that has a clock of its own replace it for the time of
the test (`querator.testing`), so that the client and its node agree.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_read_ns: Callable[[], int] = time.time_ns


def now_ns() -> int:
    """Nanoseconds since the Unix epoch."""
    return _read_ns()


def now() -> datetime:
    return _EPOCH + timedelta(microseconds=_read_ns() // 1_000)


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
