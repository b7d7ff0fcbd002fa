"""Scheduled items by due time: their order, the pages, kinds, sizes and counts."""

from collections.abc import Sequence
from typing import Any

import pytest

from querator.model.commands import LeaseItems, Reschedule, Retry
from querator.model.item_options import ItemSpecial
from querator.model.limits import ERROR_CHARS_MAX
from querator.partition import schedule_queries
from querator.partition.item_fields import kind_of
from querator.partition.payloads import BlockDamaged, read_payload
from querator.partition.schedule_queries import (
    DueCounts,
    DueKey,
    DuePage,
    DuePlace,
    DueSpan,
    due_counts,
    due_items,
    due_keys,
)
from querator.storage.tables import ATTACHMENTS
from querator.v1 import items_pb2, queue_service_pb2
from tests.unit.partition.partition_log import GROUP, START_MS, PartitionLog, lease_of

BEGIN = DuePlace(0, 0)


def new_log() -> PartitionLog:
    log = PartitionLog()
    log.configure()
    return log


def wire(kind: str, payload: bytes = b"") -> bytes:
    item = items_pb2.Item(payload=payload, kind=kind, attributes={"kind": "other"})
    return queue_service_pb2.ProduceRequest(items=[item]).SerializeToString()


def schedule(log: PartitionLog, dues: Sequence[int], items: list[bytes] | None = None) -> None:
    """Produces items, each due that number of ms after the start."""
    specials = tuple(ItemSpecial(n, START_MS + due) for n, due in enumerate(dues))
    log.produce(items or len(dues), specials=specials)


def page(log: PartitionLog, *, after: DuePlace = BEGIN, limit: int = 100, **span: Any) -> DuePage:
    with log.environment.snapshot() as txn:
        return due_keys(txn, GROUP, DueSpan(**span), after=after, limit=limit)


def places(found: DuePage) -> list[tuple[int, int]]:
    return [(key.due_ms - START_MS, key.seq) for key in found.keys]


def whole(log: PartitionLog, *, limit: int, **span: Any) -> tuple[list[tuple[int, int]], int]:
    """The places of all pages, and the number of pages."""
    listed, pages = [], 0
    after: DuePlace | None = BEGIN
    while after is not None:
        found = page(log, after=after, limit=limit, **span)
        listed += places(found)
        pages += 1
        after = found.after
    return listed, pages


def test_items_come_by_due_time_and_sequence():
    log = new_log()
    schedule(log, [3_000, 1_000, 3_000, 2_000])
    schedule(log, [2_000, 1_000])
    assert places(page(log)) == [
        (1_000, 2), (1_000, 6), (2_000, 4), (2_000, 5), (3_000, 1), (3_000, 3),
    ]  # fmt: skip


def test_items_of_one_block_that_are_due_together_come_by_sequence():
    """They are in two segments, because they have different attempts."""
    log = new_log()
    schedule(log, [1_000] * 6)
    log.one(Reschedule(((2, 1), (5, 1))))
    lease = log.one(lease_of()).grants[0].lease
    log.one(Retry((LeaseItems(lease),), retry_at_ms=START_MS + 1_000))
    assert places(page(log)) == [(1_000, seq) for seq in range(1, 7)]
    assert whole(log, limit=1) == ([(1_000, seq) for seq in range(1, 7)], 6)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_follow_each_other(limit):
    log = new_log()
    dues = [1_000 * (1 + n * 7 % 5) for n in range(30)]
    schedule(log, dues)
    schedule(log, dues)
    listed, pages = whole(log, limit=limit)
    expected = sorted((due, seq) for seq, due in enumerate([*dues, *dues], 1))
    assert (listed, pages) == (expected, -(-60 // limit))


def test_a_page_continues_where_its_block_is_gone():
    log = new_log()
    schedule(log, [1_000])
    schedule(log, [1_000])
    schedule(log, [1_000])
    log.one(Reschedule(((2, 1),), cancel=True))
    after = DuePlace(START_MS + 1_000, 2)
    assert places(page(log, after=after)) == [(1_000, 3)]


def test_a_span_has_its_first_instant_and_not_its_last():
    log = new_log()
    schedule(log, [1_000, 2_000, 3_000])
    since: dict[str, Any] = {"from_ms": START_MS + 2_000}
    assert places(page(log, **since)) == [(2_000, 2), (3_000, 3)]
    assert places(page(log, **since, until_ms=START_MS + 3_000)) == [(2_000, 2)]
    assert places(page(log, until_ms=START_MS + 1_001)) == [(1_000, 1)]
    assert places(page(log, **since, after=DuePlace(START_MS + 2_000, 2))) == [(3_000, 3)]


def test_retried_items_are_scheduled_and_others_are_not():
    log = new_log()
    log.produce(3)
    lease = log.one(lease_of(2)).grants[0].lease
    log.one(Retry((LeaseItems(lease, ((2, 1),)),), retry_at_ms=START_MS + 500))
    assert places(page(log)) == [(500, 2)]


def test_the_size_of_an_item_bounds_its_part_of_a_reply():
    log = new_log()
    log.produce([wire("a", b"p" * 1_000), wire("a", b"p" * 1_000)])
    due_ms = log.now_ms
    for _ in range(6):
        lease = log.one(lease_of()).grants[0].lease
        slow, other = (LeaseItems(lease, ((seq, 1),)) for seq in (1, 2))
        due_ms = log.now_ms + 500
        log.one(Retry((slow,), retry_at_ms=due_ms, error="ß" * ERROR_CHARS_MAX))
        log.one(Retry((other,), retry_at_ms=due_ms))
        log.advance(500)
    log.one(Retry((LeaseItems(log.one(lease_of()).grants[0].lease),), retry_at_ms=due_ms + 999))
    sizes = {key.seq: key.bytes for key in page(log).keys}
    assert sizes[1] > 1_000 + 5 * 2 * ERROR_CHARS_MAX
    assert 1_000 < sizes[2] < 2_000


def test_only_items_of_a_kind():
    log = new_log()
    kinds = ["mail", "sms", "", "mail"]
    schedule(log, [4_000, 3_000, 2_000, 1_000], [wire(kind) for kind in kinds])
    assert places(page(log, kind="mail")) == [(1_000, 4), (4_000, 1)]
    assert whole(log, limit=1, kind="mail") == ([(1_000, 4), (4_000, 1)], 2)
    assert places(page(log, kind="ma")) == []


def test_items_of_other_kinds_cost_no_page_each(monkeypatch):
    """Blocks are read once for a page, and the work of a page is bounded."""
    log = new_log()
    log.checked = False
    for n in range(20):
        dues = [1_000 * (1 + step) + n for step in range(50)]
        schedule(log, dues, [wire("rare" if step == 49 else "usual") for step in range(50)])
    read: list[int] = []

    def reading(txn: Any, group: int, first_seq: int, block: Any) -> bytes:
        read.append(first_seq)
        return read_payload(txn, group, first_seq, block)

    monkeypatch.setattr("querator.partition.schedule_queries.read_payload", reading)
    assert whole(log, limit=100, kind="rare") == ([(50_000 + n, n * 50 + 50) for n in range(20)], 1)
    assert len(read) == 20
    monkeypatch.setattr(schedule_queries, "SCAN_ROWS_MAX", 100)
    listed, pages = whole(log, limit=100, kind="rare")
    assert (len(listed), pages) == (20, 10)
    assert page(log, kind="rare") == DuePage((), page(log, limit=100).after)
    monkeypatch.setattr(schedule_queries, "SCAN_BYTES_MAX", 1)
    assert whole(log, limit=100, kind="rare")[0] == listed


def test_the_kind_of_an_item():
    assert kind_of(wire("mail", b"p" * 300)) == b"mail"
    assert kind_of(wire("ü" * 255)) == "ü".encode() * 255
    assert kind_of(wire("")) == b""


def test_a_damaged_block_is_found_by_those_who_read_it():
    log = new_log()
    schedule(log, [1_000], [wire("mail")])
    txn = log.environment.begin()
    ATTACHMENTS.delete(txn, GROUP, log.index, 0)
    txn.commit(sync=False)
    assert places(page(log)) == [(1_000, 1)]
    with pytest.raises(BlockDamaged):
        page(log, kind="mail")


def test_items_by_place():
    log = new_log()
    schedule(log, [1_000, 2_000, 3_000], [wire("a"), wire("b"), wire("c")])
    log.one(Reschedule(((2, 1),), due_ms=START_MS + 9_000))
    log.one(Reschedule(((3, 1),), cancel=True))
    asked = tuple(DuePlace(START_MS + 1_000 * seq, seq) for seq in (3, 2, 1, 8))
    with log.environment.snapshot() as txn:
        [found] = due_items(txn, GROUP, asked)
    assert (found.seq, found.due_at_ms, found.item) == (1, START_MS + 1_000, wire("a"))


def counted(log: PartitionLog, *, interval_ms: int = 1_000, **span: Any) -> DueCounts:
    buckets: dict[int, int] = {}
    before = later = 0
    place: DuePlace | None = BEGIN
    while place is not None:
        with log.environment.snapshot() as txn:
            found = due_counts(txn, GROUP, DueSpan(**span), interval_ms=interval_ms, after=place)
        for number, items in found.buckets:
            buckets[number] = buckets.get(number, 0) + items
        before, later, place = before + found.before, later + found.later, found.next
    return DueCounts(tuple(buckets.items()), before, later, None)


@pytest.mark.parametrize("rows", [1, 2, 5, 4_000])
def test_counts_by_interval(monkeypatch, rows):
    monkeypatch.setattr(schedule_queries, "SCAN_ROWS_MAX", rows)
    log = new_log()
    schedule(log, [500, 1_000, 1_999, 2_000, 2_000, 4_500, 5_000])
    schedule(log, [2_500, 9_000])
    span = {"from_ms": START_MS + 1_000, "until_ms": START_MS + 5_000}
    assert counted(log, **span) == DueCounts(((0, 2), (1, 3), (3, 1)), 1, 2, None)
    assert counted(log, **span, interval_ms=0) == DueCounts(((0, 6),), 0, 0, None)
    assert counted(log, from_ms=START_MS) == DueCounts(
        ((0, 1), (1, 2), (2, 3), (4, 1), (5, 1), (9, 1)), 0, 0, None
    )


def test_counts_of_a_kind():
    log = new_log()
    schedule(log, [1_000, 2_000, 3_000], [wire("a"), wire("b"), wire("a")])
    assert counted(log, from_ms=START_MS + 2_000, kind="a") == DueCounts(((1, 1),), 1, 0, None)


def test_a_partition_without_schedules():
    log = PartitionLog()
    assert page(log) == DuePage((), None)
    log.configure()
    log.produce(3)
    assert page(log, kind="a") == DuePage((), None)
    assert counted(log) == DueCounts((), 0, 0, None)


def test_keys_have_what_they_say():
    log = new_log()
    schedule(log, [1_000], [b"x" * 40])
    [key] = page(log).keys
    assert key == DueKey(START_MS + 1_000, 1, 40 + 128)
