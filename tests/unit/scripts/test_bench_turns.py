"""The rounds and shares of `make fairness`, on histories written by hand."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from scripts.bench.fairness import GROUPS, RUN, backlogs_of, runs_of, weights_of
from scripts.bench.turns import Leased, Partition, Share, shares

WEIGHTS = {"a": 1, "b": 2, "c": 1}


def leased(groups: str, *, partition: int = 0) -> list[Leased]:
    """One item a millisecond, all produced before the first of them."""
    return [Leased(partition, at_ms, -1, group) for at_ms, group in enumerate(groups)]


def served(
    groups: str, backlogs: Mapping[str, int], *, rounds: int = 1, more: Iterable[Leased] = ()
) -> Partition:
    return Partition(WEIGHTS, backlogs, [*leased(groups), *more], rounds=rounds)


def by_group(found: list[Share]) -> dict[str, float]:
    return {share.group: round(share.deviation, 3) for share in found}


def test_shares_by_weight_do_not_deviate():
    partition = served("abbcbacb", {"a": 9, "b": 9, "c": 9})
    assert [by_group(window) for window in shares(WEIGHTS, [partition])] == [
        {"a": 0, "b": 0, "c": 0},
        {"a": 0, "b": 0, "c": 0},
    ]


def test_a_group_that_gets_too_much_is_seen():
    [window] = shares(WEIGHTS, [served("aabc", {"a": 9, "b": 9, "c": 9})])
    assert by_group(window) == {"a": 1.0, "b": -0.5, "c": 0}


def test_a_group_that_gets_nothing_is_seen():
    [window] = shares(WEIGHTS, [served("bbabba", {"a": 9, "b": 9, "c": 9}, rounds=1)])
    assert by_group(window)["c"] == -1


def test_a_window_that_is_not_whole_has_no_shares():
    assert shares(WEIGHTS, [served("abb", {"a": 9, "b": 9, "c": 9})]) == []


def test_a_group_without_further_items_makes_the_rounds_shorter_and_is_not_judged():
    [first, second] = shares(WEIGHTS, [served("cbbabab", {"a": 9, "b": 9, "c": 1})])
    assert by_group(first) == by_group(second) == {"a": 0, "b": 0}


def test_partitions_have_rounds_of_their_own_and_shares_are_of_all_of_them():
    there = {"a": 9, "b": 9, "c": 9}
    slow = Partition(WEIGHTS, there, leased("abbc", partition=0), rounds=1)
    fast = Partition(WEIGHTS, there, leased("aabcabbc", partition=1), rounds=1)
    [window] = shares(WEIGHTS, [slow, fast])
    assert by_group(window) == {"a": 0.5, "b": -0.25, "c": 0}


def test_a_group_is_judged_while_it_has_items_in_all_partitions():
    one = Partition(WEIGHTS, {"a": 9, "b": 9}, leased("abb"), rounds=1)
    other = Partition(WEIGHTS, {"a": 1, "b": 9}, leased("abb", partition=1), rounds=1)
    [window] = shares(WEIGHTS, [one, other])
    assert by_group(window) == {"b": 0}


def test_items_are_in_the_order_of_their_leases():
    items = leased("abbcaaab")
    partition = Partition(WEIGHTS, {"a": 9, "b": 9, "c": 9}, reversed(items), rounds=1)
    first, second = shares(WEIGHTS, [partition])
    assert by_group(first) == {"a": 0, "b": 0, "c": 0}
    assert by_group(second) == {"a": 2, "b": -0.5, "c": -1}


@pytest.mark.parametrize(
    ("produced_ms", "leased_ms", "rounds"),
    [
        pytest.param(1.5, 1.7, 0, id="at once"),
        pytest.param(1.5, 2.5, 0.25, id="after one item"),
        pytest.param(1.5, 5.5, 1, id="after a round"),
        pytest.param(1.5, 7.5, 1.5, id="after more"),
        pytest.param(9.0, 9.5, 0, id="after all others"),
    ],
)
def test_a_wait_is_counted_in_rounds_of_the_others(
    produced_ms: float, leased_ms: float, rounds: float
):
    quiet = Leased(0, leased_ms, produced_ms, "quiet")
    partition = served("abbcabbc", {"a": 9, "b": 9, "c": 9}, more=[quiet])
    assert partition.wait(quiet) == rounds


def test_a_window_may_begin_between_the_items_of_a_round():
    items = leased("abbcabbcabbc")
    partition = Partition(WEIGHTS, {"a": 9, "b": 9, "c": 9}, items, rounds=1, start=0.5)
    assert [dict(served) for served, _ in partition.windows] == [{"b": 2, "c": 1, "a": 1}] * 2


def test_the_backlogs_are_from_1_to_100_000_items_and_all_are_produced():
    backlogs = backlogs_of(GROUPS, 1.0, random.Random(1))
    assert (len(backlogs), min(backlogs.values()), max(backlogs.values())) == (1_000, 1, 100_000)
    assert sum(backlogs.values()) == 740_193
    runs = runs_of(backlogs, random.Random(1))
    produced: Counter[str] = Counter()
    for group, count in runs:
        produced[group] += count
    assert produced == backlogs
    assert max(count for _, count in runs) == RUN


def test_each_weight_from_1_to_10_is_there():
    assert {*weights_of(GROUPS, random.Random(1)).values()} == set(range(1, 11))
