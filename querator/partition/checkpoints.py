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

from bisect import bisect_right
from collections.abc import Sequence
from struct import unpack

from msgspec.structs import replace

from querator.model.commands import ExtendResult, ItemCheckpoint, Refusal, SaveCheckpoints
from querator.model.errors import ErrorCode
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.extend import extend
from querator.partition.overlays import drop_data
from querator.partition.rows import (
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
    leases: dict[int, dict[int, int]] = {}
    lost: list[tuple[int, int]] = []
    sizes = unpack(f"<{len(parts)}I", command.lengths)
    for item, (part, _), size in zip(command.items, parts, sizes, strict=True):
        if item.lease not in leases:
            leases[item.lease] = _held(context, item.lease)
        if _holds(leases[item.lease], item.seq):
            _save(context, item, part, size)
        else:
            lost.append((item.lease, item.seq))
            drop_data(context, context.index, part)
    return replace(result, lost=tuple(lost))


def _held(context: ApplyContext, lease: int) -> dict[int, int]:
    """The items that a lease holds, as masks by block, in ascending order. None if it is lost."""
    raw = LEASES.get(context.txn, context.group, lease) if lease > 0 else None
    held: dict[int, int] = {}
    for items in () if raw is None else decode_lease(raw).items:
        held[items.first_seq] = held.get(items.first_seq, 0) | masks.from_bytes(items.held)
    return dict(sorted(held.items()))


def _holds(held: dict[int, int], seq: int) -> bool:
    first_seqs = list(held)
    place = bisect_right(first_seqs, seq) - 1
    return place >= 0 and bool(held[first_seqs[place]] >> (seq - first_seqs[place]) & 1)


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
