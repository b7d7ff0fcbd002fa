"""The clock of one machine: it runs at its own rate, is set wrong, and is stepped."""

from collections.abc import Callable

from tests.simulation.timeline import MS, SECOND, Timeline

EPOCH_MS = 1_700_000_000_000
"""What a right wall clock shows at the start of a run."""
LATE_MS = -60_000.0
"""Longer than any run."""


class NodeClock:
    """A `querator.raft.clock.Clock` under virtual time.

    `within_us` is the time that the current turn has taken so far: a turn takes time, although
    virtual time stands still during it. `earliest_ms` and `latest_ms` are the most that the wall
    clock has been behind and ahead; jumps ahead do not count.
    """

    def __init__(self, timeline: Timeline, *, offset_ms: int, drift_ppm: int) -> None:
        self.within_us = 0
        self._timeline = timeline
        self._rate = self._rate_before = 1 + drift_ppm / 1_000_000
        self._offset_ms = offset_ms
        self._jumped_ms = 0
        self._set_us = self._read_us = 0
        self._monotonic_us = 0.0
        self.earliest_ms = self.latest_ms = float(offset_ms)

    @property
    def now_us(self) -> int:
        """Virtual time plus the time that the current turn has taken."""
        return self._timeline.now_us + self.within_us

    def wall_ms(self) -> int:
        ahead_ms = self._ahead_ms()
        return EPOCH_MS + self._jumped_ms + int(self.now_us / MS + ahead_ms)

    def monotonic_s(self) -> float:
        # This is read many times in each turn.
        now_us = self._timeline.now_us + self.within_us
        if now_us > self._read_us:
            self._read_us = now_us
        rate = self._rate if now_us >= self._set_us else self._rate_before
        return (self._monotonic_us + (now_us - self._set_us) * rate) / SECOND

    def on_step(self, wake: Callable[[], None], is_idle: Callable[[], bool]) -> None:
        """Does nothing: a waiting caller reads the clock again after its wait."""

    def virtual_us(self, duration_s: float) -> int:
        """How long a duration by this clock is in virtual time, rounded up."""
        return int(duration_s * SECOND / self._rate) + 1

    def step(self, difference_ms: int) -> None:
        """Moves the wall clock."""
        self._ahead_ms()
        self._offset_ms += difference_ms
        self._ahead_ms()

    def jump(self, difference_ms: int) -> None:
        """Sets the wall clock `difference_ms` from where it would be. A clock that is ahead may go
        unnoticed. When it is behind, a leader that leads by this clock alone may be as late as its
        log is old.
        """
        self._jumped_ms = difference_ms
        if difference_ms < 0:
            self.earliest_ms = min(self.earliest_ms, LATE_MS)

    def set_drift(self, drift_ppm: int) -> None:
        # The new rate holds from the last instant on that was read. A turn may have read an instant
        # later than virtual time; until that instant the clock keeps its rate.
        if self._read_us > self._set_us:
            self._monotonic_us += (self._read_us - self._set_us) * self._rate
            self._set_us = self._read_us
            self._rate_before = self._rate
        self._rate = 1 + drift_ppm / 1_000_000

    def set_right(self) -> None:
        """From here on the wall clock is right, and keeps the right rate."""
        self.set_drift(0)
        self._offset_ms -= round(self._ahead_ms())

    def _ahead_ms(self) -> float:
        ahead_ms = self._offset_ms + (self.monotonic_s() * SECOND - self.now_us) / MS
        self.earliest_ms = min(self.earliest_ms, ahead_ms)
        self.latest_ms = max(self.latest_ms, ahead_ms)
        return ahead_ms
