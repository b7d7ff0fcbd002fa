"""Recurrences of fair and keyed queues: their items have a group, or go to the partition of their
key.
"""

from struct import pack
from typing import Any

import msgspec
import pytest

from querator.model.commands import Complete, Done, LeaseItems, Move, Moved, MoveDone, Route, Unhold
from querator.model.errors import ErrorCode
from querator.model.item_options import FlowNames, FollowUpFields, ItemSpecial
from querator.model.limits import BLOCK_ITEMS_MAX
from querator.partition import queries
from querator.partition.rows import DeadCause
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.partition.flow_queue import fair, keyed, names_of
from tests.unit.partition.partition_log import GROUP, PartitionLog, lease_of, seqs
from tests.unit.partition.test_entry import LETTER
from tests.unit.partition.test_recurrences import MINUTE_MS, fire, get, make, state

SOURCE = 30
"""A partition of a dead queue."""
THERE = GROUP + 1
"""The second partition of the queue."""
HERE: dict[str, Any] = {"flows": names_of(["k"]), "slot": 6, "routing": 1}
AWAY: dict[str, Any] = {"slot": 7, "routing": 1, "partition": 1, "target_group": THERE}


def keyed_queue(**changes: Any) -> tuple[PartitionLog, PartitionLog]:
    """Both partitions of a keyed queue."""
    environment = MemoryEnvironment()
    logs = PartitionLog(environment), PartitionLog(environment, group=THERE)
    for number, log in enumerate(logs):
        log.configure(flows=keyed(), partition=number, **changes)
        log.one(Route(1, 2, open=True))
    return logs


def due(log: PartitionLog, *places: int) -> tuple[int, ...]:
    """Due times of a recurrence that is made on the way, and the time after them."""
    made = make(log)
    first_ms = made.runs.after_ms + MINUTE_MS
    log.now_ms = first_ms + max(places) * MINUTE_MS
    return tuple(first_ms + place * MINUTE_MS for place in places)


def carried(source: PartitionLog, target: PartitionLog) -> Moved:
    """What the mover does with one batch."""
    with source.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, GROUP, THERE)
    assert batch is not None
    command = Move(
        GROUP, batch.first_move, batch.lengths, batch.items,
        flows=names_of(["k"] * len(batch.items)), routing=1, homes=(GROUP, THERE),
    )  # fmt: skip
    moved: Moved = target.one(command, batch.attachment)
    source.one(MoveDone(THERE, moved.upto_move))
    return moved


def one_lease(log: PartitionLog) -> tuple[int, list[int]]:
    grant = log.one(lease_of(1)).grants[0]
    return grant.lease, seqs(grant)


def test_the_items_of_a_fair_queue_have_their_group():
    log = PartitionLog()
    log.configure(flows=fair())
    log.produce(3, flows=names_of(["busy"] * 3))
    [due_ms] = due(log, 0)
    flows = FlowNames((b"eu.de",), b"\0\0")
    assert log.entry(fire(get(log), due_ms, flows=flows)) == (Done(1),)
    assert get(log).runs.last_seq == 4
    assert 4 in seqs(log.one(lease_of(2)).grants[0]), "the groups take turns"


def test_items_without_a_group_are_in_the_root_of_a_fair_queue():
    log = PartitionLog()
    log.configure(flows=fair())
    [due_ms] = due(log, 0)
    assert log.entry(fire(get(log), due_ms)) == (Done(1),)
    assert seqs(log.one(lease_of(2)).grants[0]) == [1]


def test_a_group_that_is_no_path_decides_nothing():
    log = PartitionLog()
    log.configure(flows=fair())
    [due_ms] = due(log, 0)
    wrong = FlowNames((b"eu..de",), b"\0\0")
    [refusal] = log.entry(fire(get(log), due_ms, flows=wrong))
    assert (refusal.code, refusal.field) == (ErrorCode.INVALID_ARGUMENT, "items.group")
    assert (get(log).runs.fired, state(log).recurring) == (0, 1)


def test_a_key_of_this_partition_has_one_lease_at_a_time():
    log, _ = keyed_queue()
    log.produce(1, flows=names_of(["k"]), slots=b"\x06\0", routing=1)
    first_ms, second_ms = due(log, 0, 1)
    both = {**HERE, "flows": names_of(["k", "k"])}
    assert log.entry(fire(get(log), first_ms, second_ms, **both)) == (Done(1),)
    log.produce(1, flows=names_of(["k"]), slots=b"\x06\0", routing=1)
    found = []
    for _ in range(4):
        lease, [seq] = one_lease(log)
        assert one_lease(log) == (0, [])
        found.append(seq)
        log.one(Complete((LeaseItems(lease),)))
    assert found == [1, 2, 3, 4]


def test_items_of_another_partitions_key_arrive_there_once_and_in_order():
    log, there = keyed_queue()
    times = due(log, 0, 1, 2)
    decision = fire(get(log), *times[:2], **AWAY)
    assert log.entry(decision, decision) == (Done(1), Done(0))
    runs = get(log).runs
    assert (runs.fired, runs.last_due_ms, runs.last_seq) == (2, times[1], 0)
    assert (state(log).produced, state(log).moving, state(log).ready) == (2, 2, 0)
    assert carried(log, there) == Moved(2, 2)
    assert log.entry(fire(get(log), times[2], **AWAY)) == (Done(1),)
    assert carried(log, there) == Moved(1, 3)
    found = []
    for _ in range(3):
        lease, [seq] = one_lease(there)
        assert one_lease(there) == (0, [])
        found.append(seq)
        there.one(Complete((LeaseItems(lease),)))
    assert found == [1, 2, 3]
    with log.environment.snapshot() as txn:
        assert queries.outbox_batch(txn, GROUP, THERE) is None


def test_the_outbox_keeps_what_an_item_needs_at_its_target():
    log, _ = keyed_queue()
    [due_ms] = due(log, 0)
    special = ItemSpecial(0, 0, 60_000, 5_000, max_attempts=2)
    log.entry(fire(get(log), due_ms, specials=(special,), **AWAY))
    with log.environment.snapshot() as txn:
        batch = queries.outbox_batch(txn, GROUP, THERE)
    assert batch is not None
    [item] = batch.items
    assert (item.reason, item.follow_up) == (DeadCause.FOLLOW_UP, FollowUpFields(0, slot=7))
    assert (item.expire_timeout_ms, item.lease_timeout_ms, item.max_attempts) == (60_000, 5_000, 2)


def test_items_of_several_blocks_move():
    log, there = keyed_queue()
    times = due(log, *range(BLOCK_ITEMS_MAX + 44))
    assert log.entry(fire(get(log), *times, **AWAY)) == (Done(1),)
    assert state(log).moving == len(times)
    while state(log).moving:
        carried(log, there)
    arrived = state(there)
    assert (arrived.ready, arrived.moved_in) == (len(times), len(times))


@pytest.mark.parametrize("where", [HERE, AWAY])
def test_a_decision_by_another_routing_is_refused_and_nothing_is_decided(where: dict[str, Any]):
    log, _ = keyed_queue()
    [due_ms] = due(log, 0)
    [refusal] = log.entry(fire(get(log), due_ms, **where | {"routing": 2}))
    assert refusal.code is ErrorCode.ROUTING_CHANGED
    log.one(Route(2, 2, open=False))
    [refusal] = log.entry(fire(get(log), due_ms, **where | {"routing": 2}))
    assert refusal.code is ErrorCode.ROUTING_CHANGED
    assert (get(log).runs.fired, state(log).recurring, state(log).moving) == (0, 1, 0)
    log.one(Route(2, 2, open=True))
    assert log.entry(fire(get(log), due_ms, **where | {"routing": 2})) == (Done(1),)


def test_items_in_the_outbox_count_for_the_limit_of_the_partition():
    log, _ = keyed_queue(items_max=1)
    first_ms, second_ms = due(log, 0, 1)
    assert log.entry(fire(get(log), first_ms, **AWAY)) == (Done(1),)
    [refusal] = log.entry(fire(get(log), second_ms, **AWAY))
    assert (refusal.code, refusal.limit) == (ErrorCode.QUEUE_FULL, "1")


def test_an_item_of_a_moved_key_waits_for_earlier_ones_elsewhere():
    log, _ = keyed_queue()
    log.one(Route(2, 1, open=False, before=2))
    log.one(Route(2, 1, open=True, before=2))
    [due_ms] = due(log, 0)
    here = {"flows": names_of(["k"]), "slot": 7, "routing": 2}
    assert log.entry(fire(get(log), due_ms, **here)) == (Done(1),)
    assert one_lease(log) == (0, [])
    log.one(Unhold(2, b"\x02"))
    assert one_lease(log)[1] == [1]


def test_an_item_that_is_sent_on_in_a_keyed_queue_arrives():
    """It was on its way when its key moved to another partition."""
    log, there = keyed_queue()
    redriven = msgspec.structs.replace(
        LETTER, reason=DeadCause.NONE, attributes=None, follow_up=FollowUpFields(0, slot=7)
    )
    command = Move(
        SOURCE, 1, pack("<I", 1), (redriven,),
        flows=names_of(["k"]), routing=1, homes=(GROUP, THERE),
    )  # fmt: skip
    assert log.one(command, b"x") == Moved(1, 1)
    assert state(log).moving == 1
    assert carried(log, there) == Moved(1, 1)
    assert one_lease(there)[1] == [1]
