"""Redrive: dead letters that are ready in their dead queue return to their origin queue through the
outbox.
"""

from querator.model.commands import Redrive, RedriveResult, Refusal
from querator.model.errors import ErrorCode
from querator.model.limits import APPLY_SEGMENTS_MAX
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import home_of, send
from querator.partition.rows import DeadCause, Overlay, RowState, decode_overlay
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
    txn, group = context.txn, context.group
    letters, next_seq = _letters(context, command)
    redriven = 0
    for seq, overlay in letters:
        letter = overlay.letter
        if letter is None or letter.origin_queue != command.origin_queue:
            continue
        found = find_item(txn, group, seq)
        if found is None or found[1].state != RowState.READY:
            continue
        first_seq, segment = found
        bit = 1 << (seq - first_seq)
        home = home_of(command.homes, letter.origin_partition)
        check(segment.state, Event.REDRIVE, RowState.MOVING)
        detach(context, first_seq, segment, bit)
        send(
            context, first_seq, bit, attempt=0, reason=DeadCause.NONE,
            target_group=home.group, priority=segment.priority,
        )  # fmt: skip
        redriven += 1
    return RedriveResult(redriven, next_seq)


def _letters(context: ApplyContext, command: Redrive) -> tuple[list[tuple[int, Overlay]], int]:
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
