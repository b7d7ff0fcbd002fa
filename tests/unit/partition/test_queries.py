"""Reads by other threads."""

import pytest

from querator.model.commands import Complete, Extend, LeaseItems, Retry
from querator.partition import invariants, queries
from querator.partition.masks import full
from querator.partition.rows import RowState
from querator.storage import generations
from querator.storage.environment import StorageCorrupt
from querator.storage.keys import ALL
from querator.storage.tables import ATTACHMENTS
from tests.unit.partition.partition_log import (
    GROUP,
    START_MS,
    PartitionLog,
    dead_to,
    lease_of,
    produce,
)

ITEMS = [b"aa", b"b", b"cccc", b"dd", b"e"]


@pytest.fixture
def log() -> PartitionLog:
    log = PartitionLog()
    log.configure()
    log.produce(ITEMS)
    return log


def load(log: PartitionLog, mask: int, first_seq: int = 1):
    with log.environment.snapshot() as txn:
        return queries.load_segment(txn, GROUP, first_seq, mask)


def peek(
    log: PartitionLog,
    state: RowState | None = None,
    after_seq: int = 0,
    limit: int = 100,
    size=10**6,
):
    with log.environment.snapshot() as txn:
        return queries.peek(txn, GROUP, state, after_seq=after_seq, limit=limit, bytes_max=size)


@pytest.mark.parametrize(
    ("mask", "data", "first_seq", "ordinals"),
    [
        (0b11111, b"aabccccdde", 1, ()),
        (0b00111, b"aabcccc", 1, ()),
        (0b11100, b"ccccdde", 3, ()),
        (0b10101, b"aacccce", 1, (0, 2, 4)),
    ],
)
def test_items_are_loaded_as_they_are_stored(log, mask, data, first_seq, ordinals):
    loaded = load(log, mask)
    assert (loaded.items, loaded.ordinals, loaded.count) == (data, ordinals, mask.bit_count())
    assert (loaded.first_seq, loaded.produced_at_ms, loaded.overlays) == (first_seq, START_MS, ())


def test_overlays_come_with_their_position_in_the_batch(log):
    log.one(lease_of(5))
    log.one(Retry((LeaseItems(1, ((2, 1), (4, 1))),), error="slow"))
    overlays = load(log, 0b11010).overlays
    assert [(overlay.index, overlay.errors) for overlay in overlays] == [
        (0, ("slow",)),
        (1, ("slow",)),
    ]
    assert [overlay.index for overlay in load(log, 0b01100).overlays] == [1]


def test_items_of_a_block_that_is_gone(log):
    log.one(lease_of(5))
    log.one(Complete((LeaseItems(1),)))
    assert load(log, full(5)) is None


def test_damaged_payload_is_not_served(log):
    txn = log.environment.begin()
    stored = ATTACHMENTS.get(txn, GROUP, 2, 0)
    assert stored is not None
    ATTACHMENTS.put(txn, GROUP, 2, 0, value=stored[:-1] + b"?")
    txn.commit(sync=False)
    with pytest.raises(StorageCorrupt):
        load(log, full(5))


def stream_leases(
    log: PartitionLog, before: int = 2, after: int = 0, limit: int = 100, consumer="me"
):
    with log.environment.snapshot() as txn:
        return queries.stream_leases(
            txn, GROUP, "c", consumer, before=before, after_lease=after, limit=limit
        )


def test_leases_of_streams_that_have_ended(log):
    for request_id, client_id in [
        ("me/1/a", "c"),
        ("me/2/b", "c"),
        ("me/12/c", "c"),
        ("me/1/a", "another"),
        ("me/too/1/a", "c"),
        ("me/1", "c"),
        ("", "c"),
        ("me/1/d", "c"),
        ("me/0/d", "c"),
    ]:
        log.produce(1)
        assert log.one(lease_of(1, request_id=request_id, client_id=client_id)).grants[0].lease
    assert stream_leases(log, 2) == queries.LeasePage((1, 8), 0)
    assert stream_leases(log, 3) == queries.LeasePage((1, 2, 8), 0)
    assert stream_leases(log, 13) == queries.LeasePage((1, 2, 3, 8), 0)
    assert stream_leases(log, 2, consumer="me/too") == queries.LeasePage((5,), 0)
    assert stream_leases(log, 1) == queries.LeasePage((), 0)
    log.one(Complete((LeaseItems(1),)))
    assert stream_leases(log, 2) == queries.LeasePage((8,), 0)


def test_leases_of_streams_come_in_pages(log, monkeypatch):
    for number in range(5):
        log.one(lease_of(1, request_id=f"me/1/{number}"))
    assert stream_leases(log, limit=2) == queries.LeasePage((1, 2), 2)
    assert stream_leases(log, after=2, limit=3) == queries.LeasePage((3, 4, 5), 0)
    monkeypatch.setattr(queries, "SCAN_ROWS_MAX", 2)
    assert stream_leases(log, before=1) == queries.LeasePage((), 2)
    assert stream_leases(log, after=4) == queries.LeasePage((5,), 0)


def test_peek_knows_the_state_of_every_item(log):
    log.one(lease_of(2))
    log.one(lease_of(1))
    log.one(Retry((LeaseItems(2),), START_MS + 5000))
    page = peek(log)
    assert page.after_seq == 0
    assert [
        (item.seq, item.state, item.attempt, item.lease, item.due_at_ms) for item in page.items
    ] == [
        (1, RowState.LEASED, 1, 1, 0),
        (2, RowState.LEASED, 1, 1, 0),
        (3, RowState.SCHEDULED, 1, 0, START_MS + 5000),
        (4, RowState.READY, 0, 0, 0),
        (5, RowState.READY, 0, 0, 0),
    ]
    assert [item.client_id for item in page.items] == ["c", "c", "", "", ""]
    assert [item.deadline_ms for item in page.items[2:]] == [0, 0, 0]
    assert page.items[0].deadline_ms == page.items[1].deadline_ms > START_MS
    assert [item.leased_at_ms for item in page.items] == [START_MS, START_MS, 0, 0, 0]
    assert [item.item for item in page.items] == ITEMS
    assert [item.seq for item in peek(log, RowState.READY).items] == [4, 5]


@pytest.mark.parametrize(
    ("limit", "size"), [(1, 10**6), (2, 10**6), (3, 10**6), (100, 3), (7, 10**6)]
)
def test_pages_are_stable_while_items_come_and_go(log, limit, size):
    for _ in range(3):
        log.produce(3)
    seen = []
    after_seq = 0
    while True:
        page = peek(log, None, after_seq, limit, size)
        seen += [item.seq for item in page.items]
        after_seq = page.after_seq
        if not after_seq:
            break
        if len(seen) < 6:
            # Items that were shown are leased and completed, and more items come in at the end.
            grant = log.one(lease_of(1)).grants[0]
            log.one(Complete((LeaseItems(grant.lease),)))
    assert seen[:14] == list(range(1, 15))


def test_peek_of_an_empty_partition():
    page = peek(PartitionLog())
    assert (page.items, page.after_seq) == ((), 0)


def test_stats_name_the_oldest_ready_item(log):
    log.now_ms += 1000
    log.produce(1)
    log.one(lease_of(5))
    with log.environment.snapshot() as txn:
        stats = queries.stats(txn, GROUP)
        assert queries.applied_index(txn, GROUP) == stats.applied_index == 4
        assert queries.settings_version(txn, GROUP) == 1
    assert stats.oldest_ready_at_ms == START_MS + 1000
    assert (stats.ready, stats.leased, stats.leases, stats.partition) == (1, 5, 1, 0)


def oldest_lease_ms(log: PartitionLog) -> int:
    with log.environment.snapshot() as txn:
        return queries.stats(txn, GROUP).oldest_lease_at_ms


def test_a_lease_is_as_old_as_its_grant_however_often_it_is_extended(log):
    assert oldest_lease_ms(log) == 0
    first = log.one(lease_of(2)).grants[0].lease
    log.now_ms += 1000
    second = log.one(lease_of(1)).grants[0].lease
    log.one(Extend((first, second), lease_timeout_ms=60_000))
    assert oldest_lease_ms(log) == START_MS
    assert {item.leased_at_ms for item in peek(log, RowState.LEASED).items} == {
        START_MS,
        START_MS + 1000,
    }
    log.one(Complete((LeaseItems(first),)))
    assert oldest_lease_ms(log) == START_MS + 1000
    log.one(Retry((LeaseItems(second),)))
    assert oldest_lease_ms(log) == 0
    log.now_ms += 1000
    log.one(lease_of(1))
    assert oldest_lease_ms(log) == START_MS + 2000


def test_stats_before_anything():
    with PartitionLog().environment.snapshot() as txn:
        stats = queries.stats(txn, GROUP)
        assert queries.settings_version(txn, GROUP) == 0
    assert (stats.ready, stats.oldest_ready_at_ms) == (0, 0)


def test_joined_produces_are_loaded_apart():
    log = PartitionLog()
    log.configure()
    log.entry(produce([b"a", b"b"]), produce([b"c"]))
    log.one(lease_of(2))
    assert load(log, 0b100).items == b"c"


def in_generation(log: PartitionLog, generation: int) -> None:
    """Moves all rows to another generation, as the switch to a snapshot does."""
    txn = log.environment.begin()
    view = generations.write_view(txn, GROUP, generation)
    rows = [
        row
        for table in ALL.values()
        if table.in_generations
        for row in list(table.rows(txn, GROUP))
    ]
    for key, value in rows:
        txn.delete(key)
        view.put(key, value)
    generations.write(txn, GROUP, generations.Generations(current=generation))
    txn.commit(sync=True)


def test_everything_is_read_in_the_generation_in_use():
    log = PartitionLog()
    log.configure(max_attempts=1, dead_targets=dead_to(9))
    log.produce(ITEMS)
    log.one(lease_of(2))
    log.one(Retry((LeaseItems(1),), error="no"))

    def everything():
        with log.environment.snapshot() as txn:
            view = generations.view(txn, GROUP)
            return (
                queries.stats(txn, GROUP),
                queries.applied_index(txn, GROUP),
                queries.settings_version(txn, GROUP),
                queries.peek(txn, GROUP, None, after_seq=0, limit=9, bytes_max=10**6),
                queries.dead_letters(txn, GROUP, None, after_seq=0, limit=9, bytes_max=10**6),
                queries.outbox_targets(txn, GROUP),
                queries.outbox_batch(txn, GROUP),
                queries.load_segment(view, GROUP, 1, full(5)),
                log.machine.digest(view),
                invariants.check(view, GROUP),
            )

    before = everything()
    assert before[0].moving == 2
    assert before[5] == (9,)
    in_generation(log, 3)
    assert everything() == before
