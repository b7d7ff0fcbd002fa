"""Purge and Cancel, by which operators remove items that wait.

Items that are ready or held are removed, and scheduled ones unless a purge leaves them. Leased
items stay: a consumer is at work on them. So do items in a reader's batch, and items on their way
to another queue, whose moves have numbers without gaps.

A cancel may let its items die instead, as if a consumer had rejected them.

A purge works in commands of bounded size, between which the partition does other work. It ends at
the last sequence of the time when it was asked for. Sequences are never used again, so a repeated
command removes nothing more, and later items stay. A command takes whole blocks: its work is
counted in the segments that it reads, the overlays that it removes, the keys that it frees and the
results that it ends.
"""

from itertools import islice

from querator.model.commands import Cancel, ItemsChanged, ItemsRemoved, Purge, Refusal
from querator.model.event_calls import EventKind
from querator.model.limits import APPLY_SEGMENTS_MAX, CANCEL_ITEMS_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import kill
from querator.partition.named_items import items_by_block, too_many_items
from querator.partition.rows import DeadCause, RowState, Segment
from querator.partition.segments import (
    block_of,
    check,
    detach,
    leave_block,
    segments_of,
    segments_with,
)
from querator.partition.states import Event
from querator.storage.tables import BLOCKS, SEGMENTS

_HERE = (RowState.READY, RowState.HELD)
_WAITING = (*_HERE, RowState.SCHEDULED)


def purge(context: ApplyContext, command: Purge) -> ItemsRemoved:
    txn, group, state = context.txn, context.group, context.state
    states = _WAITING if command.scheduled else _HERE
    start = BLOCKS.key(group, command.from_seq)
    stop = BLOCKS.key(group, command.upto_seq) + b"\0"
    keys = list(islice(txn.keys(start, stop), APPLY_SEGMENTS_MAX + 1))
    removed = work = 0
    for key in keys:
        first_seq = int.from_bytes(key[-8:], "big")
        if work >= APPLY_SEGMENTS_MAX:
            return ItemsRemoved(removed, first_seq)
        wanted = masks.full(command.upto_seq - first_seq + 1)
        parts: list[tuple[Segment, int]] = []
        for segment in segments_of(txn, group, first_seq):
            work += 1
            part = segment.mask & wanted
            if part and segment.state in states:
                parts.append((segment, part))
        rows = state.overlays + state.lasting_keys + state.asked
        removed += remove_parts(context, first_seq, parts)
        work += rows - state.overlays - state.lasting_keys - state.asked
    return ItemsRemoved(removed, 0)


def cancel(context: ApplyContext, command: Cancel) -> ItemsChanged | Refusal:
    refusal = too_many_items(command.ranges, CANCEL_ITEMS_MAX)
    if refusal is not None:
        return refusal
    missing: list[tuple[int, int]] = []
    removed = 0
    for first_seq, wanted in items_by_block(context.txn, context.group, command.ranges, missing):
        found = segments_with(context.txn, context.group, first_seq, wanted)
        parts = [(segment, part) for segment, part in found if segment.state in _WAITING]
        for _, part in parts:
            wanted &= ~part
        if command.dead:
            removed += _reject(context, first_seq, parts)
        else:
            removed += remove_parts(context, first_seq, parts)
        missing += masks.to_ranges(first_seq, wanted)
    return ItemsChanged(removed, masks.merge_ranges(missing))


def _reject(context: ApplyContext, first_seq: int, parts: list[tuple[Segment, int]]) -> int:
    """As `remove_parts`, for items that die."""
    for segment, part in parts:
        detach(context, first_seq, segment, part)
        kill(
            context, first_seq, block_of(context, first_seq), part, DeadCause.REJECTED,
            came_from=segment.state, attempt=segment.attempt, priority=segment.priority,
            flow=segment.flow,
        )  # fmt: skip
    return sum(part.bit_count() for _, part in parts)


def remove_parts(context: ApplyContext, first_seq: int, parts: list[tuple[Segment, int]]) -> int:
    """Removes items of one block, given as stored segments with some of their items, and counts
    them as cancelled. Returns their number.
    """
    if not parts:
        return 0
    mask = 0
    for segment, part in parts:
        check(segment.state, Event.CANCEL, None)
        detach(context, first_seq, segment, part)
        SEGMENTS.delete(context.txn, context.group, first_seq, masks.low(part))
        mask |= part
    if context.feed is not None:
        context.feed.items(EventKind.REMOVED, first_seq, mask)
    leave_block(context, first_seq, block_of(context, first_seq), mask)
    context.state.cancelled += mask.bit_count()
    return mask.bit_count()
