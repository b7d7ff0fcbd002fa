"""Items of a key that has moved go to the partition of their key when they become ready."""

from struct import pack
from typing import Any

import pytest
from msgspec.structs import replace

from querator.model.commands import (
    Complete,
    Done,
    Extend,
    ItemCheckpoint,
    LeaseItems,
    Move,
    Moved,
    MovedItem,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    Refusal,
    Reschedule,
    Retry,
    Route,
    SaveCheckpoints,
    Unhold,
)
from querator.model.errors import ErrorCode
from querator.model.item_options import FollowUpFields, ItemSpecial
from querator.model.limits import PARTITIONS_MAX
from querator.model.queues import DedupUntil
from querator.model.routing import slot_of_key
from querator.partition import queries
from querator.partition.overlays import load_overlay
from querator.partition.rows import DeadCause, PartitionState, decode_state
from querator.partition.segments import load_block
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import STATE
from tests.unit.partition.flow_queue import keyed, names_of
from tests.unit.partition.partition_log import GROUP, PartitionLog, dead_to, lease_of, seqs

THERE = GROUP + 1
"""The second partition."""
THIRD = THERE + 1
DEAD = 40
"""A partition of the dead queue."""
LATER_MS = 60_000
KEYS = [f"key {number}" for number in range(20)]
MOVED, STAYED = (
    next(key for key in KEYS if slot_of_key(key.encode()) % 2 == partition) for partition in (1, 0)
)
TWICE = next(key for key in KEYS if slot_of_key(key.encode()) % 6 == 5)
"""It moves from the first partition to the second and the third."""


class Queue:
    """A keyed queue of one partition that gets a second one."""

    def __init__(self, *, steps_aside: bool = True, **changes: Any) -> None:
        environment = MemoryEnvironment()
        self.here = PartitionLog(environment)
        self.there = PartitionLog(environment, group=THERE)
        flows = keyed(key_retry_blocks=not steps_aside)
        for number, log in enumerate((self.here, self.there)):
            log.configure(flows=flows, partition=number, **changes)
        self.here.one(Route(1, 1, open=True, groups=(GROUP,)))
        self.routing = 1

    def put(self, *keys: str, **changes: Any) -> int:
        return self._put(self.here, *keys, **changes)

    def put_there(self, *keys: str, **changes: Any) -> int:
        return self._put(self.there, *keys, **changes)

    def _put(self, log: PartitionLog, *keys: str, later_ms: int = 0, **changes: Any) -> int:
        due_ms = log.now_ms + later_ms if later_ms else 0
        result = log.produce(
            len(keys),
            flows=names_of(list(keys)),
            slots=pack(f"<{len(keys)}H", *(slot_of_key(key.encode()) for key in keys)),
            routing=self.routing,
            specials=tuple(ItemSpecial(ordinal, due_ms, **changes) for ordinal in range(len(keys))),
        )
        assert not isinstance(result, Refusal)
        first: int = result.first_seq
        return first

    def grow(self) -> None:
        for open_ in (False, True):
            for log in (self.here, self.there):
                log.one(Route(2, 2, open=open_, before=1, groups=(GROUP, THERE)))
        self.routing = 2

    def shrink(self) -> None:
        for open_ in (False, True):
            for log in (self.here, self.there):
                log.one(Route(3, 1, open=open_, before=2, groups=(GROUP,)))
        self.routing = 3

    def time_passes(self, milliseconds: int = LATER_MS) -> None:
        for log in (self.here, self.there):
            log.advance(milliseconds)

    def batch(self, target: int = THERE, source: PartitionLog | None = None) -> Any:
        source = source or self.here
        with source.environment.snapshot() as txn:
            return queries.outbox_batch(txn, source.group, target)

    def carry(self, key: str, *, homes: tuple[int, ...] = (GROUP, THERE), **changes: Any) -> Any:
        """What the mover does with one batch, all of one key."""
        there: PartitionLog = changes.get("there", self.there)
        source: PartitionLog = changes.get("source", self.here)
        batch = self.batch(there.group, source)
        assert batch is not None
        slot = slot_of_key(key.encode())
        items = [item if item.follow_up else _with_slot(item, slot) for item in batch.items]
        command = Move(
            source.group, batch.first_move, batch.lengths, tuple(items),
            flows=names_of([key] * len(items)), routing=self.routing, homes=homes,
            checkpoints=batch.checkpoints,
        )  # fmt: skip
        moved = there.one(command, batch.attachment)
        if isinstance(moved, Moved):
            source.one(MoveDone(there.group, moved.upto_move))
        return moved


def _with_slot(item: MovedItem, slot: int) -> MovedItem:
    return replace(item, follow_up=FollowUpFields(0, slot=slot))


def leased(log: PartitionLog) -> tuple[int, list[int]]:
    grant = log.one(lease_of(100)).grants[0]
    return grant.lease, seqs(grant)


def state_of(log: PartitionLog) -> PartitionState:
    with log.environment.snapshot() as txn:
        raw = STATE.get(txn, log.group)
    assert raw is not None
    return decode_state(raw)


def counts(log: PartitionLog) -> tuple[int, int, int]:
    """Ready, scheduled and moving items."""
    state = state_of(log)
    return state.ready, state.scheduled, state.moving


def test_a_scheduled_item_of_a_moved_key_is_leased_at_its_home():
    queue = Queue()
    queue.put(MOVED, STAYED, later_ms=LATER_MS)
    queue.grow()
    queue.time_passes()
    assert counts(queue.here) == (1, 0, 1)
    assert queue.carry(MOVED) == Moved(1, 1)
    assert (counts(queue.here), state_of(queue.there).held) == ((1, 0, 0), 1)
    queue.there.one(Unhold(2, b"\1"))
    assert len(leased(queue.there)[1]) == 1
    assert len(leased(queue.here)[1]) == 1


def test_an_item_that_stepped_aside_keeps_attempts_errors_and_checkpoint():
    queue = Queue(max_attempts=2, expire_timeout_ms=LATER_MS * 10)
    queue.put(MOVED)
    expires_ms = queue.here.now_ms + LATER_MS * 10
    lease, [seq] = leased(queue.here)
    queue.here.one(
        SaveCheckpoints(Extend((lease,)), pack("<I", 3), (ItemCheckpoint(lease, seq),)), b"abc"
    )
    due_ms = queue.here.now_ms + LATER_MS
    queue.here.one(Retry((LeaseItems(lease),), due_ms, error="no luck"))
    queue.grow()
    queue.time_passes()
    [item] = queue.batch().items
    assert (item.reason, item.attempts, item.errors) == (DeadCause.HOME, 1, ("no luck",))
    assert 0 <= item.expire_at_ms - expires_ms < 1_000
    assert queue.carry(MOVED) == Moved(1, 1)
    queue.there.one(Unhold(2, b"\1"))
    grant = queue.there.one(lease_of(1)).grants[0]
    assert [segment.attempt for segment in grant.segments] == [2]
    [moved] = seqs(grant)
    with queue.there.environment.snapshot() as txn:
        overlay = load_overlay(txn, THERE, moved)
        assert (overlay.errors, overlay.letter) == (("no luck",), None)
        assert overlay.checkpoint is not None
        assert overlay.checkpoint.size == 3
        block = load_block(txn, THERE, moved)
        assert block.own_times(0).expire_at_ms == item.expire_at_ms
    queue.there.one(Retry((LeaseItems(grant.lease),)))
    assert state_of(queue.there).dropped == 1, "both attempts are used up"


def test_an_item_that_expired_on_its_way_dies_at_its_home():
    queue = Queue()
    queue.put(MOVED, later_ms=LATER_MS, expire_timeout_ms=5_000)
    queue.grow()
    queue.time_passes()
    queue.time_passes()
    assert queue.carry(MOVED) == Moved(1, 1)
    queue.time_passes(2_000)
    assert state_of(queue.there).expired == 1
    assert counts(queue.there) == (0, 0, 0)


def test_items_with_different_attempts_arrive_in_order():
    queue = Queue()
    queue.put(MOVED)
    lease, _ = leased(queue.here)
    queue.here.one(Retry((LeaseItems(lease),), queue.here.now_ms + LATER_MS))
    queue.put(MOVED, MOVED, later_ms=LATER_MS + 1)
    queue.grow()
    queue.time_passes(LATER_MS + 1)
    assert [item.attempts for item in queue.batch().items] == [1, 0, 0]
    assert queue.carry(MOVED) == Moved(3, 3)
    queue.there.one(Unhold(2, b"\1"))
    found = []
    for _ in range(3):
        grant = queue.there.one(lease_of(100)).grants[0]
        found.append((seqs(grant), grant.segments[0].attempt))
        assert leased(queue.there) == (0, []), "one at a time"
        queue.there.one(Complete((LeaseItems(grant.lease),)))
    assert found == [([1], 2), ([2], 1), ([3], 1)]


def test_an_item_that_arrives_waits_for_earlier_ones_elsewhere():
    queue = Queue()
    queue.put(MOVED, later_ms=LATER_MS)
    queue.put(MOVED)
    queue.grow()
    queue.time_passes()
    assert queue.carry(MOVED) == Moved(1, 1)
    assert leased(queue.there) == (0, []), "an earlier one is ready in the first partition"
    lease, _ = leased(queue.here)
    queue.here.one(Complete((LeaseItems(lease),)))
    queue.there.one(Unhold(2, b"\1"))
    assert leased(queue.there)[1] == [1]


def test_a_blocking_retry_stays_and_keeps_its_place():
    queue = Queue(steps_aside=False)
    queue.put(MOVED)
    lease, _ = leased(queue.here)
    queue.here.one(Retry((LeaseItems(lease),), queue.here.now_ms + LATER_MS))
    queue.grow()
    queue.time_passes()
    assert counts(queue.here) == (1, 0, 0)


def test_nothing_leaves_while_a_change_is_carried_out():
    queue = Queue()
    queue.put(MOVED, later_ms=LATER_MS)
    for log in (queue.here, queue.there):
        log.one(Route(2, 2, open=False, before=1, groups=(GROUP, THERE)))
    queue.time_passes()
    assert counts(queue.here) == (1, 0, 0)


def test_an_operator_runs_an_item_of_a_moved_key():
    queue = Queue()
    seq = queue.put(MOVED, later_ms=LATER_MS)
    queue.grow()
    queue.here.one(Reschedule(((seq, 1),), 0))
    assert counts(queue.here) == (0, 0, 1)


def test_an_item_whose_result_is_waited_for_stays():
    queue = Queue()
    queue.put(MOVED, later_ms=LATER_MS, keep_result_ms=60_000)
    queue.put(MOVED, later_ms=LATER_MS)
    queue.grow()
    queue.time_passes()
    assert counts(queue.here) == (1, 0, 1)


def test_an_item_whose_dedup_key_lasts_stays():
    queue = Queue(dedup_until=DedupUntil.DONE)
    queue.put(MOVED, later_ms=LATER_MS, dedup_key=b"d")
    queue.put(MOVED, later_ms=LATER_MS)
    queue.grow()
    queue.time_passes()
    assert counts(queue.here) == (1, 0, 1)


def test_the_target_waits_for_the_routing_of_the_move():
    queue = Queue()
    queue.put(MOVED, later_ms=LATER_MS)
    for open_ in (False, True):
        queue.here.one(Route(2, 2, open=open_, before=1, groups=(GROUP, THERE)))
    queue.routing = 2
    queue.time_passes()
    refused = queue.carry(MOVED)
    assert (refused.code, refused.field) == (ErrorCode.UNAVAILABLE, "routing")
    for open_ in (False, True):
        queue.there.one(Route(2, 2, open=open_, before=1, groups=(GROUP, THERE)))
    assert queue.carry(MOVED) == Moved(1, 1)


def test_an_item_whose_key_moves_on_is_sent_on_with_its_attempts():
    queue = Queue(max_attempts=5)
    queue.put(MOVED)
    lease, _ = leased(queue.here)
    queue.here.one(Retry((LeaseItems(lease),), queue.here.now_ms + LATER_MS, error="no luck"))
    queue.grow()
    queue.time_passes()
    queue.shrink()
    refused = queue.carry(MOVED, homes=(GROUP,))
    assert refused.code is ErrorCode.ROUTING_CHANGED, "the second partition is closing"
    assert queue.here.one(MoveElsewhere(THERE, 0, GROUP)) == Done(1)
    assert queue.carry(MOVED, homes=(GROUP,), there=queue.here) == Moved(1, 1)
    queue.here.one(Unhold(3, b"\2"))
    grant = queue.here.one(lease_of(1)).grants[0]
    assert [segment.attempt for segment in grant.segments] == [2]


def test_a_partition_sends_on_what_arrives_for_another_one():
    queue = Queue()
    queue.put(TWICE)
    lease, _ = leased(queue.here)
    queue.here.one(Retry((LeaseItems(lease),), queue.here.now_ms + LATER_MS, error="no luck"))
    queue.grow()
    queue.time_passes()
    queue.routing, groups = 3, (GROUP, THERE, THIRD)
    for log in (queue.here, queue.there):
        log.one(Route(3, 3, open=True, before=2, groups=groups))
    assert queue.carry(TWICE, homes=groups) == Moved(1, 1)
    assert counts(queue.there) == (0, 0, 1)
    [item] = queue.batch(THIRD, queue.there).items
    assert (item.reason, item.attempts, item.errors) == (DeadCause.HOME, 1, ("no luck",))


def test_an_item_returns_when_its_home_is_gone():
    queue = Queue()
    queue.put(MOVED)
    lease, _ = leased(queue.here)
    queue.here.one(Retry((LeaseItems(lease),), queue.here.now_ms + LATER_MS))
    queue.grow()
    queue.time_passes()
    assert queue.here.one(MoveReturn(THERE)) == Done(1)
    assert counts(queue.here) == (1, 0, 0), "it is not sent to a group that is gone"
    grant = queue.here.one(lease_of(1)).grants[0]
    assert [segment.attempt for segment in grant.segments] == [2]


def test_an_item_that_is_due_after_its_key_left_and_came_back_waits_for_earlier_ones():
    """Seed 5124 of whole nodes."""
    queue = Queue()
    queue.grow()
    queue.put_there(MOVED, later_ms=LATER_MS)
    queue.shrink()
    queue.here.one(Unhold(3, b"\2"))
    queue.put(MOVED)
    for open_ in (False, True):
        for log in (queue.here, queue.there):
            log.one(Route(4, 2, open=open_, before=1, groups=(GROUP, THERE)))
    queue.time_passes()
    assert len(leased(queue.here)[1]) == 1, "it was ready before the key left"
    assert leased(queue.there) == (0, [])
    queue.there.one(Unhold(4, b"\1"))
    assert len(leased(queue.there)[1]) == 1


def test_a_dead_letter_that_returns_waits_for_items_elsewhere():
    queue = Queue(dead_targets=dead_to(DEAD), max_attempts=1)
    queue.grow()
    queue.put_there(MOVED)
    lease, _ = leased(queue.there)
    assert lease == 0, "it waits for the first partition"
    queue.there.one(Unhold(2, b"\1"))
    lease, _ = leased(queue.there)
    queue.there.one(Retry((LeaseItems(lease),)))
    queue.shrink()
    for open_ in (False, True):
        queue.there.one(Route(4, 2, open=open_, before=1, groups=(GROUP, THERE)))
    assert queue.there.one(MoveReturn(DEAD)) == Done(1)
    assert (counts(queue.there), state_of(queue.there).held) == ((0, 0, 0), 1)


def test_a_dead_letter_that_returns_goes_home():
    queue = Queue(dead_targets=dead_to(DEAD), max_attempts=1)
    queue.put(MOVED)
    lease, _ = leased(queue.here)
    queue.here.one(Retry((LeaseItems(lease),)))
    queue.grow()
    assert queue.here.one(MoveReturn(DEAD)) == Done(1)
    assert counts(queue.here) == (0, 0, 1)
    [item] = queue.batch().items
    assert (item.reason, item.attempts) == (DeadCause.HOME, 0)
    assert queue.carry(MOVED) == Moved(1, 1)


@pytest.mark.parametrize("groups", [(), tuple(range(1 << 40, (1 << 40) + PARTITIONS_MAX))])
def test_a_route_names_any_number_of_groups(groups: tuple[int, ...]):
    queue = Queue()
    assert queue.here.one(Route(2, PARTITIONS_MAX, open=True, before=1, groups=groups)) == Done(1)
