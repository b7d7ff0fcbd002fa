"""Clocks, and how they become state time.

The raft thread reads time through a `Clock`, which has a real and a simulated form. Replicas never
read it: the leader stamps `now_ms` on every entry.

**State time** of a group is the time that its leader stamps: `base + monotonic time since the start
of its leadership`, with `base = max(now_ms of the last entry, wall clock)`. During the leadership,
state time is steered towards the wall clock by at most a tenth of the time that passes. A step of
the wall clock therefore neither moves it backwards nor makes it jump. Forward jumps happen only
when a leadership begins, and when an operator asks for one. The wall clock always counts only as
far as it is believed (`raft.consensus.skew`).
"""

import time
from collections.abc import Callable
from typing import Protocol

from querator.model.limits import STATE_TIME_JUMP_MS_MAX

STEERING = 0.1
"""Steering adds or holds back at most this part of the time that passes."""

WAIT_S_MAX = 60.0
"""Longest wait until the next check: the wall clock may have been stepped in the meantime."""


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. The wall clock may step in both directions."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary instant; never goes back."""
        ...

    def on_step(self, wake: Callable[[], None], is_idle: Callable[[], bool]) -> None:
        """`wake` is called, from any thread, when time changes in another way than by passing.
        `is_idle` says whether all work that was due at the present instant has been done.
        """
        ...


class RealClock:
    """The machine's clocks. Time during which the machine was suspended counts as passed: leases
    run out meanwhile, and state time does not fall behind.
    """

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def on_step(self, wake: Callable[[], None], is_idle: Callable[[], bool]) -> None:
        """Does nothing: the machine's clocks change only by passing."""


class SimulatedClock:
    """Stands still until a call moves it. Any thread may move it, not only the readers' thread."""

    def __init__(self, *, wall_ms: int = 1_700_000_000_000, monotonic_s: float = 0.0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s
        self._wakes: list[Callable[[], None]] = []

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def on_step(self, wake: Callable[[], None], is_idle: Callable[[], bool]) -> None:
        self._wakes.append(wake)

    def advance(self, duration_ms: int) -> None:
        """Lets both clocks advance by `duration_ms`."""
        assert duration_ms >= 0
        self._wall_ms += duration_ms
        self._monotonic_s += duration_ms / 1000
        for wake in self._wakes:
            wake()

    def step_wall(self, difference_ms: int) -> None:
        """Moves only the wall clock, in either direction, as an operator or NTP may."""
        self._wall_ms += difference_ms
        for wake in self._wakes:
            wake()


class StateTime:
    """State time of one group during one leadership (see the module's docstring)."""

    __slots__ = ("_believed_ms", "_clock", "_in_step", "_now", "read_s")

    def __init__(
        self, clock: Clock, *, last_ms: int, believed_ms: Callable[[int, int], int]
    ) -> None:
        """Begins a leadership; `last_ms` is the time stamped on the last entry of the log.
        `believed_ms` receives the wall clock and state time, and returns how far the wall clock is
        believed. It is called when the wall clock is more than `STATE_TIME_JUMP_MS_MAX` ahead.
        """
        self._clock = clock
        self._believed_ms = believed_ms
        self.read_s = clock.monotonic_s()
        """When it was read last, by the monotonic clock."""
        self._now = float(last_ms)
        self._now = max(self._now, self._now + self._ahead_ms())
        self._in_step = True
        """Whether state time is next to the wall clock, and passes at the same rate."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; never less than before."""
        read_s = self._clock.monotonic_s()
        passed = (read_s - self.read_s) * 1000
        assert passed >= 0
        self.read_s = read_s
        self._now += passed
        ahead = self._ahead_ms()
        most = passed * STEERING
        steered = most if ahead > most else -most if ahead < -most else ahead
        self._now += steered
        self._in_step = -2 <= ahead - steered <= 2
        return int(self._now)

    def _ahead_ms(self) -> float:
        """How far the wall clock, as far as it is believed, is ahead of state time."""
        wall_ms = self._clock.wall_ms()
        ahead = wall_ms - self._now
        if ahead <= STATE_TIME_JUMP_MS_MAX:
            return ahead
        return self._believed_ms(wall_ms, int(self._now)) - self._now

    def wait_s(self, due_ms: int) -> float:
        """Seconds to wait until `due_ms` may have come, as of the last reading (`now_ms`); 0 when
        it has come.

        The wait is short enough while state time is steered forwards: the caller checks again after
        it.
        """
        missing = due_ms - int(self._now)
        if missing <= 0:
            return 0.0
        return min(missing / 1000 / (1 if self._in_step else 1 + STEERING), WAIT_S_MAX)
