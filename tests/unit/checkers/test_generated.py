"""Correct histories of every shape are accepted. A history with one changed answer is not."""

import random
from collections.abc import Callable, Iterator
from itertools import permutations, product
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.checkers.history import (
    Complete,
    Extended,
    Grant,
    History,
    Lease,
    Leased,
    Look,
    Looked,
    Named,
    Operation,
    Outcome,
    Produce,
    Produced,
    Refused,
    Settled,
    Unknown,
    ranges,
    spread,
)
from tests.checkers.linearizability import linearizable
from tests.checkers.lives import Lives
from tests.checkers.report import broken_rules, check
from tests.checkers.search import Verdict
from tests.unit.checkers.history_generator import Queue, Shape, generate

SHAPES = st.builds(
    Shape,
    seed=st.integers(0, 2**32),
    operations=st.integers(5, 120),
    clients=st.integers(1, 8),
    partitions=st.integers(1, 2),
    unknown=st.sampled_from([0.0, 0.05, 0.2, 0.4]),
    max_attempts=st.sampled_from([0, 0, 1, 3]),
    batch=st.integers(1, 6),
)
QUIET = st.builds(
    Shape,
    seed=st.integers(0, 2**32),
    operations=st.integers(20, 80),
    clients=st.integers(1, 6),
    unknown=st.just(0.0),
    refused=st.just(0.0),
    batch=st.integers(1, 6),
)


@settings(max_examples=150)
@given(SHAPES)
def test_right_histories_are_accepted(shape: Shape) -> None:
    report = check(generate(shape))
    assert report.violations == []
    assert report.undecided == []


def test_long_histories_are_decided() -> None:
    shape = Shape(operations=6_000, clients=12, partitions=2, unknown=0.05, batch=10)
    report = check(generate(shape))
    assert report.lines()[:-1] == []
    assert report.operations["produce"] > 1_000


def test_a_fault_deep_in_a_long_history_is_decided() -> None:
    history = generate(Shape(operations=3_000, clients=12, unknown=0.02, batch=10))
    grants = [
        op for op in history.operations if isinstance(op.outcome, Leased) and op.outcome.grants
    ]
    victim = grants[len(grants) // 2]
    assert isinstance(victim.outcome, Leased)
    grant = victim.outcome.grants[0]
    gone = next(
        spread(part.done)[0]
        for op in history.operations
        if isinstance(op.request, Complete) and isinstance(op.outcome, Settled)
        for part in op.outcome.outcomes
        if part.done
    )
    items = (*grant.items[1:], (gone, f"i{gone}"))
    victim.outcome = Leased((msgspec.structs.replace(grant, items=items),))
    (verdict,) = linearizable(Lives(history))
    assert verdict.verdict is Verdict.VIOLATION
    assert any(grant.lease in line for line in verdict.reasons)


# Mutations: each changes one answer so that no order can explain it.

Mutation = Callable[[random.Random, History], Iterator[tuple[int, Operation]]]


def _swap(op: Operation, outcome: object) -> Operation:
    changed = msgspec.structs.replace(op)
    changed.outcome = outcome  # type: ignore[assignment]
    return changed


def done_twice(_: random.Random, history: History) -> Iterator[tuple[int, Operation]]:
    """A repeated complete that is reported as the first one."""
    for n, op in enumerate(history.operations):
        if isinstance(op.outcome, Settled) and isinstance(op.request, Complete):
            (part,) = op.outcome.outcomes
            if part.repeated and not part.done and not part.lost:
                yield n, _swap(op, Settled((Outcome(part.lease, part.repeated),)))


def lost_though_held(_: random.Random, history: History) -> Iterator[tuple[int, Operation]]:
    for n, op in enumerate(history.operations):
        if isinstance(op.outcome, Settled):
            (part,) = op.outcome.outcomes
            done = spread(part.done)
            if done and op.end_s < _granted_s(history, part.lease) + 2.0:
                lost = ranges([done[0], *spread(part.lost)])
                outcome = Outcome(part.lease, ranges(done[1:]), part.repeated, lost)
                yield n, _swap(op, Settled((outcome,)))


def _granted_s(history: History, lease: str) -> float:
    for op in history.operations:
        if isinstance(op.outcome, Leased) and any(g.lease == lease for g in op.outcome.grants):
            return op.begin_s
    return 0.0


def other_attempt(chance: random.Random, history: History) -> Iterator[tuple[int, Operation]]:
    for n, op in enumerate(history.operations):
        if isinstance(op.outcome, Leased) and op.outcome.grants:
            first, *rest = op.outcome.grants
            by = chance.choice([1, 2])
            changed = msgspec.structs.replace(first, attempt=first.attempt + by)
            yield n, _swap(op, Leased((changed, *rest)))


def another_item(_: random.Random, history: History) -> Iterator[tuple[int, Operation]]:
    """A lease grants an item that is produced only after the lease call has ended."""
    produced = [op for op in history.operations if isinstance(op.outcome, Produced)]
    for n, op in enumerate(history.operations):
        if isinstance(op.outcome, Leased) and op.outcome.grants:
            first, *rest = op.outcome.grants
            for later in produced:
                if later.begin_s > op.end_s and isinstance(later.outcome, Produced):
                    seq = later.outcome.parts[0].first_seq
                    assert isinstance(later.request, Produce)
                    item = (seq, later.request.references[0])
                    changed = msgspec.structs.replace(first, items=(*first.items[1:], item))
                    yield n, _swap(op, Leased((changed, *rest)))
                    break


def other_lease_live(_: random.Random, history: History) -> Iterator[tuple[int, Operation]]:
    """A live lease is reported as lost, before it can have lapsed and without a settled item."""
    settled = {
        part.lease
        for op in history.operations
        if isinstance(op.outcome, Settled)
        for part in op.outcome.outcomes
    }
    for n, op in enumerate(history.operations):
        if isinstance(op.outcome, Extended):
            ((lease, live),) = op.outcome.outcomes
            young = op.end_s < _granted_s(history, lease) + 2.0
            if live and young and lease not in settled:
                yield n, _swap(op, Extended(((lease, False),)))


def item_vanished(_: random.Random, history: History) -> Iterator[tuple[int, Operation]]:
    for n, op in enumerate(history.operations):
        if isinstance(op.outcome, Looked) and op.outcome.present:
            yield n, _swap(op, Looked(op.outcome.present[1:], op.outcome.dead))


def item_came_back(_: random.Random, history: History) -> Iterator[tuple[int, Operation]]:
    completed = [
        (seq, f"i{seq}")
        for op in history.operations
        if isinstance(op.outcome, Settled) and isinstance(op.request, Complete)
        for part in op.outcome.outcomes
        for seq in spread(part.done)
    ]
    for n, op in enumerate(history.operations):
        if isinstance(op.outcome, Looked) and completed:
            present = (*op.outcome.present, (0, *completed[0]))
            yield n, _swap(op, Looked(present, op.outcome.dead))


def refused_but_done(_: random.Random, history: History) -> Iterator[tuple[int, Operation]]:
    """A produce whose items were leased is reported as not executed."""
    seen = {
        reference
        for op in history.operations
        if isinstance(op.outcome, Leased)
        for grant in op.outcome.grants
        for _, reference in grant.items
    }
    for n, op in enumerate(history.operations):
        if isinstance(op.request, Produce) and seen & set(op.request.references):
            yield n, _swap(op, Refused("NOT_LEADER"))


MUTATIONS: list[Mutation] = [
    done_twice,
    lost_though_held,
    other_attempt,
    another_item,
    other_lease_live,
    item_vanished,
    item_came_back,
    refused_but_done,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_one_change_is_found(mutation: Mutation) -> None:
    found = 0

    @settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
    @given(QUIET, st.integers(0, 2**32))
    def try_one(shape: Shape, seed: int) -> None:
        nonlocal found
        chance = random.Random(seed)
        history = generate(shape)
        changes = list(mutation(chance, history))
        assume(changes)
        number, changed = chance.choice(changes)
        history.operations[number] = changed
        verdicts = linearizable(Lives(history))
        assert any(verdict.verdict is Verdict.VIOLATION for verdict in verdicts)
        found += 1

    try_one()
    assert found


# Against brute force: every order of a tiny history, executed by the generator's own queue.


def explained(operations: list[Operation]) -> bool:
    """Whether some order explains the answers. Calls with an unknown outcome may be left out."""
    unknown = [n for n, op in enumerate(operations) if isinstance(op.outcome, Unknown)]
    for executed in product([False, True], repeat=len(unknown)):
        left = {n for n, there in zip(unknown, executed, strict=True) if not there}
        chosen = [n for n in range(len(operations)) if n not in left]
        for order in permutations(chosen):
            if _in_time(operations, order) and _replays(operations, order):
                return True
    return False


def _in_time(operations: list[Operation], order: tuple[int, ...]) -> bool:
    latest = float("-inf")
    for n in order:
        op = operations[n]
        latest = max(latest, op.begin_s)
        if not isinstance(op.outcome, Unknown) and op.end_s < latest:
            return False
    return True


def _replays(operations: list[Operation], order: tuple[int, ...]) -> bool:
    queue = Queue(0, 0)
    names: dict[str, str] = {}
    for n in order:
        op = operations[n]
        request = op.request
        if isinstance(request, Complete):
            (named,) = request.leases
            lease = names.get(named.lease)
            if lease is None:
                return False
            request = Complete((msgspec.structs.replace(named, lease=lease),))
        if isinstance(op.outcome, Leased):
            # Callers share the ready items: a caller may get fewer than it asked for.
            request = Lease(sum(len(grant.items) for grant in op.outcome.grants))
        result = queue.execute(op.client, request, 0.0)
        if isinstance(op.outcome, Unknown):
            continue
        if not _same(result, op.outcome, names):
            return False
    return True


def _same(result: object, expected: object, names: dict[str, str]) -> bool:
    """Whether the results are equal, except for lease ids. `names` learns the matching ids."""
    if isinstance(expected, Leased) and isinstance(result, Leased):
        if not expected.grants:
            # A lease may grant nothing. Its items then stay ready.
            return not result.grants
        if not result.grants:
            return False
        names[expected.grants[0].lease] = result.grants[0].lease
        return [g.items for g in expected.grants] == [g.items for g in result.grants]
    if isinstance(expected, Settled) and isinstance(result, Settled):
        return _fates(expected) == _fates(result)
    if isinstance(expected, Looked) and isinstance(result, Looked):
        return sorted(expected.present) == sorted(result.present)
    return expected == result


def _fates(settled: Settled) -> object:
    (part,) = settled.outcomes
    return part.done, part.repeated, part.lost


@st.composite
def tiny(draw: st.DrawFn) -> list[Operation]:
    """A queue's answers in one order, at instants that may fit only another order, or none."""
    queue = Queue(0, 0)
    operations: list[Operation] = []
    granted: list[Grant] = []
    for number in range(draw(st.integers(2, 6))):
        kind = draw(st.sampled_from(["produce", "lease", "complete", "look"]))
        request: Produce | Lease | Complete | Look = Look()
        if kind == "produce" or not number:
            request = Produce((f"i{queue.next_seq}",), "p", number + 1)
        elif kind == "lease" and queue.ready:
            request = Lease(draw(st.integers(1, 2)))
        elif kind == "complete" and granted:
            grant = draw(st.sampled_from(granted))
            named = ranges([draw(st.sampled_from([seq for seq, _ in grant.items]))])
            request = Complete((Named(grant.lease, named),))
        outcome = queue.execute("c", request, 0.0)
        if isinstance(outcome, Leased):
            granted += outcome.grants
        elif isinstance(request, Complete) and draw(st.integers(0, 5)) == 0:
            outcome = Unknown()
        begin = draw(st.integers(0, 7))
        end = begin + draw(st.integers(0, 3))
        operations.append(
            Operation(
                client="c", queue="work", begin_s=begin, end_s=end, request=request, outcome=outcome
            )
        )
    last = [op for op in operations if isinstance(op.request, Produce)][-1]
    if draw(st.booleans()):
        # Only the last produce: sequences may have gaps, which this queue never makes.
        last.outcome = Unknown()
    return operations


@settings(max_examples=400)
@given(tiny())
def test_the_checker_decides_as_brute_force_does(operations: list[Operation]) -> None:
    history = History(operations=operations, clock_uncertainty_s=0.0)
    verdicts = [verdict.verdict for verdict in linearizable(Lives(history))]
    assert Verdict.UNDECIDED not in verdicts
    accepted = all(verdict is Verdict.LINEARIZABLE for verdict in verdicts)
    assert accepted == explained(operations)


@settings(max_examples=200)
@given(tiny())
def test_no_rule_is_broken_by_what_brute_force_explains(operations: list[Operation]) -> None:
    assume(explained(operations))
    looked = [op for op in operations if isinstance(op.request, Look)]
    history = History(operations=operations, clock_uncertainty_s=0.0)
    broken = broken_rules(Lives(history))
    # The rule `nothing lost` is about a look at the end, not in the middle.
    assert [text for text in broken if not looked or not text.startswith("nothing lost")] == []


# Files.


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    history = generate(Shape(seed=5, operations=60))
    history.notes.append((1.0, "a node was killed"))
    history.write(tmp_path / "kept.history")
    assert History.read(tmp_path / "kept.history") == history


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"\x93\x01\x02\x03")
    with pytest.raises(msgspec.DecodeError):
        History.read(path)
