"""How the groups of a fair queue share its leases."""

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from querator.model.commands import LeaseItems, Retry
from querator.model.queues import Fairness, GroupSettings
from querator.partition import flow_choice
from tests.unit.partition.flow_queue import FlowQueue, fair, weights
from tests.unit.partition.partition_log import seqs

MODES = list(Fairness)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_each_group_gets_its_weight_of_ten_rounds(mode: Fairness, seed: int):
    """Leases of 1 to 100 items. The backlogs differ by a factor of up to 100, and arrive in pieces
    between the leases.
    """
    chance = random.Random(seed)
    share = {f"g{number:02}": chance.randint(1, 10) for number in range(30)}
    queue = FlowQueue(fair(mode, groups=weights(**share)), checked=False)
    queue.fill({name: 10 * weight * chance.randint(1, 3) for name, weight in share.items()})
    rounds, served = 0, dict.fromkeys(share, 0)
    wanted = 10 * sum(share.values())
    while rounds < wanted:
        taken = queue.take(min(chance.randint(1, 100), wanted - rounds))
        rounds += len(taken)
        for name in taken:
            served[name] += 1
        late = chance.choice(sorted(share))
        queue.put(*[late] * chance.randint(1, 100))
    for name, weight in share.items():
        assert (
            abs(served[name] / rounds - weight / sum(share.values()))
            <= 0.05 * (weight / sum(share.values())) + 1 / rounds
        ), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("items", [1, 7, 100])
def test_a_single_item_waits_at_most_one_round(mode: Fairness, items: int):
    queue = FlowQueue(fair(mode), checked=False)
    groups = [f"g{number}" for number in range(20)]
    queue.fill(dict.fromkeys(groups, 500))
    queue.served(items=items, of=333)
    queue.put("late")
    passed = 0
    while "late" not in (taken := queue.take(items)):
        passed += len(taken)
    assert passed + taken.index("late") <= len(groups) + items


@pytest.mark.parametrize("mode", MODES)
def test_a_group_with_one_item_at_a_time_gets_no_more_than_one_with_a_backlog(mode: Fairness):
    queue = FlowQueue(fair(mode))
    queue.fill({"many": 200})
    served: list[str] = []
    queue.put("one")
    for _ in range(60):
        served += queue.take(1)
        if served[-1] == "one":
            queue.put("one")
    assert 25 <= served.count("one") <= 31


@pytest.mark.parametrize("mode", MODES)
def test_each_level_is_fair_in_itself(mode: Fairness):
    """The many groups below one share what a group without others below it gets alone."""
    queue = FlowQueue(
        fair(mode, groups=(GroupSettings("eu", 2), GroupSettings("eu.de", 3))), checked=False
    )
    queue.fill({"eu.de": 400, "eu.fr": 400, "us": 400, "asia.jp.tokyo": 400})
    served = queue.served(items=13, of=320)
    assert served.total() == 320
    for name, part in (("eu.de", 120), ("eu.fr", 40), ("us", 80), ("asia.jp.tokyo", 80)):
        assert abs(served[name] - part) <= 4, served


def test_own_items_of_a_group_take_turns_with_those_below_it():
    queue = FlowQueue(fair())
    queue.fill({"eu": 50, "eu.de": 50, "eu.fr": 50})
    served = queue.served(items=5, of=60)
    assert all(abs(count - 20) <= 1 for count in served.values()), served


def test_items_without_a_group_are_a_group():
    queue = FlowQueue(fair())
    queue.fill({"": 50, "a": 50})
    assert queue.served(items=7, of=40) == {"": 20, "a": 20}


def test_the_group_with_the_fewest_leased_items_is_first():
    queue = FlowQueue(fair(Fairness.IN_FLIGHT))
    queue.fill({"noisy": 100})
    held = queue.lease(50)
    queue.fill({"quiet": 60})
    assert queue.take(40) == ["quiet"] * 40
    queue.complete(held)
    assert sorted(queue.take(10)) == ["noisy"] * 5 + ["quiet"] * 5


def test_leased_items_count_by_weight():
    queue = FlowQueue(fair(Fairness.IN_FLIGHT, groups=weights(b=3)))
    queue.fill({"a": 100, "b": 100})
    held = [queue.names[seq] for _ in range(40) for seq in seqs(queue.lease(1))]
    assert (held.count("a"), held.count("b")) == (10, 30)


def test_a_weight_that_is_changed_takes_effect():
    queue = FlowQueue(fair(groups=weights(a=4)))
    queue.fill({"a": 200, "b": 200})
    assert queue.served(items=5, of=50) == {"a": 40, "b": 10}
    queue.set(fair(groups=weights(b=4)))
    served = queue.served(items=5, of=50)
    assert abs(served["b"] - 40) <= 1, served


def test_a_large_lease_takes_a_bounded_number_of_turns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flow_choice, "LEASE_TURNS_MAX", 10)
    queue = FlowQueue(fair(groups=weights(a=3)))
    queue.fill({"a": 300, "b": 300})
    turns = 0
    take = flow_choice._Chooser._take

    def counted(self: flow_choice._Chooser, source: flow_choice._Source, count: int) -> int:
        nonlocal turns
        turns += 1
        return take(self, source, count)

    monkeypatch.setattr(flow_choice._Chooser, "_take", counted)
    first = queue.served(items=100, of=100)
    assert turns <= 11
    assert abs(first["a"] - 75) <= 10
    assert abs((first + queue.served(items=100, of=100))["a"] - 150) <= 10


NAMES = ("", "a", "b", "c", "d")
_produces = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 14)), min_size=1, max_size=5)
_leases = st.tuples(st.integers(1, 40), st.sampled_from(["completed", "held", "released"]))


@given(
    share=st.fixed_dictionaries({name: st.integers(1, 3) for name in NAMES[1:]}),
    steps=st.lists(st.one_of(_produces, _leases), max_size=20),
)
@example(
    # One lease serves the groups one after the other, the last of them with few items. Those that
    # it has emptied return in one produce, while `b` still waits.
    share={"a": 1, "b": 1, "c": 3, "d": 1},
    steps=[
        [("a", 1), ("b", 14), ("c", 9), ("", 4), ("d", 2)],
        (28, "held"),
        [("", 8), ("c", 9), ("d", 8)],
        *[(1, "completed")] * 12,
    ],
)
@settings(deadline=None)
def test_groups_that_wait_differ_by_at_most_one_item_of_each(
    share: dict[str, int],
    steps: list[list[tuple[str, int]] | tuple[int, str]],
):
    """Groups that are emptied return at any time, alone or together, with rows or without. Releases
    may put groups behind by one round more, until none waits.
    """
    queue = FlowQueue(fair(groups=weights(**share)), checked=False)
    share = {"": 1, **share}
    ready: Counter[str] = Counter()
    served: Counter[str] = Counter()
    since: dict[str, Counter[str]] = {}
    """What was served when a group began to wait."""
    behind = 0
    for step in steps:
        if isinstance(step, list):
            names = [name for name, count in step for _ in range(count)]
            queue.put(*names)
            ready.update(names)
        else:
            items, then = step
            grant = queue.lease(items)
            taken = Counter(queue.names[seq] for seq in seqs(grant))
            if then == "released" and taken:
                queue.release(grant)
                behind = 1
                continue
            if then == "completed":
                queue.complete(grant)
            served += taken
            ready -= taken
        behind = behind if ready else 0
        since = {name: since.get(name, served.copy()) for name in ready}
        for name, before in since.items():
            own = Fraction(served[name] - before[name], share[name])
            for other in NAMES:
                more = Fraction(served[other] - before[other], share[other]) - own
                most = behind + Fraction(1, share[name]) + Fraction(1, share[other])
                assert more <= most, (name, other)


def test_a_release_gives_a_group_its_turn_back():
    queue = FlowQueue(fair())
    queue.fill({"a": 40, "b": 40})
    queue.take(10)
    queue.put("quiet")
    released = queue.lease(1)
    assert [queue.names[seq] for seq in seqs(released)] == ["quiet"]
    queue.release(released)
    taken = [name for _ in range(6) for name in queue.take(1)]
    assert taken[0] == "quiet"
    assert taken.count("quiet") == 1


@pytest.mark.parametrize("path", ["a", "eu.a"])
def test_leases_that_are_released_change_no_shares(path: str):
    """At each level, and for the own items of a group with others below it."""
    queue = FlowQueue(fair(groups=(GroupSettings(path, 3),)))
    queue.fill({path: 60, f"{path}.x": 60, "b": 100, "eu.b": 100})
    whole = FlowQueue(fair(groups=(GroupSettings(path, 3),)))
    whole.fill({path: 60, f"{path}.x": 60, "b": 100, "eu.b": 100})
    for _ in range(10):
        queue.release(queue.lease(3))
        assert queue.take(7) == whole.take(7)


def test_a_release_puts_a_group_back_by_a_round_at_most():
    """Another group that begins to wait has its turn after a round, whatever was released."""
    queue = FlowQueue(fair(groups=weights(a=3)))
    queue.fill({"a": 100})
    queue.release(queue.lease(50))
    queue.put(*["b"] * 20)
    taken = [name for _ in range(8) for name in queue.take(1)]
    assert taken.index("b") <= 3 * (1 + 1) + 1


def test_a_retry_is_a_turn():
    queue = FlowQueue(fair())
    queue.fill({"a": 10, "b": 10})
    queue.one(Retry((LeaseItems(queue.lease(1).lease),)))
    assert [name for _ in range(4) for name in queue.take(1)] == ["b", "a", "b", "a"]
