"""Each kind of damage to the tables is found and named."""

import pytest

from querator.model.commands import ItemSpecial, Lease, LeaseItems, Retry
from querator.model.entries import Proposal
from querator.model.readers import AdvanceReader, OpenReader
from querator.partition import invariants
from querator.partition.rows import decode_state, encode
from querator.storage import tables
from querator.storage.environment import WriteTransaction
from querator.storage.keys import Table
from tests.unit.partition.partition_log import (
    GROUP,
    START_MS,
    PartitionLog,
    caller,
    dead_to,
    produce,
)


@pytest.fixture(scope="module")
def log() -> PartitionLog:
    """A partition with a row in every table."""
    log = PartitionLog()
    log.configure(dead_targets=dead_to(9), expire_timeout_ms=3_600_000)
    producer_id = START_MS.to_bytes(6, "big") + bytes(10)
    key = ItemSpecial(0, dedup_key=b"key")
    log.entry(produce([b"a"] * 20, producer_id=producer_id, sequence=1, specials=(key,)))
    log.entry(Proposal(Lease((caller(4, request_id="r"), caller(4), caller(4), caller(3)))))
    log.one(Retry((LeaseItems(2, ((5, 2),)),), dead=True))
    log.one(Retry((LeaseItems(3),), START_MS + 5000, error="slow"))
    log.one(Retry((LeaseItems(4),), error="slow"))
    log.produce(2)
    log.one(OpenReader("lake"))
    log.one(AdvanceReader("lake", 1, 0, 6, 1000))
    log.one(AdvanceReader("lake", 1, 1, 3, 1000))
    return log


def first_row(txn: WriteTransaction, table: Table) -> tuple[bytes, bytes]:
    return next(iter(table.rows(txn, GROUP)))


DERIVED = (
    tables.BLOCKS, tables.LIVING, tables.SEGMENTS, tables.READY, tables.SCHEDULED, tables.EXPIRIES,
    tables.OVERLAYS, tables.LEASES, tables.DEADLINES, tables.CLIENT_LEASES,
    tables.LEASE_REQUESTS, tables.ENDED, tables.ENDED_ORDER, tables.PRODUCERS,
    tables.PRODUCER_OUTCOMES, tables.PRODUCER_CHECKS, tables.DEDUP_KEYS, tables.DEDUP_ORDER,
    tables.OUTBOX, tables.OUTBOX_TARGETS, tables.READERS, tables.RESERVED,
    tables.ATTACHMENTS, tables.STATE,
)  # fmt: skip


@pytest.mark.parametrize("table", DERIVED, ids=lambda table: table.name)
def test_a_lost_row_is_found(log, table):
    txn = log.environment.begin()
    if table is tables.LIVING:
        txn.put(table.key(GROUP, 1), b"\x01")
    else:
        key, _ = first_row(txn, table)
        txn.delete(key)
    assert invariants.check(txn, GROUP) != []
    txn.abort()


INDEXES = (
    tables.SCHEDULED, tables.DEADLINES, tables.CLIENT_LEASES, tables.ENDED_ORDER,
    tables.PRODUCER_CHECKS, tables.DEDUP_ORDER, tables.EXPIRIES,
    tables.RESERVED,
)  # fmt: skip


@pytest.mark.parametrize("table", INDEXES, ids=lambda table: table.name)
def test_a_row_too_many_is_found(log, table):
    txn = log.environment.begin()
    key, row = first_row(txn, table)
    txn.put(key[:-1] + bytes([key[-1] ^ 0x40]), row)
    assert invariants.check(txn, GROUP) != []
    txn.abort()


def test_every_wrong_number_is_found(log):
    names = (
        "ready", "leased", "scheduled", "moving", "leases", "bytes", "produced", "completed",
        "retried", "released", "lapsed", "dropped", "delivered", "moved_in", "moved_out",
        "overlays", "producers", "ended", "reserved", "acknowledged", "readers",
    )  # fmt: skip
    for name in names:
        assert violations_with(log, name, 1) != [], name
    for name in ("deadline_head_ms", "schedule_head_ms", "expiry_head_ms", "cleanup_head_ms"):
        assert violations_with(log, name, None) != [], name
    for name in ("next_seq", "next_lease", "next_reader"):
        assert violations_with(log, name, None) != [], name


def violations_with(log: PartitionLog, name: str, change: int | None) -> list[str]:
    """The violations with one number of the state row raised by `change`. None sets it to 0."""
    txn = log.environment.begin()
    _, row = first_row(txn, tables.STATE)
    state = decode_state(row)
    setattr(state, name, 0 if change is None else getattr(state, name) + change)
    tables.STATE.put(txn, GROUP, value=encode(state))
    found = invariants.check(txn, GROUP)
    txn.abort()
    return found


def test_an_item_in_two_segments_is_found(log):
    txn = log.environment.begin()
    rows = list(tables.SEGMENTS.rows(txn, GROUP))
    key, row = rows[0]
    txn.put(key, row[:-1] + b"\xff")
    found = invariants.check(txn, GROUP)
    assert any("shares items" in sentence for sentence in found)
    txn.abort()


def test_damaged_payload_is_found(log):
    txn = log.environment.begin()
    key, row = first_row(txn, tables.ATTACHMENTS)
    txn.put(key, row[:-1] + b"?")
    assert any("damaged" in sentence for sentence in invariants.check(txn, GROUP))
    txn.abort()


def test_a_sound_partition_has_no_violations(log):
    with log.environment.snapshot() as txn:
        assert invariants.check(txn, GROUP) == []
