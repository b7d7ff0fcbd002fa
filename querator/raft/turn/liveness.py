"""Whether the raft thread goes on: since when it owes the end of a turn, or of a wait.

The raft thread marks what it begins; any thread asks. A turn that hangs (in a disk that answers no
more, in a defect) and a wait that does not end when it should look alike from outside: nothing is
answered any more, while the event loop, and with it the port, goes on as if nothing were wrong.
"""

import math
from typing import Final

from querator.raft.clock import Clock

HANGS_S: Final = 1.0
"""In one turn for longer than this, the thread hangs: a node of several ends what others can do
instead. Longer than it takes the other nodes to choose other leaders, which is in vain otherwise.
"""
LOOK_S: Final = 0.1
"""A thread that hangs is seen by the event loop within this, and so is one that goes on."""
STALLED_S_MAX: Final = 30.0
"""In one turn for longer than this, the thread no longer counts as alive. Turns are bounded in work
and take milliseconds; a disk may be slow for some seconds and come back."""


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
        """A wait that ends after `timeout_s` at the latest; None: it may last for ever."""
        self._owed_s = math.inf if timeout_s is None else self._clock.monotonic_s() + timeout_s

    def stalled_s(self) -> float:
        """Seconds in the present turn, or by which the present wait is overdue; 0 before the first
        mark, and while a wait is not over.
        """
        return max(0.0, self._clock.monotonic_s() - self._owed_s)
