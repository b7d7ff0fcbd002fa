"""The checker of breakers finds what it is there for, and nothing else."""

from typing import Any

import pytest

from querator.model.commands import (
    Complete,
    Configure,
    Done,
    Expire,
    HalfOpen,
    Lease,
    LeasedSegment,
    LeaseGrant,
    LeaseResult,
    Retry,
    SetBreaker,
    SettledLease,
    SettleResult,
)
from querator.model.queues import BreakerState
from querator.partition.breaker_rows import BreakerRow
from tests.simulation.whole.breakers import AppliedEntry, BreakerChecker
from tests.simulation.whole.breaking import BREAKER
from tests.unit.partition.partition_log import settings

G = 5
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
START_MS = 100_000


def row(state: BreakerState = CLOSED, **changes: Any) -> BreakerRow:
    return BreakerRow(state, **changes)


class Log:
    """The entries of a partition, each with one command."""

    def __init__(self) -> None:
        self.checker = BreakerChecker()
        self.now_ms = START_MS
        self.leases: set[int] = set()
        self.entry(Configure(1, settings(breaker=BREAKER)), Done(1), row())

    def entry(self, command: Any, result: Any, after: BreakerRow | None) -> None:
        entry = AppliedEntry(self.now_ms, [command], [result], self.leases, after)
        self.checker.applied(G, entry)

    def lease(self, number: int, items: int, after: BreakerRow, *, repeated: bool = False) -> None:
        self.leases.add(number)
        segment = LeasedSegment(1, (1 << items) - 1, 1, items, 10)
        grant = LeaseGrant(number, 0, (segment,), repeated)
        self.entry(Lease(()), LeaseResult((grant,)), after)

    def settle(self, number: int, items: int, after: BreakerRow, **how: Any) -> None:
        """`how`: the fields of a retry; none: a complete."""
        command = Retry((), **how) if how else Complete(())
        self.leases.discard(number)
        outcome = SettledLease(number, done=((1, items),))
        self.entry(command, SettleResult((outcome,)), after)

    def opened(self) -> "Log":
        """Three items have failed."""
        self.lease(1, 3, row())
        self.settle(1, 3, row(OPEN, until_ms=START_MS + 1_000), count_attempt=True)
        return self

    def half_opened(self) -> "Log":
        self.opened()
        self.now_ms += 1_000
        self.entry(HalfOpen(), Done(1), row(HALF_OPEN))
        return self

    @property
    def found(self) -> list[str]:
        return self.checker.found


def test_a_breaker_that_obeys_is_right():
    log = Log().half_opened()
    for number in (2, 3):
        log.lease(number, 1, row(HALF_OPEN, probe=number, passed=number - 2))
        log.settle(number, 1, row(HALF_OPEN, passed=1) if number == 2 else row())
    log.lease(4, 9, row())
    assert log.found == []
    assert log.checker.opened == 1


def test_leases_while_it_is_open_are_found():
    log = Log().opened()
    log.lease(2, 4, row(OPEN, until_ms=START_MS + 1_000))
    assert log.found == [f"group {G}: 4 items were leased while the breaker is open, and 0 may be"]


def test_two_items_that_are_tried_at_once_are_found():
    log = Log().half_opened()
    log.lease(2, 1, row(HALF_OPEN, probe=2))
    log.lease(3, 1, row(HALF_OPEN, probe=3))
    assert "1 items were leased while the breaker is half_open, and 0 may be" in log.found[0]


def test_a_batch_while_single_items_are_tried_is_found():
    log = Log().half_opened()
    log.lease(2, 2, row(HALF_OPEN, probe=2))
    assert "2 items were leased while the breaker is half_open, and 1 may be" in log.found[0]


def test_a_repeated_grant_is_no_lease():
    log = Log()
    log.lease(1, 3, row())
    log.lease(2, 2, row())
    log.settle(1, 3, row(OPEN, until_ms=START_MS + 1_000), dead=True)
    log.lease(2, 2, row(OPEN, until_ms=START_MS + 1_000), repeated=True)
    assert log.found == []


def test_a_breaker_that_does_not_open_is_found():
    log = Log()
    log.lease(1, 3, row())
    log.settle(1, 3, row(), count_attempt=True)
    assert log.found


def test_a_breaker_that_opens_for_released_items_is_found():
    log = Log()
    log.lease(1, 3, row())
    log.settle(1, 3, row(OPEN, until_ms=START_MS + 1_000), count_attempt=False)
    assert log.found


@pytest.mark.parametrize(("after", "right"), [(row(OPEN, until_ms=START_MS + 1_000), True),
                                              (row(), False)])  # fmt: skip
def test_lapsed_leases_are_failures(after: BreakerRow, right: bool):
    log = Log()
    log.lease(1, 3, row())
    log.leases.clear()
    log.entry(Expire(), Done(1), after)
    assert (log.found == []) is right


def test_a_breaker_that_stays_open_when_it_is_asked_is_found():
    log = Log().opened()
    log.now_ms += 1_000
    log.entry(HalfOpen(), Done(0), row(OPEN, until_ms=START_MS + 1_000))
    assert log.found


def test_a_breaker_that_tries_too_early_is_found():
    log = Log().opened()
    log.now_ms += 999
    log.entry(HalfOpen(), Done(1), row(HALF_OPEN))
    assert log.found


def test_late_outcomes_must_not_count():
    log = Log()
    log.lease(1, 3, row())
    log.lease(2, 9, row())
    log.settle(1, 3, row(OPEN, until_ms=START_MS + 1_000), dead=True)
    log.entry(SetBreaker(open=False), Done(1), row(first_lease=3))
    log.settle(2, 9, row(first_lease=3), dead=True)
    assert log.found == []


def test_an_operator_changes_the_state():
    log = Log()
    log.entry(SetBreaker(open=True), Done(1), row(OPEN, until_ms=START_MS + 1_000))
    log.entry(SetBreaker(open=False), Done(1), row())
    assert log.found == []
    log.entry(SetBreaker(open=True), Done(1), row())
    assert log.found
