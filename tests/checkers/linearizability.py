"""Linearizability of each partition: its history of produce, lease, complete, retry, extend, look
and count against the sequential model of `partition_model`, by the search of `search`.

The checker decides the following for each partition on its own. Linearizability is local to
objects, and a call to several partitions is promised to be atomic in each, not across them.

- An item is leased only when it is there: produced, not held, not completed, not dead, and its time
  has come. Only a retry or a lapse explains that an item is there again.
- The parts of one request in one partition take effect together. Sequences follow the order of
  produces. A whole lease lapses at once, not before its timeout (from the begin of the lease or of
  its last extend, less the clock uncertainty), and after that nothing is done under it.
- Each complete and retry is done, repeated or lost exactly as the lease's state requires. Extends
  distinguish live leases from ended ones.
- Attempts count by one, and not beyond the limit.
- Items that were never leased are leased in the order of their sequences.
- Looks and counts show everything that was answered before they began.

A call with an unknown outcome may take effect at any later point, or never. Items may be leased for
a call that never learns of it (an unknown outcome, or an answer with `unseen` items). Such leases
are not followed one by one. They explain attempts that no client saw. They also explain that as
many items are skipped as they could hold, for as long as the history's `hold_s`.

The checker does not decide:

- whether a lease with no items was right (it promises only to have looked);
- which of the re-leased items comes first (clients do not see the instant of a lapse);
- expiry, dedup keys, redrive, clear;
- what is forgotten (outcomes of leases after 15 minutes, the hundredth release);
- the content of items (`safety` compares references).

A search that reaches its budget is UNDECIDED: not a violation, and not a pass either. When the
whole partition is not explained, the items at which the search is stuck (all items, when it is
undecided) are searched alone, without the order. That is quick, decides for itself, and gives a
short reason.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.checkers.lives import Home, Lives
from tests.checkers.partition_model import PartitionModel
from tests.checkers.partition_steps import (
    End,
    Maybe,
    PartitionSteps,
    Put,
    Show,
    Step,
    Take,
    mark_solo,
    partition_steps,
)
from tests.checkers.search import STEPS_MAX, Answer, Call, Verdict, search

ITEMS_BLAMED_MAX = 200
ITEM_STEPS_MAX = 50_000
STEPS_FIRST = 10
LINES_MAX = 20


@dataclass(slots=True)
class PartitionVerdict:
    """`reasons`: why it is not linearizable, or where the search was when it gave up."""

    home: Home
    verdict: Verdict
    calls: int
    steps: int
    reasons: list[str] = field(default_factory=list)


def linearizable(lives: Lives, *, steps_max: int = STEPS_MAX) -> list[PartitionVerdict]:
    """One verdict for each partition of the history."""
    return [
        check_partition(
            steps,
            steps_max=steps_max,
            keeps_dead=bool(lives.rules(steps.home[0]).dead_queue),
        )
        for steps in partition_steps(lives)
    ]


def check_partition(
    steps: PartitionSteps, *, steps_max: int = STEPS_MAX, keeps_dead: bool = True
) -> PartitionVerdict:
    def run(part: PartitionSteps, most: int) -> Answer:
        return search(part.calls, PartitionModel(part, keeps_dead=keeps_dead), steps_max=most)

    verdict = PartitionVerdict(steps.home, Verdict.LINEARIZABLE, len(steps.calls), 0)
    queue, partition = steps.home
    # A correct history rarely needs more than a few steps for each call.
    first = min(steps_max, STEPS_FIRST * len(steps.calls) + ITEM_STEPS_MAX)
    for most in (first, steps_max):
        answer = run(steps, most)
        verdict.verdict = answer.verdict
        verdict.steps += answer.steps
        if answer.verdict is Verdict.LINEARIZABLE:
            return verdict
        items = _Items(steps)
        for seq in _blamed(steps, answer, everything=most == steps_max):
            alone = items.only(seq)
            if run(alone, ITEM_STEPS_MAX).verdict is Verdict.VIOLATION:
                verdict.verdict = Verdict.VIOLATION
                verdict.reasons.append(f"{queue} {partition}-{seq}: no order explains")
                verdict.reasons += _lines(alone, range(len(alone.calls)))
                return verdict
        verdict.reasons = [
            f"{queue} {partition}: after {answer.placed} of {len(steps.calls)} calls none of these "
            "can come next",
            *_lines(steps, answer.stuck),
        ]
        if answer.verdict is Verdict.VIOLATION:
            break
    return verdict


def _blamed(steps: PartitionSteps, answer: Answer, *, everything: bool) -> list[int]:
    """Items that may be the reason, the most likely first; all items when `everything` is set."""
    found: dict[int, None] = {}
    for number in answer.stuck:
        found.update(dict.fromkeys(_items(steps.calls[number].action)))
    blamed = dict.fromkeys(list(found)[:ITEMS_BLAMED_MAX])
    if answer.verdict is Verdict.UNDECIDED and everything:
        for call in steps.calls:
            blamed.update(dict.fromkeys(_items(call.action)))
    return list(blamed)


def _items(step: Step) -> Iterator[int]:
    if isinstance(step, Put):
        yield from range(step.first_seq, step.first_seq + step.count)
    elif isinstance(step, Take):
        yield from (seq for seq, _ in step.items)
    elif isinstance(step, End):
        for _, *outcomes, _ in step.parts:
            for seqs in outcomes:
                yield from seqs


def _lines(steps: PartitionSteps, numbers: "range | list[int]") -> Iterator[str]:
    shown = sorted(numbers, key=lambda n: steps.calls[n].begin)
    for number in shown[:LINES_MAX]:
        call, op = steps.calls[number], steps.operations[number]
        yield f"  {call.begin:.4f}-{call.end:.4f} {op.client if op else '-'}: {call.action}"
    if len(shown) > LINES_MAX:
        yield f"  … and {len(shown) - LINES_MAX} more"


class _Items:
    """The histories of single items, taken out of that of a partition."""

    def __init__(self, steps: PartitionSteps) -> None:
        self._steps = steps
        self._calls: dict[int, list[int]] = defaultdict(list)
        self._looks: list[int] = []
        self._maybes: dict[int, list[Maybe]] = defaultdict(list)
        for number, call in enumerate(steps.calls):
            if isinstance(call.action, Show):
                self._looks.append(number)
            for seq in set(_items(call.action)):
                self._calls[seq].append(number)
        for maybe in steps.maybes:
            for seq in maybe.seqs:
                self._maybes[seq].append(replace(maybe, seqs=(seq,)))

    def only(self, seq: int) -> PartitionSteps:
        """Leaves out what depends on other items: order, extends, counts."""
        steps = self._steps
        alone = PartitionSteps(
            steps.home,
            steps.max_attempts,
            maybes=self._maybes.get(seq, []),
            unseen_from_s=steps.unseen_from_s,
            unseen_lapse_s=steps.unseen_lapse_s,
        )
        for number in [*self._calls.get(seq, ()), *self._looks]:
            call = steps.calls[number]
            step = _only(call.action, seq)
            if step is not None:
                alone.calls.append(Call(call.begin, call.end, step))
                alone.operations.append(steps.operations[number])
        mark_solo(alone)
        return alone


def _only(step: Step, seq: int) -> Step | None:
    if isinstance(step, Put):
        there = step.first_seq <= seq < step.first_seq + step.count
        return Put(seq, 1, step.due_s) if there else None
    if isinstance(step, Take):
        items = tuple(item for item in step.items if item[0] == seq)
        return replace(step, items=items, skips=1) if items else None
    if isinstance(step, End):
        parts = tuple(
            (
                lease,
                tuple(s for s in done if s == seq),
                tuple(s for s in repeated if s == seq),
                tuple(s for s in lost if s == seq),
                False,
            )
            for lease, done, repeated, lost, _ in step.parts
            if seq in (*done, *repeated, *lost)
        )
        return End(step.kind, parts) if parts else None
    if isinstance(step, Show):
        return Show(step.present & {seq}, step.dead & {seq})
    return None
