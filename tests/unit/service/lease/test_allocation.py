from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.fair_shares import fair_shares
from querator.service.lease.allocation import allocate

WANTED = st.lists(st.integers(1, 60), max_size=12)


@pytest.mark.parametrize(
    ("available", "wanted", "given_"),
    [
        (23, [20, 6, 1], [16, 6, 1]),
        (10, [10] * 5, [2] * 5),
        (50, [50], [50]),
        (3, [10, 10], [2, 1]),
        (2, [5, 5, 5], [1, 1, 0]),
        (0, [5, 5], [0, 0]),
        (100, [1, 2, 3], [1, 2, 3]),
        (7, [], []),
    ],
)
def test_shares(available, wanted, given_):
    assert fair_shares(wanted, available) == given_


@given(st.integers(0, 200), WANTED)
def test_shares_are_max_min_fair(available, wanted):
    got = fair_shares(wanted, available)
    assert sum(got) == min(available, sum(wanted))
    assert all(0 <= share <= wish for share, wish in zip(got, wanted, strict=True))
    for share, wish in zip(got, wanted, strict=True):
        if share < wish:
            # A caller that gets less than it wants gets as much as any other caller, except for
            # the remainder of the division.
            assert share >= max(got) - 1
    lacking = [share for share, wish in zip(got, wanted, strict=True) if share < wish]
    assert lacking == sorted(lacking, reverse=True), "the remainder goes to the earliest"


def test_one_consumer_takes_from_all_partitions():
    assert allocate([5] * 10, [50]) == [[(0, 5)]] * 10


def test_a_caller_is_served_from_few_partitions():
    draws = allocate([1000, 1000, 1000], [100, 100])
    assert draws == [[(0, 100), (1, 100)], [], []]


@given(st.lists(st.integers(0, 60), max_size=12), WANTED)
def test_nobody_is_overfilled_and_nothing_is_left_while_someone_waits(ready, wanted):
    draws = allocate(ready, wanted)
    assert len(draws) == len(ready)
    got: Counter[int] = Counter()
    for draw, there in zip(draws, ready, strict=True):
        assert sum(items for _, items in draw) <= there
        assert [caller for caller, _ in draw] == sorted({caller for caller, _ in draw})
        for caller, items in draw:
            assert items > 0
            got[caller] += items
    assert [got[caller] for caller in range(len(wanted))] == fair_shares(wanted, sum(ready))
    pairs = sum(map(len, draws))
    assert pairs <= len(ready) + len(wanted), "a caller's share is not scattered"
