"""Clients: they produce, lease, complete, release and extend, and record what they saw.

Each client works on one group. It calls the node that it takes for the leader. When a call is not
answered, or its outcome is unknown, the client repeats it with the same identity at another node,
until there is an answer or the client gives up. What it saw goes into a history for
`tests.checkers`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import pack
from typing import Any, Protocol

import msgspec

from querator.model.commands import (
    Complete,
    Extend,
    ExtendResult,
    ItemSpecial,
    Lease,
    LeaseCaller,
    LeaseGrant,
    LeaseItems,
    LeaseResult,
    Produce,
    ProduceResult,
    Refusal,
    Retry,
    SettleResult,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.partition import queries
from querator.raft.requests import Call, Read
from tests.checkers import history
from tests.checkers.history import Operation, Pending, Recorder
from tests.simulation.clock import EPOCH_MS
from tests.simulation.node import Lost, SimulatedNode, Ticket
from tests.simulation.timeline import MS, SECOND, Timeline

ANSWER_US = (400 * MS, SECOND, 3 * SECOND)
"""A try that is not answered within one of these durations is repeated elsewhere."""
GIVE_UP_US = 20 * SECOND
RETRIED = frozenset(
    {ErrorCode.NOT_LEADER, ErrorCode.UNAVAILABLE, ErrorCode.STORAGE_FULL, ErrorCode.OUTCOME_UNKNOWN}
)


class Cluster(Protocol):
    """What clients see of the world."""

    timeline: Timeline
    recorder: Recorder
    latency_us: int
    loss: float
    """Probability that the answer to a call is lost on its way to the client."""

    def alive(self) -> list[SimulatedNode]: ...

    def all_nodes(self) -> list[SimulatedNode]: ...

    def found(self, text: str) -> None: ...


def queue_name(group: GroupId) -> str:
    return f"queue {group}"


@dataclass
class Held:
    """What a client holds under one lease."""

    number: int
    seqs: list[int] = field(default_factory=list)


class Attempted:
    """One call with all its tries. Each try is an operation of the history. `done` gets the result,
    the node that gave it and the operation to be ended; or three times None when the client gives
    up.
    """

    def __init__(
        self,
        client: "Client",
        make: Callable[[Ticket], Any],
        what: str,
        recorded: history.Request,
        done: Callable[[Any, SimulatedNode | None, Pending | None], None],
        *,
        at_s: float = 0.0,
    ) -> None:
        """`at_s`: the instant that the call asks for, if it asks for one."""
        self._client = client
        self._at_s = at_s
        self._tries: list[Operation] = []
        self._recorded = recorded
        self._pending: Pending | None = None
        self._make = make
        self._what = what
        self._done = done
        self._timeline = client.cluster.timeline
        self._until_us = self._timeline.now_us + GIVE_UP_US
        self._try = 0
        self._ended = False
        self.start()

    def start(self) -> None:
        """Makes the next try."""
        cluster = self._client.cluster
        if self._ended:
            return
        if self._timeline.now_us >= self._until_us:
            self._end(None, None)
            return
        self._try += 1
        number = self._try
        node = self._client.choose()
        if node is None:
            self._timeline.after(200 * MS, self.start)
            return
        self._pending = cluster.recorder.begin(
            self._client.name, queue_name(self._client.group), self._recorded
        )
        self._tries.append(self._pending.operation)
        ticket = Ticket(self._what, lambda result, error: self._back(number, node, result, error))
        request = self._make(ticket)
        latency_us = cluster.latency_us

        def arrive() -> None:
            if not node.up:
                self._refused(number)
            else:
                node.request(request)

        self._timeline.after(latency_us, arrive)
        patience_us = self._client.chance.choice(ANSWER_US)
        self._timeline.after(patience_us, lambda: self._silent(number))

    def _refused(self, number: int) -> None:
        """No process listens at the node."""
        if number == self._try and not self._ended:
            assert self._pending is not None
            self._pending.ended(history.Refused("nobody listens"))
            self._client.forget_leader()
            self._again()

    def _silent(self, number: int) -> None:
        if number == self._try and not self._ended:
            self._client.forget_leader()
            self._again()

    def _back(
        self, number: int, node: SimulatedNode, result: Any, error: BaseException | None
    ) -> None:
        """The answer leaves the node. It may be lost, or come when the client waits no more."""
        client = self._client
        if client.chance.random() < client.cluster.loss:
            return
        self._timeline.after(
            client.cluster.latency_us, lambda: self._answered(number, node, result, error)
        )

    def _answered(
        self, number: int, node: SimulatedNode, result: Any, error: BaseException | None
    ) -> None:
        if number != self._try or self._ended:
            return
        if error is None:
            self._client.leader = node.name
            self._end(result, node)
            return
        if isinstance(error, Lost):
            self._client.forget_leader()
            self._again()
            return
        if not isinstance(error, QueratorError) or error.code not in RETRIED:
            self._client.cluster.found(f"{self._client.name}: {self._what} ended with {error!r}")
            self._end(None, None)
            return
        if error.code is not ErrorCode.OUTCOME_UNKNOWN:
            assert self._pending is not None
            self._pending.ended(history.Refused(error.code.name))
        self._client.leader = error.value if error.code is ErrorCode.NOT_LEADER else ""
        self._again()

    def _again(self) -> None:
        # From here on no try is answered.
        self._try += 1
        delay_us = self._client.chance.randrange(10 * MS, 150 * MS)
        self._timeline.after(delay_us, self.start)

    def _end(self, result: Any, node: SimulatedNode | None) -> None:
        self._ended = True
        self._done(result, node, self._pending)
        if self._at_s:
            self._tell_delay()

    def _tell_delay(self) -> None:
        """Sets the delays in the history. The history counts a delay from the begin of an
        operation; the call names one instant for all of its tries.
        """
        sent = [op for op in self._tries if not isinstance(op.outcome, history.Refused)]
        first_s = min((op.begin_s for op in sent), default=self._at_s)
        for op in self._tries:
            begin_s = first_s if isinstance(op.request, history.Produce) else op.begin_s
            delay_s = max(0.001, self._at_s - begin_s)
            assert isinstance(op.request, history.Produce | history.Retry)
            op.request = msgspec.structs.replace(op.request, delay_s=delay_s)


class Client:
    """Performs one operation at a time, then pauses."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        group: GroupId,
        chance: random.Random,
        *,
        pause_us: int,
        item_bytes: int,
        delays: bool,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.group = group
        self.chance = chance
        self.leader = ""
        self.busy = False
        self.stopped = False
        self.operations = 0
        self.acknowledged = 0
        self._pause_us = pause_us
        self._item_bytes = item_bytes
        self._delays = delays
        self._reads = chance.choice((0.0, 0.0, 0.1, 1.0))
        # As a UUIDv7, which begins with the time of its birth.
        self._producer = EPOCH_MS.to_bytes(6, "big") + chance.randbytes(10)
        self._sequence = 0
        self._requests = 0
        self._items = 0
        self._held: list[Held] = []
        self._plan()

    # --- which node -------------------------------------------------------------------

    def choose(self) -> SimulatedNode | None:
        """The node that the client takes for the leader, or any node."""
        nodes = [node for node in self.cluster.all_nodes() if not node.gone]
        for node in nodes:
            if node.name == self.leader:
                return node
        return self.chance.choice(nodes) if nodes else None

    def forget_leader(self) -> None:
        self.leader = ""

    # --- what it does -----------------------------------------------------------------

    def _plan(self) -> None:
        pause_us = int(self.chance.expovariate(1 / self._pause_us)) + 1
        self.cluster.timeline.after(pause_us, self._work)

    def _work(self) -> None:
        if self.stopped:
            return
        assert not self.busy
        self.busy = True
        self.operations += 1
        kind = self.chance.random()
        if self.chance.random() < self._reads:
            self.count()
        elif self._held and kind < 0.5:
            self._use()
        elif kind < 0.75:
            self.produce(self.chance.choice((1, 1, 3, 10, 30)))
        else:
            self.lease(self.chance.choice((1, 5, 40)))

    def _free(self) -> None:
        self.busy = False
        self._plan()

    def _use(self) -> None:
        held = self._held.pop(self.chance.randrange(len(self._held)))
        kind = self.chance.random()
        if kind < 0.6:
            self.complete(held, some=False)
        elif kind < 0.7:
            self.complete(held, some=True)
        elif kind < 0.85:
            self.retry(held)
        elif kind < 0.95:
            self.extend(held)
        else:
            self._free()

    def _call(
        self,
        command: Any,
        attachment: bytes,
        recorded: history.Request,
        done: Callable[[Any, SimulatedNode, Pending], None],
        *,
        at_ms: int = 0,
    ) -> None:
        what = type(command).__name__.lower()

        def make(ticket: Ticket) -> Call:
            size = len(attachment) + 256
            return Call(self.group, Proposal(command, attachment), ticket.future, size)

        def ended(result: Any, node: SimulatedNode | None, pending: Pending | None) -> None:
            timeline = self.cluster.timeline
            timeline.note("client", self.name, what, type(result).__name__)
            if timeline.told:
                timeline.tell(self.name, f"{what}: {result}"[:200])
            if node is not None and pending is not None:
                done(result, node, pending)
            self._free()

        at_s = (at_ms - EPOCH_MS) / 1000 if at_ms else 0.0
        Attempted(self, make, what, recorded, ended, at_s=at_s)

    def produce(self, count: int) -> None:
        self._sequence += 1
        references = tuple(f"{self.name}.{self._items + number}" for number in range(count))
        self._items += count
        delay_ms = self.chance.choice((300, 1_500)) if self._delays_now() else 0
        items = [
            reference.encode() + b" " * self.chance.randrange(self._item_bytes) + b"\n"
            for reference in references
        ]
        specials: tuple[ItemSpecial, ...] = ()
        at_ms = self._in(delay_ms)
        if at_ms:
            specials = tuple(ItemSpecial(n, enqueue_at_ms=at_ms) for n in range(count))
        command = Produce(
            pack(f"<{count}I", *map(len, items)), self._producer, self._sequence, False, specials
        )
        recorded = history.Produce(
            references, self._producer.hex(), self._sequence, delay_s=delay_ms / 1000
        )

        def done(result: ProduceResult | Refusal, _: SimulatedNode, pending: Pending) -> None:
            if isinstance(result, ProduceResult):
                self.acknowledged += result.count
                part = history.ProducedPart(
                    0, result.first_seq, result.count, repeated=result.repeated
                )
                pending.ended(history.Produced((part,)))
            else:
                self.cluster.found(f"{self.name}: a produce was refused: {result}")

        self._call(command, b"".join(items), recorded, done, at_ms=at_ms)

    def _delays_now(self) -> bool:
        return self._delays and self.chance.random() < 0.2

    def lease(self, items: int) -> None:
        self._requests += 1
        timeout_ms = self.chance.choice((1_000, 2_000, 6_000))
        request_id = f"{self._requests}"
        caller = LeaseCaller(self.name, request_id, items, 0, timeout_ms)
        recorded = history.Lease(items, request_id, lease_timeout_s=timeout_ms / 1000)

        def done(result: LeaseResult, node: SimulatedNode, pending: Pending) -> None:
            grant = result.grants[0]
            if isinstance(grant, Refusal):
                # The grant is of an earlier try, whose lease has ended since.
                pending.ended(history.Leased((), unseen=items))
                return
            if not grant.lease:
                pending.ended(history.Leased(()))
                return
            self._granted(grant, node, pending)

        self._call(Lease((caller,)), b"", recorded, done)

    def _granted(self, grant: LeaseGrant, node: SimulatedNode, pending: Pending) -> None:
        """Reads the granted items at the node that answered, if they are still there."""
        found: list[tuple[int, int, str]] = []
        unseen = 0
        held = Held(grant.lease)
        with node.view(self.group) as snapshot:
            for segment in grant.segments:
                loaded = queries.load_segment(snapshot, self.group, segment.first_seq, segment.mask)
                ordinals = [n for n in range(256) if segment.mask >> n & 1]
                held.seqs += [segment.first_seq + ordinal for ordinal in ordinals]
                if loaded is None:
                    unseen += len(ordinals)
                    continue
                references = [text.strip().decode() for text in loaded.items.split(b"\n")[:-1]]
                found += [
                    (segment.attempt, segment.first_seq + ordinal, reference)
                    for ordinal, reference in zip(ordinals, references, strict=True)
                ]
        grants = tuple(
            history.Grant(
                self._lease_name(grant.lease),
                0,
                attempt,
                tuple((seq, text) for other, seq, text in found if other == attempt),
                repeated=grant.repeated,
            )
            for attempt in sorted({attempt for attempt, _, _ in found})
        )
        pending.ended(history.Leased(grants, unseen))
        self._held.append(held)

    def _lease_name(self, lease: int) -> str:
        return f"{self.group}:{lease}"

    def complete(self, held: Held, *, some: bool) -> None:
        ranges = self._some(held) if some else ()
        request = history.Complete((history.Named(self._lease_name(held.number), ranges),))
        self._settle(request, Complete((LeaseItems(held.number, ranges),)), held, some)

    def retry(self, held: Held) -> None:
        ranges = self._some(held)
        polite = self.chance.random() < 0.3
        delay_ms = 0 if polite else self.chance.choice((0, 0, 500))
        at_ms = self._in(delay_ms)
        request = history.Retry(
            (history.Named(self._lease_name(held.number), ranges),),
            delay_s=delay_ms / 1000,
            count_attempt=not polite,
        )
        command = Retry(
            (LeaseItems(held.number, ranges),), retry_at_ms=at_ms, count_attempt=not polite
        )
        self._settle(request, command, held, True, at_ms=at_ms)

    def _in(self, delay_ms: int) -> int:
        """The instant `delay_ms` ahead by the wall clock; 0: the call asked for none."""
        return EPOCH_MS + self.cluster.timeline.now_us // MS + delay_ms if delay_ms else 0

    def _some(self, held: Held) -> history.Ranges:
        count = self.chance.randrange(1, len(held.seqs) + 1)
        return history.ranges(self.chance.sample(held.seqs, count))

    def _settle(
        self, request: Any, command: Any, held: Held, some: bool, *, at_ms: int = 0
    ) -> None:

        def done(result: SettleResult, _: SimulatedNode, pending: Pending) -> None:
            if isinstance(result, SettleResult):
                pending.ended(
                    history.Settled(
                        tuple(
                            history.Outcome(
                                self._lease_name(one.lease), one.done, one.repeated, one.lost
                            )
                            for one in result.outcomes
                        )
                    )
                )
                if some:
                    self._held.append(held)

        self._call(command, b"", request, done, at_ms=at_ms)

    def extend(self, held: Held) -> None:
        name = self._lease_name(held.number)

        def done(result: ExtendResult, _: SimulatedNode, pending: Pending) -> None:
            if isinstance(result, ExtendResult):
                lives = tuple(
                    (self._lease_name(lease), bool(deadline)) for lease, deadline in result.outcomes
                )
                pending.ended(history.Extended(lives))
                self._held.append(held)

        command = Extend((held.number,), lease_timeout_ms=3_000)
        self._call(command, b"", history.Extend((name,), 3.0), done)

    def count(self) -> None:
        """A linearizable read of the counters."""

        def make(ticket: Ticket) -> Read:
            return Read(self.group, ticket.future)

        def ended(_: Any, node: SimulatedNode | None, pending: Pending | None) -> None:
            if node is not None and pending is not None:
                with node.view(self.group) as snapshot:
                    stats = queries.stats(snapshot, self.group)
                counted = (0, stats.produced, stats.completed)
                pending.ended(history.Counted((counted,)))
                self.cluster.timeline.note("client", self.name, "count", counted)
                if self.cluster.timeline.told:
                    self.cluster.timeline.tell(self.name, f"counts {counted}")
            self._free()

        Attempted(self, make, "count", history.Count(), ended)
