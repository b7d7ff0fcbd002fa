"""The rules of `make keyed` on histories written by hand: right ones pass, wrong ones do not."""

import pytest

from scripts.bench.key_history import Delivery, End, judge


def delivery(
    number: int,
    got_s: float,
    *,
    sent_s: float | None = None,
    end: End = End.COMPLETED,
    deadline_s: float | None = None,
    lease: str | None = None,
) -> Delivery:
    """Leases of 10 s; what is sent is answered 0.5 s later."""
    one = Delivery(
        number,
        lease or f"lease at {got_s}",
        got_s,
        got_s + 10 if deadline_s is None else deadline_s,
    )
    if sent_s is not None:
        one.end, one.sent_s, one.answered_s = end, sent_s, sent_s + 0.5
    return one


def broken(count: int, *deliveries: Delivery) -> dict[str, int]:
    return dict(judge([("k", count, deliveries)]).broken)


def test_items_that_follow_each_other_pass_in_whatever_order_they_are_recorded():
    first, second = delivery(0, 1, sent_s=2), delivery(1, 3, sent_s=4)
    assert broken(2, first, second) == broken(2, second, first) == {}


def test_the_next_item_may_come_before_the_answer_to_the_complete():
    assert broken(2, delivery(0, 1, sent_s=2), delivery(1, 2.1, sent_s=3)) == {}


def test_an_item_that_is_retried_comes_again():
    assert broken(1, delivery(0, 1, sent_s=2, end=End.RETRIED), delivery(0, 2.1, sent_s=3)) == {}


def test_an_item_comes_again_when_its_lease_has_ended():
    assert broken(1, delivery(0, 1), delivery(0, 11, sent_s=12)) == {}


def test_a_late_complete_is_refused_and_the_item_comes_again():
    late = delivery(0, 1, sent_s=11.5, end=End.REFUSED)
    assert broken(1, late, delivery(0, 11.2, sent_s=13)) == {}


def test_a_late_complete_may_be_accepted():
    assert broken(2, delivery(0, 1, sent_s=11.5), delivery(1, 11.6, sent_s=13)) == {}


def test_a_complete_without_a_known_outcome_may_have_been_executed():
    unknown = delivery(0, 1, sent_s=2, end=End.UNKNOWN_COMPLETE)
    assert broken(2, unknown, delivery(1, 2.1, sent_s=3)) == {}


def test_a_complete_without_a_known_outcome_may_not_have_been_executed():
    unknown = delivery(0, 1, sent_s=2, end=End.UNKNOWN_COMPLETE)
    assert broken(1, unknown, delivery(0, 11, sent_s=12)) == {}


def test_a_repeated_answer_brings_an_item_again():
    first = delivery(0, 1, lease="one", deadline_s=10)
    again = delivery(0, 2, sent_s=3, lease="one", deadline_s=10)
    assert broken(1, first, again) == {}


def test_an_answer_that_comes_after_its_lease_claims_nothing():
    stale = delivery(0, 3, deadline_s=2)
    assert broken(1, delivery(0, 2.1, sent_s=2.2), stale) == {}


@pytest.mark.parametrize(
    ("count", "deliveries", "rules"),
    [
        pytest.param(2, [delivery(0, 1, sent_s=2)], {"lost": 1}, id="never comes"),
        pytest.param(1, [delivery(0, 1)], {"lost": 1}, id="comes and is never completed"),
        pytest.param(
            1, [delivery(0, 1, sent_s=2, end=End.RETRIED)], {"lost": 1}, id="retried and gone"
        ),
        pytest.param(
            1, [delivery(0, 1, sent_s=12), delivery(0, 12.2, sent_s=14)], {"twice": 1}, id="twice"
        ),
        pytest.param(
            2,
            [delivery(1, 1, sent_s=2), delivery(0, 3, sent_s=4)],
            {"early": 1},
            id="a later one first",
        ),
        pytest.param(
            2,
            [
                delivery(0, 1, sent_s=2, end=End.RETRIED),
                delivery(1, 2.1, sent_s=3),
                delivery(0, 4, sent_s=5),
            ],
            {"early": 1},
            id="a retried item at the tail",
        ),
        pytest.param(
            2,
            [delivery(0, 1), delivery(1, 12, sent_s=13), delivery(0, 14, sent_s=15)],
            {"early": 1},
            id="a lapsed item at the tail",
        ),
        pytest.param(
            2,
            [delivery(0, 1, sent_s=3), delivery(1, 2, sent_s=4)],
            {"early": 1, "together": 1},
            id="two items at a time",
        ),
        pytest.param(
            2,
            [delivery(0, 1, sent_s=3, lease="one"), delivery(1, 1, sent_s=3.1, lease="one")],
            {"early": 1, "together": 1},
            id="two items in one lease",
        ),
        pytest.param(
            1,
            [delivery(0, 1), delivery(0, 5, sent_s=6)],
            {"together": 1},
            id="an item again within its lease",
        ),
        pytest.param(
            1,
            [delivery(0, 1), delivery(0, 2, sent_s=2.1, end=End.RETRIED), delivery(0, 4, sent_s=5)],
            {"together": 2},
            id="a long lease beside two short ones",
        ),
        pytest.param(
            1,
            [delivery(0, 1, sent_s=2), delivery(0, 3, sent_s=4, end=End.RETRIED)],
            {"again": 1},
            id="again after it is completed",
        ),
        pytest.param(
            1,
            [delivery(0, 1, sent_s=2, end=End.REFUSED), delivery(0, 12, sent_s=13)],
            {"short": 1},
            id="a lease that ends too early",
        ),
        pytest.param(
            1, [delivery(0, 1, sent_s=2), delivery(1, 3, sent_s=4)], {"strange": 1}, id="made up"
        ),
    ],
)
def test_a_wrong_history_is_refused(count: int, deliveries: list[Delivery], rules: dict[str, int]):
    assert broken(count, *deliveries) == rules


def test_keys_have_nothing_to_do_with_each_other():
    verdict = judge([("a", 1, [delivery(0, 1, sent_s=3)]), ("b", 1, [delivery(0, 2, sent_s=2.5)])])
    assert verdict.problems() == []


def test_a_verdict_names_the_key_and_the_item():
    [count, example] = judge([("ann", 1, [])]).problems()
    assert (count, example) == ("1 times lost", "lost: item 0 of key ann was never completed")
