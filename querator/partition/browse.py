"""Scans: items of a range of a partition, in pages, without leases.

A page consists of whole blocks from one committed state. The next page reads another state.
Sequences never change, so no item is returned twice, and an item that is there during the whole
scan is not missed.
"""

from array import array
from collections.abc import Sequence
from itertools import chain, groupby

import msgspec

from querator.model.calls import ItemRun
from querator.model.limits import BROWSE_BYTES, BROWSE_ITEMS_MAX
from querator.partition import masks
from querator.partition.overlays import overlays_of
from querator.partition.payloads import read_payload
from querator.partition.queries import SCAN_ROWS_MAX, block_at, cut, run_bytes
from querator.partition.rows import (
    Block,
    PartitionState,
    RowState,
    Segment,
    decode_segment,
    decode_state,
)
from querator.partition.segments import load_block
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import SEGMENTS, STATE


class Span(msgspec.Struct, frozen=True):
    """The items that a scan asks for: sequences from `from_seq` to `upto_seq` (0: the head), in
    `states` (a set of bits by number; 0: any), produced from one instant up to before another (0:
    any).
    """

    from_seq: int
    upto_seq: int = 0
    states: int = 0
    produced_from_ms: int = 0
    produced_before_ms: int = 0


class Scanned(msgspec.Struct, frozen=True):
    """A page. Every wanted item before `next_seq` is in `runs`. At the end of the scan `next_seq`
    is greater than `upto_seq`, the last sequence of the scan.
    """

    runs: tuple[ItemRun, ...]
    next_seq: int
    upto_seq: int


def browse(
    txn: ReadTransaction,
    group: int,
    span: Span,
    *,
    bytes_max: int = BROWSE_BYTES,
    items_max: int = BROWSE_ITEMS_MAX,
) -> Scanned:
    """One page of a scan. It ends with the block that reaches `bytes_max` or `items_max`, or after
    SCAN_ROWS_MAX rows and the rest of their block.
    """
    txn = generations.view(txn, group)
    raw = STATE.get(txn, group)
    state = PartitionState() if raw is None else decode_state(raw)
    upto_seq = span.upto_seq or state.next_seq - 1
    runs: list[ItemRun] = []
    size = items = scanned = 0
    start = SEGMENTS.key(group, block_at(txn, group, span.from_seq), 0)
    rows = txn.scan(start, SEGMENTS.key(group, upto_seq + 1, 0))
    for block, of_block in groupby(rows, _block_of):
        first_seq = int.from_bytes(block[-8:], "big")
        if size >= bytes_max or items >= items_max or scanned >= SCAN_ROWS_MAX:
            return Scanned(tuple(runs), max(first_seq, span.from_seq), upto_seq)
        segments = [decode_segment(row) for _, row in of_block]
        scanned += len(segments)
        window = _window(first_seq, span.from_seq, upto_seq)
        parts = [
            (segment, segment.mask & window)
            for segment in segments
            if segment.mask & window and (not span.states or span.states >> segment.state & 1)
        ]
        run = _run(txn, group, first_seq, parts, span, overlaid=state.overlays > 0)
        if run is not None:
            runs.append(run)
            size += run_bytes(run)
            items += len(run.seqs)
    return Scanned(tuple(runs), max(upto_seq + 1, span.from_seq), upto_seq)


def _block_of(row: tuple[bytes, bytes]) -> bytes:
    """A segment's key without its slot."""
    return row[0][:-1]


def _window(first_seq: int, from_seq: int, upto_seq: int) -> int:
    """Ordinals of a block that are wanted."""
    low = max(0, from_seq - first_seq)
    high = min(max(0, upto_seq - first_seq + 1), 256)
    return masks.full(high) >> low << low


def _run(
    txn: ReadTransaction,
    group: int,
    first_seq: int,
    parts: list[tuple[Segment, int]],
    span: Span,
    *,
    overlaid: bool,
) -> ItemRun | None:
    """The wanted items of a block. None if there are none."""
    if not parts:
        return None
    block = load_block(txn, group, first_seq)
    if block.produced_at_ms < span.produced_from_ms:
        return None
    if span.produced_before_ms and block.produced_at_ms >= span.produced_before_ms:
        return None
    return run_of(txn, group, first_seq, block, parts, overlaid=overlaid)


def run_of(
    txn: ReadTransaction,
    group: int,
    first_seq: int,
    block: Block,
    parts: list[tuple[Segment, int]],
    *,
    overlaid: bool,
) -> ItemRun:
    """Items of a block, given as (segment, wanted items of it). `overlaid`: the partition has
    overlays.
    """
    stored = read_payload(txn, group, first_seq, block)
    mask = 0
    for _, part in parts:
        mask |= part
    states, attempts, due_at_ms, priorities = _of_segments(parts)
    runs = list(masks.runs(mask))
    return ItemRun(
        seqs=_seqs(first_seq, runs),
        states=states,
        attempts=attempts,
        due_at_ms=due_at_ms,
        produced_at_ms=block.produced_at_ms,
        overlays=overlays_of(txn, group, first_seq, mask) if overlaid else (),
        items=cut(block, stored, mask),
        lengths=block.lengths(runs),
        priorities=priorities,
    )


def _seqs(first_seq: int, runs: list[tuple[int, int]]) -> Sequence[int]:
    ranges = [range(first_seq + start, first_seq + start + count) for start, count in runs]
    return ranges[0] if len(ranges) == 1 else list(chain.from_iterable(ranges))


def _of_segments(
    parts: list[tuple[Segment, int]],
) -> tuple[bytes, Sequence[int], Sequence[int], Sequence[int]]:
    """States and attempts of the items by sequence, due times if any item is scheduled, and
    priorities if any is not 0.
    """
    scheduled = any(segment.state == RowState.SCHEDULED for segment, _ in parts)
    prioritized = any(segment.priority for segment, _ in parts)
    if len(parts) == 1:
        [(segment, part)] = parts
        count = part.bit_count()
        return (
            bytes((segment.state,)) * count,
            array("i", (segment.attempt,)) * count,
            [segment.locator] * count if scheduled else [],
            array("i", (segment.priority,)) * count if prioritized else [],
        )
    pairs = [(ordinal, segment) for segment, part in parts for ordinal in masks.ordinals(part)]
    pairs.sort(key=lambda pair: pair[0])
    by_item = [segment for _, segment in pairs]
    return (
        bytes([segment.state for segment in by_item]),
        array("i", [segment.attempt for segment in by_item]),
        [_due_at_ms(segment) for segment in by_item] if scheduled else [],
        array("i", [segment.priority for segment in by_item]) if prioritized else [],
    )


def _due_at_ms(segment: Segment) -> int:
    return segment.locator if segment.state == RowState.SCHEDULED else 0
