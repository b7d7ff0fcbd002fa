"""Scans of a partition's items."""

import pytest

from querator.model.commands import Complete, ItemSpecial, LeaseItems, Retry
from querator.partition.browse import Scanned, Span, browse
from querator.partition.rows import RowState
from tests.unit.partition.partition_log import GROUP, START_MS, PartitionLog, lease_of


@pytest.fixture
def log() -> PartitionLog:
    log = PartitionLog()
    log.configure()
    return log


def scan(
    log: PartitionLog, from_seq: int = 1, upto_seq: int = 0, *, size=10**6, count=10**6, **span
):
    with log.environment.snapshot() as txn:
        return browse(txn, GROUP, Span(from_seq, upto_seq, **span), bytes_max=size, items_max=count)


def rows(scanned: Scanned) -> list[tuple[int, int, int]]:
    """(sequence, state, attempts) of each item."""
    return [
        row for run in scanned.runs for row in zip(run.seqs, run.states, run.attempts, strict=True)
    ]


def pages(log: PartitionLog, **bounds) -> list[Scanned]:
    found = [scan(log, **bounds)]
    while found[-1].next_seq <= found[-1].upto_seq:
        found.append(scan(log, found[-1].next_seq, found[-1].upto_seq, **bounds))
    return found


def test_items_of_all_states_come_by_sequence(log):
    log.produce([b"a", b"b", b"c", b"d", b"e"])
    log.one(lease_of(4))
    log.one(Complete((LeaseItems(1, ((2, 1),)),)))
    log.one(Retry((LeaseItems(1, ((3, 1),)),), retry_at_ms=START_MS + 60_000, error="later"))
    scanned = scan(log)
    assert rows(scanned) == [
        (1, RowState.LEASED, 1),
        (3, RowState.SCHEDULED, 1),
        (4, RowState.LEASED, 1),
        (5, RowState.READY, 0),
    ]
    [run] = scanned.runs
    assert (run.items, run.produced_at_ms) == (b"acde", START_MS)
    assert run.due_at_ms == [0, START_MS + 60_000, 0, 0]
    assert [(overlay.index, overlay.errors) for overlay in run.overlays] == [(1, ("later",))]
    assert (scanned.next_seq, scanned.upto_seq) == (6, 5)


def test_states_are_chosen(log):
    log.produce(3)
    log.one(lease_of(1))
    ready = 1 << RowState.READY
    assert rows(scan(log, states=ready)) == [(2, RowState.READY, 0), (3, RowState.READY, 0)]
    assert rows(scan(log, states=1 << RowState.LEASED)) == [(1, RowState.LEASED, 1)]
    assert rows(scan(log, states=1 << RowState.SCHEDULED)) == []
    assert scan(log, states=1 << RowState.SCHEDULED).next_seq == 4


def test_a_scan_ends_at_the_head_of_its_first_page(log):
    log.produce(3)
    first = scan(log, count=1)
    log.produce(3)
    assert (first.upto_seq, first.next_seq) == (3, 4)
    assert [seq for seq, _, _ in rows(scan(log, 1, first.upto_seq))] == [1, 2, 3]


def test_a_part_of_a_block_is_cut_out(log):
    log.produce([b"a", b"bb", b"c", b"d"])
    scanned = scan(log, 2, 3)
    assert [run.items for run in scanned.runs] == [b"bbc"]
    assert [list(run.seqs) for run in scanned.runs] == [[2, 3]]
    assert scanned.next_seq == 4


def test_pages_end_between_blocks_and_miss_nothing(log):
    for _ in range(7):
        log.produce(5)
    found = pages(log, count=8)
    assert [len(rows(page)) for page in found] == [10, 10, 10, 5]
    assert [seq for page in found for seq, _, _ in rows(page)] == [*range(1, 36)]
    by_size = pages(log, size=1)
    assert [len(rows(page)) for page in by_size] == [5] * 7


def test_a_page_of_unwanted_rows_says_where_to_go_on(log, monkeypatch):
    monkeypatch.setattr("querator.partition.browse.SCAN_ROWS_MAX", 2)
    for _ in range(5):
        log.produce(2)
    first = scan(log, states=1 << RowState.LEASED)
    assert (first.runs, first.next_seq, first.upto_seq) == ((), 5, 10)
    assert len(pages(log, states=1 << RowState.LEASED)) == 3


def test_items_are_chosen_by_when_they_were_produced(log):
    for _ in range(3):
        log.produce(1)
        log.now_ms += 1_000
    since = scan(log, produced_from_ms=START_MS + 1_000)
    assert [seq for seq, _, _ in rows(since)] == [2, 3]
    before = scan(log, produced_before_ms=START_MS + 1_000)
    assert [seq for seq, _, _ in rows(before)] == [1]
    both = scan(log, produced_from_ms=START_MS + 1, produced_before_ms=START_MS + 2_000)
    assert [seq for seq, _, _ in rows(both)] == [2]


def test_scheduled_items_say_when_they_are_due(log):
    log.produce([b"a", b"b"], specials=(ItemSpecial(1, START_MS + 5_000, 0, 0),))
    [run] = scan(log).runs
    assert run.due_at_ms == [0, START_MS + 5_000]
    assert run.states == bytes([RowState.READY, RowState.SCHEDULED])


def test_an_empty_partition_has_no_page_with_items(log):
    assert scan(log) == Scanned((), 1, 0)
    log.produce(2)
    log.one(lease_of(2))
    log.one(Complete((LeaseItems(1),)))
    assert scan(log) == Scanned((), 3, 2)
