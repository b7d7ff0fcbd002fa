"""Facts about produces that a partition hands to others, and what these do with them."""

import msgspec
import pytest

from querator.model.commands import Adopt, Complete, ItemSpecial, LeaseItems, Route
from querator.model.errors import ErrorCode
from querator.model.limits import DAY_MS, KIB, LEASE_OUTCOME_WINDOW_MS, PRODUCER_RETENTION_MS
from querator.partition import dedup_export
from querator.partition.dedup_export import ClosureQuery, FactsQuery
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.partition.partition_log import START_MS, PartitionLog, lease_of

PRODUCER = (START_MS - 1_000).to_bytes(6, "big") + bytes(10)


def pair() -> tuple[PartitionLog, PartitionLog]:
    """The only partition of a queue, and a partition that is added."""
    environment = MemoryEnvironment()
    old, new = PartitionLog(environment), PartitionLog(environment, group=8)
    old.configure(dedup_window_ms=1_000)
    new.configure(dedup_window_ms=1_000, partition=1, first_seq=500)
    return old, new


def hand_over(old: PartitionLog, new: PartitionLog) -> None:
    after = b""
    while True:
        with old.environment.snapshot() as txn:
            page = dedup_export.facts(txn, FactsQuery(old.group, 1, 2, after))
        for partition, found in page.facts:
            assert partition == 1
            new.one(Adopt(found))
        after = page.after
        if not after:
            return


def change(old: PartitionLog, new: PartitionLog) -> None:
    for log in (old, new):
        log.one(Route(1, 2, open=False))
    hand_over(old, new)
    for log in (old, new):
        log.one(Route(1, 2, open=True))


def closure(log: PartitionLog) -> dedup_export.Closure:
    with log.environment.snapshot() as txn:
        return dedup_export.closure(txn, ClosureQuery(log.group))


def test_what_is_forgotten_is_forgotten_everywhere():
    old, new = pair()
    for sequence in (1, 2, 3):
        old.produce(1, producer_id=PRODUCER, sequence=sequence)
    old.advance(120_000)
    new.now_ms = old.now_ms
    change(old, new)
    for sequence in (1, 3):
        refusal = new.produce(1, producer_id=PRODUCER, sequence=sequence, routing=1)
        assert refusal.code is ErrorCode.PRODUCER_EXPIRED
    assert new.produce(1, producer_id=PRODUCER, sequence=5, routing=1).first_seq == 502


def test_a_producer_that_is_adopted_is_forgotten_in_its_time():
    old, new = pair()
    old.produce(1, producer_id=PRODUCER, sequence=1, ordered=True)
    change(old, new)
    repeated = new.produce(1, producer_id=PRODUCER, sequence=1, ordered=True, routing=1)
    assert (repeated.repeated, repeated.partition, repeated.first_seq) == (True, 0, 1)
    again = new.produce(1, producer_id=PRODUCER, sequence=2, ordered=True, routing=1)
    assert (again.repeated, again.partition) == (False, -1)
    new.advance(PRODUCER_RETENTION_MS + DAY_MS)
    refusal = new.produce(1, producer_id=PRODUCER, sequence=1, routing=1)
    assert refusal.code is ErrorCode.PRODUCER_EXPIRED
    assert "older" in refusal.message


def test_a_dedup_key_that_is_adopted_counts_from_its_first_item():
    old, new = pair()
    special = (ItemSpecial(0, dedup_key=b"k"),)
    # Slot 1 of 4,096 belongs to partition 0 of one, and to partition 1 of two.
    slots = b"\x01\x00"
    old.produce(1, specials=special, slots=slots)
    change(old, new)
    new.advance(500)
    twin = new.produce(1, specials=special, slots=slots, routing=1)
    assert twin.duplicates == ((0, 1, 0),)
    new.advance(600)
    assert new.produce(1, specials=special, slots=slots, routing=1).duplicates == ()


def test_adopting_again_changes_nothing():
    old, new = pair()
    slots = b"\x01\x00\x03\x00"
    old.produce(2, producer_id=PRODUCER, sequence=1, slots=slots)
    change(old, new)
    hand_over(old, new)
    repeated = new.produce(2, producer_id=PRODUCER, sequence=1, slots=slots, routing=1)
    assert (repeated.repeated, repeated.duplicates) == (True, ((0, 1, 0), (1, 2, 0)))
    other = new.produce(2, producer_id=PRODUCER, sequence=1, slots=b"\x01\x00\x05\x00", routing=1)
    assert (other.repeated, other.duplicates) == (False, ((0, 1, 0),))
    again = new.produce(3, producer_id=PRODUCER, sequence=1, slots=slots + b"\x05\x00", routing=1)
    assert again.duplicates == ((0, 1, 0), (1, 2, 0), (2, other.first_seq + 1))


def test_a_partition_is_empty_when_nobody_can_ask_for_anything():
    _, new = pair()
    new.produce(1)
    grant = new.one(lease_of()).grants[0]
    for open_ in (False, True):
        new.one(Route(1, 1, open=open_))
        assert not closure(new).is_empty
    refusal = new.produce(1)
    assert (refusal.code, refusal.value) == (ErrorCode.ROUTING_CHANGED, "1")
    assert new.one(lease_of()).grants[0].lease == 0
    new.one(Complete((LeaseItems(grant.lease),)))
    assert (closure(new).items, closure(new).is_empty) == (0, False), "it may be repeated"
    new.advance(LEASE_OUTCOME_WINDOW_MS + 60_000)
    assert closure(new).is_empty
    assert closure(new).next_seq == 502, "one for the item that was refused"


def test_a_page_is_bounded_by_what_it_says_not_by_what_is_stored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dedup_export, "PAGE_BYTES_MAX", 64 * KIB)
    old, _ = pair()
    requests, items = 20, 1_000
    for sequence in range(1, requests + 1):
        old.produce(items, producer_id=PRODUCER, sequence=sequence, slots=b"\x01\x00" * items)
    after, places = b"", 0
    while True:
        with old.environment.snapshot() as txn:
            page = dedup_export.facts(txn, FactsQuery(old.group, 1, 2, after))
        assert len(msgspec.msgpack.encode(page)) < 64 * KIB + 20 * items
        for _, found in page.facts:
            places += sum(len(one.places) for known in found.producers for one in known.outcomes)
        after = page.after
        if not after:
            break
    assert places == requests * items
