"""Time: where it is read, and how it becomes state time.

The raft thread reads time through a `Clock`, which has a real and a simulated form. Replicas
never read it: the leader stamps `now_ms` on every entry.

**State time** of a group is what its leader stamps: `base + monotonic time since taking office`,
with `base = max(now_ms of the last entry, wall clock)`. While in office it is steered towards the
wall clock by at most a tenth of the time that passes, so that a step of the wall clock neither
moves it backwards nor makes it jump; forward jumps happen only on taking office, and when an
operator asks for one. Wherever the wall clock counts, it counts as far as it is believed
(`raft.consensus.skew`).
"""

import time
from collections.abc import Callable
from typing import Protocol

from querator.model.limits import STATE_TIME_JUMP_MS_MAX

STEERING = 0.1
"""At most this part of the time that passes is added or held back to come nearer to the wall."""

WAIT_S_MAX = 60.0
"""A wait is looked at again after this: the wall clock may have been stepped in the meantime."""


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may step either way."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some instant; never goes back."""
        ...

    def on_step(self, wake: Callable[[], None]) -> None:
        """`wake` is called, from any thread, when time moves otherwise than by passing."""
        ...


class RealClock:
    """The machine's clocks. Time in which the machine was suspended has passed as well: leases run
    out meanwhile, and state time does not fall behind.
    """

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def on_step(self, wake: Callable[[], None]) -> None:
        """The machine's clocks only pass."""


class SimulatedClock:
    """Stands still until it is told to move. Safe to move from another thread than the readers'."""

    def __init__(self, *, wall_ms: int = 1_700_000_000_000, monotonic_s: float = 0.0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s
        self._wakes: list[Callable[[], None]] = []

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def on_step(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)

    def advance(self, duration_ms: int) -> None:
        """Lets both clocks pass by `duration_ms`."""
        assert duration_ms >= 0
        self._wall_ms += duration_ms
        self._monotonic_s += duration_ms / 1000
        for wake in self._wakes:
            wake()

    def step_wall(self, difference_ms: int) -> None:
        """Moves the wall clock alone, either way, as an operator or NTP may."""
        self._wall_ms += difference_ms
        for wake in self._wakes:
            wake()


class StateTime:
    """State time of one group during one office of its leader (see the module's docstring)."""

    __slots__ = ("_believed_ms", "_clock", "_in_step", "_now", "_read_s")

    def __init__(
        self, clock: Clock, *, last_ms: int, believed_ms: Callable[[int, int], int]
    ) -> None:
        """Takes office; `last_ms` is the time stamped on the last entry of the log. `believed_ms`
        is given what the wall clock shows and state time, and says how far the clock is believed;
        it is asked of a clock that is further ahead than `STATE_TIME_JUMP_MS_MAX`.
        """
        self._clock = clock
        self._believed_ms = believed_ms
        self._read_s = clock.monotonic_s()
        self._now = float(last_ms)
        self._now = max(self._now, self._now + self._ahead_ms())
        self._in_step = True
        """Whether it is next to the wall clock, so that it passes as that does."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; never less than before."""
        read_s = self._clock.monotonic_s()
        passed = (read_s - self._read_s) * 1000
        assert passed >= 0
        self._read_s = read_s
        self._now += passed
        ahead = self._ahead_ms()
        most = passed * STEERING
        steered = most if ahead > most else -most if ahead < -most else ahead
        self._now += steered
        self._in_step = -2 <= ahead - steered <= 2
        return int(self._now)

    def _ahead_ms(self) -> float:
        """How far the wall clock is ahead of state time, as far as it is believed."""
        wall_ms = self._clock.wall_ms()
        ahead = wall_ms - self._now
        if ahead <= STATE_TIME_JUMP_MS_MAX:
            return ahead
        return self._believed_ms(wall_ms, int(self._now)) - self._now

    def wait_s(self, due_ms: int) -> float:
        """How long to wait before it is worth looking whether `due_ms` has come, as of the last
        reading (`now_ms`); 0 when it has.

        The wait is short enough when state time is being steered forwards: whoever waits looks
        again.
        """
        missing = due_ms - int(self._now)
        if missing <= 0:
            return 0.0
        return min(missing / 1000 / (1 if self._in_step else 1 + STEERING), WAIT_S_MAX)
