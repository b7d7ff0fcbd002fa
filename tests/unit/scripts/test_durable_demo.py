"""The counts of `make durable-demo` find each thing that may be wrong."""

from collections.abc import Callable

import msgspec
import pytest

from scripts.durable_demo.balance import Balance, balance
from scripts.durable_demo.flights import DAY_MS, Flight
from scripts.durable_demo.shop import Effect, Journey

FLOWN = Flight(row=0, date="2013-01-01", name="UA 1", miles=100, has_departed=True, arrival="830")
LOST = Flight(row=1, date="2013-01-01", name="UA 2", miles=50, has_departed=False, arrival="NA")
ELSEWHERE = msgspec.structs.replace(FLOWN, row=2, arrival="NA")
FLIGHTS = [FLOWN, LOST, ELSEWHERE]


class Books:
    """A run in which nothing went wrong."""

    def __init__(self) -> None:
        self.ledger: list[Effect] = []
        self.results: dict[int, Journey] = {}
        self.undone: dict[int, list[str]] = {}
        self.add(FLOWN, "landed", "book", "charge", "depart", "land")
        self.add(LOST, "cancelled", "book", "charge", "depart")
        self.undone[1] = [self.effect(LOST, "refund"), self.effect(LOST, "release")]
        self.add(ELSEWHERE, "diverted", "book", "charge", "depart", "land")

    def add(self, flight: Flight, outcome: str, *steps: str) -> None:
        receipts = [self.effect(flight, step) for step in steps]
        self.results[flight.row] = Journey(outcome, receipts)

    def effect(self, flight: Flight, step: str, *, at: float | None = None) -> str:
        """Adds an attempt, 10 seconds behind the one before; returns its receipt."""
        number = len(self.ledger)
        cents = flight.cents if step in ("charge", "refund") else 0
        begun = 10.0 * number if at is None else at
        receipt = f"receipt {number}"
        key = f"{flight.id}/{step}"
        self.ledger.append(Effect(step, flight.row, key, receipt, cents, begun))
        return receipt

    def count(self) -> Balance:
        return balance(FLIGHTS, self.results, self.undone, self.ledger, day_ms=DAY_MS)


def test_a_run_that_balances():
    found = Books().count()
    assert found.problems() == []
    assert (found.landed, found.diverted, found.cancelled, found.compensated) == (1, 1, 1, 1)
    assert found.charged_cents == 6_200 + 5_600 + 6_200
    assert found.refunded_cents == 5_600
    assert (found.steps, found.repeated) == (13, 0)


def test_an_attempt_that_came_before_the_record_is_no_problem():
    books = Books()
    books.effect(FLOWN, "charge", at=9.0)
    found = books.count()
    assert found.problems() == []
    assert found.repeated == 1
    assert found.charged_cents == 18_000


def without(step: str) -> Callable[[Books], None]:
    def change(books: Books) -> None:
        books.ledger = [one for one in books.ledger if (one.row, one.step) != (1, step)]

    return change


def run_again(books: Books) -> None:
    books.effect(FLOWN, "charge", at=500.0)


def lose(books: Books) -> None:
    del books.results[0]


def lie(books: Books) -> None:
    books.results[0] = Journey("cancelled", books.results[0].receipts)


def forget_undoing(books: Books) -> None:
    books.undone[1] = []


def depart_early(books: Books) -> None:
    books.ledger = [
        msgspec.structs.replace(one, begun=10.0) if (one.row, one.step) == (2, "depart") else one
        for one in books.ledger
    ]


def charge_twice(books: Books) -> None:
    receipt = books.effect(FLOWN, "charge")
    books.ledger[-1] = msgspec.structs.replace(books.ledger[-1], key="another key")
    books.results[0].receipts.append(receipt)


def know_a_stranger(books: Books) -> None:
    books.effect(msgspec.structs.replace(FLOWN, row=7), "book")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without("charge"), "steps are not in the ledger"),
        (without("refund"), "sagas are not complete"),
        (without("release"), "sagas are not complete"),
        (run_again, "steps began again behind their record"),
        (lose, "flights have no result"),
        (lie, "results are not what the CSV says"),
        (forget_undoing, "steps have not exactly one recorded receipt"),
        (forget_undoing, "sagas are not complete"),
        (depart_early, "flights departed before their timer"),
        (charge_twice, "cents are too many or too few"),
        (charge_twice, "steps are in the ledger that should not be there"),
        (know_a_stranger, "steps are in the ledger that should not be there"),
    ],
)
def test_each_imbalance_is_found(change: Callable[[Books], None], problem: str):
    books = Books()
    change(books)
    assert any(problem in one for one in books.count().problems())
