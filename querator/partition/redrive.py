"""Redrive and DropLetters: dead letters that are ready in their dead queue return to their origin
queue through the outbox, or are removed.
"""

from collections.abc import Iterator

from querator.model.commands import (
    DropLetters,
    ItemsRemoved,
    MovedItem,
    Redrive,
    RedriveResult,
    Refusal,
)
from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind
from querator.model.limits import APPLY_SEGMENTS_MAX
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import home_of, send
from querator.partition.removals import remove_parts
from querator.partition.rows import DeadCause, Overlay, RowState, Segment, decode_overlay
from querator.partition.segments import check, detach, find_item
from querator.partition.states import Event
from querator.storage.tables import OVERLAYS


def redrive(context: ApplyContext, command: Redrive) -> RedriveResult | Refusal:
    """Redrives letters of the queue. Leased and scheduled letters stay, and so do all
    other items.
    """
    if not command.homes:
        return Refusal(
            ErrorCode.INVALID_ARGUMENT, "a redrive names the partitions to go to", field="homes"
        )
    letters, next_seq = _letters(context, command)
    redriven = 0
    for first_seq, segment, bit, letter in _ready(context, command, letters):
        home = home_of(command.homes, letter.origin_partition)
        check(segment.state, Event.REDRIVE, RowState.MOVING)
        detach(context, first_seq, segment, bit)
        if context.feed is not None:
            context.feed.items(EventKind.REDRIVEN, first_seq, bit)
        send(
            context, first_seq, bit, attempt=0, reason=DeadCause.NONE,
            target_group=home.group, priority=segment.priority, flow=segment.flow,
        )  # fmt: skip
        redriven += 1
    return RedriveResult(redriven, next_seq)


def drop_letters(context: ApplyContext, command: DropLetters) -> ItemsRemoved:
    """Removes and counts the letters that `redrive` would redrive."""
    letters, next_seq = _letters(context, command)
    removed = 0
    for first_seq, segment, bit, _ in _ready(context, command, letters):
        remove_parts(context, first_seq, [(segment, bit)])
        removed += 1
    return ItemsRemoved(removed, next_seq)


def _ready(
    context: ApplyContext, command: Redrive | DropLetters, letters: list[tuple[int, Overlay]]
) -> Iterator[tuple[int, Segment, int, MovedItem]]:
    """The chosen letters of the queue that are ready: block, segment, the item's bit, letter. Each
    is looked up when the one before has been changed.
    """
    for seq, overlay in letters:
        letter = overlay.letter
        if letter is None or letter.origin_queue != command.origin_queue:
            continue
        if not command.chosen.chooses(letter):
            continue
        found = find_item(context.txn, context.group, seq)
        if found is not None and found[1].state == RowState.READY:
            first_seq, segment = found
            yield first_seq, segment, 1 << (seq - first_seq), letter


def _letters(
    context: ApplyContext, command: Redrive | DropLetters
) -> tuple[list[tuple[int, Overlay]], int]:
    """The overlays to check, and the sequence after which to continue (0: at the end)."""
    txn, group = context.txn, context.group
    letters: list[tuple[int, Overlay]] = []
    if command.seqs:
        # Named items are looked up in the order given. The API bounds their number.
        for seq in command.seqs:
            row = OVERLAYS.get(txn, group, seq) if seq > 0 else None
            if row is not None:
                letters.append((seq, decode_overlay(row)))
        return letters, 0
    _, stop = OVERLAYS.bounds(group)
    for key, value in txn.scan(OVERLAYS.key(group, max(0, command.after_seq) + 1), stop):
        if len(letters) == APPLY_SEGMENTS_MAX:
            return letters, letters[-1][0]
        letters.append((int.from_bytes(key[-8:], "big"), decode_overlay(value)))
    return letters, 0
