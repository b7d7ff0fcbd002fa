"""The bytes of a reply that items need for what they got later: errors, attributes, checkpoints."""

from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.rows import Block, decode_overlay
from querator.storage.tables import OVERLAYS


def later_sizes(context: ApplyContext, first_seq: int, mask: int) -> dict[int, int]:
    """The bytes of what items of a set got later, by ordinals: of the rows, and of checkpoints."""
    start = OVERLAYS.key(context.group, first_seq + masks.low(mask))
    stop = OVERLAYS.key(context.group, first_seq + mask.bit_length())
    later: dict[int, int] = {}
    for key, row in context.txn.scan(start, stop):
        ordinal = int.from_bytes(key[-8:], "big") - first_seq
        if mask >> ordinal & 1:
            later[ordinal] = len(row)
            if context.state.checkpoints:
                stored = decode_overlay(row).checkpoint
                later[ordinal] += 0 if stored is None else stored.size
    return later


def with_later(
    context: ApplyContext,
    first_seq: int,
    block: Block,
    mask: int,
    *,
    bytes_max: int,
    at_least_one: bool,
) -> tuple[int, int]:
    """The longest prefix of the set whose items have at most `bytes_max` bytes with what they got
    later; and the bytes of that.
    """
    later = later_sizes(context, first_seq, mask)
    whole = sum(later.values())
    if not whole or block.size(mask) + whole <= bytes_max:
        return mask, whole
    chosen = later_bytes = 0
    for ordinal in masks.ordinals(mask):
        bit, row_bytes = 1 << ordinal, later.get(ordinal, 0)
        bytes_max -= block.size(bit) + row_bytes
        if bytes_max < 0 and (chosen or not at_least_one):
            break
        chosen |= bit
        later_bytes += row_bytes
    return chosen, later_bytes
