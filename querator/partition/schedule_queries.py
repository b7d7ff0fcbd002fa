"""Reads of schedules for other threads: scheduled items by due time, and their number by time.

Within a partition the order is by (due time, sequence). A page says after which place to continue.
Its work is bounded, whatever the filter leaves out: a page may be empty and still continue. Keys of
items come first, with their sizes, so that a caller can merge partitions and choose items before
any payload moves. An item that is moved to a later time between two pages may come twice.

The kind of an item is in its payload alone. A page with a kind reads each block once.
"""

from collections.abc import Iterator
from itertools import groupby

import msgspec

from querator.model.calls import BrowsedItem
from querator.model.limits import MIB
from querator.partition import masks
from querator.partition.item_fields import kind_of
from querator.partition.payloads import read_payload
from querator.partition.queries import SCAN_ROWS_MAX, block_at, collect
from querator.partition.rows import (
    Block,
    RowState,
    Segment,
    decode_state,
)
from querator.partition.segments import find_item, load_block, load_segment
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import OVERLAYS, SCHEDULED, STATE

SCAN_BYTES_MAX = 16 * MIB
"""Maximum payload that one page reads to find items of a kind, and the rest of a block."""
_ITEM_BYTES = 128
"""What a reply has for an item in addition to its payload and its errors, at most."""


class DueSpan(msgspec.Struct, frozen=True, array_like=True):
    """Items that are due from an instant up to before another one (0: no end), of one kind (empty:
    of any).
    """

    from_ms: int = 0
    until_ms: int = 0
    kind: str = ""


class DuePlace(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A place in the order of a partition's schedules."""

    due_ms: int
    seq: int


class DueKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A scheduled item. `bytes` bounds its size in a reply."""

    due_ms: int
    seq: int
    bytes: int


class DuePage(msgspec.Struct, frozen=True, array_like=True):
    """Keys in order. `after` is where the next page starts; None means that there is none."""

    keys: tuple[DueKey, ...]
    after: DuePlace | None


class DueCounts(msgspec.Struct, frozen=True, array_like=True):
    """Items by (number of the interval since `from_ms`, items), before the span and after it.
    `next` is where to continue; None means that all are counted.
    """

    buckets: tuple[tuple[int, int], ...]
    before: int
    later: int
    next: DuePlace | None


def due_keys(
    txn: ReadTransaction, group: int, span: DueSpan, *, after: DuePlace, limit: int
) -> DuePage:
    """At most `limit` keys of a span, after a place."""
    txn = generations.view(txn, group)
    raw = STATE.get(txn, group)
    overlaid = raw is not None and decode_state(raw).overlays > 0
    blocks = _Blocks(txn, group, span.kind)
    keys: list[DueKey] = []
    scanned = 0
    place = after
    for due_ms, first_seq, segments in _together(txn, group, span, after):
        if len(keys) >= limit or scanned >= SCAN_ROWS_MAX or blocks.read_bytes >= SCAN_BYTES_MAX:
            break
        scanned += len(segments)
        block = blocks.block(first_seq)
        mask = _union(segments)
        for ordinal in masks.ordinals(blocks.chosen(first_seq, mask)):
            seq = first_seq + ordinal
            if (due_ms, seq) <= (after.due_ms, after.seq):
                continue
            size = block.offset(ordinal + 1) - block.offset(ordinal) + _ITEM_BYTES
            if overlaid:
                size += len(OVERLAYS.get(txn, group, seq) or b"")
            keys.append(DueKey(due_ms, seq, size))
        place = DuePlace(due_ms, first_seq + mask.bit_length() - 1)
    else:
        if len(keys) <= limit:
            return DuePage(tuple(keys), None)
    if len(keys) > limit:
        del keys[limit:]
        place = DuePlace(keys[-1].due_ms, keys[-1].seq)
    return DuePage(tuple(keys), place)


def due_items(
    txn: ReadTransaction, group: int, places: tuple[DuePlace, ...]
) -> tuple[BrowsedItem, ...]:
    """The items at these places, by sequence. Those that have left their place are missing."""
    txn = generations.view(txn, group)
    found: list[tuple[int, int, Segment]] = []
    for place in sorted(places, key=lambda place: place.seq):
        item = find_item(txn, group, place.seq)
        if item is None:
            continue
        first_seq, segment = item
        if (segment.state, segment.locator) == (RowState.SCHEDULED, place.due_ms):
            found.append((place.seq, first_seq, segment))
    return collect(txn, group, found, limit=len(found), bytes_max=1 << 40)


def due_counts(
    txn: ReadTransaction, group: int, span: DueSpan, *, interval_ms: int, after: DuePlace
) -> DueCounts:
    """Counts all scheduled items of a kind that come after a place. `interval_ms` 0: the span is
    one interval, and nothing outside of it is counted.
    """
    txn = generations.view(txn, group)
    blocks = _Blocks(txn, group, span.kind)
    buckets: dict[int, int] = {}
    before = later = scanned = 0
    place = after
    within = DueSpan() if interval_ms else span
    for due_ms, first_seq, segments in _together(txn, group, within, after):
        if scanned >= SCAN_ROWS_MAX or blocks.read_bytes >= SCAN_BYTES_MAX:
            return DueCounts(tuple(sorted(buckets.items())), before, later, place)
        scanned += len(segments)
        union = _union(segments)
        mask = blocks.chosen(first_seq, union)
        if (due_ms, first_seq) <= (after.due_ms, after.seq):
            mask &= ~masks.full(max(0, after.seq - first_seq + 1))
        count = mask.bit_count()
        if due_ms < span.from_ms:
            before += count
        elif span.until_ms and due_ms >= span.until_ms:
            later += count
        elif count:
            number = (due_ms - span.from_ms) // interval_ms if interval_ms else 0
            buckets[number] = buckets.get(number, 0) + count
        place = DuePlace(due_ms, first_seq + union.bit_length() - 1)
    return DueCounts(tuple(sorted(buckets.items())), before, later, None)


def _together(
    txn: ReadTransaction, group: int, span: DueSpan, after: DuePlace
) -> Iterator[tuple[int, int, list[Segment]]]:
    """(due time, block, its segments that are due then), in order, for those with any item after
    `after`.
    """
    start, stop = SCHEDULED.bounds(group)
    if after.due_ms >= span.from_ms:
        start = SCHEDULED.key(group, after.due_ms, block_at(txn, group, after.seq), 0)
    else:
        start = SCHEDULED.key(group, span.from_ms, 0, 0)
    if span.until_ms:
        stop = SCHEDULED.key(group, span.until_ms, 0, 0)
    for shared, rows in groupby(txn.scan(start, stop), lambda row: row[0][:-1]):
        due_ms = int.from_bytes(shared[-16:-8], "big")
        first_seq = int.from_bytes(shared[-8:], "big")
        segments = [load_segment(txn, group, first_seq, key[-1]) for key, _ in rows]
        last = DuePlace(due_ms, first_seq + _union(segments).bit_length() - 1)
        if last > after:
            yield due_ms, first_seq, segments


def _union(segments: list[Segment]) -> int:
    mask = 0
    for segment in segments:
        mask |= segment.mask
    return mask


class _Blocks:
    """The blocks of one page, and which of their items are of a kind."""

    def __init__(self, txn: ReadTransaction, group: int, kind: str) -> None:
        self.read_bytes = 0
        self._txn = txn
        self._group = group
        self._kind = kind.encode()
        self._blocks: dict[int, Block] = {}
        self._of_kind: dict[int, int] = {}

    def block(self, first_seq: int) -> Block:
        block = self._blocks.get(first_seq)
        if block is None:
            block = self._blocks[first_seq] = load_block(self._txn, self._group, first_seq)
        return block

    def chosen(self, first_seq: int, mask: int) -> int:
        """The items of a set that are of the kind. Raises BlockDamaged."""
        if not self._kind:
            return mask
        of_kind = self._of_kind.get(first_seq)
        if of_kind is None:
            of_kind = self._of_kind[first_seq] = self._read(first_seq)
        return mask & of_kind

    def _read(self, first_seq: int) -> int:
        block = self.block(first_seq)
        stored = read_payload(self._txn, self._group, first_seq, block)
        self.read_bytes += len(stored)
        found = 0
        for ordinal in range(block.count):
            item = stored[block.offset(ordinal) : block.offset(ordinal + 1)]
            found |= (kind_of(item) == self._kind) << ordinal
        return found
