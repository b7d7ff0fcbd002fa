"""The counts of `make grow` detect each kind of error."""

from collections.abc import Callable

import msgspec
import pytest

from querator.client.values import PartitionStats
from querator.model.routing import partition_of_key
from tests.growth.books import Books, Round

ROWS = 4
TOTAL = PartitionStats(
    partition=0, applied_index=1, ready=0, leased=0, scheduled=0, moving=0, leases=0, bytes=0,
    produced=ROWS, completed=ROWS, retried=0, released=0, lapsed=0, dead=0, dropped=0,
    delivered=ROWS, duplicates=0, moved_in=0, moved_out=0, expired=0, reserved=0, acknowledged=0,
    oldest_ready_at=None, oldest_batch_at=None,
)  # fmt: skip


def payload(row: int) -> bytes:
    return b"flight %d" % row


def acknowledge(books: Books, of: Round, row: int, *, key: str = "N1", seq: int = 0) -> None:
    books.sent(of, row, payload(row))
    books.acknowledged(of, [(key, 0, seq or row + 1)], partitions=1, seconds=0.1)


def deliver(
    books: Books, row: int, *, stream: str = "s", key: str = "N1", partition: int = 0
) -> None:
    books.delivered(stream, 1, row, key, partition)


def whole() -> Books:
    """One correct round."""
    books = Books(ROWS)
    of = books.begin()
    for row in range(ROWS):
        acknowledge(books, of, row)
        deliver(books, row)
        books.completed(1, row, payload(row))
    return books


def test_what_balances() -> None:
    books = whole()
    assert books.problems(TOTAL) == []
    assert (books.count, books.done, books.lost, books.duplicated, books.again) == (4, 4, 0, 0, 0)


def test_a_flight_that_is_lost() -> None:
    books = Books(ROWS)
    of = books.begin()
    for row in range(ROWS):
        acknowledge(books, of, row)
    for row in range(ROWS - 1):
        books.completed(1, row, payload(row))
    assert books.lost == 1
    found = books.problems(msgspec.structs.replace(TOTAL, completed=3, ready=1))
    assert found == [
        "rounds do not balance: 1",
        "1 flights were lost",
        "1 flights are left in the queue",
        "the nodes count 3 completed",
    ]


def test_a_flight_that_is_completed_twice() -> None:
    books = whole()
    books.completed(1, 2, payload(2))
    assert "1 flights were completed twice" in books.problems(TOTAL)


def test_a_flight_that_was_stored_twice() -> None:
    found = whole().problems(msgspec.structs.replace(TOTAL, produced=5, ready=1))
    assert found == ["1 flights are left in the queue", "the nodes count 5 items, not 4"]


def test_bytes_that_were_changed() -> None:
    books = Books(1)
    acknowledge(books, books.begin(), 0)
    books.completed(1, 0, b"another flight")
    assert "rounds do not balance: 1" in books.problems(TOTAL)


def test_an_error() -> None:
    books = whole()
    books.failed("produce", ValueError("no"))
    assert books.problems(TOTAL) == ["users saw 1 errors"]


def test_a_flight_that_is_elsewhere_than_its_key_says() -> None:
    books = Books(ROWS)
    of = books.begin()
    key = next(key for key in map(str, range(999)) if partition_of_key(key.encode(), 12) == 7)
    books.partitions = 12
    books.acknowledged(of, [(key, 7, 1)], partitions=12, seconds=0.1)
    # It was sent before the number of partitions changed.
    books.acknowledged(of, [(key, 3, 1)], partitions=4, seconds=0.1)
    assert books.strays == 0
    books.acknowledged(of, [(key, 3, 2)], partitions=12, seconds=0.1)
    assert books.strays == 1
    assert books.used == {3, 7}


def test_an_order_of_storing_that_is_not_that_of_producing() -> None:
    books = Books(ROWS)
    of = books.begin()
    acknowledge(books, of, 0, seq=7)
    acknowledge(books, of, 1, seq=6, key="N2")
    assert books.misplaced == 0
    acknowledge(books, of, 2, seq=5)
    assert books.misplaced == 1


@pytest.mark.parametrize(
    ("second", "late"),
    [
        (lambda books: deliver(books, 0), 1),
        (lambda books: deliver(books, 0, key="N2"), 0),
        (lambda books: deliver(books, 0, stream="t"), 0),
        (lambda books: deliver(books, 1), 0),
        (lambda books: deliver(books, 2), 0),
    ],
    ids=["late", "another key", "another stream", "again", "in order"],
)
def test_an_order_of_delivery(second: Callable[[Books], None], late: int) -> None:
    books = Books(ROWS)
    books.begin()
    deliver(books, 1)
    second(books)
    assert books.late.total() == late


def test_an_order_of_delivery_over_partitions() -> None:
    books = whole()
    deliver(books, 0, partition=5)
    assert books.crossed == 0, "it was delivered before"
    books = Books(ROWS)
    books.begin()
    deliver(books, 1)
    deliver(books, 2, partition=5)
    deliver(books, 3, key="N2", partition=7)
    assert books.crossed == 0
    deliver(books, 0, stream="t", partition=5)
    assert books.crossed == 1
    sentence = "1 flights came after later ones of their aircraft in other partitions"
    assert any(sentence in problem for problem in books.problems(TOTAL))
    lapsed = msgspec.structs.replace(TOTAL, lapsed=1)
    assert not any(sentence in problem for problem in books.problems(lapsed))


def test_who_was_given_back_may_come_late() -> None:
    books = Books(ROWS)
    of = books.begin()
    for row in range(ROWS):
        acknowledge(books, of, row)
        books.completed(1, row, payload(row))
    deliver(books, 1)
    deliver(books, 0)
    assert books.problems(msgspec.structs.replace(TOTAL, released=1)) == []
    [found] = books.problems(TOTAL)
    assert "1 flights came after later ones of their aircraft" in found
