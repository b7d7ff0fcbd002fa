"""A group with readers, as a streaming job has them. A reader writes what it has read to another
place, dies at any point, and is started again, while the remains of its former run continue for a
while.

    advance(ack) ──► the open batch ──► its items ──► the sink, by the batch's name ──► advance(ack)
                                            │
                                            └──► given up: its items die

There are also producers and consumers, and an operator that releases batches. None of this goes
into the history. Its invariants are checked here, during the run and at the end:

    a name means the same items, always
    an epoch that another one has ended gets nothing more
    each item was acknowledged in one batch, or completed, or died in a batch that was given up, or
    is there: once, and none is lost
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from struct import pack
from typing import Any

from querator.model.commands import (
    Complete,
    Lease,
    LeaseCaller,
    LeaseItems,
    LeaseResult,
    Produce,
    ProduceResult,
    Refusal,
    SettleResult,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.readers import AdvanceReader, OpenReader, ReaderResult, ReleaseReader
from querator.partition import queries, reader_queries
from querator.partition.reader_queries import BatchItems
from querator.partition.readers import load_reader
from querator.raft.requests import Call
from tests.simulation.clients import ANSWER_US, RETRIED, Cluster
from tests.simulation.clock import EPOCH_MS
from tests.simulation.node import Lost, SimulatedNode, Ticket
from tests.simulation.queues import items_of
from tests.simulation.timeline import MS

READER = "lake"
GIVEN_UP = 0.05
"""Probability that a batch is given up."""
_ALL_BYTES = 1 << 40

Done = Callable[[Any, SimulatedNode], None]


class Actor(ABC):
    """Makes one call at a time, repeats it until it is answered, then pauses."""

    def __init__(self, shore: "Shore", name: str, *, pause_us: int) -> None:
        self.shore = shore
        self.name = name
        self.chance = random.Random(f"{name} {shore.seed}")
        self.busy = False
        self.stopped = False
        self.operations = 0
        self.acknowledged = 0
        self._pause_us = pause_us
        self._leader = ""
        self._try = 0
        self._plan()

    @abstractmethod
    def work(self) -> None:
        """Makes a call, or reports that there is none to make (`free`)."""

    def free(self) -> None:
        self.busy = False
        self._plan()

    def _plan(self) -> None:
        pause_us = int(self.chance.expovariate(1 / self._pause_us)) + 1
        self.shore.cluster.timeline.after(pause_us, self._work)

    def _work(self) -> None:
        if not self.stopped:
            self.busy = True
            self.operations += 1
            self.work()

    def call(self, command: Any, done: Done, attachment: bytes = b"") -> None:
        """`done` gets the answer, which may be a refusal, and the node that gave it."""
        cluster = self.shore.cluster
        self._try += 1
        number = self._try
        nodes = [node for node in cluster.all_nodes() if not node.gone]
        node = next((n for n in nodes if n.name == self._leader), None)
        node = node or self.chance.choice(nodes)

        def again() -> None:
            if number == self._try:
                self._try += 1
                delay_us = self.chance.randrange(10 * MS, 150 * MS)
                cluster.timeline.after(delay_us, lambda: self.call(command, done, attachment))

        def silent() -> None:
            if number == self._try:
                self._leader = ""
                again()

        def answered(result: Any, error: BaseException | None) -> None:
            if number != self._try:
                return
            if error is None:
                self._try += 1
                self._leader = node.name
                cluster.timeline.note("reader", self.name, type(command).__name__, str(result))
                done(result, node)
            elif isinstance(error, Lost) or (
                isinstance(error, QueratorError) and error.code in RETRIED
            ):
                hinted = isinstance(error, QueratorError) and error.code is ErrorCode.NOT_LEADER
                self._leader = error.value if hinted else ""  # type: ignore[union-attr]
                again()
            else:
                cluster.found(f"{self.name}: {command} ended with {error!r}")

        def back(result: Any, error: BaseException | None) -> None:
            if self.chance.random() >= cluster.loss:
                cluster.timeline.after(cluster.latency_us, lambda: answered(result, error))

        ticket = Ticket(type(command).__name__.lower(), back)
        size = len(attachment) + 256
        request = Call(self.shore.group, Proposal(command, attachment), ticket.future, size)
        cluster.timeline.after(
            cluster.latency_us, lambda: node.request(request) if node.up else silent()
        )
        cluster.timeline.after(self.chance.choice(ANSWER_US), silent)


class Producer(Actor):
    _sequence = 0

    def work(self) -> None:
        self._sequence += 1
        count = self.chance.choice((1, 3, 20, 60))
        names = [f"{self.name}.{self._sequence}.{n}" for n in range(count)]
        items = [name.encode() + b"\n" for name in names]
        self.shore.sent.update(names)
        # As a UUIDv7, which begins with the time of its birth.
        producer_id = EPOCH_MS.to_bytes(6, "big") + self.name.encode().ljust(10, b"\0")
        command = Produce(pack(f"<{count}I", *map(len, items)), producer_id, self._sequence)

        def done(result: Any, _: SimulatedNode) -> None:
            if isinstance(result, ProduceResult):
                self.acknowledged += count
                self.shore.produced.update(names)
            else:
                self.shore.cluster.found(f"{self.name}: a produce was refused: {result}")
            self.free()

        self.call(command, done, b"".join(items))


class Consumer(Actor):
    def work(self) -> None:
        caller = LeaseCaller(self.name, f"{self.operations}", self.chance.choice((1, 10)), 0, 2_000)
        self.call(Lease((caller,)), self._leased)

    def _leased(self, result: LeaseResult, node: SimulatedNode) -> None:
        grant = result.grants[0]
        if isinstance(grant, Refusal) or not grant.lease or self.chance.random() < 0.2:
            # No answer; or the consumer dies with its lease, which lapses.
            self.free()
            return
        names: dict[int, str] = {}
        with node.view(self.shore.group) as txn:
            for segment in grant.segments:
                loaded = queries.load_segment(
                    txn, self.shore.group, segment.first_seq, segment.mask
                )
                ordinals = [n for n in range(256) if segment.mask >> n & 1]
                if loaded is None:
                    # The node is behind after a restart: the lease lapses.
                    self.free()
                    return
                items = loaded.items.decode().splitlines()
                seqs = (segment.first_seq + n for n in ordinals)
                names.update(zip(seqs, items, strict=True))

        def done(result: SettleResult, _: SimulatedNode) -> None:
            [outcome] = result.outcomes
            for first, count in (*outcome.done, *outcome.repeated):
                self.shore.completed.update(names[seq] for seq in range(first, first + count))
            self.free()

        self.call(Complete((LeaseItems(grant.lease),)), done)


class Operator(Actor):
    def work(self) -> None:
        seq = self.shore.newest
        self.call(ReleaseReader(READER, seq), lambda *_: self.free())


class Driver(Actor):
    """Runs of one reader, one after the other."""

    _epoch = 0
    _ack = 0
    _skips = False

    def work(self) -> None:
        if not self._epoch or self.chance.random() < 0.05:
            if self._epoch:
                self.shore.zombie = self._epoch, self._ack
            self.call(OpenReader(READER), self._opened)
            return
        items = self.chance.choice((1, 7, 50, 1_000))
        size = self.chance.choice((10, 500, _ALL_BYTES))
        command = AdvanceReader(
            reader_id=READER,
            epoch=self._epoch,
            ack_seq=self._ack,
            max_items=items,
            max_bytes=size,
            upto_position=0,
            skip_released=self._skips,
        )
        self.call(command, self._advanced)

    def _opened(self, result: ReaderResult, _: SimulatedNode) -> None:
        self._epoch = self.shore.epoch = result.epoch
        self.shore.given_up.add(result.dead_seq)
        # The driver knows the batches that its sink has, and those that it has given up.
        self._ack = max(self.shore.sink | {self.shore.passed})
        self.free()

    def _advanced(self, result: ReaderResult | Refusal, node: SimulatedNode) -> None:
        self._skips = False
        if isinstance(result, Refusal):
            self._refused(result)
        else:
            self.shore.given_up.add(result.dead_seq)
            if result.batch is not None and self._read(result, node):
                seq = result.batch.seq
                if self.chance.random() < GIVEN_UP:
                    self._give_up(seq)
                    return
                if self.chance.random() < 0.8:
                    self._ack = seq
                    self.shore.sink.add(seq)
        self.free()

    def _give_up(self, seq: int) -> None:
        """After that it may be acknowledged, or passed over."""
        if self.chance.random() < 0.5:
            self._ack = self.shore.passed = seq
        self.call(ReleaseReader(READER, seq, dead=True), lambda *_: self.free())

    def _refused(self, refusal: Refusal) -> None:
        if refusal.code is ErrorCode.BATCH_RELEASED:
            self.shore.released.add(self._ack)
            self._skips = True
        elif refusal.code is ErrorCode.READER_FENCED:
            # A late try of the driver's own has opened it.
            self._epoch = 0
        else:
            self.shore.cluster.found(f"{self.name}: {refusal}")

    def _read(self, result: ReaderResult, node: SimulatedNode) -> bool:
        """Reads the batch at the node that handed it out; False: it is not there."""
        assert result.batch is not None
        shore, seq = self.shore, result.batch.seq
        shore.newest = seq
        names: list[str] = []
        while len(names) < result.batch.count:
            with node.view(shore.group) as txn:
                part = reader_queries.batch_part(
                    txn, shore.group, READER, seq,
                    from_index=len(names), upto_index=0, items_max=self.chance.choice((1, 100)),
                )  # fmt: skip
            if not isinstance(part, BatchItems):
                # The batch was released meanwhile, or the node is behind after a restart.
                return False
            names += [name for run in part.runs for name in run.items.decode().splitlines()]
        if shore.names.setdefault(seq, names) != names:
            shore.cluster.found(f"batch {seq} had other items before")
        return True


class Zombie(Actor):
    """The remains of a run that another one has ended."""

    def work(self) -> None:
        if self.shore.zombie is None:
            self.free()
            return
        epoch, ack = self.shore.zombie
        later = self.shore.epoch > epoch

        def done(result: Any, _: SimulatedNode) -> None:
            refused = isinstance(result, Refusal) and result.code is ErrorCode.READER_FENCED
            if later and not refused:
                self.shore.cluster.found(f"epoch {epoch} was ended and goes on: {result}")
            self.free()

        if later:
            self.call(AdvanceReader(READER, epoch, ack, 5, 1_000), done)
        else:
            self.free()


class Shore:
    """All that happens in the group, and what is known of it."""

    def __init__(self, cluster: Cluster, group: GroupId, seed: int) -> None:
        self.cluster = cluster
        self.group = group
        self.seed = seed
        self.sent: set[str] = set()
        self.produced: set[str] = set()
        self.completed: set[str] = set()
        self.epoch = 0
        self.zombie: tuple[int, int] | None = None
        """Epoch and acknowledgement of a run that has ended."""
        self.newest = 0
        self.names: dict[int, list[str]] = {}
        """Items by batch."""
        self.sink: set[int] = set()
        self.released: set[int] = set()
        self.given_up: set[int] = set()
        """Batches, as the group names them; 0: none."""
        self.passed = 0
        """The last given-up batch that its driver remembers as done."""

    def actors(self, *, pause_us: int) -> list[Actor]:
        return [
            Producer(self, "producer", pause_us=pause_us),
            Consumer(self, "consumer", pause_us=2 * pause_us),
            Driver(self, "driver", pause_us=pause_us),
            Zombie(self, "zombie", pause_us=10 * pause_us),
            Operator(self, "operator", pause_us=30 * pause_us),
        ]

    def check(self, leader: SimulatedNode) -> None:
        """Checks the invariants at the end, when all replicas are equal."""
        there = Counter(name for _, name in items_of(leader, self.group))
        with leader.view(self.group) as txn:
            readers = reader_queries.readers(txn, self.group)
            stats = queries.stats(txn, self.group)
            row = load_reader(txn, self.group, READER)
        acked = next((one.acked_seq for one in readers if one.reader_id == READER), 0)
        if row is not None:
            self.given_up.add(row.dead_seq)
        dead = Counter(name for seq in self.given_up - {0} for name in self.names[seq])
        acknowledged = Counter(
            name
            for seq, names in self.names.items()
            if seq <= acked and seq in self.sink - self.released
            for name in names
        )
        found = there + acknowledged + dead + Counter(self.completed)
        for text, names in (
            ("more than once", {name for name, count in found.items() if count > 1}),
            ("though nobody has sent it", found.keys() - self.sent),
        ):
            if names:
                self.cluster.found(f"readers: {min(names)} is there, or done with, {text}")
        if lost := self.produced - found.keys():
            self.cluster.found(f"readers: {len(lost)} items are lost, {min(lost)} for example")
        if stats.dead != dead.total():
            self.cluster.found(
                f"readers: {stats.dead} items are counted as dead, and {dead.total()} were given up"
            )
        if stats.acknowledged != acknowledged.total():
            self.cluster.found(
                f"readers: {stats.acknowledged} items are counted as acknowledged, and "
                f"{acknowledged.total()} were"
            )
