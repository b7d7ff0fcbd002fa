"""Reschedule: what it costs, what it refuses, and items that wait for a lane."""

from struct import pack
from typing import Any

import pytest

from querator.model.commands import (
    Activate,
    Complete,
    ItemsChanged,
    ItemSpecial,
    LeaseItems,
    Produce,
    Reschedule,
    Retry,
    Route,
    Unhold,
)
from querator.model.entries import Proposal, Tier
from querator.model.errors import ErrorCode
from querator.model.limits import BLOCK_ITEMS_MAX, RESCHEDULE_ITEMS_MAX
from querator.partition import queries
from querator.partition.machine import PartitionMachine
from querator.partition.needs import need
from querator.partition.rows import RowState, decode_block
from querator.partition.segments import segments_of, segments_with
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.overlay import OverlayTransaction
from querator.storage.tables import BLOCKS, EXPIRIES, READY, SCHEDULED, SEGMENTS
from tests.unit.partition.partition_log import GROUP, PartitionLog, lease_of

DUE_MS = 60_000
ITEMS = 2_048


def new_log(**settings: Any) -> PartitionLog:
    log = PartitionLog(checked=False)
    log.configure(**settings)
    return log


def later(log: PartitionLog, count: int, step_ms: int = 0, **changes: Any) -> None:
    """Produces items that are due `DUE_MS` ahead, each `step_ms` after the one before."""
    specials = tuple(
        ItemSpecial(n, log.now_ms + DUE_MS + n * step_ms, **changes) for n in range(count)
    )
    log.produce(count, specials=specials)


def rows(log: PartitionLog, table: Any) -> int:
    with log.environment.snapshot() as txn:
        return len(list(table.rows(txn, GROUP)))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys of rows that are read one by one or in a scan."""
    found: list[bytes] = []
    get, scan = OverlayTransaction.get, OverlayTransaction.scan

    def counted_get(self: OverlayTransaction, key: bytes) -> bytes | None:
        found.append(key)
        return get(self, key)

    def counted_scan(self: OverlayTransaction, *bounds: Any, **more: Any) -> Any:
        for row in scan(self, *bounds, **more):
            found.append(row[0])
            yield row

    monkeypatch.setattr(OverlayTransaction, "get", counted_get)
    monkeypatch.setattr(OverlayTransaction, "scan", counted_scan)
    return found


def scattered(log: PartitionLog) -> None:
    """Each item is a segment of its own, and all are due together: they have been retried one by
    one.
    """
    log.entry(*(Proposal(Produce(pack("<256I", *[1] * 256)), b"x" * 256) for _ in range(8)))
    lease = log.one(lease_of(ITEMS)).grants[0].lease
    due_ms = log.now_ms + DUE_MS
    names = tuple(LeaseItems(lease, ((seq, 1),)) for seq in range(1, ITEMS + 1))
    log.one(Retry(names, retry_at_ms=due_ms))


def test_items_that_come_due_together_cost_no_more_than_their_number(reads):
    log = new_log()
    scattered(log)
    assert rows(log, SCHEDULED) == ITEMS
    log.now_ms += DUE_MS
    del reads[:]
    log.one(Activate())
    log.one(Activate())
    assert rows(log, SCHEDULED) == 0
    assert ITEMS < len(reads) < 12 * ITEMS


def test_items_with_different_attempts_that_come_due_together(reads):
    """They interleave, so that every one of them is placed among the others."""
    log = new_log()
    later(log, BLOCK_ITEMS_MAX)
    for attempt in (1, 2):
        log.one(Reschedule(tuple((seq, 1) for seq in range(attempt, BLOCK_ITEMS_MAX, 3))))
        lease = log.one(lease_of(BLOCK_ITEMS_MAX)).grants[0].lease
        log.one(Retry((LeaseItems(lease),), retry_at_ms=log.now_ms + 2 * DUE_MS))
    log.one(Reschedule(((1, BLOCK_ITEMS_MAX),), due_ms=log.now_ms + DUE_MS))
    log.now_ms += DUE_MS
    del reads[:]
    log.checked = True
    log.one(Activate())
    log.checked = False
    grants = log.one(lease_of(BLOCK_ITEMS_MAX)).grants[0]
    order = [segment.first_seq + n for segment in grants.segments for n in _bits(segment.mask)]
    assert order == list(range(1, BLOCK_ITEMS_MAX + 1))


def _bits(mask: int) -> list[int]:
    return [n for n in range(BLOCK_ITEMS_MAX) if mask >> n & 1]


def test_items_that_are_moved_one_by_one_are_joined(reads):
    log = new_log()
    log.entry(*(Proposal(Produce(pack("<256I", *[1] * 256)), b"x" * 256) for _ in range(8)))
    lease = log.one(lease_of(ITEMS)).grants[0].lease
    log.one(Retry((LeaseItems(lease),), retry_at_ms=log.now_ms + DUE_MS))
    due_ms = log.now_ms + 2 * DUE_MS
    for seq in range(1, ITEMS + 1, 2):
        log.one(Reschedule(((seq, 1),), due_ms=due_ms))
    assert rows(log, SCHEDULED) == 16
    assert rows(log, SEGMENTS) == 16
    assert ITEMS < len(reads) < 40 * ITEMS


def test_one_item_is_found_without_reading_its_block(reads):
    log = new_log()
    later(log, BLOCK_ITEMS_MAX, step_ms=1)
    assert rows(log, SEGMENTS) == BLOCK_ITEMS_MAX
    del reads[:]
    assert log.one(Reschedule(((128, 1),), due_ms=log.now_ms + 1_000)) == ItemsChanged(1)
    assert len([key for key in reads if key[:1] == SEGMENTS.letter]) <= 2
    del reads[:]
    log.one(Reschedule(((128, 1),), cancel=True))
    del reads[:]
    assert log.one(Reschedule(((128, 1),), cancel=True)) == ItemsChanged(0, ((128, 1),))
    assert not [key for key in reads if key[:1] == SEGMENTS.letter]


def test_items_of_a_command_are_bounded():
    log = new_log()
    later(log, 3)
    refused = log.one(Reschedule(((1, RESCHEDULE_ITEMS_MAX + 1),), cancel=True))
    assert (refused.code, refused.field) == (ErrorCode.LIMIT_EXCEEDED, "item_ids")
    assert (refused.limit, refused.value) == ("1000 items", "1001 items")
    most = log.one(Reschedule(((1, RESCHEDULE_ITEMS_MAX),), cancel=True))
    assert most == ItemsChanged(3, ((4, RESCHEDULE_ITEMS_MAX - 3),))


def test_sequences_that_no_block_has():
    log = new_log()
    later(log, 3)
    log.produce(2)
    far = 2**64 - 1
    result = log.one(Reschedule(((0, 2), (3, 4), (far, 1)), cancel=True))
    assert result == ItemsChanged(2, ((0, 1), (4, 3), (far, 1)))
    assert log.one(Reschedule(())) == ItemsChanged(0)


def test_moving_every_item_writes_no_more_than_was_announced():
    log = new_log(expire_timeout_ms=5_000)
    later(log, 1_000, step_ms=1)
    log.one(Reschedule(((1, 1_000),), due_ms=log.now_ms + 2 * DUE_MS))
    assert rows(log, SCHEDULED) == 4
    log.one(Reschedule(tuple((seq, 1) for seq in range(1, 1_000, 2)), due_ms=0))
    log.one(Reschedule(((1, 1_000),), cancel=True))


def test_moving_one_item_of_many_blocks_writes_no_more_than_was_announced():
    """The other expiries of a block stay where they are."""
    log = new_log()
    for _ in range(20):
        later(log, 256, step_ms=2_000, expire_timeout_ms=1_500)
    named = tuple((1 + 256 * block, 1) for block in range(20))
    log.one(Reschedule(named, due_ms=log.now_ms + 2 * DUE_MS))


def test_only_a_cancel_frees_space():
    log = new_log()
    with log.environment.snapshot() as txn:
        tiers = [
            need(txn, GROUP, command).tier
            for command in (Reschedule(((1, 1),)), Reschedule(((1, 1),), cancel=True))
        ]
    assert tiers == [Tier.LEASES, Tier.FREES]


def test_the_index_of_expiries_follows_the_items():
    log = new_log()
    log.checked = True
    later(log, 3, expire_timeout_ms=1_500)
    assert rows(log, EXPIRIES) == 1
    log.one(Reschedule(((1, 1),), due_ms=log.now_ms + 2 * DUE_MS))
    assert rows(log, EXPIRIES) == 2
    log.one(Reschedule(((2, 2),), due_ms=log.now_ms + 2 * DUE_MS))
    assert rows(log, EXPIRIES) == 1
    with log.environment.snapshot() as txn:
        [block] = [decode_block(row) for _, row in BLOCKS.rows(txn, GROUP)]
    assert block.expiries() == [log.now_ms + 2 * DUE_MS + 2_000]
    log.advance(2 * DUE_MS)
    assert rows(log, READY) == 1
    log.advance(2_000)
    assert (rows(log, READY), rows(log, EXPIRIES), rows(log, BLOCKS)) == (0, 0, 0)


def test_an_expiry_that_is_over_does_not_come_back():
    """One item of the block has lapsed after its expiry; the others are moved."""
    log = new_log()
    log.checked = True
    log.produce(2, specials=(ItemSpecial(0, expire_timeout_ms=1_000),))
    lease = log.one(lease_of(2)).grants[0].lease
    log.one(Retry((LeaseItems(lease, ((2, 1),)),), retry_at_ms=log.now_ms + DUE_MS))
    log.advance(2_000)
    log.configure(2, expire_timeout_ms=3_000)
    log.one(Reschedule(((2, 1),), due_ms=log.now_ms + 2 * DUE_MS))
    log.one(Complete((LeaseItems(lease),)))
    log.advance(2 * DUE_MS)
    assert log.one(lease_of(2)).grants[0].segments[0].attempt == 2


def test_items_of_a_moved_key_are_held_when_they_run():
    """Two of four partitions: items of slots that came from partition 0 wait for it."""
    log = new_log(partition=2)
    log.one(Route(1, 2, open=True))
    log.one(Route(2, 4, open=True, before=2))
    lengths = pack("<2I", 1, 1)
    specials = tuple(ItemSpecial(n, log.now_ms + DUE_MS) for n in range(2))
    slots = pack("<2H", 2, 0xFFFF)
    log.checked = True
    log.one(Produce(lengths, specials=specials, routing=2, slots=slots), b"xy")
    assert log.one(Reschedule(((1, 2),), due_ms=log.now_ms + 2 * DUE_MS)).changed == 2
    assert log.one(Reschedule(((1, 2),))).changed == 2
    with log.environment.snapshot() as txn:
        states = {segment.state for segment in segments_of(txn, GROUP, 1)}
        assert states == {RowState.HELD, RowState.READY}
        assert queries.stats(txn, GROUP).held == 1
    assert log.one(Reschedule(((1, 2),), cancel=True)) == ItemsChanged(0, ((1, 2),))
    log.one(Unhold(2, b"\x01"))
    assert sum(segment.count for segment in log.one(lease_of(9)).grants[0].segments) == 2


def test_the_segments_of_some_items():
    log = new_log()
    later(log, 6, step_ms=1)
    log.one(Reschedule(((2, 1), (5, 1)), due_ms=log.now_ms + 1_000))
    with log.environment.snapshot() as txn:
        found = segments_with(txn, GROUP, 1, 0b11010)
        assert [part for _, part in found] == [0b10010, 0b1000]
        assert segments_with(txn, GROUP, 1, 1 << 6) == []


def test_a_restart_and_another_replica_agree():
    log = new_log(expire_timeout_ms=9_000, dead_targets=())
    later(log, 300, step_ms=10)
    log.one(Reschedule(((5, 200),), due_ms=log.now_ms + 2 * DUE_MS))
    log.one(Reschedule(((7, 3), (290, 30)), cancel=True))
    log.one(Reschedule(((100, 1), (299, 1))))
    log.advance(DUE_MS)
    other = PartitionLog(MemoryEnvironment(), keep=1_000)
    for command, parts in log.entries:
        other.replay(command, parts)
    other.machine = PartitionMachine(GROUP)
    with log.environment.snapshot() as one, other.environment.snapshot() as two:
        assert log.machine.digest(one) == other.machine.digest(two)
        assert other.machine.recover(two).due_ms == log.machine.recover(one).due_ms
