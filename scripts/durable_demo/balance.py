"""The counts of a run, of three origins that must agree: the CSV says what happened to each flight,
the executions what they have returned, and the ledger which effects there were.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from scripts.durable_demo.flights import UNKNOWN, Flight
from scripts.durable_demo.shop import Effect, Journey

EARLY_SECONDS: Final = 0.5
"""How much too early a timer may fire, by the guarantees."""
_ALWAYS: Final = ("book", "charge", "depart")


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """What a run comes to. All of the second part are 0 if it is right."""

    landed: int
    diverted: int
    cancelled: int
    compensated: int
    """Cancelled flights whose seat was released, and whose fare was paid back."""
    charged_cents: int
    refunded_cents: int
    steps: int
    repeated: int
    """Effects that a kill has cut off from their record: their step ran once more."""

    lost: int
    """Flights without a result."""
    wrong: int
    """Flights whose result is not what the CSV says."""
    missing_effects: int
    """Steps of flights that the ledger does not have."""
    excess_effects: int
    """Steps in the ledger that the flight should not have, or has twice."""
    unrecorded: int
    """Steps of which not one receipt was recorded, or more than one."""
    run_again: int
    """Steps that began again behind their recorded attempt."""
    early: int
    """Flights that departed before their timer."""
    wrong_cents: int
    """Difference between the money that was kept and the fares of the flights that departed."""

    def problems(self) -> list[str]:
        """One sentence for each imbalance."""
        named = (
            (self.lost, "flights have no result"),
            (self.wrong, "results are not what the CSV says"),
            (self.missing_effects, "steps are not in the ledger"),
            (self.excess_effects, "steps are in the ledger that should not be there"),
            (self.unrecorded, "steps have not exactly one recorded receipt"),
            (self.run_again, "steps began again behind their record"),
            (self.early, "flights departed before their timer"),
            (self.cancelled - self.compensated, "sagas are not complete"),
            (self.wrong_cents, "cents are too many or too few"),
        )
        return [f"{count} {words}" for count, words in named if count]


def expected_outcome(flight: Flight) -> str:
    """What the CSV says."""
    if not flight.has_departed:
        return "cancelled"
    return "diverted" if flight.arrival == UNKNOWN else "landed"


def expected_steps(flight: Flight) -> tuple[str, ...]:
    return (*_ALWAYS, "land") if flight.has_departed else (*_ALWAYS, "refund", "release")


def balance(
    flights: Iterable[Flight],
    results: Mapping[int, Journey],
    undone: Mapping[int, list[str]],
    ledger: Iterable[Effect],
    *,
    day_ms: int,
) -> Balance:
    """`results` and `undone` are by row: what each execution returned, and the receipts in the
    journal for what was undone.
    """
    attempts: dict[str, list[Effect]] = defaultdict(list)
    by_row: dict[int, list[str]] = defaultdict(list)
    for effect in ledger:
        if effect.key not in attempts:
            by_row[effect.row].append(effect.key)
        attempts[effect.key].append(effect)
    found: Counter[str] = Counter()
    for flight in flights:
        outcome = expected_outcome(flight)
        found["fares"] += flight.cents * flight.has_departed
        result = results.get(flight.row)
        found["lost"] += result is None
        if result is not None:
            found[result.outcome] += 1
            found["wrong"] += result.outcome != outcome
        receipts = {*(result.receipts if result else ()), *undone.get(flight.row, ())}
        tries = [attempts[key] for key in by_row.pop(flight.row, [])]
        expected, there = Counter(expected_steps(flight)), Counter(one[0].step for one in tries)
        found["missing"] += (expected - there).total()
        found["excess"] += (there - expected).total()
        _count_attempts(found, tries, receipts)
        found["early"] += _is_early(tries, flight.days_ahead * day_ms / 1000)
        found["compensated"] += outcome == "cancelled" and {"refund", "release"} <= _recorded(
            tries, receipts
        )
    found["excess"] += sum(len(keys) for keys in by_row.values())
    return Balance(
        landed=found["landed"], diverted=found["diverted"], cancelled=found["cancelled"],
        compensated=found["compensated"], charged_cents=found["charge"],
        refunded_cents=found["refund"], steps=found["steps"], repeated=found["repeated"],
        lost=found["lost"], wrong=found["wrong"], missing_effects=found["missing"],
        excess_effects=found["excess"], unrecorded=found["unrecorded"],
        run_again=found["run_again"], early=found["early"],
        wrong_cents=abs(found["charge"] - found["refund"] - found["fares"]),
    )  # fmt: skip


def _count_attempts(found: Counter[str], tries: list[list[Effect]], receipts: set[str]) -> None:
    for one in tries:
        last = max(one, key=lambda effect: effect.begun)
        recorded = [effect for effect in one if effect.receipt in receipts]
        found["steps"] += 1
        found["repeated"] += len(one) - 1
        found["unrecorded"] += len(recorded) != 1
        found["run_again"] += bool(recorded) and last.receipt not in receipts
        # A bank that is asked twice with one key does it once.
        found[last.step] += last.cents


def _recorded(tries: list[list[Effect]], receipts: set[str]) -> set[str]:
    """Names of the steps that have a recorded receipt."""
    return {effect.step for one in tries for effect in one if effect.receipt in receipts}


def _is_early(tries: list[list[Effect]], wait_seconds: float) -> bool:
    """Whether the departure began before the charge and the timer's length."""
    charged = [effect.begun for one in tries for effect in one if effect.step == "charge"]
    departed = [effect.begun for one in tries for effect in one if effect.step == "depart"]
    if not charged or not departed:
        return False
    return min(departed) < min(charged) + wait_seconds - EARLY_SECONDS


def read_ledger(path: Path) -> list[Effect]:
    return [msgspec.json.decode(line, type=Effect) for line in path.read_bytes().splitlines()]
