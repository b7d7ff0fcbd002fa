"""A leader and a follower of one group, between which a snapshot is sent. Their partitions and
environments are real; a test can cut the link between them.
"""

import struct
from collections.abc import Sequence

from querator.model.commands import Configure
from querator.model.entries import Proposal
from querator.model.nodes import NodeKey, Replica
from querator.partition import invariants
from querator.partition.machine import PartitionMachine
from querator.raft.messages import SnapshotChunk, SnapshotOffer, SnapshotReply
from querator.raft.snapshot.protocol import Position
from querator.raft.snapshot.receiver import SnapshotReceiver
from querator.raft.snapshot.sender import SnapshotSender
from querator.storage import attachments, generations
from querator.storage.environment import Environment, ReadTransaction, WriteTransaction
from querator.storage.keys import ALL
from querator.storage.tables import APPLIED, ATTACHMENTS, ATTACHMENTS_DEAD
from tests.unit.partition import partition_log

GROUP = 7
MEGABYTES = 1 << 40
REPLICAS = (Replica(1, NodeKey("a/1")), Replica(2, NodeKey("b/1"), voter=False))

_APPLIED = struct.Struct(">QQ")


class CommittedEntries:
    """The committed entries: the log of the group."""

    def __init__(self) -> None:
        self.all: list[tuple[bytes, tuple[bytes, ...]]] = []
        self.now_ms = partition_log.START_MS
        self._packing = PartitionMachine(GROUP)
        self.append(Proposal(Configure(1, partition_log.settings(max_attempts=2))))

    def append(self, *proposals: Proposal) -> int:
        entry = self._packing.pack(proposals, self.now_ms)
        self.all.append((entry.command, entry.attachments))
        return len(self.all)


class SnapshotReplica:
    """One replica: it applies entries and keeps the attachments of the last `keep` of them."""

    def __init__(
        self,
        environment: Environment,
        entries: CommittedEntries,
        *,
        generation: int = 0,
        keep: int = 5,
    ) -> None:
        self.environment = environment
        self.entries = entries
        self.machine = PartitionMachine(GROUP)
        self.keep = keep
        self.senders: list[SnapshotSender] = []
        with environment.snapshot() as snapshot:
            fresh = not any(True for _ in snapshot.scan(b"\0", b"\xff"))
        if fresh:
            txn = environment.begin()
            generations.write(txn, GROUP, generations.Generations(current=generation))
            txn.commit(sync=True)
        self.recover()

    def recover(self) -> None:
        with self.environment.snapshot() as snapshot:
            self.receiver = SnapshotReceiver(GROUP, snapshot)
            self.index, self.log_first = self._applied(self.view(snapshot))

    @property
    def generation(self) -> int:
        return self.receiver.generation

    def view(self, snapshot: ReadTransaction) -> ReadTransaction:
        return generations.view(snapshot, GROUP)

    def _applied(self, view: ReadTransaction) -> tuple[int, int]:
        stored = APPLIED.get(view, GROUP)
        if stored is None:
            return 0, 1
        index, first = _APPLIED.unpack(stored)
        return index, first

    def position(self, view: ReadTransaction) -> Position:
        index, _ = self._applied(view)
        return Position(
            index=index,
            term=1,
            now_ms=self.entries.now_ms,
            log_bytes=1_000 * index,
            replicas_index=0,
            replicas=REPLICAS,
        )

    # --- turns ---------------------------------------------------------------------

    def apply(self, upto: int | None = None, *, most: int = 1_000_000) -> list[object]:
        """Applies committed entries in one turn, and returns the results of the last one."""
        last = min(len(self.entries.all) if upto is None else upto, self.index + most)
        results: list[object] = []
        txn = self.environment.begin()
        view = generations.write_view(txn, GROUP, self.generation)
        for index in range(self.index + 1, last + 1):
            command, parts = self.entries.all[index - 1]
            for part, data in enumerate(parts):
                attachments.write(view, GROUP, index, part, data)
            applied = self.machine.apply(view, index, 1, command, log_first=self.log_first)
            results = list(applied.results)
            self.index = index
            while index - self.log_first >= self.keep:
                gone = self.entries.all[self.log_first - 1][1]
                attachments.release(view, GROUP, self.log_first, len(gone))
                self.log_first += 1
        self._put_applied(view)
        self.commit(txn)
        return results

    def append_unapplied(self, parts: Sequence[bytes]) -> None:
        """Writes the attachments of an entry that is in the log and may never be committed."""
        txn = self.environment.begin()
        view = generations.write_view(txn, GROUP, self.generation)
        for part, data in enumerate(parts):
            attachments.write(view, GROUP, self.index + 1, part, data)
        self.commit(txn)

    def discard_unapplied(self) -> None:
        txn = self.environment.begin()
        attachments.discard(
            generations.write_view(txn, GROUP, self.generation), GROUP, self.index + 1
        )
        self.commit(txn)

    def commit(self, txn: WriteTransaction) -> None:
        for sender in self.senders:
            sender.before_commit(txn)
        txn.commit(sync=True)

    def receive(
        self,
        messages: Sequence[SnapshotOffer | SnapshotChunk],
        now_s: float,
        *,
        space_bytes: int = MEGABYTES,
    ) -> list[SnapshotReply]:
        """Runs one turn of the follower, which installs the snapshot as soon as it can."""
        for message in messages:
            self.receiver.on_message(message)
        self.receiver.check(now_s)
        txn = self.environment.begin()
        self.receiver.write(txn, now_s=now_s, space_bytes=space_bytes, applied_index=self.index)
        position = self.receiver.ready_to_install
        if position is not None:
            if position.index > self.index:
                assert self.receiver.install(txn) == position
                view = generations.write_view(txn, GROUP, self.generation)
                self.index, self.log_first = position.index, position.index + 1
                self._put_applied(view)
            else:
                self.receiver.not_needed()
        self.commit(txn)
        return self.receiver.replies()

    def _put_applied(self, view: WriteTransaction) -> None:
        APPLIED.put(view, GROUP, value=_APPLIED.pack(self.index, self.log_first))

    # --- what tests compare ----------------------------------------------------------

    def digest(self) -> bytes:
        with self.environment.snapshot() as snapshot:
            return self.machine.digest(self.view(snapshot))

    def held(self) -> dict[tuple[int, int], bytes]:
        """The attachments that the state holds."""
        found: dict[tuple[int, int], bytes] = {}
        with self.environment.snapshot() as snapshot:
            view = self.view(snapshot)
            for key, _ in ATTACHMENTS.rows(view, GROUP):
                index, part = ATTACHMENTS.parts(key)
                assert isinstance(index, int)
                assert isinstance(part, int)
                if index <= self.index and ATTACHMENTS_DEAD.get(view, GROUP, index, part) is None:
                    data = attachments.read(view, GROUP, index, part)
                    assert data is not None
                    found[index, part] = data
        return found

    def wrong(self) -> list[str]:
        with self.environment.snapshot() as snapshot:
            return invariants.check(self.view(snapshot), GROUP)

    def generations_stored(self) -> set[int]:
        """The generations that have rows."""
        found = set()
        with self.environment.snapshot() as snapshot:
            for key, _ in snapshot.scan(b"\0", b"\xff"):
                if ALL[key[:1]].in_generations:
                    storage = int.from_bytes(key[1:9], "big")
                    assert generations.group_of(storage) == GROUP
                    found.add(storage >> 48)
        return found


class FakeLink:
    """The link between a sender and a follower: first in, first out, until it is cut."""

    def __init__(self, room_bytes: int = 1 << 20) -> None:
        self.room_bytes = room_bytes
        self.there: list[SnapshotOffer | SnapshotChunk] = []
        self.back: list[SnapshotReply] = []

    @property
    def room(self) -> int:
        used = sum(
            len(message.content) for message in self.there if isinstance(message, SnapshotChunk)
        )
        return self.room_bytes - used

    def cut(self) -> None:
        self.there.clear()
        self.back.clear()


class SnapshotTransfer:
    """A leader, a follower and the link between them, with a clock."""

    def __init__(self, leader: SnapshotReplica, follower: SnapshotReplica) -> None:
        self.leader = leader
        self.follower = follower
        self.link = FakeLink()
        self.now_s = 100.0
        self.number = 0
        self.term = 3
        self.ends: dict[int, tuple[bytes, dict[tuple[int, int], bytes]]] = {}
        """The leader's state at the end of each attempt, by the attempt's number. An attempt that
        has arrived completely may be installed after the next one has begun.
        """
        self.begin()

    def begin(self) -> None:
        """Begins another attempt."""
        self.number += 1
        self.link.cut()
        self.sender = SnapshotSender(
            self.leader.environment,
            GROUP,
            self.leader.generation,
            self.leader.position,
            term=self.term,
            number=self.number,
            now_s=self.now_s,
        )
        self.leader.senders = [self.sender]

    def leader_turn(self) -> None:
        for reply in self.link.back:
            self.sender.on_reply(reply, self.now_s)
        self.link.back.clear()
        self.link.there += self.sender.step(self.now_s, self.link.room)
        if self.sender.end is not None and self.number not in self.ends:
            self.ends[self.number] = (self.leader.digest(), self.leader.held())

    def follower_turn(self, most: int = 1_000) -> None:
        taken, self.link.there = self.link.there[:most], self.link.there[most:]
        before = self.follower.generation
        self.link.back += self.follower.receive(taken, self.now_s)
        if self.follower.generation != before:
            assert (self.follower.digest(), self.follower.held()) in self.ends.values()
            assert self.follower.wrong() == []

    def disconnect(self) -> None:
        self.link.cut()
        self.sender.interrupted(self.now_s)

    def run(self, *, turns: int = 20_000) -> None:
        """Runs turns until the snapshot is done or has failed."""
        for _ in range(turns):
            if self.sender.over:
                return
            self.leader_turn()
            self.follower_turn()
            self.now_s += 0.001
        raise AssertionError("the snapshot does not come to its end")

    def clean_up(self) -> None:
        """Lets the follower delete what it does not need."""
        for _ in range(10_000):
            if not self.follower.receiver.busy:
                break
            self.follower_turn()
        assert not self.follower.receiver.busy
