"""Installation of a received snapshot in a follower, between its receiver and its log.

state and log of the follower          action
-----------------------------------    ------------------------------------------------------
have committed at least as much        reports that
have the entry at the same place       commits up to there, because everything up to it is
                                       equal; later entries may be acknowledged and must stay
have not                               switches: the rows are those of the snapshot, the log
                                       begins after it, term and vote stay
"""

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.raft.consensus.member import Member
from querator.raft.log.journal import Journal
from querator.raft.log.rows import put_applied
from querator.raft.messages import Envelope, SnapshotChunk, SnapshotOffer
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.snapshot.protocol import Position
from querator.raft.snapshot.receiver import SnapshotReceiver
from querator.storage.environment import ReadTransaction, WriteTransaction
from querator.storage.generations import write_view


class SnapshotInstaller:
    """Received snapshots of one group. Only the raft thread calls it."""

    def __init__(self, group: GroupId, txn: ReadTransaction, outbox: PeerOutbox) -> None:
        """Raises StorageCorrupt."""
        self._group = group
        self._outbox = outbox
        self._receiver = SnapshotReceiver(group, txn)
        self._from: tuple[int, NodeKey] | None = None

    @property
    def generation(self) -> int:
        """Generation of the rows in use."""
        return self._receiver.generation

    @property
    def busy(self) -> bool:
        """Whether `write` has something to do."""
        return self._receiver.busy or self._receiver.ready_to_install is not None

    @property
    def wake_s(self) -> float | None:
        """When `check` has something to do, by the monotonic clock."""
        return self._receiver.expires_s

    def check(self, now_s: float) -> None:
        """Gives a staged snapshot up that no leader has continued for long."""
        self._receiver.check(now_s)

    def receive(self, sender: int, node: NodeKey, message: SnapshotOffer | SnapshotChunk) -> None:
        """Handles a message of the leader."""
        self._from = (sender, node)
        self._receiver.on_message(message)

    def discard(self) -> None:
        """Gives the staged snapshot up: the log continues without it."""
        if self._receiver.staged:
            self._receiver.abandon()

    def write(
        self,
        txn: WriteTransaction,
        member: Member,
        journal: Journal,
        *,
        now_s: float,
        space_bytes: int,
        applied_index: int,
    ) -> Position | None:
        """Does a turn's work, in its transaction. Returns the position of a snapshot that it has
        switched to, else None.
        """
        if member.leads:
            self.discard()
        receiver = self._receiver
        receiver.write(txn, now_s=now_s, space_bytes=space_bytes, applied_index=applied_index)
        position = receiver.ready_to_install
        if position is not None:
            if position.index <= member.commit_index or journal.has(position.index, position.term):
                member.commit_to(position.index)
                receiver.not_needed()
                position = None
            else:
                self._install(txn, member, journal)
        if self._from is not None:
            sender, node = self._from
            for reply in receiver.replies():
                self._outbox.later(node, Envelope(self._group, sender, member.id, reply))
        return position

    def _install(self, txn: WriteTransaction, member: Member, journal: Journal) -> None:
        position = self._receiver.install(txn)
        journal.replace(position)
        view = write_view(txn, self._group, self._receiver.generation)
        journal.flush(view)
        put_applied(view, self._group, (position.index, position.term, position.now_ms))
        member.installed(position.index)
