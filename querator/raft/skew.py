"""How far this node's wall clock is from those of the others.

Leases and schedules are kept by the clocks of leaders, so that their promises in real time hold
only while these agree to `CLOCK_SKEW_MS_MAX`. Every heartbeat and reply carries its sender's wall
clock. What arrives late makes the sender look behind, so of the last samples of a node the one that
is furthest ahead counts. A node that is further than the limit from the median of all clocks, its
own among them, leaves elections to the others as long as they may come to something, and hands over
what it leads. Of an even number of clocks every instant between the two in the middle is their
median: of two halves that disagree, neither is wrong, and somebody may lead. With fewer than two
others to compare with nobody can say whose clock is wrong.
"""

from collections import deque
from statistics import median_high, median_low
from typing import Final

from querator import telemetry
from querator.model.limits import CLOCK_SKEW_MS_MAX
from querator.model.nodes import NodeKey
from querator.raft.clock import Clock

_log = telemetry.logger(__name__)

_SAMPLES: Final = 4


class Skew:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: dict[NodeKey, deque[int]] = {}
        self.ms = 0
        """How far the median is ahead of this node; negative: behind."""

    @property
    def beyond(self) -> bool:
        """Whether this node leads only when nobody else can."""
        return abs(self.ms) > CLOCK_SKEW_MS_MAX

    def heard(self, node: NodeKey, wall_ms: int) -> None:
        """The node's wall clock, as it was when it sent a message that has come just now."""
        samples = self._samples.setdefault(node, deque(maxlen=_SAMPLES))
        samples.append(wall_ms - self._clock.wall_ms())
        if len(self._samples) < 2:
            return
        clocks = [0, *(max(some) for some in self._samples.values())]
        was_beyond = self.beyond
        self.ms = min(max(0, median_low(clocks)), median_high(clocks))
        if self.beyond != was_beyond:
            tell = _log.warning if self.beyond else _log.info
            tell("clock.beyond" if self.beyond else "clock.right", ahead_ms=-self.ms)
