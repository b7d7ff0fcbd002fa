"""The demo's proof must fail whenever something is lost, doubled or changed."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.cli.demo.demo import find_problems
from querator.cli.demo.demo_run import FlightCounts
from querator.cli.demo.flights import Ledger
from querator.client.values import PartitionStats

ROWS = 300


@given(st.randoms(use_true_random=False), st.integers(1, 50))
def test_the_digest_does_not_depend_on_the_order(chance: random.Random, rows: int) -> None:
    entries = [(row, f"flight {row}".encode()) for row in range(rows)]
    straight, shuffled = Ledger(), Ledger()
    for row, payload in entries:
        straight.add(row, payload)
    chance.shuffle(entries)
    for row, payload in entries:
        shuffled.add(row, payload)
    assert straight.digest == shuffled.digest
    assert shuffled.missing(rows) == shuffled.repeated == 0


def test_a_change_of_row_or_payload_changes_the_digest() -> None:
    digests = set()
    for entries in ([(0, b"a"), (1, b"b")], [(0, b"b"), (1, b"a")], [(0, b"a"), (1, b"c")], []):
        ledger = Ledger()
        for row, payload in entries:
            ledger.add(row, payload)
        digests.add(ledger.digest)
    assert len(digests) == 4


def good_run() -> tuple[FlightCounts, PartitionStats]:
    books = FlightCounts(ROWS)
    for row in range(ROWS):
        books.sent.add(row, b"%d" % row)
        books.completed.add(row, b"%d" % row)
    books.acknowledged = ROWS
    books.retried = {0, 100, 200}
    books.lapsing = 5
    counts: dict[str, Any] = dict.fromkeys(PartitionStats.__struct_fields__, 0)
    counts |= {"produced": ROWS, "completed": ROWS, "retried": 3, "lapsed": 5}
    counts |= {"oldest_ready_at": None, "oldest_batch_at": None}
    return books, PartitionStats(**counts)


def test_books_that_balance_have_no_problems() -> None:
    assert find_problems(*good_run()) == []


def lose(books: FlightCounts) -> None:
    books.completed = Ledger()
    for row in range(1, ROWS):
        books.completed.add(row, b"%d" % row)


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (lose, "1 flights were lost"),
        (lambda books: books.completed.add(7, b"7"), "completed twice"),
        (lambda books: books.sent.add(ROWS, b"other"), "digest"),
        (lambda books: books.retried.clear(), "retried"),
        (lambda books: setattr(books, "acknowledged", ROWS - 1), "acknowledged"),
        (lambda books: setattr(books, "lapsing", 6), "lapsed"),
    ],
)
def test_tampered_books_are_found(tamper: Callable[[FlightCounts], None], words: str) -> None:
    books, total = good_run()
    tamper(books)
    assert any(words in problem for problem in find_problems(books, total))


@pytest.mark.parametrize(
    "name", ["produced", "completed", "ready", "leased", "scheduled", "moving", "dead", "retried"]
)
def test_counts_of_the_node_must_agree(name: str) -> None:
    books, total = good_run()
    wrong = msgspec.structs.replace(total, **{name: getattr(total, name) + 1})
    assert find_problems(books, wrong)
