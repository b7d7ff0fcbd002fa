"""How far this node's wall clock differs from those of the others, and how far it is believed.

Leases and schedules follow the clocks of leaders. Their promises in real time hold only while the
clocks agree to `CLOCK_SKEW_MS_MAX`. Heartbeats, requests for votes and the replies to both carry
their sender's wall clock.

**Skew.** A late message makes its sender's clock look behind. Therefore, of the last samples of a
node, the one that is furthest ahead counts. A node that is further than the limit from the median
of all clocks, including its own, leaves elections to the others as long as these may succeed, and
hands over its leaderships. With an even number of clocks, every instant between the two middle ones
is their median: when two halves disagree, neither is wrong, so that a node may lead. With fewer
than two other clocks the wrong one cannot be determined.

**Belief.** State time never goes back, so a clock that is ahead must not move it. A group's leader
follows its wall clock no further than `STATE_TIME_JUMP_MS_MAX` beyond the later of two instants:
its state time, and the instant that the clocks of a majority of its voters have reached (the last
sample of each, and the own clock). When the own clock is stepped, a node that was ahead when it was
last heard may have been corrected since. Until it is heard again, its clock counts as at most what
the own clock was before the step. A candidate knows the clocks of a majority, because their votes
carry them. Beyond that limit the wall clock is not *believed*. The node then stands for election
only when no other node has stood for a while, and uses the instant that the majority's clocks have
reached. If no majority's clocks agree, a group with an empty log uses the latest state time of the
node's partitions: a wall clock behind that time is not believed, one ahead of it is believed up to
that time.

A group with one voter has no other clock for comparison. It believes its clock up to
`LONE_TIME_JUMP_MS_MAX` beyond its last entry, and does not lead beyond that. An operator may
declare the clock right (`trust`). While its log is empty, the group believes its clock up to the
same limit ahead of the latest state time of all groups of its node, and up to the same limit behind
that of the node's partitions. Outside these limits it leads by that state time until the clock may
be believed.

Samples are stored as differences from the monotonic clock, so that a step of the own wall clock
shows at once.
"""

from collections import Counter, deque
from collections.abc import Collection
from statistics import median_high, median_low
from typing import Final

from querator import telemetry
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import (
    CLOCK_SKEW_MS_MAX,
    LONE_TIME_JUMP_MS_MAX,
    STATE_TIME_JUMP_MS_MAX,
)
from querator.model.nodes import NodeKey
from querator.raft.clock import Clock

_log = telemetry.logger(__name__)

_SAMPLES: Final = 4

FRESH_S: Final = 10.0
"""A clock that was not heard for this long is not reported as different: its node is down."""
LOOK_S_MAX: Final = 0.1
"""A reading of the own clocks that takes longer does not show their difference."""
TRUST_S: Final = 600.0
"""An operator's declaration that the clock is right holds this long, enough for every group to
elect a leader.
"""


class Skew:
    """Clock comparison of one node. Only the raft thread calls it, except that any thread may call
    `trust` and `differs`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: dict[NodeKey, deque[int]] = {}
        """How far the node's wall clock was ahead of this node's monotonic clock."""
        self._own_ms = self._own_offset_ms()
        """The same of the own wall clock, at its last check."""
        self._capped_ms: dict[NodeKey, int] = {}
        """Caps for nodes not heard since a step of the own clock: the own offset before the
        step.
        """
        self._members: dict[GroupId, frozenset[NodeKey]] = {}
        self._groups: Counter[NodeKey] = Counter()
        """Number of groups of this node in which the other node has a replica."""
        self._trusted_until_s = float("-inf")
        self._reached_by: dict[GroupId, int] = {}
        """The state time of each group of this node."""
        self.ms = 0
        """How far the median is ahead of this node; negative: behind."""
        self._heard_s: dict[NodeKey, float] = {}
        self._differs: tuple[NodeKey, int] | None = None

    # --- what is heard -------------------------------------------------------------

    def record_clock(self, node: NodeKey, wall_ms: int) -> None:
        """Records the node's wall clock at the time it sent a message that has just arrived."""
        if self._groups and not self._groups[node]:
            # The node has left; this message was still on its way.
            return
        self._look_at_own()
        self._capped_ms.pop(node, None)
        samples = self._samples.setdefault(node, deque(maxlen=_SAMPLES))
        samples.append(wall_ms - self._monotonic_ms())
        self._heard_s[node] = self._clock.monotonic_s()
        self._compare()

    def of_group(self, group: GroupId, others: Collection[NodeKey]) -> None:
        """Sets the other nodes with a replica of the group. Nodes without a replica of any group
        are forgotten.
        """
        before = self._members.pop(group, frozenset())
        after = frozenset(others)
        if after:
            self._members[group] = after
        self._groups.update(after - before)
        gone = before - after
        self._groups.subtract(gone)
        for node in gone:
            if not self._groups[node]:
                del self._groups[node]
                self._samples.pop(node, None)
                self._heard_s.pop(node, None)
                self._capped_ms.pop(node, None)
                self._compare()

    def _compare(self) -> None:
        was_beyond = self.clock_is_wrong
        self.ms = self._median_near(0)
        if self.clock_is_wrong != was_beyond:
            tell = _log.warning if self.clock_is_wrong else _log.info
            tell(
                "clock.skew_exceeded" if self.clock_is_wrong else "clock.skew_ended",
                ahead_ms=-self.ms,
            )
        self._differs = None if self.clock_is_wrong else self._furthest()

    def _furthest(self) -> tuple[NodeKey, int] | None:
        """Of the nodes that are ahead, the furthest. A node that is behind may only be late, and
        sees itself that this one is ahead.
        """
        far = [
            (node, ahead_ms)
            for node in self._samples
            if (ahead_ms := self._ahead_ms(node)) > CLOCK_SKEW_MS_MAX
            and self.has_right_clock(node)
            and self._is_fresh(node)
        ]
        return max(far, key=lambda one: one[1], default=None)

    def _is_fresh(self, node: NodeKey) -> bool:
        return self._clock.monotonic_s() - self._heard_s.get(node, 0.0) <= FRESH_S

    @property
    def differs(self) -> tuple[NodeKey, int] | None:
        """The node whose clock is furthest ahead of this one's, beyond the limit, and how far it is
        ahead (ms); the node that is behind reports it. None while the median shows here that one of
        the two is wrong. Any thread may call it.
        """
        differs = self._differs
        return differs if differs is not None and self._is_fresh(differs[0]) else None

    def _median_near(self, ahead_ms: int) -> int:
        """How far the median nearest to a clock is ahead of this node; `ahead_ms` is the same of
        the clock.
        """
        if len(self._samples) < 2:
            return ahead_ms
        clocks = [0, *map(self._ahead_ms, self._samples)]
        return min(max(ahead_ms, median_low(clocks)), median_high(clocks))

    def _ahead_ms(self, node: NodeKey) -> int:
        """How far the clock of a node is ahead of this node's."""
        return max(self._samples[node]) - self._own_offset_ms()

    def _own_offset_ms(self) -> int:
        return self._clock.wall_ms() - self._monotonic_ms()

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    def _look_at_own(self) -> None:
        """Notices a step of the own clock."""
        began_s = self._clock.monotonic_s()
        own_ms = self._own_offset_ms()
        if self._clock.monotonic_s() - began_s > LOOK_S_MAX:
            # The thread was suspended between the two readings, which looks like a step.
            return
        if abs(own_ms - self._own_ms) > CLOCK_SKEW_MS_MAX:
            for node in self._samples:
                self._capped_ms[node] = min(self._own_ms, self._capped_ms.get(node, self._own_ms))
        self._own_ms = own_ms

    def _last_samples(self, nodes: Collection[NodeKey]) -> list[int]:
        """The last samples of those of the nodes that were heard, capped where a cap applies."""
        self._look_at_own()
        capped = self._capped_ms
        return [
            min(samples[-1], capped.get(node, samples[-1]))
            for node in nodes
            if (samples := self._samples.get(node))
        ]

    # --- what follows from it ------------------------------------------------------

    @property
    def clock_is_wrong(self) -> bool:
        """Whether this node leads only when no other node can."""
        return abs(self.ms) > CLOCK_SKEW_MS_MAX

    def has_right_clock(self, node: NodeKey) -> bool:
        """Whether the clock of another node lets it lead, as far as this node knows."""
        if node not in self._samples:
            return True
        ahead_ms = self._ahead_ms(node)
        return abs(ahead_ms - self._median_near(ahead_ms)) <= CLOCK_SKEW_MS_MAX

    def reached(self, group: GroupId, now_ms: int) -> None:
        """Records the state time of a group of this node. An operator may have put it back."""
        self._reached_by[group] = now_ms

    def forget(self, group: GroupId) -> None:
        """Forgets a group that was removed from this node."""
        self._reached_by.pop(group, None)
        self.of_group(group, ())

    def trust(self) -> None:
        """Accepts an operator's statement that this node's clock is right."""
        self._trusted_until_s = self._clock.monotonic_s() + TRUST_S
        _log.warning("clock.trusted", seconds=TRUST_S)

    def knows(self, others: Collection[NodeKey]) -> bool:
        """Whether the clocks of a majority of the voters (this node and `others`) are known."""
        return 1 + len(self._last_samples(others)) > (1 + len(others)) / 2

    def agrees(self, others: Collection[NodeKey]) -> bool:
        """Whether the clocks of a majority of the voters (this node and `others`) agree with this
        node's clock, or an operator has declared it right.
        """
        if self._clock.monotonic_s() < self._trusted_until_s:
            return True
        own_ms = self._own_offset_ms()
        last = self._last_samples(others)
        alike = sum(1 for ms in last if abs(ms - own_ms) <= CLOCK_SKEW_MS_MAX)
        return 1 + alike > (1 + len(others)) / 2

    def believes(self, others: Collection[NodeKey], last_ms: int) -> bool:
        """Whether state time may follow the wall clock from `last_ms` on, in a group with voters on
        this node and `others`.
        """
        wall_ms = self._clock.wall_ms()
        return self.believed_ms(wall_ms, others, last_ms) == wall_ms

    def believed_ms(self, wall_ms: int, others: Collection[NodeKey], last_ms: int) -> int:
        """The wall clock, or the instant up to which it is believed; at least `last_ms` if that is
        less.
        """
        if wall_ms <= last_ms + STATE_TIME_JUMP_MS_MAX:
            return wall_ms
        if self._clock.monotonic_s() < self._trusted_until_s:
            return wall_ms
        if not others:
            return self._believed_alone_ms(wall_ms, last_ms)
        reached_ms = self._reached_ms(wall_ms, others)
        if reached_ms is None:
            return last_ms
        if not last_ms and not self.agrees(others):
            # No clock is known to be right, and the log does not hold time back.
            last_ms = self._partitions_ms()
            if wall_ms < last_ms - STATE_TIME_JUMP_MS_MAX:
                return last_ms
            reached_ms = max(reached_ms, last_ms)
        if wall_ms <= reached_ms + STATE_TIME_JUMP_MS_MAX:
            return wall_ms
        return max(last_ms, reached_ms)

    def _believed_alone_ms(self, wall_ms: int, last_ms: int) -> int:
        """The believed time of a group with one voter."""
        reached = self._reached_by
        known_ms = last_ms or max(reached.values(), default=0)
        if known_ms and wall_ms > known_ms + LONE_TIME_JUMP_MS_MAX:
            return known_ms
        if last_ms:
            return wall_ms
        known_ms = self._partitions_ms()
        return wall_ms if wall_ms >= known_ms - LONE_TIME_JUMP_MS_MAX else known_ms

    def _partitions_ms(self) -> int:
        """The latest state time of this node's partitions. The placement group does not count: its
        time cannot be put back, and would count as right for ever.
        """
        reached = self._reached_by.items()
        return max((ms for group, ms in reached if group != PLACEMENT_GROUP), default=0)

    def _reached_ms(self, wall_ms: int, others: Collection[NodeKey]) -> int | None:
        """The instant that the clocks of a majority have reached; None when too few clocks are
        known.
        """
        monotonic_ms = self._monotonic_ms()
        clocks = [wall_ms, *(ms + monotonic_ms for ms in self._last_samples(others))]
        majority = (len(others) + 1) // 2 + 1
        return sorted(clocks, reverse=True)[majority - 1] if len(clocks) >= majority else None
