"""One heartbeat for all groups between two nodes.

Every `HEARTBEAT_S` a node sends each other node one message with a beat for each group that it
leads and the other follows. One reply answers all beats except the few that it refuses. A follower
whose log the leader does not know yet gets a message of its own instead
(`raft.consensus.replication`).

A reply counts for the beats of its round, in the term in which they were sent. It shows the leader
that the followers hear it (a leader that no majority hears steps down). It confirms no reads, and
acknowledges no entries.
"""

from collections import defaultdict
from typing import Final

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.raft.clock import Clock
from querator.raft.group.group import Group
from querator.raft.messages import Beat, Heartbeat, HeartbeatReply, Stale
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.requests import Outcome
from querator.raft.timing import HEARTBEAT_S

_ROUNDS_MAX: Final = 8
"""Most rounds with outstanding replies."""


class Heartbeats:
    def __init__(self, groups: dict[GroupId, Group], *, clock: Clock, outbox: PeerOutbox) -> None:
        """`groups` are those of the node; their owner keeps the dict up to date."""
        self._groups = groups
        self._clock = clock
        self._outbox = outbox
        self.led: dict[GroupId, Group] = {}
        """Groups that this node leads and that have other replicas."""
        self._round = 0
        self._due_s = 0.0
        self._sent: defaultdict[NodeKey, dict[int, tuple[Beat, ...]]] = defaultdict(dict)

    @property
    def due_s(self) -> float | None:
        """When the next heartbeat is due, by the monotonic clock."""
        return self._due_s if self.led else None

    def update(self, group: Group) -> None:
        """Checks whether the group needs heartbeats of a leader here."""
        if group.member.leads and len(group.journal.replicas) > 1 and group.quarantined is None:
            if not self.led:
                self._due_s = self._clock.monotonic_s() + HEARTBEAT_S
            self.led[group.group] = group
        else:
            self.led.pop(group.group, None)

    def forget(self, group: GroupId) -> None:
        self.led.pop(group, None)

    def forget_node(self, node: NodeKey) -> None:
        """The connection to the node changed: messages on their way are lost."""
        self._sent.pop(node, None)

    def send(self, now_s: float, outcome: Outcome) -> None:
        if not self.led or now_s < self._due_s:
            return
        self._due_s = now_s + HEARTBEAT_S
        self._round += 1
        beats: defaultdict[NodeKey, list[Beat]] = defaultdict(list)
        for group in list(self.led.values()):
            if not group.member.leads or group.quarantined is not None:
                del self.led[group.group]
                continue
            for node, beat in group.heartbeats(now_s, outcome):
                beats[node].append(beat)
        wall_ms = self._clock.wall_ms()
        for node, some in beats.items():
            together = tuple(some)
            self._outbox.now(node, Heartbeat(self._round, wall_ms, together))
            sent = self._sent[node]
            sent[self._round] = together
            while len(sent) > _ROUNDS_MAX:
                del sent[next(iter(sent))]

    def on_heartbeat(
        self, node: NodeKey, heartbeat: Heartbeat, outcome: Outcome
    ) -> dict[GroupId, Group]:
        """Follows the leaders; returns the groups that must be checked in this turn."""
        now_s = self._clock.monotonic_s()
        changed = {}
        stale = []
        for beat in heartbeat.beats:
            group = self._groups.get(beat.group)
            refused: int | None = 0
            if group is not None:
                if group.is_plain_heartbeat(beat, now_s):
                    continue
                before = (group.member.term, group.member.leader, group.member.commit_index)
                refused = group.on_beat(beat, outcome)
                member = group.member
                if before != (member.term, member.leader, member.commit_index):
                    changed[beat.group] = group
            if refused is not None:
                stale.append(Stale(beat.group, beat.sender, beat.to, refused))
        reply = HeartbeatReply(heartbeat.round, self._clock.wall_ms(), tuple(stale))
        self._outbox.later(node, reply)
        return changed

    def on_reply(self, node: NodeKey, reply: HeartbeatReply) -> dict[GroupId, Group]:
        beats = self._sent[node].pop(reply.round, ())
        stale = {(one.group, one.sender): one.term for one in reply.stale}
        now_s = self._clock.monotonic_s()
        changed = {}
        for beat in beats:
            group = self.led.get(beat.group)
            if group is None:
                continue
            term = stale.get((beat.group, beat.to)) if stale else None
            if term is None:
                group.member.on_beat_followed(beat.to, beat.term, now_s)
            elif term:
                group.member.on_beat_refused(beat.to, term, beat.term)
                changed[beat.group] = group
        return changed
