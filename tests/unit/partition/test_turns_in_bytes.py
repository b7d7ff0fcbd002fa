"""Leases and batches of fair and keyed queues that end at their limit of bytes."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.commands import (
    Lease,
    LeaseCaller,
    LeaseItems,
    Refusal,
    Retry,
)
from querator.model.errors import ErrorCode
from querator.model.queues import Fairness, GroupSettings
from querator.model.readers import AdvanceReader, OpenReader
from querator.partition import flow_choice
from tests.unit.partition.flow_queue import FlowQueue, fair, keyed, names_of, weights
from tests.unit.partition.partition_log import seqs

MODES = list(Fairness)


def put(queue: FlowQueue, *items: tuple[str, int]) -> None:
    """Produces an item for each pair of a name and a number of bytes."""
    names = [name for name, _ in items]
    result = queue.produce([b"x" * size for _, size in items], flows=names_of(names))
    queue.names |= dict(
        zip(range(result.first_seq, result.first_seq + result.count), names, strict=True)
    )


def counts(queue: FlowQueue, grant: Any) -> Counter[str]:
    return Counter(queue.names[seq] for seq in seqs(grant))


def of_three_groups(mode: Fairness) -> FlowQueue:
    queue = FlowQueue(fair(mode))
    for name in "abc":
        put(queue, *[(name, 1000)] * 10)
    return queue


@pytest.mark.parametrize("mode", MODES)
def test_groups_share_the_bytes_of_a_lease(mode: Fairness):
    queue = of_three_groups(mode)
    assert counts(queue, queue.lease(30, max_bytes=6500)) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("mode", MODES)
def test_callers_of_one_command_share_by_turns_as_well(mode: Fairness):
    queue = of_three_groups(mode)
    callers = (
        LeaseCaller("small", "", 10, max_bytes=3500),
        LeaseCaller("large", "", 10, max_bytes=6500),
    )
    small, large = queue.one(Lease(callers)).grants
    assert counts(queue, small) == {"a": 1, "b": 1, "c": 1}
    assert counts(queue, large) == {"a": 2, "b": 2, "c": 2}


def test_groups_share_the_bytes_of_a_batch_of_a_reader():
    queue = of_three_groups(Fairness.TURNS)
    epoch = queue.one(OpenReader("lake")).epoch
    batch = queue.one(AdvanceReader("lake", epoch, 0, 100, 6500)).batch
    assert batch.count == 6
    assert counts(queue, queue.lease(100)) == {"a": 8, "b": 8, "c": 8}


def test_the_first_item_of_a_batch_is_taken_however_large():
    queue = FlowQueue(fair())
    put(queue, ("a", 5000), ("b", 10), ("a", 10))
    epoch = queue.one(OpenReader("lake")).epoch
    assert queue.one(AdvanceReader("lake", epoch, 0, 100, 1000)).batch.count == 1
    assert seqs(queue.lease()) == [2, 3]


def test_groups_share_the_bytes_with_those_of_their_errors():
    queue = of_three_groups(Fairness.TURNS)
    grant = queue.lease(30)
    queue.one(Retry((LeaseItems(grant.lease),), error="e" * 900))
    assert counts(queue, queue.lease(30, max_bytes=7000)) == {"a": 1, "b": 1, "c": 1}


def test_a_large_item_ends_the_lease_at_its_turn():
    queue = FlowQueue(fair())
    put(queue, ("a", 100), ("a", 100), ("b", 5000), ("b", 100), ("c", 100), ("c", 100))
    assert seqs(queue.lease(6, max_bytes=1000)) == [1]
    refusal = queue.lease(6, max_bytes=1000)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.value) == (ErrorCode.ITEM_TOO_LARGE, "5000 bytes")
    assert sorted(seqs(queue.lease(6))) == [2, 3, 4, 5, 6]


def test_items_without_a_key_keep_their_place_among_keys():
    queue = FlowQueue(keyed())
    for name in ("", "a", "", "b", ""):
        put(queue, (name, 1000))
    assert sorted(seqs(queue.lease(5, max_bytes=3500))) == [1, 2, 3]


def test_each_level_shares_its_bytes():
    queue = FlowQueue(fair(groups=(GroupSettings("eu", 2),)))
    for name in ("eu.de", "eu.fr", "us"):
        put(queue, *[(name, 1000)] * 10)
    assert counts(queue, queue.lease(30, max_bytes=6500)) == {"eu.de": 2, "eu.fr": 2, "us": 2}


def test_turns_of_a_large_lease_take_more_items_later(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flow_choice, "LEASE_TURNS_MAX", 8)
    queue = FlowQueue(fair(), checked=False)
    for name in "abcd":
        put(queue, *[(name, 100)] * 200)
    found = counts(queue, queue.lease(800, max_bytes=60_000))
    assert found.total() == 600
    # The last turns may be as long as all before them.
    assert max(found.values()) - min(found.values()) <= 200


@given(
    mode=st.sampled_from(MODES),
    shares=st.tuples(*[st.integers(1, 5)] * 3),
    items=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400)), min_size=1, max_size=30),
    bytes_max=st.integers(400, 4000),
)
def test_a_lease_that_ends_at_its_bytes_has_what_single_leases_would_have(
    mode: Fairness,
    shares: tuple[int, int, int],
    items: list[tuple[str, int]],
    bytes_max: int,
):
    flows = fair(mode, groups=weights(**dict(zip("abc", shares, strict=True))))
    together, singly = FlowQueue(flows), FlowQueue(flows)
    for queue in (together, singly):
        put(queue, *items)
    expected: list[int] = []
    left = bytes_max
    for _ in items:
        grant = singly.lease(1)
        left -= sum(segment.bytes for segment in grant.segments)
        if left < 0:
            break
        expected += seqs(grant)
    assert sorted(seqs(together.lease(30, max_bytes=bytes_max))) == sorted(expected)
