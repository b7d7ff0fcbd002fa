"""Reads of readers and their batches for other components, from a snapshot.

As in `queries`: each call reads one committed state, changes nothing, and is bounded.
"""

import msgspec

from querator.model.calls import ItemRun
from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.limits import BROWSE_BYTES, BROWSE_ITEMS_MAX
from querator.model.reader_calls import ReaderState
from querator.model.readers import AdvanceReader, ReaderResult
from querator.partition import masks
from querator.partition.browse import run_of
from querator.partition.flow_choice import has_early
from querator.partition.queries import run_bytes
from querator.partition.readers import (
    answer_of,
    batch_of,
    load_reader,
    not_open,
    reader_rows,
    refuses,
    unknown_reader,
)
from querator.partition.rows import (
    PartitionState,
    decode_reserved,
    decode_settings,
    decode_state,
)
from querator.partition.segments import load_block, load_segment, ready_rows_upto
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import RESERVED, SETTINGS, STATE


class Outlook(msgspec.Struct, frozen=True):
    """The outcome that an `AdvanceReader` would have: a refusal, or `result` when nothing would
    change. Otherwise it would acknowledge the open batch, or reserve some of `ready` items, or
    both. `routing` is as in `ReaderResult`.
    """

    refusal: Refusal | None = None
    result: ReaderResult | None = None
    acknowledges: bool = False
    ready: int = 0
    routing: int = 0


class BatchItems(msgspec.Struct, frozen=True):
    """Items in the order of the batch, up to before `next_index`. The range that was asked for ends
    before `upto_index`.
    """

    runs: tuple[ItemRun, ...]
    next_index: int
    upto_index: int


def readers(txn: ReadTransaction, group: int) -> tuple[ReaderState, ...]:
    """All readers of a partition, in the order of their ids."""
    txn = generations.view(txn, group)
    state = _state(txn, group)
    found = [
        ReaderState(
            reader_id=row.reader_id,
            epoch=row.epoch,
            opened_at_ms=row.opened_at_ms,
            advanced_at_ms=row.advanced_at_ms,
            acked_seq=row.acked_seq,
            batch=batch_of(row),
            ready=state.ready,
            now_ms=state.now_ms,
        )
        for row in reader_rows(txn, group)
    ]
    return tuple(sorted(found, key=lambda reader: reader.reader_id))


def outlook(txn: ReadTransaction, group: int, command: AdvanceReader) -> Outlook:
    txn = generations.view(txn, group)
    state = _state(txn, group)
    row = load_reader(txn, group, command.reader_id)
    raw = SETTINGS.get(txn, group)
    share = None if raw is None else decode_settings(raw)
    refusal = refuses(row, command, regrown=share is not None and share.settings.first_seq > 0)
    if refusal is not None:
        return Outlook(refusal)
    assert row is not None
    assert share is not None, "a partition without settings has no readers"
    open_seq = 0 if row.batch is None else row.batch.seq
    ready = _ready(txn, group, state, command.upto_position)
    acknowledges = command.ack_seq > row.acked_seq
    if command.ack_seq < open_seq or command.max_items <= 0:
        ready = 0
    if acknowledges or ready:
        return Outlook(acknowledges=acknowledges, ready=ready, routing=share.routing)
    return Outlook(result=answer_of(row, state, share), routing=share.routing)


def _ready(txn: ReadTransaction, group: int, state: PartitionState, upto_position: int) -> int:
    """The number of items that may be reserved: all ready items, or none if the heads of all lanes
    are beyond `upto_position`, or while leases are paused.
    """
    if state.lease_paused:
        return 0
    if state.next_flow:
        early = not upto_position or has_early(txn, group, state, upto_position)
        return state.leasable if early else 0
    if state.ready and upto_position:
        early = any(True for _ in ready_rows_upto(txn, group, state, upto_position))
        return state.ready if early else 0
    return state.ready


def batch_part(
    txn: ReadTransaction,
    group: int,
    reader_id: str,
    batch_seq: int,
    *,
    from_index: int,
    upto_index: int,
    bytes_max: int = BROWSE_BYTES,
    items_max: int = BROWSE_ITEMS_MAX,
) -> BatchItems | Refusal:
    """Items of an open batch, from one index up to before another (0: to the end). Ends with the
    segment that reaches `bytes_max` or `items_max`.
    """
    txn = generations.view(txn, group)
    row = load_reader(txn, group, reader_id)
    if row is None:
        return unknown_reader(reader_id)
    batch = row.batch
    if batch is None or batch.seq != batch_seq:
        return not_open(row, batch_seq)
    upto_index = upto_index or batch.count
    if not from_index < upto_index <= batch.count:
        return Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"items {from_index} to {upto_index} are not a part of batch {batch_seq}, which has "
            f"{batch.count}",
            field="upto_index" if upto_index > batch.count else "from_index",
            limit=str(batch.count),
            value=f"{from_index} to {upto_index}",
        )
    overlaid = _state(txn, group).overlays > 0
    runs: list[ItemRun] = []
    size = items = 0
    start, stop = RESERVED.key(group, row.number, from_index), RESERVED.bounds(group, row.number)[1]
    for first, _ in txn.scan(RESERVED.bounds(group, row.number)[0], start + b"\0", reverse=True):
        # The row that contains the index.
        start = first
        break
    for key, raw in txn.scan(start, stop):
        at = int.from_bytes(key[-8:], "big")
        if at >= upto_index or size >= bytes_max or items >= items_max:
            break
        reserved = decode_reserved(raw)
        mask = masks.from_bytes(reserved.mask)
        wanted = masks.first(mask, upto_index - at) & ~masks.first(mask, max(0, from_index - at))
        segment = load_segment(txn, group, reserved.first_seq, masks.low(mask))
        block = load_block(txn, group, reserved.first_seq)
        parts = [(segment, wanted)]
        run = run_of(txn, group, reserved.first_seq, block, parts, overlaid=overlaid)
        runs.append(run)
        size += run_bytes(run)
        items += len(run.seqs)
    return BatchItems(tuple(runs), from_index + items, upto_index)


def _state(txn: ReadTransaction, group: int) -> PartitionState:
    raw = STATE.get(txn, group)
    return PartitionState() if raw is None else decode_state(raw)
