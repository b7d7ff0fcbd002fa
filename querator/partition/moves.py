"""Moves: items go from one partition to another, exactly once.

The source numbers its moves to each target from 1 without gaps. It keeps them in its outbox until
the target has them (MoveDone). The target remembers the last move of each source (`moved_upto`) and
takes only moves that follow. If a batch is sent again, the target skips the moves that it knows. It
takes nothing from a source that is known to be gone (`partition.departed`). If there is not enough
space for a batch, the target takes the first items, and its answer says how far it has got. No item
is too large for a target: only the number of items is limited. Nothing depends on time. A move can
be void (`partition.give_up`): nothing arrives under its number.

A partition that is closing refuses new moves, and reports the last move that it has. So the moves
that follow can go to another partition of its queue (MoveElsewhere) and do not arrive twice. If the
queue uses the partition again, it takes moves again, since the routing version of that Route. A
late message must not be taken for one of now:

    a batch from before               names an older `since`, and is refused
    an answer from before             makes a MoveElsewhere with an older `since`; the source has
                                      the new one in its log (ResumeMoves), and does nothing

The source learns `since` from a refusal. The numbers of moves that went elsewhere never arrive, so
a partition that takes moves again takes them after a gap.

A dead letter arrives with an overlay that names its origin. A redriven item arrives like a fresh
one, in a keyed queue in the partition of its key. Attributes that a retry has given to an item
arrive with it, and so does its checkpoint. An item of a key that has moved arrives with its
attempts, errors and expiry (`partition.key_homes`). A follow-up arrives like a produced item:
later, or not at all when its dedup key is known. Its key belongs to a partition by the queue's
routing. A target takes such items only for its own routing, as it does with produced ones, and
sends on those that belong to another partition.

Items that wait in the outbox of the target do not count for its limit here. Otherwise two full
partitions that send to each other would wait for ever.
"""

from collections.abc import Mapping, Sequence

import msgspec

from querator.model.commands import (
    Done,
    Move,
    Moved,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    Refusal,
    ResumeMoves,
)
from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind
from querator.model.item_options import ItemSpecial
from querator.model.limits import APPLY_SEGMENTS_MAX
from querator.partition import key_homes, masks
from querator.partition.apply_context import ApplyContext, unconfigured
from querator.partition.arrivals import Arrivals, fitting
from querator.partition.dead import NO_TARGET, become_ready, kill, send
from querator.partition.departed import moved_upto, note_moved
from querator.partition.give_up import drop
from querator.partition.overlays import drop_data
from querator.partition.produce import place_block
from querator.partition.rows import (
    DeadCause,
    OutboxRow,
    OutboxTarget,
    Overlay,
    RowState,
    StoredCheckpoint,
    decode_outbox,
    decode_target,
    encode,
)
from querator.partition.segments import (
    LANE,
    block_of,
    check,
    detach,
    flows_of,
    load_segment,
    remove,
    tail_position,
)
from querator.partition.states import Event
from querator.storage import attachments
from querator.storage.tables import OUTBOX, OUTBOX_TARGETS, OVERLAYS

MOVES_SINCE = "since"
"""Field of the refusal of a Move whose `since` is out of date. Its limit is the one of now."""


def move(context: ApplyContext, command: Move, parts: Sequence[tuple[int, int]]) -> Moved | Refusal:
    """Stores moved items. `parts` are (attachment, number of items)."""
    txn, group, state = context.txn, context.group, context.state
    judged = _judge(context, command)
    count = len(command.items)
    known, upto = (0, 0) if isinstance(judged, Refusal) else judged
    plain = isinstance(judged, Refusal) or context.flows is None
    flow_of = [] if plain else flows_of(context).numbers(command.flows, count)
    alive = masks.full(min(count, max(0, upto - command.first_move + 1)))
    alive &= ~masks.full(max(0, known - command.first_move + 1))
    for ordinal, item in enumerate(command.items):
        if item.reason == DeadCause.VOID:
            alive &= ~(1 << ordinal)
    base = state.next_seq
    state.next_seq = base + count
    arrivals = Arrivals(context, command, alive, base)
    saved = _checkpoints(context, command, arrivals.alive, parts)
    start = 0
    for part, length in parts[: len(parts) - len(command.checkpoints)]:
        if (arrivals.alive >> start) & masks.full(length):
            _take_block(
                context=context,
                command=command,
                arrivals=arrivals,
                saved=saved,
                flow_of=flow_of,
                part=part,
                base=base,
                start=start,
                length=length,
            )
        else:
            attachments.drop(txn, group, context.index, part, log_first=context.log_first)
        start += length
    if isinstance(judged, Refusal):
        return judged
    taken = arrivals.alive.bit_count()
    if upto > known:
        note_moved(context, command.source_group, upto)
        state.moved_in += taken
    return Moved(taken, upto)


def _checkpoints(
    context: ApplyContext, command: Move, alive: int, parts: Sequence[tuple[int, int]]
) -> dict[int, StoredCheckpoint]:
    """The checkpoints of the items that arrive, by the place of the item in the command."""
    saved: dict[int, StoredCheckpoint] = {}
    first = len(parts) - len(command.checkpoints)
    for (place, size), (part, _) in zip(command.checkpoints, parts[first:], strict=True):
        if alive >> place & 1:
            saved[place] = StoredCheckpoint(context.index, part, size)
            context.state.checkpoints += 1
            context.state.checkpoint_bytes += size
        else:
            drop_data(context, context.index, part)
    return saved


def _judge(context: ApplyContext, command: Move) -> Refusal | tuple[int, int]:
    """The refusal of the batch, or the last known moves before and after it."""
    if context.row is None:
        return unconfigured()
    count = len(command.items)
    if len(command.lengths) != count * 4 or command.first_move <= 0 or command.source_group < 0:
        return Refusal(
            ErrorCode.INVALID_ARGUMENT, "a move has one length per item", field="lengths"
        )
    known = moved_upto(context.txn, context.group, command.source_group)
    if known is None:
        return Refusal(
            ErrorCode.QUEUE_NOT_FOUND,
            f"group {command.source_group} has left the map: its moves are over",
            field="source_group",
            value=str(command.source_group),
        )
    if context.row.moves_closed and command.first_move + count > known + 1:
        return Refusal(
            ErrorCode.ROUTING_CHANGED,
            "the partition is closing: it accepts no moves",
            field="first_move",
            limit=str(known),
            value=str(command.first_move),
        )
    since = context.row.moves_since
    if command.since != since and command.first_move + count > known + 1:
        return Refusal(
            ErrorCode.UNAVAILABLE,
            f"the partition takes moves again since version {since}; these name {command.since}",
            field=MOVES_SINCE,
            limit=str(since),
            value=str(command.since),
        )
    if since:
        # The moves between went elsewhere.
        known = max(known, command.first_move - 1)
    if command.first_move > known + 1:
        return Refusal(
            ErrorCode.SEQUENCE_GAP,
            f"move {command.first_move} does not follow: {known + 1} is expected",
            field="first_move",
            limit=str(known + 1),
            value=str(command.first_move),
        )
    fresh = max(0, command.first_move + count - 1 - known)
    held, items_max = context.state.staying, context.queue.items_max
    if fresh and 0 < items_max <= held:
        return Refusal(
            ErrorCode.QUEUE_FULL,
            f"the partition holds {held} items that do not move; its limit is {items_max}",
            field="items",
            limit=str(items_max),
            value=str(held + fresh),
        )
    upto = known + (min(fresh, items_max - held) if items_max > 0 else fresh)
    return fitting(context, command, known, upto)


def _take_block(
    context: ApplyContext,
    command: Move,
    arrivals: Arrivals,
    saved: Mapping[int, StoredCheckpoint],
    part: int,
    flow_of: Sequence[int],
    base: int,
    start: int,
    length: int,
) -> None:
    """Stores the `length` items from `start` on, which are in one attachment."""
    first_seq = base + start
    alive = (arrivals.alive >> start) & masks.full(length)
    specials: list[ItemSpecial] = []
    overlays: list[tuple[int, Overlay]] = []
    home = 0
    for ordinal in masks.ordinals(alive):
        item = command.items[start + ordinal]
        if item.reason not in (DeadCause.NONE, DeadCause.FOLLOW_UP, DeadCause.HOME):
            letter = msgspec.structs.replace(item, attributes=None)
            overlay = Overlay(
                letter=letter, attributes=item.attributes, checkpoint=saved.get(start + ordinal)
            )
            overlays.append((ordinal, overlay))
            if item.priority:
                specials.append(ItemSpecial(start + ordinal, priority=item.priority))
            continue
        checkpoint = saved.get(start + ordinal)
        if item.errors or item.attributes is not None or checkpoint is not None:
            overlay = Overlay(item.errors, attributes=item.attributes, checkpoint=checkpoint)
            overlays.append((ordinal, overlay))
        if item.reason == DeadCause.HOME:
            home |= 1 << ordinal
        fields = item.follow_up
        specials.append(
            ItemSpecial(
                start + ordinal,
                0 if fields is None else fields.enqueue_at_ms,
                item.expire_timeout_ms,
                item.lease_timeout_ms,
                priority=item.priority,
                max_attempts=item.max_attempts,
                retry=item.retry,
            )
        )
    place_block(
        context=context,
        attachment=(context.index, part),
        first_seq=first_seq,
        lengths=command.lengths[start * 4 : (start + length) * 4],
        alive=alive,
        specials=specials,
        held=arrivals.held,
        flow_of=flow_of[start : start + length],
        start=start,
        away=(arrivals.away >> start) & alive | home,
        event=Event.MOVE_IN,
    )
    if home:
        key_homes.arrive(
            context=context,
            first_seq=first_seq,
            items=command.items[start : start + length],
            mask=home,
            away=arrivals.away >> start,
            held={lane: mask >> start for lane, mask in arrivals.held.items()},
            flow_of=flow_of[start : start + length],
        )
    for ordinal, overlay in overlays:
        OVERLAYS.put(context.txn, context.group, first_seq + ordinal, value=encode(overlay))
    context.state.overlays += len(overlays)
    arrivals.send_on(
        context, command,
        first_seq=first_seq, start=start, length=length, flow_of=flow_of,
    )  # fmt: skip


def move_done(context: ApplyContext, command: MoveDone) -> Done:
    """`changed` counts items that have left. A later MoveDone may be applied first: both orders are
    right. The work is bounded like that of every command. A batch has far fewer rows than the
    bound, so it leaves as a whole.
    """
    rows = _outbox(context, command.target_group, command.upto_move)
    gone = 0
    for first_move, row in rows:
        mask = masks.from_bytes(row.mask)
        arrived = masks.first(mask, command.upto_move - first_move + 1)
        _leave_outbox(context, command.target_group, first_move, row, arrived)
        _leave(context, row, arrived)
        gone += arrived.bit_count()
    if gone:
        _note_done(context, command.target_group, rows[0][0] + gone - 1)
    return Done(gone)


def move_return(context: ApplyContext, command: MoveReturn) -> Done:
    """Brings items back as ready ones, dead letters with a fresh start. `changed` counts them; 0
    means that none is left. Items that have expired die again, under the current settings. Those of
    a key that has moved go to the partition of their key. Follow-ups were never items of this
    queue: they die (UNDELIVERED).
    """
    returned = 0
    rows = _outbox(context, command.target_group, None)
    for first_move, row in rows:
        mask = masks.from_bytes(row.mask)
        flow = _leave_outbox(context, command.target_group, first_move, row, mask)
        if row.reason == DeadCause.VOID:
            _leave(context, row, mask)
        elif row.follow_ups is not None:
            kill(
                context, row.first_seq, block_of(context, row.first_seq), mask,
                DeadCause.UNDELIVERED,
                came_from=RowState.MOVING, attempt=0, priority=row.priority, flow=flow,
                follow_ups=row.follow_ups,
            )  # fmt: skip
        else:
            attempt = row.attempt if row.reason == DeadCause.HOME else 0
            staying = key_homes.send_home(
                context, row.first_seq, mask,
                came_from=RowState.MOVING, attempt=attempt, flow=flow,
                left_group=command.target_group,
            )  # fmt: skip
            if staying:
                if context.feed is not None:
                    context.feed.items(EventKind.RETURNED, row.first_seq, staying)
                lane = key_homes.lane_now(context, flow)
                become_ready(
                    context, row.first_seq, block_of(context, row.first_seq), staying,
                    Event.RETURN if lane == LANE else Event.HOLD,
                    came_from=RowState.MOVING, attempt=attempt, releases=0,
                    priority=row.priority, flow=flow, lane=lane,
                    position=tail_position(context) if lane != LANE else None,
                )  # fmt: skip
        returned += mask.bit_count()
    if rows:
        _note_done(context, command.target_group, rows[0][0] + returned - 1)
    if not _outbox(context, command.target_group, None, rows_max=1) and command.target_group >= 0:
        # The number of a group is never reused, so its moves need not be remembered.
        OUTBOX_TARGETS.delete(context.txn, context.group, command.target_group)
    return Done(returned)


def move_elsewhere(context: ApplyContext, command: MoveElsewhere) -> Done:
    """Sends to another partition the items that the target does not take. `changed` counts items,
    including those that the target has taken. 0 means that none is left, or that the target takes
    moves again.
    """
    target, upto_move = command.target_group, command.upto_move
    known = _target(context, target)
    if target == command.to_group or known.since != command.since:
        return Done()
    rows = _outbox(context, target, None)
    left = 0
    for first_move, row in rows:
        mask = masks.from_bytes(row.mask)
        arrived = masks.first(mask, max(0, upto_move - first_move + 1))
        if row.reason == DeadCause.VOID:
            arrived = mask
        flow = _leave_outbox(context, target, first_move, row, mask)
        if mask & ~arrived:
            check(RowState.MOVING, Event.REROUTE, RowState.MOVING)
            send(
                context, row.first_seq, mask & ~arrived, attempt=row.attempt, reason=row.reason,
                target_group=command.to_group, died_at_ms=row.died_at_ms, priority=row.priority,
                flow=flow,
                follow_ups=row.follow_ups,
            )  # fmt: skip
        if arrived:
            _leave(context, row, arrived)
        left += mask.bit_count()
    if rows:
        _note_done(context, target, rows[0][0] + left - 1)
    return Done(left)


def resume_moves(context: ApplyContext, command: ResumeMoves) -> Done:
    """`changed` is 0 when this is known."""
    known = _target(context, command.target_group)
    if command.target_group <= 0 or known.since >= command.since:
        return Done()
    row = msgspec.structs.replace(known, since=command.since)
    OUTBOX_TARGETS.put(context.txn, context.group, command.target_group, value=encode(row))
    return Done(1)


def _target(context: ApplyContext, group: int) -> OutboxTarget:
    raw = OUTBOX_TARGETS.get(context.txn, context.group, group) if group > 0 else None
    return NO_TARGET if raw is None else decode_target(raw)


def _outbox(
    context: ApplyContext,
    target_group: int,
    upto_move: int | None,
    *,
    rows_max: int = APPLY_SEGMENTS_MAX,
) -> list[tuple[int, OutboxRow]]:
    rows: list[tuple[int, OutboxRow]] = []
    if target_group < 0:
        return rows
    for key, value in OUTBOX.rows(context.txn, context.group, target_group):
        first_move = int.from_bytes(key[-8:], "big")
        if len(rows) == rows_max or (upto_move is not None and first_move > upto_move):
            break
        rows.append((first_move, decode_outbox(value)))
    return rows


def _leave_outbox(
    context: ApplyContext, target_group: int, first_move: int, row: OutboxRow, leaving: int
) -> int:
    """Detaches items from the outbox. The rest of their row keeps its numbers. Returns their
    flow.
    """
    txn, group = context.txn, context.group
    mask = masks.from_bytes(row.mask)
    segment = load_segment(txn, group, row.first_seq, masks.low(mask))
    assert (segment.state, segment.locator) == (RowState.MOVING, target_group)
    OUTBOX.delete(txn, group, target_group, first_move)
    detach(context, row.first_seq, segment, leaving)
    rest = mask & ~leaving
    if rest:
        left = msgspec.structs.replace(row, mask=masks.to_bytes(rest))
        OUTBOX.put(txn, group, target_group, first_move + leaving.bit_count(), value=encode(left))
    return segment.flow


def _leave(context: ApplyContext, row: OutboxRow, mask: int) -> None:
    """Removes items that have left the outbox: they have arrived, or were given up."""
    if row.reason == DeadCause.VOID:
        drop(context, row.first_seq, mask, came_from=RowState.MOVING)
        return
    check(RowState.MOVING, Event.MOVED, None)
    if context.feed is not None:
        context.feed.items(EventKind.MOVED, row.first_seq, mask)
    remove(context, row.first_seq, block_of(context, row.first_seq), mask)
    context.state.moved_out += mask.bit_count()


def _note_done(context: ApplyContext, target_group: int, upto_move: int) -> None:
    row = OUTBOX_TARGETS.get(context.txn, context.group, target_group)
    target = NO_TARGET if row is None else decode_target(row)
    OUTBOX_TARGETS.put(
        context.txn,
        context.group,
        target_group,
        value=encode(msgspec.structs.replace(target, done=max(target.done, upto_move))),
    )
