"""A history split into the calls on each partition: the input of the linearizability checker.

Each operation becomes at most one step per partition, with the operation's interval; so the parts
of an operation that goes to several partitions are ordered independently, as the product promises.
Refused operations are left out. Intervals are narrowed where that follows from the history alone:
sequences are given in the order of produces, so a produce comes before those with later sequences,
and before every step that shows its items.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.checkers.history import (
    Complete,
    Counted,
    Extend,
    Operation,
    Retry,
    ranges,
)
from tests.checkers.lives import Birth, Home, Lives, Settle, Tenure, verb_of
from tests.checkers.order import Unseen
from tests.checkers.search import Call


@dataclass(slots=True, frozen=True)
class Put:
    first_seq: int
    count: int
    due_s: float
    """The items are not leased before; minus infinity for items that are ready at once."""

    def __str__(self) -> str:
        return f"produce {self.first_seq}..{self.first_seq + self.count - 1}"


@dataclass(slots=True, frozen=True)
class Take:
    """A lease answer: `items` are (sequence, attempt). `lapse_s`: the lease does not lapse before.
    `repeats`: what the lease still holds, for a lease that was granted by an earlier step.
    """

    lease: str
    items: tuple[tuple[int, int], ...]
    most: int
    lapse_s: float
    skips: int
    repeats: bool = False

    def __str__(self) -> str:
        verb = "repeat lease" if self.repeats else "lease"
        items = ", ".join(f"{seq} (attempt {attempt})" for seq, attempt in self.items[:8])
        return f"{verb} {self.lease}: {items}{' …' if len(self.items) > 8 else ''}"


VERBS = frozenset(
    verb_of(completes, dead, counted, later)
    for completes in (False, True)
    for dead in (False, True)
    for counted in (False, True)
    for later in (False, True)
)


@dataclass(slots=True, frozen=True)
class Kind:
    """What a complete or retry does to an item. `due_s`: a retried item is not leased before."""

    completes: bool
    dead: bool = False
    counted: bool = True
    due_s: float = float("-inf")

    @property
    def verb(self) -> str:
        """The verb that a call must have to repeat this one; an item's fate under its lease."""
        return verb_of(self.completes, self.dead, self.counted, self.due_s != float("-inf"))

    def __str__(self) -> str:
        return "complete" if self.completes else "reject" if self.dead else "retry"


@dataclass(slots=True, frozen=True)
class End:
    """The answer to a complete or retry; `parts` are (lease, done, repeated, lost, whole): `whole`
    when the call named all that the lease held.
    """

    kind: Kind
    parts: tuple[
        tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], bool],
        ...,
    ]

    def __str__(self) -> str:
        texts = [
            f"{lease}: done {ranges(done)}, repeated {ranges(repeated)}, lost {ranges(lost)}"
            for lease, done, repeated, lost, _ in self.parts
        ]
        return f"{self.kind} {'; '.join(texts)}"


@dataclass(slots=True, frozen=True)
class Prolong:
    """The answer to an extend: (lease, whether it is live, the instant before which it does not
    lapse).
    """

    leases: tuple[tuple[str, bool, float], ...]

    def __str__(self) -> str:
        return f"extend {', '.join(f'{lease}: {live}' for lease, live, _ in self.leases)}"


@dataclass(slots=True, frozen=True)
class Show:
    """What a full look found."""

    present: frozenset[int]
    dead: frozenset[int]

    def __str__(self) -> str:
        return f"look: {len(self.present)} items, {len(self.dead)} dead letters"


@dataclass(slots=True, frozen=True)
class Tell:
    """Counters, as they were read. `unseen_items`: items of unacknowledged produces that no client
    has seen, which may be counted all the same.
    """

    produced: int
    completed: int
    unseen_items: int

    def __str__(self) -> str:
        return f"count: {self.produced} produced, {self.completed} completed"


Step = Put | Take | End | Prolong | Show | Tell


@dataclass(slots=True, frozen=True)
class Maybe:
    """A complete or retry whose outcome is unknown: it may take effect at any instant from
    `begin_s` on, or never.
    """

    begin_s: float
    kind: Kind
    lease: str
    seqs: tuple[int, ...]


@dataclass(slots=True)
class PartitionSteps:
    home: Home
    max_attempts: int = 0
    calls: list[Call[Step]] = field(default_factory=list)
    operations: list[Operation | None] = field(default_factory=list)
    """The operation of each call; None: several operations."""
    maybes: list[Maybe] = field(default_factory=list)
    unseen_from_s: float = float("inf")
    """From this instant on items may be leased unseen."""
    unseen_lapse_s: float = 0.0
    """Items that are leased unseen do not lapse earlier than this long after."""

    def add(self, begin_s: float, end_s: float, step: Step, operation: Operation | None) -> None:
        self.calls.append(Call(begin_s, end_s, step))
        self.operations.append(operation)


def partition_steps(lives: Lives) -> list[PartitionSteps]:
    """Steps of each partition that was seen, in order of its name."""
    return _Cutter(lives).cut()


class _Cutter:
    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._skew_s = lives.history.clock_uncertainty_s
        self._unseen = Unseen(lives)
        self._homes: dict[Home, PartitionSteps] = {}
        self._shown_s: dict[Home, dict[int, float]] = defaultdict(dict)
        """When each item was certainly there for the first time."""

    def cut(self) -> list[PartitionSteps]:
        self._note_sightings()
        self._puts()
        for tenure in self._lives.tenures.values():
            self._takes(tenure)
        self._ends()
        self._prolongs()
        self._looks_and_counts()
        found = [self._homes[home] for home in sorted(self._homes)]
        for steps in found:
            mark_solo(steps)
        return found

    def _home(self, home: Home) -> PartitionSteps:
        steps = self._homes.get(home)
        if steps is None:
            steps = self._homes[home] = PartitionSteps(
                home,
                self._lives.rules(home[0]).max_attempts,
                unseen_from_s=self._unseen.first_s(home[0]),
                unseen_lapse_s=self._unseen.timeout_s(home[0]) - self._skew_s,
            )
        return steps

    def _note_sightings(self) -> None:
        for place, deliveries in self._lives.deliveries.items():
            queue, partition, seq = place
            shown_s = min(delivery.operation.end_s for delivery in deliveries)
            self._shown_s[queue, partition][seq] = shown_s
        for op, _ in self._lives.looks:
            for partition, seq in self._lives.present(op) | self._lives.dead(op):
                shown = self._shown_s[op.queue, partition]
                shown[seq] = min(op.end_s, shown.get(seq, op.end_s))

    def _puts(self) -> None:
        pieces: dict[Home, list[tuple[int, int, Birth]]] = defaultdict(list)
        for birth in self._lives.births:
            seqs: dict[Home, list[int]] = defaultdict(list)
            for queue, partition, seq in birth.places.values():
                seqs[queue, partition].append(seq)
            for home, there in seqs.items():
                pieces[home] += [(first, count, birth) for first, count in ranges(there)]
        for home, births in pieces.items():
            self._puts_of(home, sorted(births, key=lambda piece: piece[0]))

    def _puts_of(self, home: Home, births: list[tuple[int, int, Birth]]) -> None:
        shown = self._shown_s[home]
        end_s = float("inf")
        ends: list[float] = []
        for first, count, birth in reversed(births):
            seen_s = min(
                (shown[seq] for seq in range(first, first + count) if seq in shown),
                default=float("inf"),
            )
            end_s = min(end_s, birth.known_s, seen_s)
            ends.append(end_s)
        begin_s = float("-inf")
        for (first, count, birth), end_s in zip(births, reversed(ends), strict=True):
            begin_s = max(begin_s, birth.begin_s)
            delay_s = birth.request.delay_s
            due_s = birth.begin_s + delay_s - self._skew_s if delay_s else float("-inf")
            operation = birth.tries[0] if len(birth.tries) == 1 else None
            self._home(home).add(begin_s, end_s, Put(first, count, due_s), operation)

    def _takes(self, tenure: Tenure) -> None:
        steps = self._home(tenure.home)
        lapse_s = tenure.begin_s + tenure.timeout_s - self._skew_s
        for number, op in enumerate(tenure.operations):
            items = tuple(_granted_by(op, tenure))
            begin_s = op.begin_s if number else tenure.begin_s
            skips = self._unseen.most(tenure.home[0], begin_s, op.end_s)
            take = Take(
                tenure.lease,
                items,
                tenure.request.max_items,
                lapse_s,
                skips,
                repeats=number > 0,
            )
            steps.add(begin_s, op.end_s, take, op)

    def _ends(self) -> None:
        known: dict[tuple[int, Home], list[Settle]] = defaultdict(list)
        for settle in self._lives.settles:
            tenure = self._lives.tenures.get(settle.lease)
            if tenure is None:
                continue
            if settle.known:
                known[id(settle.operation), tenure.home].append(settle)
            else:
                seqs = tuple(tenure.items) if settle.named is None else tuple(settle.named)
                kind = self._kind(settle.operation)
                self._home(tenure.home).maybes.append(
                    Maybe(settle.operation.begin_s, kind, settle.lease, seqs)
                )
        for (_, home), settles in known.items():
            op = settles[0].operation
            parts = tuple(
                (s.lease, tuple(s.done), tuple(s.repeated), tuple(s.lost), s.named is None)
                for s in settles
            )
            self._home(home).add(op.begin_s, op.end_s, End(self._kind(op), parts), op)

    def _kind(self, op: Operation) -> Kind:
        request = op.request
        if isinstance(request, Complete):
            return Kind(completes=True)
        assert isinstance(request, Retry)
        due_s = float("-inf")
        if request.delay_s:
            due_s = op.begin_s + request.delay_s - self._skew_s
        return Kind(False, request.dead, request.count_attempt, due_s)

    def _prolongs(self) -> None:
        by_op: dict[tuple[int, Home], tuple[Operation, list[tuple[str, bool, float]]]] = {}
        for tenure in self._lives.tenures.values():
            for op, live in tenure.extends:
                assert isinstance(op.request, Extend)
                if live is None:
                    continue
                default_s = self._lives.rules(op.queue).lease_timeout_s
                timeout_s = op.request.lease_timeout_s or default_s
                entry = by_op.setdefault((id(op), tenure.home), (op, []))
                entry[1].append((tenure.lease, live, op.begin_s + timeout_s - self._skew_s))
        for (_, home), (op, leases) in by_op.items():
            self._home(home).add(op.begin_s, op.end_s, Prolong(tuple(leases)), op)

    def _looks_and_counts(self) -> None:
        for op, looked in self._lives.looks:
            present: dict[int, set[int]] = defaultdict(set)
            dead: dict[int, set[int]] = defaultdict(set)
            for partition, seq, _ in looked.present:
                present[partition].add(seq)
            for letter in looked.dead:
                dead[letter.partition].add(letter.seq)
            for home in [home for home in self._homes if home[0] == op.queue]:
                show = Show(frozenset(present[home[1]]), frozenset(dead[home[1]]))
                self._home(home).add(op.begin_s, op.end_s, show, op)
        counts = [op for op in self._lives.history.operations if isinstance(op.outcome, Counted)]
        if not counts:
            return
        unplaced: dict[str, int] = defaultdict(int)
        for birth in self._lives.births:
            unplaced[birth.queue] += len(birth.references) - len(birth.places)
        for op in counts:
            assert isinstance(op.outcome, Counted)
            for partition, produced, completed in op.outcome.partitions:
                tell = Tell(produced, completed, unplaced[op.queue])
                self._home((op.queue, partition)).add(op.begin_s, op.end_s, tell, op)


def _granted_by(op: Operation, tenure: Tenure) -> Iterator[tuple[int, int]]:
    for grant in getattr(op.outcome, "grants", ()):
        if grant.lease == tenure.lease:
            for seq, _ in grant.items:
                yield seq, grant.attempt


def mark_solo(steps: PartitionSteps) -> None:
    """Marks calls that share no item and no lease with a call that overlaps them in time.

    A lease also shares the earlier leases of its items, because it may need their lapse. A look or
    a count shares everything.
    """
    leases_of: dict[int, set[str]] = defaultdict(set)
    for call in steps.calls:
        if isinstance(call.action, Take):
            for seq, _ in call.action.items:
                leases_of[seq].add(call.action.lease)
    touched: dict[object, list[int]] = defaultdict(list)
    for number, call in enumerate(steps.calls):
        call.solo = not _orders_others(call.action)
        for thing in _footprint(call.action, leases_of):
            touched[thing].append(number)
    for numbers in touched.values():
        _mark_overlaps(steps.calls, numbers)
    reads = [n for n, call in enumerate(steps.calls) if isinstance(call.action, Show | Tell)]
    for read in reads:
        for call in steps.calls:
            if call.begin <= steps.calls[read].end and steps.calls[read].begin <= call.end:
                call.solo = False


def _orders_others(step: Step) -> bool:
    """Whether the step affects the order of others. Reads see everything. A release puts items
    before others, which then may not be leased first.
    """
    return isinstance(step, Show | Tell) or (
        isinstance(step, End) and not (step.kind.completes or step.kind.counted)
    )


def _footprint(step: Step, leases_of: dict[int, set[str]]) -> Iterator[object]:
    if isinstance(step, Put):
        yield from range(step.first_seq, step.first_seq + step.count)
    elif isinstance(step, Take):
        yield step.lease
        for seq, _ in step.items:
            yield seq
            yield from leases_of[seq] - {step.lease}
    elif isinstance(step, End):
        for lease, done, repeated, lost, _ in step.parts:
            yield lease
            yield from (*done, *repeated, *lost)
    elif isinstance(step, Prolong):
        for lease, _, _ in step.leases:
            yield lease


def _mark_overlaps(calls: list[Call[Step]], numbers: list[int]) -> None:
    numbers = sorted(set(numbers), key=lambda n: calls[n].begin)
    if len(numbers) < 2:
        return
    last, until_s = numbers[0], calls[numbers[0]].end
    for n in numbers[1:]:
        if calls[n].begin <= until_s:
            calls[n].solo = calls[last].solo = False
        if calls[n].end > until_s:
            last, until_s = n, calls[n].end
