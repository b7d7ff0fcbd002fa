"""All checks of one history, and what they found."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.checkers import order, repeats, safety
from tests.checkers.history import History, Refused, Unknown
from tests.checkers.linearizability import linearizable
from tests.checkers.lives import Lives
from tests.checkers.search import STEPS_MAX, Verdict

Check = Callable[[Lives], Iterable[str]]

CHECKS: dict[str, Check] = {
    "nothing lost": safety.nothing_lost,
    "stored once": safety.stored_once,
    "delivered after produced": safety.delivered_after_produced,
    "one lease at a time": safety.one_lease_at_a_time,
    "ended leases are refused": safety.ended_leases_are_refused,
    "completed is final": safety.completed_is_final,
    "attempts": order.attempts,
    "dead letters": order.dead_letters,
    "first in, first out": order.first_in_first_out,
    "produced in order": order.produced_in_order,
    "one effect of produces": repeats.one_effect_of_produces,
    "one effect of leases": repeats.one_effect_of_leases,
    "one effect of settles": repeats.one_effect_of_settles,
    "repeats have a first": repeats.repeats_have_a_first,
    "every item is answered": repeats.every_item_is_answered,
}


@dataclass(slots=True)
class Report:
    """`violations` are of certain faults; `undecided` names partitions for which the budget of the
    linearizability search was too small. A pass has neither.
    """

    violations: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    partitions: int = 0
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return not self.violations and not self.undecided

    def lines(self) -> list[str]:
        """Lines for human readers; the last one is the summary."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.operations.items()))
        return [
            *self.violations,
            *self.undecided,
            f"checked in {self.seconds:.1f} s: {counts or 'no operations'}; {self.partitions} "
            f"partitions, {len(self.violations)} violations, {len(self.undecided)} undecided",
        ]


def broken_rules(lives: Lives) -> list[str]:
    """Violations that the checks without search find."""
    return [f"{name}: {text}" for name, check in CHECKS.items() for text in check(lives)]


def check(history: History, *, steps_max: int = STEPS_MAX) -> Report:
    """Runs every check of a history. `nothing lost` covers queues with a look at the end."""
    started = time.perf_counter()
    report = Report()
    for op in history.operations:
        outcome = type(op.outcome) if isinstance(op.outcome, Refused | Unknown) else None
        how = f" {outcome.__name__.lower()}" if outcome else ""
        report.operations[f"{type(op.request).__name__.lower()}{how}"] += 1
    lives = Lives(history)
    report.violations = broken_rules(lives)
    for verdict in linearizable(lives, steps_max=steps_max):
        report.partitions += 1
        text = "\n".join([f"linearizability: {verdict.verdict.value}", *verdict.reasons])
        if verdict.verdict is Verdict.VIOLATION:
            report.violations.append(text)
        elif verdict.verdict is Verdict.UNDECIDED:
            report.undecided.append(text)
    report.seconds = time.perf_counter() - started
    return report
