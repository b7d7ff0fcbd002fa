"""Liveness of the raft thread: the instant since which the end of a turn or a wait is overdue.

The raft thread marks the begin of each turn and wait; any thread may read. A turn that hangs (in a
disk that does not answer, or by a defect) and a wait that does not end in time have the same
effect: calls are not answered any more, while the event loop, and with it the port, continues as if
nothing were wrong.
"""

import math
from typing import Final

from querator.raft.clock import Clock

HANGS_S: Final = 1.0
"""The thread hangs when one turn takes longer than this: a node of several then ends the calls that
other nodes can execute. It is longer than the other nodes need to elect other leaders, because
ending the calls is useless before that.
"""
LOOK_S: Final = 0.1
"""The event loop detects within this that a thread hangs, and that it continues."""
STALLED_S_MAX: Final = 30.0
"""The thread does not count as alive when one turn takes longer than this. Turns are bounded in
work and take milliseconds; a disk may be slow for some seconds and recover.
"""


class Liveness:
    """One thread marks, any thread reads. A mark costs one reading of the clock."""

    __slots__ = ("_clock", "_owed_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A single number, so that a reader never sees half of a mark.
        self._owed_s = math.inf

    def begin_turn(self) -> None:
        self._owed_s = self._clock.monotonic_s()

    def begin_wait(self, timeout_s: float | None) -> None:
        """Marks a wait that ends after at most `timeout_s`; None: it may last for ever."""
        self._owed_s = math.inf if timeout_s is None else self._clock.monotonic_s() + timeout_s

    def stalled_s(self) -> float:
        """Seconds in the present turn, or by which the present wait is overdue; 0 before the first
        mark, and while a wait is not over.
        """
        return max(0.0, self._clock.monotonic_s() - self._owed_s)
