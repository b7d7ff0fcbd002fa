"""Giving up items whose payload is damaged on every replica.

Replicas cannot know this: an operator says so after the leader has asked all replicas. Ready, held
and scheduled items are dropped and counted. Items on their way to another partition keep their move
numbers, because a target may take no moves after a gap. Their moves become void, and the items are
removed when the target has confirmed the numbers. If a leader that could still read the items has
already sent them, they have arrived, once. Leased items and items in a reader's batch stay: they
may have been delivered when they were whole. They can be given up when they have come back.
"""

from msgspec.structs import replace

from querator.model.commands import Done, GiveUp
from querator.model.event_calls import EventKind
from querator.model.limits import APPLY_SEGMENTS_MAX, BLOCK_ITEMS_MAX, GIVE_UP_BLOCKS_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.rows import (
    DeadCause,
    OutboxRow,
    RowState,
    Segment,
    decode_outbox,
    encode,
)
from querator.partition.segments import block_of, check, detach, remove, segments_of
from querator.partition.states import Event
from querator.storage.tables import BLOCKS, OUTBOX

assert GIVE_UP_BLOCKS_MAX * BLOCK_ITEMS_MAX <= APPLY_SEGMENTS_MAX

_HERE = (RowState.READY, RowState.HELD, RowState.SCHEDULED)


def give_up(context: ApplyContext, command: GiveUp) -> Done:
    """`changed` counts items that are gone, or will be gone when the target of their move has
    confirmed it.
    """
    given_up = 0
    for first_seq in command.blocks[:GIVE_UP_BLOCKS_MAX]:
        if BLOCKS.get(context.txn, context.group, first_seq) is None:
            continue
        for segment in segments_of(context.txn, context.group, first_seq):
            if segment.state in _HERE:
                detach(context, first_seq, segment, segment.mask)
                drop(context, first_seq, segment.mask, came_from=segment.state)
                given_up += segment.mask.bit_count()
            elif segment.state == RowState.MOVING:
                given_up += _void(context, first_seq, segment)
    return Done(given_up)


def drop(context: ApplyContext, first_seq: int, mask: int, *, came_from: int) -> None:
    """Removes detached items that were given up."""
    check(came_from, Event.GIVE_UP, None)
    context.state.dropped += mask.bit_count()
    context.state.given_up += mask.bit_count()
    if context.feed is not None:
        context.feed.items(EventKind.GIVEN_UP, first_seq, mask)
    remove(context, first_seq, block_of(context, first_seq), mask)


def _void(context: ApplyContext, first_seq: int, segment: Segment) -> int:
    """Makes moves void. Returns the number of moves that were not void before."""
    first_move, row = _outbox_row(context, segment)
    assert (row.first_seq, masks.from_bytes(row.mask)) == (first_seq, segment.mask)
    if row.reason == DeadCause.VOID:
        return 0
    OUTBOX.put(
        context.txn,
        context.group,
        segment.locator,
        first_move,
        value=encode(replace(row, reason=DeadCause.VOID)),
    )
    return segment.mask.bit_count()


def _outbox_row(context: ApplyContext, segment: Segment) -> tuple[int, OutboxRow]:
    """The first outbox row at or after the segment's first move number: some of its moves may be
    done.
    """
    _, stop = OUTBOX.bounds(context.group, segment.locator)
    start = OUTBOX.key(context.group, segment.locator, segment.position)
    key, value = next(iter(context.txn.scan(start, stop)))
    return int.from_bytes(key[-8:], "big"), decode_outbox(value)
