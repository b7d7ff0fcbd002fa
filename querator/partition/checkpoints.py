"""SaveCheckpoints: a consumer keeps with an item how far its work has got.

The data of a checkpoint is an attachment of the entry that saved it, as the payload of a block is,
so that the log and the state share one copy, and it is checked, repaired and copied in the same
ways. The overlay of the item refers to it. A checkpoint stays with its item through lapses,
retries, releases and moves, until it is replaced or cleared, or the item is gone.

Only a live lease that holds the item may save:

    the lease is lost, or does not hold the item     refused (lost); nothing changes
    the same lease has saved a higher revision       nothing changes: this one came late
    the same lease has saved this revision           nothing changes: a repeat
    else                                             it replaces the checkpoint of the item

So a command that is executed twice, or after a later one of its lease, does no harm. A checkpoint
without data leaves its revision behind, for the same reason.
"""

from collections.abc import Sequence
from struct import unpack

from msgspec.structs import replace

from querator.model.commands import ExtendResult, ItemCheckpoint, Refusal, SaveCheckpoints
from querator.model.errors import ErrorCode
from querator.model.limits import BLOCK_ITEMS_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.extend import extend
from querator.partition.overlays import drop_data
from querator.partition.rows import (
    LeaseRow,
    Overlay,
    StoredCheckpoint,
    decode_lease,
    decode_overlay,
    encode,
)
from querator.storage.tables import LEASES, OVERLAYS


def save_checkpoints(
    context: ApplyContext, command: SaveCheckpoints, parts: Sequence[tuple[int, int]]
) -> ExtendResult | Refusal:
    """`parts` are (attachment, 1), one for each checkpoint."""
    result: ExtendResult | Refusal
    if not command.extend.leases or len(parts) != len(command.items):
        result = Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"{len(command.items)} checkpoints have {len(parts)} lengths, and "
            f"{len(command.extend.leases)} leases",
            field="checkpoints",
        )
    else:
        result = extend(context, command.extend)
    if isinstance(result, Refusal):
        for part, _ in parts:
            drop_data(context, context.index, part)
        return result
    leases: dict[int, LeaseRow | None] = {}
    lost: list[tuple[int, int]] = []
    sizes = unpack(f"<{len(parts)}I", command.lengths)
    for item, (part, _), size in zip(command.items, parts, sizes, strict=True):
        if item.lease not in leases:
            raw = LEASES.get(context.txn, context.group, item.lease) if item.lease > 0 else None
            leases[item.lease] = None if raw is None else decode_lease(raw)
        row = leases[item.lease]
        if row is None or not _holds(row, item.seq):
            lost.append((item.lease, item.seq))
            drop_data(context, context.index, part)
        else:
            _save(context, item, part, size)
    return replace(result, lost=tuple(lost))


def _holds(row: LeaseRow, seq: int) -> bool:
    return any(
        0 <= seq - items.first_seq < BLOCK_ITEMS_MAX
        and masks.from_bytes(items.held) >> (seq - items.first_seq) & 1
        for items in row.items
    )


def _save(context: ApplyContext, item: ItemCheckpoint, part: int, size: int) -> None:
    state = context.state
    raw = OVERLAYS.get(context.txn, context.group, item.seq)
    overlay = Overlay() if raw is None else decode_overlay(raw)
    before = overlay.checkpoint
    if before is not None and before.lease == item.lease and 0 < item.revision <= before.revision:
        drop_data(context, context.index, part)
        return
    if not size:
        drop_data(context, context.index, part)
    if before is not None and before.size:
        drop_data(context, before.index, before.part)
        state.checkpoint_bytes -= before.size
    state.overlays += raw is None
    state.checkpoints += before is None
    state.checkpoint_bytes += size
    stored = StoredCheckpoint(context.index, part, size, item.lease, item.revision)
    OVERLAYS.put(
        context.txn, context.group, item.seq, value=encode(replace(overlay, checkpoint=stored))
    )
