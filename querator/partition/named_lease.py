"""Leases of items by name: one item by its id, or the items that a look-ahead has found.

The leader looks ahead, because only it reads payloads (`look_ahead`). What it has found is in the
command by sequence, and is leased if it is still ready. All other items keep their places, so the
items of a plain queue may be named. Those of a fair queue are not leased out of turn, and those of
a key in a keyed queue not out of order.
"""

from querator.model.commands import Ranges, Refusal
from querator.model.errors import ErrorCode
from querator.model.limits import REQUEST_ITEMS_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import bury, worn
from querator.partition.named_items import items_by_block, too_many_items
from querator.partition.rows import Block, RowState, Segment
from querator.partition.segments import block_of, segments_with

Candidate = tuple[int, Block, Segment, int]
"""A ready segment, with the mask of the items that may be leased."""


def not_to_name(context: ApplyContext, named: Ranges) -> Refusal | None:
    """The refusal, if items of the queue are not leased by name."""
    if context.flows is None:
        return too_many_items(named, REQUEST_ITEMS_MAX)
    kind = "keyed" if context.keyed else "fair"
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        f"queue {context.queue.queue} is {kind}: its items are leased in their order alone",
        field="queue",
        value=context.queue.queue,
    )


def named_candidates(
    context: ApplyContext, named: Ranges, aside: frozenset[int]
) -> list[Candidate]:
    """The ready segments with named items, in the order of leasing. Dead items among the named ones
    die.
    """
    found: list[tuple[tuple[int, int, int], Candidate]] = []
    for first_seq, wanted in items_by_block(context.txn, context.group, named, []):
        if first_seq in aside:
            continue
        block = block_of(context, first_seq)
        for segment, part in segments_with(context.txn, context.group, first_seq, wanted):
            if segment.state != RowState.READY:
                continue
            expired = block.expired(part, context.now_ms)
            spent = worn(context, block, part & ~expired, segment.attempt)
            if expired or spent:
                segment = bury(context, first_seq, block, segment, expired=expired, spent=spent)
                part &= ~(expired | spent)
            if part:
                place = segment.rank, segment.position, masks.low(part)
                found.append((place, (first_seq, block, segment, part)))
    found.sort(key=lambda one: one[0])
    return [candidate for _, candidate in found]
