"""The breaker of a partition: leases stop while consumers fail, and single items are tried."""

import sys
from collections import Counter
from typing import Any

import msgspec
import pytest

from querator.model.calls import BreakerCounts
from querator.model.commands import (
    Complete,
    Expire,
    Extend,
    HalfOpen,
    Lease,
    LeaseGrant,
    LeaseItems,
    Purge,
    RepairTime,
    Retry,
    Route,
    SetBreaker,
)
from querator.model.entries import Proposal
from querator.model.errors import ErrorCode
from querator.model.limits import BREAKER_BUCKETS
from querator.model.queues import BreakerSettings, BreakerState, GroupSettings
from querator.model.readers import AdvanceReader, OpenReader
from querator.partition import queries, reader_queries
from tests.unit.partition.flow_queue import FlowQueue, fair, keyed
from tests.unit.partition.partition_log import (
    GROUP,
    PartitionLog,
    caller,
    dead_to,
    lease_of,
    seqs,
)

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
BREAKER = BreakerSettings(
    failure_percent=50, outcomes_min=4, window_ms=10_000, open_ms=5_000, probes=2
)


def queue(items: int = 20, **changes: Any) -> PartitionLog:
    log = PartitionLog()
    log.configure(breaker=BREAKER, **changes)
    if items:
        log.produce(items)
    return log


def leases(log: PartitionLog, items: int) -> LeaseGrant:
    grant = log.one(lease_of(items)).grants[0]
    assert isinstance(grant, LeaseGrant)
    return grant


def complete(log: PartitionLog, grant: LeaseGrant, *chosen: int) -> None:
    log.one(Complete((LeaseItems(grant.lease, tuple((seq, 1) for seq in chosen)),)))


def fail(log: PartitionLog, grant: LeaseGrant, *chosen: int, **how: Any) -> None:
    log.one(Retry((LeaseItems(grant.lease, tuple((seq, 1) for seq in chosen)),), **how))


def shown(log: PartitionLog) -> BreakerCounts:
    with log.environment.snapshot() as txn:
        found = queries.stats(txn, log.group).breaker
    assert found is not None
    return found


def opened(items: int = 20, **changes: Any) -> PartitionLog:
    """A queue whose breaker four failures have just opened."""
    log = queue(items, **changes)
    fail(log, leases(log, 4))
    assert shown(log).state is OPEN
    return log


def half_opened(items: int = 20, **changes: Any) -> PartitionLog:
    log = opened(items, **changes)
    log.advance(BREAKER.open_ms)
    assert shown(log).state is HALF_OPEN
    return log


# --- it opens --------------------------------------------------------------------------------


def test_it_opens_when_enough_of_the_outcomes_are_failures():
    log = queue()
    grant = leases(log, 10)
    fail(log, grant, 1)
    complete(log, grant, 2, 3)
    assert shown(log).state is CLOSED
    assert (shown(log).outcomes, shown(log).failures) == (3, 1)
    fail(log, grant, 4)
    assert shown(log).state is OPEN
    assert (shown(log).outcomes, shown(log).failures) == (4, 2)
    assert (shown(log).since_ms, shown(log).until_ms) == (log.now_ms, log.now_ms + 5_000)
    assert seqs(leases(log, 10)) == []


def test_it_does_not_open_before_there_are_enough_outcomes():
    log = queue()
    fail(log, leases(log, 3))
    assert shown(log).state is CLOSED


def test_it_does_not_open_below_the_rate():
    log = queue(200)
    grant = leases(log, 100)
    complete(log, grant, *range(1, 52))
    fail(log, grant, *range(52, 101))
    assert (shown(log).state, shown(log).outcomes, shown(log).failures) == (CLOSED, 100, 49)


def test_successes_after_failures_may_open_it_when_there_are_enough_outcomes():
    log = queue()
    grant = leases(log, 4)
    fail(log, grant, 1, 2)
    complete(log, grant, 3, 4)
    assert shown(log).state is OPEN


@pytest.mark.parametrize(
    "how", [{}, {"retry_at_ms": 10**14}, {"dead": True}, {"dead": True, "count_attempt": False}]
)
def test_retries_that_count_and_rejects_are_failures(how: dict[str, Any]):
    log = queue()
    fail(log, leases(log, 4), **how)
    assert shown(log).state is OPEN


@pytest.mark.parametrize(
    "how", [{"count_attempt": False}, {"count_attempt": False, "retry_at_ms": 10**14}]
)
def test_items_that_are_given_back_are_neither(how: dict[str, Any]):
    log = queue()
    fail(log, leases(log, 10), **how)
    assert (shown(log).state, shown(log).outcomes) == (CLOSED, 0)


def test_lapsed_leases_are_failures():
    log = queue()
    leases(log, 4)
    log.advance(30_000)
    assert shown(log).state is OPEN


def test_outcomes_outside_of_the_window_do_not_count():
    log = queue()
    fail(log, leases(log, 3))
    log.advance(BREAKER.window_ms)
    fail(log, leases(log, 1))
    assert (shown(log).state, shown(log).outcomes) == (CLOSED, 1)


def test_outcomes_of_the_window_count_in_all_of_its_parts():
    log = queue()
    for _ in range(3):
        fail(log, leases(log, 1))
        log.advance(BREAKER.window_ms // BREAKER_BUCKETS)
    fail(log, leases(log, 1))
    assert shown(log).state is OPEN


def test_repeats_do_not_count_twice():
    log = queue()
    grant = leases(log, 3)
    for _ in range(3):
        fail(log, grant)
    assert (shown(log).state, shown(log).outcomes) == (CLOSED, 3)


def test_the_rate_may_be_all():
    log = PartitionLog()
    log.configure(breaker=msgspec.structs.replace(BREAKER, failure_percent=100))
    log.produce(20)
    grant = leases(log, 10)
    complete(log, grant, 1)
    fail(log, grant, *range(2, 11))
    assert shown(log).state is CLOSED


# --- it is open ------------------------------------------------------------------------------


def test_what_is_leased_can_be_settled_and_extended_while_it_is_open():
    log = queue()
    grant = leases(log, 10)
    fail(log, grant, 1, 2, 3, 4)
    ((_, deadline_ms),) = log.one(Extend((grant.lease,), lease_timeout_ms=90_000)).outcomes
    assert deadline_ms == log.now_ms + 90_000
    done = log.one(Complete((LeaseItems(grant.lease, ((5, 1),)),))).outcomes[0]
    assert done.done == ((5, 1),)
    assert shown(log).state is OPEN


def test_a_repeated_request_gets_its_answer_while_it_is_open():
    log = queue()
    request = lease_of(2, request_id="r1")
    first = log.one(request).grants[0]
    fail(log, leases(log, 4))
    again = log.one(request).grants[0]
    assert (seqs(again), again.lease, again.repeated) == (seqs(first), first.lease, True)


def test_consumers_are_not_woken_for_items_that_they_cannot_lease():
    log = opened()
    assert (log.applied.effects.ready, log.applied.effects.breaker) == (0, OPEN)
    log.produce(1)
    assert log.applied.effects.ready == 0
    log.advance(BREAKER.open_ms)
    assert (log.applied.effects.ready, log.applied.effects.breaker) == (1, HALF_OPEN)
    with log.environment.snapshot() as txn:
        assert queries.leasable_beside(txn, GROUP, 0) == 1
        assert queries.leasable_beside(txn, GROUP, 100) == 0


def test_a_node_that_starts_knows_that_it_is_open_and_tries_in_time():
    log = opened()
    with log.environment.snapshot() as txn:
        recovered = log.machine.recover(txn)
    assert recovered.effects.ready == 0
    assert recovered.prompt_ms == log.now_ms + BREAKER.open_ms
    assert log.machine.due_commands(log.now_ms + BREAKER.open_ms, prompt=True) == [HalfOpen()]


def test_half_open_before_its_time_does_nothing():
    log = opened()
    log.now_ms += BREAKER.open_ms - 1
    assert log.one(HalfOpen()).changed == 0
    assert shown(log).state is OPEN


def test_late_outcomes_neither_open_nor_close_it():
    """A lease of many items is out when it opens."""
    log = queue(2_000)
    grant = leases(log, 1_000)
    fail(log, grant, 1, 2, 3, 4)
    until_ms = shown(log).until_ms
    fail(log, grant, *range(5, 100))
    assert shown(log).until_ms == until_ms
    log.advance(BREAKER.open_ms)
    complete(log, grant, *range(100, 200))
    fail(log, grant, *range(200, 300))
    assert (shown(log).state, shown(log).probes_passed) == (HALF_OPEN, 0)
    for _ in range(BREAKER.probes):
        complete(log, leases(log, 1))
    assert shown(log).state is CLOSED
    fail(log, grant, *range(300, 400))
    assert (shown(log).state, shown(log).outcomes) == (CLOSED, 0)


# --- it tries single items -------------------------------------------------------------------


def test_one_item_is_leased_at_a_time():
    log = half_opened()
    result = log.one(Lease((caller(0), caller(50), caller(50, client_id="d"))))
    assert [len(seqs(grant)) for grant in result.grants] == [0, 1, 0]
    assert shown(log).probing
    assert log.applied.effects.ready == 0
    assert seqs(leases(log, 10)) == []
    complete(log, result.grants[1])
    assert (shown(log).probes_passed, shown(log).probing) == (1, False)
    assert log.applied.effects.ready == 1
    assert len(seqs(leases(log, 10))) == 1


def test_two_leases_of_one_entry_get_one_item():
    log = half_opened()
    first, second = log.entry(Proposal(lease_of(5)), Proposal(lease_of(5, client_id="d")))
    assert (len(seqs(first.grants[0])), seqs(second.grants[0])) == (1, [])


def test_it_closes_when_enough_of_them_succeed():
    log = half_opened()
    for _ in range(BREAKER.probes):
        log.now_ms += 10
        complete(log, leases(log, 1))
    assert (shown(log).state, shown(log).since_ms) == (CLOSED, log.now_ms)
    assert (shown(log).outcomes, shown(log).failures) == (0, 0)
    assert log.applied.effects.ready == 18
    assert len(seqs(leases(log, 10))) == 10


@pytest.mark.parametrize("passed", [0, 1])
def test_one_that_fails_opens_it_again(passed: int):
    log = half_opened()
    for _ in range(passed):
        complete(log, leases(log, 1))
    fail(log, leases(log, 1))
    assert (shown(log).state, shown(log).until_ms) == (OPEN, log.now_ms + BREAKER.open_ms)
    log.advance(BREAKER.open_ms)
    assert (shown(log).state, shown(log).probes_passed) == (HALF_OPEN, 0)


def test_one_that_lapses_opens_it_again():
    log = half_opened()
    leases(log, 1)
    log.now_ms += 30_000
    log.one(Expire())
    assert shown(log).state is OPEN


def test_after_one_that_is_given_back_the_next_is_tried():
    log = half_opened()
    first = leases(log, 1)
    fail(log, first, count_attempt=False)
    assert (shown(log).state, shown(log).probing, shown(log).probes_passed) == (HALF_OPEN, False, 0)
    assert seqs(leases(log, 1)) == seqs(first)


def test_an_empty_queue_stays_half_open_until_there_is_an_item():
    log = half_opened(4)
    purged = log.one(Purge(0, 100, scheduled=True))
    assert purged.removed == 4
    log.advance(3_600_000)
    assert (shown(log).state, log.applied.effects.ready) == (HALF_OPEN, 0)
    log.produce(3)
    assert log.applied.effects.ready == 1
    assert len(seqs(leases(log, 3))) == 1


def test_an_item_that_no_caller_can_take_stays_and_is_tried_later():
    log = half_opened()
    refused = log.one(lease_of(1, max_bytes=1)).grants[0]
    assert refused.code is ErrorCode.ITEM_TOO_LARGE
    assert not shown(log).probing
    assert len(seqs(leases(log, 1))) == 1


def test_items_that_die_in_the_lease_are_no_probe():
    log = half_opened(4, max_attempts=1, dead_targets=dead_to(9))
    log.produce(2)
    assert seqs(leases(log, 5)) == [5]


# --- others that take items ------------------------------------------------------------------


def test_readers_continue_while_it_is_open_and_are_no_probe():
    log = opened()
    epoch = log.one(OpenReader("lake")).epoch
    advance = AdvanceReader("lake", epoch, 0, 5, 10**6)
    with log.environment.snapshot() as txn:
        assert reader_queries.outlook(txn, GROUP, advance).ready == 20
    batch = log.one(advance).batch
    assert batch.count == 5
    log.advance(BREAKER.open_ms)
    log.one(AdvanceReader("lake", epoch, batch.seq, 0, 0))
    assert (shown(log).state, shown(log).probes_passed) == (HALF_OPEN, 0)


def test_a_pause_holds_in_every_state_and_the_open_time_ends_during_it():
    log = opened()
    log.configure(2, breaker=BREAKER, lease_paused=True)
    log.advance(BREAKER.open_ms)
    assert (shown(log).state, log.applied.effects.ready) == (HALF_OPEN, 0)
    assert seqs(leases(log, 5)) == []
    log.configure(3, breaker=BREAKER)
    assert log.applied.effects.ready == 1
    assert len(seqs(leases(log, 5))) == 1


def test_groups_of_a_fair_queue_are_tried_one_item_at_a_time():
    queue = FlowQueue(fair())
    queue.configure(2, flows=fair(), breaker=BREAKER)
    queue.put(*["a"] * 8, *["b"] * 8)
    fail(queue, leases(queue, 4))
    queue.advance(BREAKER.open_ms)
    assert queue.applied.effects.ready == 1
    assert len(seqs(leases(queue, 10))) == 1
    assert queue.applied.effects.ready == 0


def test_a_paused_group_is_not_tried():
    queue = FlowQueue(fair())
    queue.configure(2, flows=fair(), breaker=BREAKER)
    queue.put(*["a"] * 8)
    fail(queue, leases(queue, 4))
    groups = fair(groups=(GroupSettings("a", paused=True),))
    queue.configure(3, flows=groups, breaker=BREAKER)
    queue.advance(BREAKER.open_ms)
    assert (shown(queue).state, queue.applied.effects.ready) == (HALF_OPEN, 0)
    queue.configure(4, flows=fair(), breaker=BREAKER)
    queue.advance(0)
    assert len(seqs(leases(queue, 5))) == 1


def test_keys_are_tried_one_item_at_a_time_and_keep_their_order():
    settings = keyed(key_leased_max=10)
    queue = FlowQueue(settings)
    queue.configure(2, flows=settings, breaker=BREAKER)
    queue.put(*["k"] * 8)
    fail(queue, leases(queue, 4))
    queue.advance(BREAKER.open_ms)
    assert seqs(leases(queue, 10)) == [1]


# --- settings and operators ------------------------------------------------------------------


def test_without_the_setting_there_is_no_breaker():
    log = PartitionLog()
    log.configure()
    log.produce(10)
    fail(log, leases(log, 10))
    with log.environment.snapshot() as txn:
        assert queries.stats(txn, GROUP).breaker is None
    refusal = log.one(SetBreaker(open=True))
    assert (refusal.code, refusal.field, refusal.value) == (
        ErrorCode.INVALID_ARGUMENT, "queue", "work",
    )  # fmt: skip
    assert "has no breaker" in refusal.message


@pytest.mark.parametrize("make", [opened, half_opened])
def test_removed_settings_close_it_at_once(make: Any):
    log = make()
    log.configure(2)
    assert (log.applied.effects.ready, log.applied.effects.breaker) == (20, CLOSED)
    assert len(seqs(leases(log, 10))) == 10


def test_other_settings_do_not_change_its_state():
    log = queue()
    fail(log, leases(log, 3))
    log.configure(2, breaker=BREAKER, max_attempts=9)
    assert shown(log).outcomes == 3


def test_changed_settings_begin_the_counts_at_zero():
    log = queue()
    fail(log, leases(log, 3))
    log.configure(2, breaker=msgspec.structs.replace(BREAKER, window_ms=60_000))
    assert shown(log).outcomes == 0


@pytest.mark.parametrize("open_ms", [1_000, 60_000])
def test_a_changed_open_time_counts_from_when_it_opened(open_ms: int):
    log = opened()
    since_ms = log.now_ms
    log.now_ms += 500
    log.configure(2, breaker=msgspec.structs.replace(BREAKER, open_ms=open_ms))
    assert shown(log).until_ms == since_ms + open_ms
    log.now_ms = since_ms
    log.advance(open_ms)
    assert shown(log).state is HALF_OPEN


def test_fewer_probes_may_close_it_at_once():
    log = half_opened()
    complete(log, leases(log, 1))
    log.configure(2, breaker=msgspec.structs.replace(BREAKER, probes=1))
    assert shown(log).state is CLOSED


def test_more_probes_count_those_that_have_succeeded():
    log = half_opened()
    complete(log, leases(log, 1))
    log.configure(2, breaker=msgspec.structs.replace(BREAKER, probes=3))
    assert (shown(log).state, shown(log).probes_passed) == (HALF_OPEN, 1)


def test_opened_by_hand_it_stays_open_for_the_open_time():
    log = queue()
    assert log.one(SetBreaker(open=True)).changed == 1
    assert (shown(log).state, shown(log).outcomes) == (OPEN, 0)
    log.now_ms += 1_000
    assert log.one(SetBreaker(open=True)).changed == 0
    assert shown(log).until_ms == log.now_ms + BREAKER.open_ms
    log.advance(BREAKER.open_ms)
    assert shown(log).state is HALF_OPEN


@pytest.mark.parametrize("make", [opened, half_opened])
def test_closed_by_hand_it_begins_with_zero_counts(make: Any):
    log = make()
    if shown(log).state is HALF_OPEN:
        leases(log, 1)
    assert log.one(SetBreaker(open=False)).changed == 1
    assert (shown(log).state, shown(log).outcomes) == (CLOSED, 0)
    assert log.applied.effects.ready > 10
    assert log.one(SetBreaker(open=False)).changed == 0


def test_opened_by_hand_while_an_item_is_tried_its_outcome_does_not_count():
    log = half_opened()
    probe = leases(log, 1)
    log.one(SetBreaker(open=True))
    complete(log, probe)
    assert (shown(log).state, shown(log).probes_passed) == (OPEN, 0)


def test_a_closing_partition_is_leased_from_until_it_is_empty():
    log = opened(4, partition=3)
    log.one(Route(2, 2, open=True, before=4))
    log.advance(BREAKER.open_ms)
    for _ in range(4):
        complete(log, leases(log, 1))
    with log.environment.snapshot() as txn:
        assert queries.stats(txn, GROUP).ready == 0


# --- time ------------------------------------------------------------------------------------


def test_time_that_jumps_ahead_ends_the_open_time():
    log = opened()
    log.advance(10 * BREAKER.open_ms)
    assert shown(log).state is HALF_OPEN


def test_time_that_an_operator_puts_back_keeps_the_rest_of_the_open_time():
    log = queue()
    log.now_ms += 10**9
    fail(log, leases(log, 4))
    log.now_ms += 1_000
    log.one(Expire())
    back_ms = log.now_ms - 10**9
    log.now_ms = back_ms
    log.one(RepairTime(to_ms=back_ms))
    assert (shown(log).state, shown(log).until_ms) == (OPEN, back_ms + 4_000)
    log.advance(4_000)
    assert shown(log).state is HALF_OPEN


def test_time_that_an_operator_puts_back_begins_the_counts_at_zero():
    log = queue()
    log.now_ms += 10**9
    fail(log, leases(log, 3))
    log.now_ms -= 10**9
    log.one(RepairTime(to_ms=log.now_ms))
    assert shown(log).outcomes == 0
    fail(log, leases(log, 4))
    assert shown(log).state is OPEN


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
def test_a_queue_without_a_breaker_makes_no_call_for_it(of: str):
    log = PartitionLog(checked=False)
    log.configure()
    log.produce(200)
    command: Any = lease_of(100)
    if of != "lease":
        items = (LeaseItems(leases(log, 100).lease),)
        command = Complete(items) if of == "complete" else Retry(items)
    found = calls_of(log, command)
    assert found
    assert [name for name in found if "/partition/breaker" in name] == []


@pytest.mark.parametrize("items", [10, 200])
def test_a_breaker_costs_the_same_calls_for_few_and_for_many_items(items: int):
    log = PartitionLog(checked=False)
    log.configure(breaker=msgspec.structs.replace(BREAKER, outcomes_min=1_000))
    log.produce(200)
    found = calls_of(log, Complete((LeaseItems(leases(log, items).lease),)))
    assert sum(number for name, number in found.items() if "/partition/breaker" in name) <= 15


def test_the_row_stays_small():
    log = PartitionLog()
    log.configure(breaker=msgspec.structs.replace(BREAKER, outcomes_min=1_000_000))
    log.produce(200)
    for _ in range(100):
        fail(log, leases(log, 1))
        log.advance(700)
    assert 7 <= shown(log).outcomes <= 20
