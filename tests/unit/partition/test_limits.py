"""Limits of the leases of a partition: a token bucket, and a number of items at a time."""

import sys
from collections import Counter
from typing import Any

import pytest

from querator.model.calls import LimitCounts
from querator.model.commands import (
    Complete,
    Expire,
    Lease,
    LeaseGrant,
    LeaseItems,
    Purge,
    Refill,
    Refusal,
    RepairTime,
    Retry,
    SetBreaker,
)
from querator.model.entries import Proposal
from querator.model.lease_limits import LeaseLimits
from querator.model.limits import RATE_WAKE_MS
from querator.model.queues import BreakerSettings, GroupSettings
from querator.model.readers import AdvanceReader, OpenReader
from querator.partition import queries
from tests.unit.partition.flow_queue import FlowQueue, fair, keyed
from tests.unit.partition.partition_log import PartitionLog, caller, lease_of, seqs

RATE = LeaseLimits(items=10, interval_ms=1_000, burst=5)
"""A token every 100 ms."""
CAP = LeaseLimits(leased_max=4)


def queue(limits: LeaseLimits | None = RATE, items: int = 100, **changes: Any) -> PartitionLog:
    log = PartitionLog()
    log.configure(limits=limits, **changes)
    if items:
        log.produce(items)
    return log


def leases(log: PartitionLog, items: int = 100, **changes: Any) -> LeaseGrant:
    grant = log.one(lease_of(items, **changes)).grants[0]
    assert isinstance(grant, LeaseGrant)
    return grant


def count(log: PartitionLog, items: int = 100, **changes: Any) -> int:
    return len(seqs(leases(log, items, **changes)))


def shown(log: PartitionLog) -> LimitCounts:
    with log.environment.snapshot() as txn:
        found = queries.stats(txn, log.group).limits
    assert found is not None
    return found


def ready(log: PartitionLog) -> int:
    """How many items the partition reports to consumers."""
    found: int = log.applied.effects.ready
    return found


def due(log: PartitionLog) -> int:
    """In how many ms the leader proposes something; -1: never."""
    at_ms = log.applied.prompt_ms
    return -1 if at_ms is None else at_ms - log.now_ms


# --- the bucket ------------------------------------------------------------------------------


def test_a_new_limit_lets_the_burst_be_leased_and_then_the_rate():
    log = queue()
    assert (ready(log), count(log)) == (5, 5)
    for _ in range(20):
        log.now_ms += 100
        assert count(log) == 1
    log.now_ms += 50
    assert count(log) == 0
    log.now_ms += 50
    assert count(log) == 1


def test_parts_of_tokens_are_not_lost():
    log = queue(LeaseLimits(items=3, interval_ms=1_000, burst=3))
    assert count(log) == 3
    taken = 0
    for _ in range(1_000):
        log.now_ms += 7
        taken += count(log)
    assert taken == 21


@pytest.mark.parametrize("interval_ms", [2_000, 60_000, 86_400_000 * 1_024])
def test_slow_rates_are_exact(interval_ms: int):
    log = queue(LeaseLimits(items=1, interval_ms=interval_ms, burst=1))
    assert count(log) == 1
    log.now_ms += interval_ms - 1
    assert count(log) == 0
    log.now_ms += 1
    assert count(log) == 1


def test_no_more_than_the_burst_gathers():
    log = queue()
    log.now_ms += 10**9
    assert shown(log).tokens == 5
    assert count(log) == 5


def test_callers_share_the_tokens():
    log = queue()
    grants = log.one(Lease((caller(1), caller(9, client_id="d"), caller(9, client_id="e")))).grants
    assert [len(seqs(grant)) for grant in grants] == [1, 2, 2]


def test_a_lease_takes_tokens_for_what_it_gets_alone():
    log = queue(items=2)
    assert count(log) == 2
    assert shown(log).tokens == 3


def test_a_refused_lease_takes_no_token():
    log = queue(items=0)
    log.produce([b"x" * 1_000])
    refused = log.one(lease_of(1, max_bytes=10)).grants[0]
    assert isinstance(refused, Refusal)
    assert shown(log).tokens == 5


def test_a_repeated_request_takes_no_token():
    log = queue()
    first = leases(log, 3, request_id="r")
    again = leases(log, 3, request_id="r")
    assert again.repeated
    assert seqs(again) == seqs(first)
    assert shown(log).tokens == 2


def test_a_repeat_is_answered_when_there_are_no_tokens():
    log = queue()
    first = leases(log, 5, request_id="r")
    assert seqs(leases(log, 5, request_id="r")) == seqs(first)


@pytest.mark.parametrize("how", [{}, {"count_attempt": False}, {"dead": True}])
def test_items_that_come_back_give_no_token_back(how: dict[str, Any]):
    log = queue()
    log.one(Retry((LeaseItems(leases(log, 5).lease),), **how))
    assert (shown(log).tokens, ready(log), count(log)) == (0, 0, 0)


def test_items_that_die_on_the_way_take_no_token():
    log = queue(items=3, expire_timeout_ms=1_000)
    log.now_ms += 1_000
    log.produce(2)
    assert count(log) == 2
    assert shown(log).tokens == 3


def test_named_items_take_tokens_and_places():
    log = queue(LeaseLimits(10, 1_000, 5, leased_max=4))
    named = Lease((caller(9),), named=((11, 6),))
    assert seqs(log.one(named).grants[0]) == [11, 12, 13, 14]
    assert (shown(log).tokens, ready(log)) == (1, 0)
    assert seqs(log.one(named).grants[0]) == []


def test_several_leases_of_one_entry_share_the_tokens():
    log = queue()
    first, second = log.entry(Proposal(lease_of(3)), Proposal(lease_of(3, client_id="d")))
    assert [len(seqs(one.grants[0])) for one in (first, second)] == [3, 2]


# --- consumers that wait are woken -------------------------------------------------------------


def test_the_leader_refills_when_items_wait_for_tokens():
    log = queue()
    count(log)
    assert (ready(log), due(log)) == (0, 100)
    assert shown(log).next_ms == log.now_ms + 100
    log.advance(99)
    assert ready(log) == 0
    log.advance(1)
    assert (ready(log), due(log)) == (1, -1)


def test_nothing_is_proposed_while_nothing_waits():
    log = queue(items=5)
    assert due(log) == -1
    count(log)
    assert due(log) == -1
    log.produce(1)
    assert (ready(log), due(log)) == (0, 100)
    log.one(Purge(0, 10**9, scheduled=True))
    assert due(log) == -1


def test_one_entry_wakes_for_several_tokens_of_a_high_rate():
    log = queue(LeaseLimits(items=10_000, interval_ms=1_000, burst=2_000), items=3_000)
    assert count(log, 3_000) == 2_000
    assert due(log) == RATE_WAKE_MS
    log.advance(RATE_WAKE_MS)
    assert ready(log) == 10 * RATE_WAKE_MS


def test_few_items_do_not_wait_for_more_tokens_than_they_need():
    log = queue(LeaseLimits(items=10_000, interval_ms=1_000, burst=2_000), items=2_005)
    count(log, 3_000)
    assert due(log) == 1
    log.advance(1)
    assert ready(log) == 5


def test_tokens_that_are_not_taken_cost_no_further_entry():
    log = queue()
    count(log)
    entries = log.index
    log.advance(100)
    log.advance(10_000)
    assert log.index == entries + 1


def test_a_refill_that_comes_early_does_nothing():
    log = queue()
    count(log)
    log.one(Refill())
    assert (ready(log), due(log)) == (0, 100)


def test_a_leader_that_starts_again_knows_when_tokens_come():
    log = queue()
    count(log)
    with log.environment.snapshot() as txn:
        recovered = log.machine.recover(txn)
    assert (recovered.effects.ready, recovered.prompt_ms) == (0, log.now_ms + 100)


def test_a_paused_queue_waits_for_no_tokens():
    log = queue()
    count(log)
    log.configure(2, limits=RATE, lease_paused=True)
    assert (ready(log), due(log), shown(log).next_ms) == (0, -1, 0)
    log.configure(3, limits=RATE)
    assert due(log) == 100


def test_a_partition_at_its_cap_waits_for_no_tokens():
    log = queue(LeaseLimits(10, 1_000, 5, leased_max=5))
    grant = leases(log)
    assert (len(seqs(grant)), ready(log), due(log)) == (5, 0, -1)
    log.one(Complete((LeaseItems(grant.lease),)))
    assert (ready(log), due(log)) == (0, 100)


# --- the number of items at a time -----------------------------------------------------------


def test_no_more_items_are_leased_at_a_time():
    log = queue(CAP)
    assert (ready(log), count(log, 3), ready(log), count(log)) == (4, 3, 1, 1)
    assert (ready(log), count(log)) == (0, 0)


@pytest.mark.parametrize(
    "end", [Complete, Retry, lambda items: Retry(items, count_attempt=False),
            lambda items: Retry(items, dead=True), lambda items: Retry(items, retry_at_ms=10**14)],
)  # fmt: skip
def test_an_item_frees_its_place_when_its_lease_ends(end: Any):
    log = queue(CAP)
    grant = leases(log)
    log.one(end((LeaseItems(grant.lease, ((1, 1), (3, 1))),)))
    assert (ready(log), count(log)) == (2, 2)


def test_a_lapsed_item_frees_its_place():
    log = queue(CAP)
    leases(log)
    log.advance(30_000)
    assert (ready(log), count(log)) == (4, 4)


def test_callers_share_the_places():
    log = queue(CAP)
    grants = log.one(Lease((caller(9), caller(9, client_id="d")))).grants
    assert [len(seqs(grant)) for grant in grants] == [2, 2]


def test_leases_above_a_lower_cap_continue():
    log = queue(CAP)
    grant = leases(log)
    log.configure(2, limits=LeaseLimits(leased_max=2))
    assert (ready(log), count(log)) == (0, 0)
    log.one(Complete((LeaseItems(grant.lease, ((1, 2),)),)))
    assert ready(log) == 0
    log.one(Complete((LeaseItems(grant.lease, ((3, 1),)),)))
    assert (ready(log), count(log)) == (1, 1)


# --- changes ---------------------------------------------------------------------------------


def test_other_settings_leave_the_tokens():
    log = queue()
    count(log, 3)
    log.now_ms += 50
    log.configure(2, limits=RATE, max_attempts=9)
    log.now_ms += 50
    log.one(Expire())
    assert shown(log).tokens == 3


@pytest.mark.parametrize(("interval_ms", "burst", "tokens"), [(500, 5, 3), (4_000, 2, 2)])
def test_another_rate_keeps_the_tokens_up_to_its_burst(interval_ms: int, burst: int, tokens: int):
    log = queue()
    count(log, 2)
    log.configure(2, limits=LeaseLimits(10, interval_ms, burst))
    assert shown(log).tokens == tokens
    count(log)
    log.now_ms += interval_ms // 10
    assert count(log) == 1


def test_a_limit_that_is_removed_lets_everything_be_leased():
    log = queue(LeaseLimits(10, 1_000, 5, leased_max=7))
    count(log)
    log.configure(2)
    assert (ready(log), due(log), count(log, 200)) == (95, -1, 95)


def test_a_limit_that_is_set_later_begins_with_its_burst():
    log = queue(None)
    log.now_ms += 10**6
    log.configure(2, limits=RATE)
    assert (ready(log), count(log)) == (5, 5)


def test_a_rate_that_joins_a_cap_begins_with_its_burst():
    log = queue(CAP)
    leases(log, 1)
    log.configure(2, limits=LeaseLimits(10, 1_000, 5, leased_max=4))
    assert (shown(log).tokens, ready(log)) == (5, 3)


# --- beside other rules ----------------------------------------------------------------------


def test_a_breaker_that_tries_items_takes_a_token_for_each():
    log = queue(breaker=BreakerSettings(50, 2, 10_000, 1_000, 2))
    log.one(SetBreaker(open=True))
    assert (ready(log), due(log)) == (0, 1_000)
    log.advance(1_000)
    assert (ready(log), count(log), shown(log).tokens) == (1, 1, 4)


def test_an_open_breaker_waits_for_no_tokens():
    log = queue(breaker=BreakerSettings(50, 2, 10_000, 60_000, 2))
    count(log)
    log.one(SetBreaker(open=True))
    assert (due(log), shown(log).next_ms) == (60_000, 0)


def test_a_reader_takes_neither_tokens_nor_places():
    log = queue(LeaseLimits(10, 1_000, 5, leased_max=4))
    epoch = log.one(OpenReader("lake")).epoch
    batch = log.one(AdvanceReader("lake", epoch, 0, 50, 10**6)).batch
    assert batch.count == 50
    assert (shown(log).tokens, ready(log)) == (5, 4)


def test_a_fair_queue_has_both_limits():
    log = FlowQueue(
        fair(groups=(GroupSettings("a", leased_max=1),)),
        limits=LeaseLimits(10, 1_000, 5, leased_max=4),
    )
    log.fill({"a": 10, "b": 10})
    assert Counter(log.names[seq] for seq in seqs(log.lease())) == {"a": 1, "b": 3}
    assert (ready(log), due(log)) == (0, -1)


def test_groups_at_their_limits_wait_for_no_tokens():
    log = FlowQueue(
        fair(group_leased_max=1), limits=LeaseLimits(items=10, interval_ms=1_000, burst=1)
    )
    log.fill({"a": 10})
    grant = log.lease()
    assert (len(seqs(grant)), due(log)) == (1, -1)
    log.complete(grant)
    assert due(log) == 100


def test_a_keyed_queue_has_both_limits():
    log = FlowQueue(keyed(), limits=LeaseLimits(10, 1_000, 2, leased_max=4))
    log.put("a", "a", "b", "c", "d")
    assert [log.names[seq] for seq in seqs(log.lease())] == ["a", "b"]
    log.advance(200)
    assert [log.names[seq] for seq in seqs(log.lease())] == ["c", "d"]


def test_damaged_items_are_no_reason_to_exceed_the_limits():
    log = queue(LeaseLimits(10, 1_000, 5, leased_max=4))
    with log.environment.snapshot() as txn:
        assert queries.leasable_beside(txn, log.group, 10) == 4


# --- time ------------------------------------------------------------------------------------


def test_time_that_stands_still_brings_no_tokens():
    log = queue()
    count(log)
    log.now_ms -= 1_000
    assert count(log) == 0
    log.now_ms += 1_100
    assert count(log) == 1


def test_time_that_an_operator_puts_back_leaves_the_tokens():
    log = queue()
    log.now_ms += 10**9
    count(log, 3)
    log.now_ms -= 10**9
    log.one(RepairTime(to_ms=log.now_ms))
    assert shown(log).tokens == 2
    log.now_ms += 100
    log.one(Expire())
    assert shown(log).tokens == 3


# --- costs -----------------------------------------------------------------------------------


def calls_of(log: PartitionLog, command: Any) -> Counter[str]:
    """Python calls in the partition's rules while a command is applied, by function."""
    found: Counter[str] = Counter()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "/querator/partition/" in frame.f_code.co_filename:
            found[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1

    entry = log.machine.pack([Proposal(command)], log.now_ms)
    sys.setprofile(profile)
    try:
        log.replay(entry.command, entry.attachments)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("of", ["lease", "complete", "retry"])
def test_a_queue_without_limits_makes_no_call_for_them(of: str):
    log = PartitionLog(checked=False)
    log.configure()
    log.produce(200)
    command: Any = lease_of(100)
    if of != "lease":
        items = (LeaseItems(leases(log, 100).lease),)
        command = Complete(items) if of == "complete" else Retry(items)
    found = calls_of(log, command)
    assert found
    assert [name for name in found if "/partition/limit" in name or "permitted" in name] == []


@pytest.mark.parametrize("items", [10, 200])
def test_limits_cost_the_same_calls_for_few_and_for_many_items(items: int):
    log = PartitionLog(checked=False)
    log.configure(limits=LeaseLimits(1_000_000, 1_000, 200_000, 1_000))
    log.produce(200)
    found = calls_of(log, lease_of(items))
    assert sum(number for name, number in found.items() if "/partition/limit" in name) <= 20
