"""The lives of items as clients saw them: a history, arranged by item and by lease.

Several checkers share these results: which operations are tries of one request, where each produced
item went, to which lease it was granted, and its fate.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.checkers.history import (
    Complete,
    Extend,
    Extended,
    Grant,
    History,
    Lease,
    Leased,
    Looked,
    Named,
    Operation,
    Outcome,
    Produce,
    Produced,
    QueueRules,
    Refused,
    Retry,
    Settled,
    Unknown,
    spread,
)

Home = tuple[str, int]
"""A partition: queue and number."""

Place = tuple[str, int, int]
"""An item: queue, partition, sequence."""


def verb_of(completes: bool, dead: bool, counted: bool, later: bool) -> str:
    """The verb of a settled item. Only the same verb repeats it."""
    if completes or dead:
        return "completed" if completes else "rejected"
    return ("retried" if counted else "released") + (" for later" if later else "")


@dataclass(slots=True)
class Birth:
    """A produce request with all its tries. `places` are those of its references, as far as they
    are known; all are known when it is acknowledged.
    """

    queue: str
    references: tuple[str, ...]
    tries: list[Operation]
    places: dict[str, Place] = field(default_factory=dict)

    @property
    def request(self) -> Produce:
        request = self.tries[0].request
        assert isinstance(request, Produce)
        return request

    @property
    def begin_s(self) -> float:
        return min(op.begin_s for op in self.tries)

    @property
    def acknowledged(self) -> bool:
        return any(isinstance(op.outcome, Produced) for op in self.tries)

    @property
    def known_s(self) -> float:
        """When it was first acknowledged; infinite: never."""
        ends = [op.end_s for op in self.tries if isinstance(op.outcome, Produced)]
        return min(ends, default=float("inf"))


@dataclass(slots=True)
class Tenure:
    """One lease with all that was seen of it. `items`: sequence to attempt."""

    lease: str
    home: Home
    request: Lease
    operations: list[Operation]
    items: dict[int, int] = field(default_factory=dict)
    timeout_s: float = 0.0
    begin_s: float = 0.0
    """It was not granted before this instant."""
    known_s: float = 0.0
    """It was certainly granted by this instant."""
    settles: list["Settle"] = field(default_factory=list)
    extends: list[tuple[Operation, bool | None]] = field(default_factory=list)
    """Whether it was live; None: the outcome is unknown."""


@dataclass(slots=True)
class Settle:
    """A complete or retry of items of one lease. `named` None: all that the lease still holds.
    `outcome` None: unknown.
    """

    operation: Operation
    completes: bool
    lease: str
    named: list[int] | None
    done: list[int]
    repeated: list[int]
    lost: list[int]
    known: bool

    @property
    def verb(self) -> str:
        request = self.operation.request
        if not isinstance(request, Retry):
            return verb_of(True, False, True, False)
        return verb_of(False, request.dead, request.count_attempt, request.delay_s > 0)

    def may_touch(self, seq: int) -> bool:
        return self.named is None or seq in self.named


@dataclass(slots=True)
class Delivery:
    """One item in one answer."""

    place: Place
    reference: str
    attempt: int
    lease: str
    operation: Operation
    repeated: bool


class Lives:
    def __init__(self, history: History) -> None:
        self.history = history
        self.births: list[Birth] = []
        self.birth_of: dict[str, Birth] = {}
        self.deliveries: dict[Place, list[Delivery]] = defaultdict(list)
        self.tenures: dict[str, Tenure] = {}
        self.settles: list[Settle] = []
        self.looks: list[tuple[Operation, Looked]] = []
        self._found: dict[int, tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]] = {}
        self._gather_births()
        self._gather_leases()
        self._gather_settles()
        self._place_the_unacknowledged()

    def rules(self, queue: str) -> QueueRules:
        return self.history.queues.get(queue, QueueRules())

    def _gather_births(self) -> None:
        by_identity: dict[tuple[str, str, int], Birth] = {}
        for op in self.history.operations:
            request = op.request
            if not isinstance(request, Produce) or isinstance(op.outcome, Refused):
                continue
            name = (op.queue, request.producer, request.sequence)
            birth = by_identity.get(name) if request.producer else None
            if birth is None:
                birth = Birth(op.queue, request.references, [])
                self.births.append(birth)
                for reference in request.references:
                    self.birth_of.setdefault(reference, birth)
                if request.producer:
                    by_identity[name] = birth
            birth.tries.append(op)
            if isinstance(op.outcome, Produced):
                for reference, place in places_of(op.queue, request, op.outcome):
                    birth.places.setdefault(reference, place)

    def _gather_leases(self) -> None:
        begun: dict[tuple[str, str, str], float] = {}
        for op in self.history.operations:
            if isinstance(op.request, Lease) and op.request.request_id:
                name = (op.queue, op.client, op.request.request_id)
                begun[name] = min(op.begin_s, begun.get(name, op.begin_s))
            elif isinstance(op.outcome, Looked):
                self.looks.append((op, op.outcome))
                self._found[id(op)] = (
                    frozenset((partition, seq) for partition, seq, _ in op.outcome.present),
                    frozenset((dead.partition, dead.seq) for dead in op.outcome.dead),
                )
        for op in sorted(self.history.operations, key=lambda op: op.end_s):
            if isinstance(op.outcome, Leased) and isinstance(op.request, Lease):
                first_try = begun.get((op.queue, op.client, op.request.request_id), op.begin_s)
                for grant in op.outcome.grants:
                    self._granted(op, op.request, grant, first_try)

    def _granted(self, op: Operation, request: Lease, grant: Grant, first_try: float) -> None:
        tenure = self.tenures.get(grant.lease)
        if tenure is None:
            tenure = self.tenures[grant.lease] = Tenure(
                grant.lease,
                (op.queue, grant.partition),
                request,
                [],
                timeout_s=request.lease_timeout_s or self.rules(op.queue).lease_timeout_s,
                begin_s=min(first_try, op.begin_s) if grant.repeated else op.begin_s,
                known_s=op.end_s,
            )
        if not tenure.operations or tenure.operations[-1] is not op:
            tenure.operations.append(op)
        tenure.known_s = min(tenure.known_s, op.end_s)
        if not grant.repeated:
            tenure.begin_s = max(tenure.begin_s, op.begin_s)
        for seq, reference in grant.items:
            tenure.items.setdefault(seq, grant.attempt)
            place = (op.queue, grant.partition, seq)
            self.deliveries[place].append(
                Delivery(
                    place=place,
                    reference=reference,
                    attempt=grant.attempt,
                    lease=grant.lease,
                    operation=op,
                    repeated=grant.repeated,
                )
            )

    def _gather_settles(self) -> None:
        for op in self.history.operations:
            if isinstance(op.outcome, Refused):
                continue
            if isinstance(op.request, Complete | Retry):
                for settle in settles_of(op):
                    self.settles.append(settle)
                    if tenure := self.tenures.get(settle.lease):
                        tenure.settles.append(settle)
            elif isinstance(op.request, Extend):
                known = dict(op.outcome.outcomes) if isinstance(op.outcome, Extended) else {}
                for lease in op.request.leases or known:
                    if tenure := self.tenures.get(lease):
                        tenure.extends.append((op, known.get(lease)))

    def _place_the_unacknowledged(self) -> None:
        """Items of a request with an unknown outcome have been stored if they were seen. The rest
        of the request is beside them, because the part for one partition is applied as a whole.
        """
        for place, reference in self.seen():
            birth = self.birth_of.get(reference)
            if birth is None or reference in birth.places:
                continue
            queue, partition, seq = place
            first = seq - birth.references.index(reference)
            for offset, other in enumerate(birth.references):
                birth.places.setdefault(other, (queue, partition, first + offset))

    def seen(self) -> Iterator[tuple[Place, str]]:
        """Every (place, reference) that was delivered, or found by a look."""
        for place, deliveries in self.deliveries.items():
            for delivery in deliveries:
                yield place, delivery.reference
        for op, looked in self.looks:
            for partition, seq, reference in looked.present:
                yield (op.queue, partition, seq), reference
            for dead in looked.dead:
                yield (op.queue, dead.partition, dead.seq), dead.reference

    def present(self, look: Operation) -> frozenset[tuple[int, int]]:
        """(partition, sequence) of what a look found in its queue."""
        return self._found[id(look)][0]

    def dead(self, look: Operation) -> frozenset[tuple[int, int]]:
        """(partition, sequence) of the dead letters that a look found."""
        return self._found[id(look)][1]

    def completes_of(self, lease: str, seq: int) -> list[Settle]:
        """Completes that name the item under the lease."""
        tenure = self.tenures.get(lease)
        if tenure is None:
            return []
        return [s for s in tenure.settles if s.completes and s.may_touch(seq)]


def places_of(queue: str, request: Produce, produced: Produced) -> Iterator[tuple[str, Place]]:
    for part in produced.parts:
        for offset, index in enumerate(part.indexes or range(len(request.references))):
            if offset < part.count and index < len(request.references):
                yield request.references[index], (queue, part.partition, part.first_seq + offset)


def settles_of(op: Operation) -> Iterator[Settle]:
    """One for each lease that the operation names; two when it was tried more than once."""
    assert isinstance(op.request, Complete | Retry)
    completes = isinstance(op.request, Complete)
    answered: dict[str, list[Outcome]] = defaultdict(list)
    if isinstance(op.outcome, Settled):
        for outcome in op.outcome.outcomes:
            answered[outcome.lease].append(outcome)
    for named in op.request.leases:
        if isinstance(op.outcome, Settled) and op.outcome.again:
            # Its earlier tries are calls of unknown outcome.
            seqs = spread(named.ranges) if named.ranges else None
            yield Settle(
                operation=op,
                completes=completes,
                lease=named.lease,
                named=seqs,
                done=[],
                repeated=[],
                lost=[],
                known=False,
            )
        yield _settle(op, completes, named, answered)


def _settle(
    op: Operation, completes: bool, named: Named, answered: dict[str, list[Outcome]]
) -> Settle:
    seqs = spread(named.ranges) if named.ranges else None
    if isinstance(op.outcome, Unknown):
        return Settle(
            operation=op,
            completes=completes,
            lease=named.lease,
            named=seqs,
            done=[],
            repeated=[],
            lost=[],
            known=False,
        )
    outcomes = answered[named.lease]
    outcome = outcomes.pop(0) if outcomes else Outcome(named.lease)
    return Settle(
        operation=op,
        completes=completes,
        lease=named.lease,
        named=seqs,
        done=spread(outcome.done),
        repeated=spread(outcome.repeated),
        lost=spread(outcome.lost),
        known=True,
    )
