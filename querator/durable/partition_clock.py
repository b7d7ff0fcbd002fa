"""The time of partitions, as their answers say it.

A worker's own wall clock may be wrong. What it records, and the timers that it sets, are of the
partition's time: that of its answers, and what has passed since by the monotonic clock. An answer
says a time that was over when it came, so the latest of all answers counts.
"""

import time


class PartitionClock:
    """The time of one partition, in milliseconds since the Unix epoch. It never goes back."""

    def __init__(self) -> None:
        self._ahead_ms: float | None = None
        """By how much the time is ahead of the monotonic clock."""

    def heard(self, now_ms: int) -> None:
        """The partition has said its time; the answer has come just now."""
        ahead_ms = now_ms - time.monotonic() * 1000
        if self._ahead_ms is None or ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return self.at_ms(time.monotonic())

    def at_ms(self, monotonic: float) -> int:
        """The time at an instant of the monotonic clock, in seconds."""
        assert self._ahead_ms is not None
        return int(monotonic * 1000 + self._ahead_ms)
