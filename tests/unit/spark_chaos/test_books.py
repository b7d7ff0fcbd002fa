"""The counts of `make spark-chaos` detect each kind of error."""

import pytest

from tests.spark_chaos.books import Produced, broken_promise, payload, tally

COUNT = 5


def produced(doubtful: int = 0) -> Produced:
    made = Produced()
    made.acknowledged.update(range(COUNT))
    made.doubtful.update(range(COUNT, COUNT + doubtful))
    return made


def found(*numbers: int) -> list[tuple[str, bytes]]:
    return [(f"0-{place}", payload(number)) for place, number in enumerate(numbers)]


def test_what_balances():
    outcome = tally(produced(), found(4, 0, 1, 3, 2))
    assert outcome.balances
    assert (outcome.produced, outcome.rows, outcome.distinct) == (COUNT, COUNT, COUNT)


def test_a_lost_item():
    outcome = tally(produced(), found(0, 1, 2, 4))
    assert not outcome.balances
    assert (outcome.lost, outcome.doubled, outcome.strange) == (1, 0, 0)


def test_a_doubled_number():
    outcome = tally(produced(), found(0, 1, 2, 3, 4, 2))
    assert not outcome.balances
    assert (outcome.lost, outcome.doubled, outcome.rows, outcome.distinct) == (0, 1, 6, 5)


def test_a_doubled_id():
    outcome = tally(produced(), [*found(0, 1, 2, 3, 4), ("0-0", payload(0))])
    assert not outcome.balances
    assert (outcome.lost, outcome.doubled) == (0, 1)
    outcome = tally(produced(), [("0-0", payload(number)) for number in range(COUNT)])
    assert outcome.doubled == COUNT - 1


@pytest.mark.parametrize("value", [b"", b"7 lives", payload(3) + b"x", payload(COUNT)])
def test_what_nobody_has_sent(value):
    outcome = tally(produced(), [*found(0, 1, 2, 3, 4), ("1-0", value)])
    assert not outcome.balances
    assert (outcome.lost, outcome.doubled, outcome.strange) == (0, 0, 1)


def test_what_is_in_doubt_may_be_there_once():
    assert tally(produced(2), found(0, 1, 2, 3, 4)).balances
    outcome = tally(produced(2), found(0, 1, 2, 3, 4, 6))
    assert outcome.balances
    assert outcome.produced == outcome.rows == COUNT + 1
    assert tally(produced(2), found(0, 1, 2, 3, 4, 6, 6)).doubled == 1


def test_errors_that_no_kill_explains():
    assert broken_promise("[READER_FENCED] reader lake has a newer run") == "READER_FENCED"
    assert broken_promise("Python worker exited unexpectedly (crashed)") == ""
