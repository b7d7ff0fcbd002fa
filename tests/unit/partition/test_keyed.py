"""Keyed queues: the items of one key are leased in order and one after the other."""

import sys
from types import FrameType

import pytest

from querator.model.commands import (
    Cancel,
    Complete,
    DeadTarget,
    Expire,
    ItemsChanged,
    ItemSpecial,
    Lease,
    LeaseItems,
    Prioritize,
    Refusal,
    Reschedule,
    Retry,
)
from querator.model.errors import ErrorCode
from querator.model.queues import RetryBackoff, RetryWaits
from querator.model.readers import AdvanceReader, OpenReader, ReleaseReader
from querator.partition import queries
from querator.partition.flow_queries import flow_page
from tests.unit.partition.flow_queue import FlowQueue, keyed, names_of
from tests.unit.partition.partition_log import GROUP, caller, seqs


def leased(queue: FlowQueue, items: int = 100) -> list[int]:
    return seqs(queue.lease(items))


def test_one_item_of_each_key_is_leased_at_a_time():
    queue = FlowQueue(keyed())
    queue.put("a", "a", "b", "a", "b", "c")
    assert leased(queue) == [1, 3, 6]
    assert leased(queue) == []
    assert queue.applied.effects.ready == 0


def test_a_settled_item_frees_the_next_of_its_key():
    queue = FlowQueue(keyed())
    queue.put("a", "a", "b")
    first = queue.lease(1)
    queue.lease(1)
    assert queue.applied.effects.ready == 0
    queue.complete(first)
    assert queue.applied.effects.ready == 1
    assert leased(queue) == [2]


def test_a_block_that_is_set_aside_keeps_back_the_later_items_of_its_keys():
    queue = FlowQueue(keyed())
    queue.put("a", "", "b")
    queue.put("a", "", "c")
    aside = Lease((caller(100),), (1,))
    assert sorted(seqs(queue.one(aside).grants[0])) == [5, 6]
    queue.put("b", "d")
    assert seqs(queue.one(aside).grants[0]) == [8]
    assert sorted(leased(queue)) == [1, 2, 3]


def test_items_without_a_key_are_not_ordered():
    queue = FlowQueue(keyed())
    queue.put("", "a", "", "a", "")
    assert sorted(leased(queue)) == [1, 2, 3, 5]


@pytest.mark.parametrize("how", ["retry", "release", "lapse"])
def test_an_item_that_comes_back_is_the_head_of_its_key(how: str):
    queue = FlowQueue(keyed())
    queue.put("a", "a", "b")
    grant = queue.lease(1)
    if how == "lapse":
        queue.advance(60_000)
    else:
        queue.one(Retry((LeaseItems(grant.lease),), count_attempt=how == "retry"))
    assert leased(queue) == [1, 3]


def test_up_to_so_many_items_of_a_key_are_leased_together():
    queue = FlowQueue(keyed(key_leased_max=3))
    queue.put("a", "a", "a", "a", "b")
    grant = queue.lease()
    assert seqs(grant) == [1, 2, 3, 5]
    queue.one(Complete((LeaseItems(grant.lease, ((1, 2),)),)))
    assert leased(queue) == []
    queue.one(Retry((LeaseItems(grant.lease, ((3, 1),)),)))
    assert leased(queue) == [3, 4]


def test_items_of_a_key_go_to_one_consumer():
    queue = FlowQueue(keyed(key_leased_max=4))
    queue.put("a", "a", "a", "a", "b", "b")
    callers = tuple(caller(2, client_id=client) for client in "xyz")
    grants = queue.one(Lease(callers)).grants
    assert [seqs(grant) for grant in grants if grant.lease] == [[1, 2], [5, 6]]


def test_a_later_retry_keeps_back_its_key_only():
    queue = FlowQueue(keyed())
    queue.put("a", "a", "b")
    grant = queue.lease(1)
    at_ms = queue.now_ms + 5000
    queue.one(Retry((LeaseItems(grant.lease),), retry_at_ms=at_ms))
    assert leased(queue) == [3]
    with queue.environment.snapshot() as txn:
        page = flow_page(txn, GROUP, after=b"", limit=10)
    blocked = next(one for one in page.flows if one.name == b"a")
    assert (blocked.head_seq, blocked.head_attempt, blocked.blocked_until_ms) == (1, 1, at_ms)
    queue.advance(5000)
    assert leased(queue) == [1]


def test_a_later_retry_steps_aside_if_the_queue_says_so():
    queue = FlowQueue(keyed(key_retry_blocks=False))
    queue.put("a", "a", "a")
    grant = queue.lease(1)
    queue.one(Retry((LeaseItems(grant.lease),), retry_at_ms=queue.now_ms + 5000))
    second = queue.lease()
    assert seqs(second) == [2]
    queue.advance(5000)
    queue.complete(second)
    third = queue.lease()
    assert seqs(third) == [3]
    queue.complete(third)
    assert leased(queue) == [1]


def test_the_retry_policy_keeps_back_the_key_as_well():
    waits = RetryWaits(4000, 4000, RetryBackoff.FIXED, jitter=False)
    queue = FlowQueue(keyed(), retry=waits)
    queue.put("a", "a")
    queue.one(Retry((LeaseItems(queue.lease(1).lease),)))
    assert leased(queue) == []
    queue.advance(4000)
    assert leased(queue) == [1]


def test_an_operator_moves_or_skips_a_blocking_item():
    queue = FlowQueue(keyed())
    queue.put("a", "a", "b", "b")
    grant = queue.lease()
    later = queue.now_ms + 50_000
    queue.one(Retry((LeaseItems(grant.lease),), retry_at_ms=later))
    assert leased(queue) == []
    queue.one(Reschedule(((1, 1),)))
    queue.one(Cancel(((3, 1),)))
    assert leased(queue) == [1, 4]


def test_a_dead_item_frees_its_key():
    queue = FlowQueue(keyed(), max_attempts=1)
    queue.put("a", "a")
    queue.one(Retry((LeaseItems(queue.lease(1).lease),)))
    assert leased(queue) == [2]


def test_an_expired_head_does_not_keep_back_its_key():
    queue = FlowQueue(keyed())
    queue.put("a", "a", specials=(ItemSpecial(0, expire_timeout_ms=1000),))
    queue.now_ms += 5000
    assert leased(queue) == [2]
    queue.one(Expire())


def test_priorities_do_not_change_the_order_of_a_key():
    queue = FlowQueue(keyed())
    queue.put("a", "a", "b", specials=(ItemSpecial(1, priority=-5), ItemSpecial(2, priority=-5)))
    grant = queue.lease()
    assert seqs(grant) == [1, 3]
    queue.one(Retry((LeaseItems(grant.lease),), priority=7))
    assert leased(queue) == [1, 3]


def test_prioritizing_items_is_refused():
    queue = FlowQueue(keyed())
    queue.put("a", "a")
    refusal = queue.one(Prioritize(((2, 1),), -5))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.field) == (ErrorCode.INVALID_ARGUMENT, "priority")
    assert leased(queue) == [1]


def test_a_large_item_is_not_passed_by_the_next_of_its_key():
    queue = FlowQueue(keyed(key_leased_max=2))
    queue.produce([b"x" * 10, b"y" * 5000, b"z"], flows=names_of(["a", "a", "a"]))
    grant = queue.lease(3, max_bytes=1000)
    assert seqs(grant) == [1]
    assert queue.applied.effects.ready == 0


def test_a_batch_of_a_reader_takes_keys_whole_and_keeps_them():
    queue = FlowQueue(keyed())
    queue.put("a", "a", "b")
    epoch = queue.one(OpenReader("lake")).epoch
    batch = queue.one(AdvanceReader("lake", epoch, 0, 100, 10**6)).batch
    assert batch.count == 3
    queue.put("a", "c")
    assert leased(queue) == [5]
    queue.one(ReleaseReader("lake", batch.seq))
    assert leased(queue) == [1, 3]


def test_the_number_of_a_key_that_is_changed_takes_effect():
    queue = FlowQueue(keyed())
    queue.put("a", "a", "a")
    queue.set(keyed(key_leased_max=3))
    queue.advance(0)
    assert queue.applied.effects.ready == 3
    assert leased(queue) == [1, 2, 3]


def test_a_key_with_nothing_left_leaves_no_row():
    queue = FlowQueue(keyed())
    queue.put("a", "b")
    queue.complete(queue.lease())
    with queue.environment.snapshot() as txn:
        assert [one.name for one in flow_page(txn, GROUP, after=b"", limit=9).flows] == [b""]


@pytest.mark.parametrize("dead_queue", [True, False])
def test_a_head_that_waits_for_its_retry_is_rejected_and_frees_its_key(dead_queue: bool):
    targets = (DeadTarget("dead", 0, 9),) if dead_queue else ()
    queue = FlowQueue(keyed(), dead_targets=targets)
    queue.put("a", "a")
    grant = queue.lease()
    queue.one(Retry((LeaseItems(grant.lease),), retry_at_ms=queue.now_ms + 60_000))
    assert leased(queue) == []
    assert queue.one(Cancel(((1, 1),), dead=True)) == ItemsChanged(1, ())
    assert queue.one(Cancel(((1, 1),), dead=True)) == ItemsChanged(0, ((1, 1),))
    with queue.environment.snapshot() as txn:
        counts = queries.stats(txn, GROUP)
    assert (counts.dead, counts.moving, counts.cancelled) == (1, int(dead_queue), 0)
    assert leased(queue) == [2]


def test_the_cost_of_completing_an_item_does_not_grow_with_its_lease():
    """Each item is named by itself. Counted in calls of the partition's functions, not in time."""
    few, many = (_calls_of_a_complete(items) / items for items in (50, 400))
    assert many <= few * 1.1


def _calls_of_a_complete(items: int) -> int:
    queue = FlowQueue(keyed(), checked=False)
    queue.put(*[f"k{number}" for number in range(items)])
    grant = queue.lease(items)
    named = tuple(LeaseItems(grant.lease, ((seq, 1),)) for seq in seqs(grant))
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and "/partition/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        outcome = queue.one(Complete(named))
    finally:
        sys.setprofile(None)
    assert sum(count for one in outcome.outcomes for _, count in one.done) == items
    return calls
