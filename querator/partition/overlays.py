"""Overlays: the rows of what single items got after they were produced.

The data of a checkpoint is an attachment of its own, which is dropped with the reference to it.
"""

from msgspec.structs import replace

from querator.model.calls import DeadOrigin, LaterAttributes
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.payloads import read_checkpoint
from querator.partition.rows import Overlay, decode_overlay, encode
from querator.storage import attachments
from querator.storage.environment import ReadTransaction
from querator.storage.tables import OVERLAYS


def load_overlay(txn: ReadTransaction, group: int, seq: int) -> Overlay:
    row = OVERLAYS.get(txn, group, seq)
    return Overlay() if row is None else decode_overlay(row)


def remove_overlays(context: ApplyContext, first_seq: int, mask: int) -> None:
    """Removes the overlays of items of a block."""
    start = OVERLAYS.key(context.group, first_seq + masks.low(mask))
    stop = OVERLAYS.key(context.group, first_seq + mask.bit_length())
    doomed = [
        (key, row)
        for key, row in context.txn.scan(start, stop)
        if mask >> (int.from_bytes(key[-8:], "big") - first_seq) & 1
    ]
    for key, row in doomed:
        context.txn.delete(key)
        if context.state.checkpoints:
            without_checkpoint(context, decode_overlay(row))
    context.state.overlays -= len(doomed)


def clear_checkpoints(context: ApplyContext, first_seq: int, mask: int) -> None:
    """Removes the checkpoints of items of a block."""
    for ordinal in masks.ordinals(mask):
        seq = first_seq + ordinal
        overlay = load_overlay(context.txn, context.group, seq)
        if overlay.checkpoint is not None:
            kept = without_checkpoint(context, overlay)
            OVERLAYS.put(context.txn, context.group, seq, value=encode(kept))


def without_checkpoint(context: ApplyContext, overlay: Overlay) -> Overlay:
    """The overlay without its checkpoint, whose data is dropped."""
    stored = overlay.checkpoint
    if stored is None:
        return overlay
    if stored.size:
        drop_data(context, stored.index, stored.part)
    context.state.checkpoints -= 1
    context.state.checkpoint_bytes -= stored.size
    return replace(overlay, checkpoint=None)


def drop_data(context: ApplyContext, index: int, part: int) -> None:
    attachments.drop(context.txn, context.group, index, part, log_first=context.log_first)


def origin_of(overlay: Overlay) -> DeadOrigin | None:
    """The origin of a dead letter. None: the item is none."""
    letter = overlay.letter
    if letter is None:
        return None
    return DeadOrigin(
        origin_queue=letter.origin_queue,
        origin_partition=letter.origin_partition,
        origin_seq=letter.origin_seq,
        attempts=letter.attempts,
        reason=letter.reason,
        errors=letter.errors,
        produced_at_ms=letter.produced_at_ms,
        died_at_ms=letter.died_at_ms,
    )


def overlays_of(
    txn: ReadTransaction, group: int, first_seq: int, mask: int, *, with_checkpoints: bool = False
) -> tuple[LaterAttributes, ...]:
    """What items of a block got later; with the data of their checkpoints, or only with the sizes.
    Raises BlockDamaged.
    """
    start = OVERLAYS.key(group, first_seq + masks.low(mask))
    stop = OVERLAYS.key(group, first_seq + mask.bit_length())
    found = []
    for key, row in txn.scan(start, stop):
        ordinal = int.from_bytes(key[-8:], "big") - first_seq
        if mask >> ordinal & 1:
            overlay = decode_overlay(row)
            stored = overlay.checkpoint
            data = b""
            if stored is not None and with_checkpoints:
                data = read_checkpoint(txn, group, first_seq, stored)
            found.append(
                LaterAttributes(
                    index=(mask & masks.full(ordinal)).bit_count(),
                    dead_letter=origin_of(overlay),
                    errors=overlay.errors,
                    attributes=overlay.attributes,
                    checkpoint_bytes=0 if stored is None else stored.size,
                    checkpoint=data,
                )
            )
    return tuple(found)
