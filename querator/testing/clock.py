"""A clock for tests: it stands still, and a test moves it."""

import contextlib
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from querator.client import clock as clients_clock
from querator.raft.clock import SimulatedClock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
SKIP_SECONDS = 60
"""Limit of the wait for nodes that have much to do after a skip."""


class FrozenClock(SimulatedClock):
    """Time that stands still until `skip`, for a node in memory and for its clients.

        with FrozenClock() as clock, SyncNode(memory=True, clock=clock) as node:
            ...
            clock.skip(timedelta(minutes=5))

    The node reads this clock alone: leases lapse, delays come due and items expire only by `skip`.
    Within the `with` block, all clients of the process count delays from it, too. Clients in other
    processes do not. Time-outs of calls and waits, such as `request_timeout` and `idle_timeout`,
    remain in real time.
    """

    def __init__(self, start: datetime | None = None) -> None:
        """`start` (aware): the first instant; None: now, rounded up to a whole second, the grain at
        which items expire. Raises ValueError for a naive instant.
        """
        if start is not None and start.tzinfo is None:
            raise ValueError("start needs a time zone: datetime(..., tzinfo=UTC)")
        wall_ms = math.ceil(time.time()) * 1_000 if start is None else (start - _EPOCH) // _MS
        super().__init__(wall_ms=wall_ms)
        self._replacing = contextlib.ExitStack()
        self._idle: list[Callable[[], bool]] = []

    def on_step(self, wake: Callable[[], None], is_idle: Callable[[], bool]) -> None:
        super().on_step(wake, is_idle)
        self._idle.append(is_idle)

    def __enter__(self) -> Self:
        """Replaces the clock of clients. Raises RuntimeError while another clock does."""
        self._replacing.enter_context(clients_clock.replaced(lambda: self.wall_ms() * 1_000_000))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._replacing.close()

    def now(self) -> datetime:
        """The instant at which this clock stands."""
        return _EPOCH + self.wall_ms() * _MS

    def skip(self, duration: timedelta) -> None:
        """Moves the clock forwards by `duration`, rounded up to 1 ms. When it returns, each later
        call of a client sees the effects: items whose leases have lapsed or whose delays have
        passed are ready. Moves to a dead queue follow at once, but are not waited for. Raises
        TypeError unless `duration` is a timedelta, ValueError when it is negative, and TimeoutError
        when a node is not done with what is due within SKIP_SECONDS.
        """
        if not isinstance(duration, timedelta):
            raise TypeError(
                f"duration is {duration!r}; it must be a timedelta: skip(timedelta(seconds=30))"
            )
        if duration < timedelta(0):
            raise ValueError(f"duration is {duration}; time does not go back")
        self.advance(-(-duration // _MS))
        latest = time.monotonic() + SKIP_SECONDS
        while not all(is_idle() for is_idle in self._idle):
            if time.monotonic() > latest:
                raise TimeoutError(f"a node is not done with what is due after {SKIP_SECONDS} s")
            time.sleep(0.0005)
