"""The snapshots that leaders send: one for each follower that needs one (`raft.snapshot.sender`).

    a follower's progress       its snapshot
    -----------------------     ------------------------------------------------------------------
    becomes SNAPSHOT            begins when there is a connection, and this node is sending fewer
                                than `SENT_MAX`, for which the groups wait in a queue; after a
                                failure not before `AGAIN_S`
    is SNAPSHOT                 continues by one step, at most one in each `STEP_PAUSE_S`: the
                                groups of the node work in between
    PROBE again                 when it is done or has failed

This module also determines which entries the log keeps for followers: a window behind the slowest
follower that is heard, and the entries after a snapshot that is being installed. It keeps at most
`PINNED_WINDOWS` windows, and none while space is short. A follower that needs a dropped entry gets
another snapshot.
"""

from itertools import islice
from typing import Final

import msgspec

from querator import telemetry
from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, node_name
from querator.raft.clock import Clock
from querator.raft.consensus.member import Member
from querator.raft.consensus.replication import FollowerProgress, ReplicationState
from querator.raft.log.journal import Journal
from querator.raft.messages import Envelope, SnapshotChunk, SnapshotReply
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.snapshot.sender import SnapshotSender
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import Environment, WriteTransaction

_log = telemetry.logger(__name__)

SENT_MAX: Final = 8
"""Most snapshots on their way from one node."""
AGAIN_S: Final = 5.0
STEP_PAUSE_S: Final = 0.002
NO_ROOM_S: Final = 0.1
"""When to check again whether the transport has space for a snapshot that has begun."""
NOT_BEGUN_S: Final = 5.0
"""When to check again whether one can begin, if no event says so before."""
HEARD_S: Final = 10.0
"""The log waits for followers that were heard within this."""


class SnapshotStats(msgspec.Struct, frozen=True):
    """Snapshots of all groups of the node since its start; `sending` are on their way."""

    sending: int
    sent: int
    failed: int
    installed: int
    bytes_sent: int
    bytes_received: int


class SnapshotTraffic:
    """Snapshots that the groups of a node send and receive."""

    def __init__(self) -> None:
        self._senders: list[SnapshotSender] = []
        self._line: dict[GroupId, None] = {}
        self._sent = self._failed = self._bytes_sent = 0
        self.installed = self.bytes_received = 0
        self.damaged: list[AttachmentDamaged] = []
        """Attachments that a snapshot or an entry could not be sent with, since the last check."""

    def may_begin(self, group: GroupId) -> bool:
        """Whether one more may begin; if not, the group enters the wait queue."""
        if len(self._senders) < SENT_MAX:
            return True
        self._line[group] = None
        return False

    def begun(self, sender: SnapshotSender) -> None:
        self._senders.append(sender)

    @property
    def calls(self) -> bool:
        """Whether a waiting group may begin."""
        return bool(self._line) and len(self._senders) < SENT_MAX

    def called(self) -> list[GroupId]:
        """Takes the groups that may begin out of the wait queue."""
        groups = list(islice(self._line, max(0, SENT_MAX - len(self._senders))))
        for group in groups:
            del self._line[group]
        return groups

    def ended(self, sender: SnapshotSender) -> None:
        self._senders.remove(sender)
        self._bytes_sent += sender.bytes_sent
        if sender.done is not None:
            self._sent += 1
        else:
            self._failed += 1

    @property
    def sending(self) -> bool:
        return bool(self._senders)

    def before_commit(self, txn: WriteTransaction) -> None:
        """Called right before every commit of the node."""
        for sender in self._senders:
            sender.before_commit(txn)

    def stats(self) -> SnapshotStats:
        flying = sum(sender.bytes_sent for sender in list(self._senders))
        return SnapshotStats(
            sending=len(self._senders),
            sent=self._sent,
            failed=self._failed,
            installed=self.installed,
            bytes_sent=self._bytes_sent + flying,
            bytes_received=self.bytes_received,
        )


class SnapshotSenders:
    """The snapshots of one group, in one term of its leader."""

    def __init__(
        self,
        environment: Environment,
        generation: int,
        member: Member,
        journal: Journal,
        *,
        clock: Clock,
        outbox: PeerOutbox,
        traffic: SnapshotTraffic,
    ) -> None:
        self._environment = environment
        self._generation = generation
        self._member = member
        self._journal = journal
        self._clock = clock
        self._outbox = outbox
        self._traffic = traffic
        self.term = member.term
        self._number = 0
        self._senders: dict[int, SnapshotSender] = {}
        self._next_s: dict[int, float] = {}
        """When a follower's snapshot may begin or continue."""

    def _waiting(self) -> list[int]:
        return [
            id_
            for id_, progress in self._member.progress.items()
            if progress.state is ReplicationState.SNAPSHOT
        ]

    def send(self) -> None:
        """Begins needed snapshots, sends what there is space for, and ends snapshots that are
        over.
        """
        waiting = self._waiting()
        if not (waiting or self._senders):
            return
        now_s = self._clock.monotonic_s()
        for id_ in waiting:
            if now_s < self._next_s.get(id_, 0.0):
                continue
            if id_ not in self._senders and not self._begin(id_, now_s):
                continue
            self._step(id_, now_s)
        for id_, sender in list(self._senders.items()):
            progress = self._member.progress.get(id_)
            needed = progress is not None and progress.state is ReplicationState.SNAPSHOT
            if sender.over or not needed:
                self._end(id_, sender, progress if needed else None, now_s)

    def _begin(self, replica: int, now_s: float) -> bool:
        room_bytes = self._outbox.room_bytes(self._member.node_of(replica))
        if room_bytes <= 0 or not self._traffic.may_begin(self._member.group):
            self._next_s[replica] = now_s + NOT_BEGUN_S
            return False
        self._number += 1
        sender = SnapshotSender(
            self._environment,
            self._member.group,
            self._generation,
            self._journal.position,
            term=self.term,
            number=self._number,
            now_s=now_s,
        )
        self._senders[replica] = sender
        self._traffic.begun(sender)
        _log.info("snapshot.started", **self._names(replica))
        return True

    def _step(self, replica: int, now_s: float) -> None:
        sender, node = self._senders[replica], self._member.node_of(replica)
        room_bytes = self._outbox.room_bytes(node)
        for message in sender.step(now_s, room_bytes):
            size = len(message.content) if isinstance(message, SnapshotChunk) else 0
            envelope = Envelope(self._member.group, replica, self._member.id, message)
            self._outbox.now(node, envelope, bytes_=size)
        wait_s = sender.wait_s(now_s) or 0.0
        least_s = STEP_PAUSE_S if room_bytes > 0 else NO_ROOM_S
        self._next_s[replica] = now_s + max(wait_s, least_s)

    def _end(
        self, replica: int, sender: SnapshotSender, progress: FollowerProgress | None, now_s: float
    ) -> None:
        del self._senders[replica]
        self._traffic.ended(sender)
        if sender.damaged is not None:
            self._traffic.damaged.append(sender.damaged)
        if sender.failed is not None:
            _log.warning("snapshot.failed", reason=sender.failed, **self._names(replica))
        elif sender.done is not None:
            sent = {"index": sender.done, "sent_bytes": sender.bytes_sent}
            _log.info("snapshot.sent", **sent, **self._names(replica))
        self._next_s[replica] = now_s if sender.done is not None else now_s + AGAIN_S
        if progress is not None:
            progress.snapshot_ended(sender.done)

    def _names(self, replica: int) -> dict[str, object]:
        known = replica in self._member.progress
        node = node_name(self._member.node_of(replica)) if known else ""
        return {"group": self._member.group, "replica": replica, "to": node}

    def on_reply(self, replica: int, reply: SnapshotReply) -> None:
        sender = self._senders.get(replica)
        if sender is not None:
            now_s = self._clock.monotonic_s()
            sender.on_reply(reply, now_s)
            self._next_s[replica] = min(self._next_s.get(replica, now_s), now_s + STEP_PAUSE_S)

    def on_connection(self, node: NodeKey) -> None:
        """A connection came up, or broke."""
        now_s = self._clock.monotonic_s()
        for id_ in self._waiting():
            if self._member.node_of(id_) == node:
                self._next_s[id_] = now_s
                if id_ in self._senders:
                    self._senders[id_].interrupted(now_s)

    def called(self) -> None:
        """The group may begin a snapshot."""
        now_s = self._clock.monotonic_s()
        for id_ in self._waiting():
            if id_ not in self._senders:
                self._next_s[id_] = now_s

    def wake_s(self) -> float | None:
        """When there is something to do if nothing happens, by the monotonic clock."""
        waiting = self._waiting()
        return min((self._next_s.get(id_, 0.0) for id_ in waiting), default=None)

    def needed_from(self) -> int:
        """The first entry of the log that followers wait for; last + 1 when none waits."""
        heard_s = self._clock.monotonic_s() - HEARD_S
        first = self._journal.last_index + 1
        for id_, progress in self._member.progress.items():
            if progress.state is ReplicationState.SNAPSHOT:
                sender = self._senders.get(id_)
                if sender is not None and sender.end is not None:
                    first = min(first, sender.end.index + 1)
            elif progress.state is not ReplicationState.LOST and progress.heard_s >= heard_s:
                first = min(first, progress.match + 1)
        return first

    def close(self) -> None:
        """The leadership has ended."""
        for sender in self._senders.values():
            self._traffic.ended(sender)
        self._senders.clear()
