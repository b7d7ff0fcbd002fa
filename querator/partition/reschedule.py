"""Scheduled items come due; and Reschedule, by which operators move, run or cancel them.

A due time is an instant. So a command that is repeated finds the items where the first one has put
them, and changes nothing. The service checks that an instant is not too far ahead: one that apply
shortened would be another one for the repeat. Only items that are scheduled are changed. An item
that is ready, leased or gone is left alone. So is one that has expired, although the sweep has not
come to it.

Items of one block that are moved to the same instant are joined with each other, and with those
that are there. So they come due as few segments, however they were moved. Items that come due
together in one block share a position in the lane, and are ready in the order of their sequences.

An item expires some time after it is due, so its expiry moves with its due time. Both timeouts are
those that a produce would use now: the item's own, and that of the queue. The row of the block is
written again for this; the cost is one row for each block of a command.
"""

import msgspec

from querator.model.commands import ItemsChanged, Refusal, Reschedule
from querator.model.event_calls import EventKind
from querator.model.limits import RESCHEDULE_ITEMS_MAX, SCHEDULE_NOW_MS
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import kill
from querator.partition.item_times import put_times
from querator.partition.key_homes import lane_now, send_home
from querator.partition.named_items import items_by_block, too_many_items
from querator.partition.produce import expire_at, shorter
from querator.partition.removals import remove_parts
from querator.partition.rows import DeadCause, OwnTimes, RowState, Segment
from querator.partition.segments import (
    LANE,
    block_of,
    check,
    detach,
    join_scheduled,
    place_held,
    restore,
    segments_with,
    tail_position,
)
from querator.partition.states import Event
from querator.storage.tables import SEGMENTS

Parts = list[tuple[Segment, int]]
"""Stored segments, each with some of its items."""


def come_due(context: ApplyContext, first_seq: int, parts: Parts) -> None:
    """Makes scheduled items of one block ready, or holds them. They share a position at the tail.
    Expired items among them die, and those of a key that has moved go to its partition.
    """
    position, age = tail_position(context), context.age
    block = block_of(context, first_seq)
    ready: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    dying: Parts = []
    for segment, part in parts:
        assert segment.state == RowState.SCHEDULED
        detach(context, first_seq, segment, part)
        expired = block.expired(part, context.now_ms)
        alive = part & ~expired
        if expired:
            dying.append((segment, expired))
        if context.share.groups and not segment.place and alive:
            alive = send_home(
                context, first_seq, alive,
                came_from=RowState.SCHEDULED, attempt=segment.attempt, flow=segment.flow,
            )  # fmt: skip
        if not alive:
            continue
        if context.feed is not None:
            context.feed.items(
                EventKind.DUE, first_seq, alive, attempt=segment.attempt, due_ms=segment.locator,
            )  # fmt: skip
        lane = LANE if segment.place else lane_now(context, segment.flow, segment.position)
        if lane != LANE:
            check(RowState.SCHEDULED, Event.HOLD, RowState.HELD)
            place_held(
                context, first_seq, alive, attempt=segment.attempt, releases=segment.releases,
                position=position, lane=lane, priority=segment.priority, age=age,
                flow=segment.flow,
            )  # fmt: skip
        else:
            check(RowState.SCHEDULED, Event.DUE, RowState.READY)
            name = segment.priority, segment.flow, segment.place
            pieces = ready.setdefault(name, [])
            pieces.append((alive, segment.attempt, segment.releases))
    for (priority, flow, place), pieces in sorted(ready.items()):
        restore(
            context, first_seq, pieces,
            position=place or position, priority=priority, age=age, flow=flow,
        )  # fmt: skip
    # The living items first: a block without items is removed.
    for segment, expired in dying:
        kill(
            context, first_seq, block, expired, DeadCause.EXPIRED,
            came_from=RowState.SCHEDULED, attempt=segment.attempt, priority=segment.priority,
            flow=segment.flow,
        )  # fmt: skip


def reschedule(context: ApplyContext, command: Reschedule) -> ItemsChanged | Refusal:
    refusal = too_many_items(command.ranges, RESCHEDULE_ITEMS_MAX)
    if refusal is not None:
        return refusal
    due_ms = command.due_ms
    if due_ms - context.now_ms < SCHEDULE_NOW_MS:
        due_ms = 0
    chosen: list[tuple[int, Parts]] = []
    missing: list[tuple[int, int]] = []
    for first_seq, wanted in items_by_block(context.txn, context.group, command.ranges, missing):
        block = block_of(context, first_seq)
        parts: Parts = []
        for segment, part in segments_with(context.txn, context.group, first_seq, wanted):
            if _is_chosen(command, segment):
                there = part & ~block.expired(part, context.now_ms)
                wanted &= ~there
                if there and (command.cancel or segment.locator != due_ms):
                    parts.append((segment, there))
        missing += masks.to_ranges(first_seq, wanted)
        if parts:
            chosen.append((first_seq, parts))
    if command.cancel:
        _cancel(context, chosen)
    elif due_ms:
        _move(context, chosen, due_ms)
    else:
        _run(context, chosen)
    changed = sum(part.bit_count() for _, parts in chosen for _, part in parts)
    return ItemsChanged(changed, masks.merge_ranges(missing))


def _is_chosen(command: Reschedule, segment: Segment) -> bool:
    if segment.state != RowState.SCHEDULED or segment.locator < command.due_from_ms:
        return False
    return not command.due_until_ms or segment.locator < command.due_until_ms


def _detached(context: ApplyContext, first_seq: int, parts: Parts) -> None:
    """Takes the parts out of their segments, without a row that names them."""
    for segment, part in parts:
        detach(context, first_seq, segment, part)
        SEGMENTS.delete(context.txn, context.group, first_seq, masks.low(part))


def _all(parts: Parts) -> int:
    everything = 0
    for _, part in parts:
        everything |= part
    return everything


def _cancel(context: ApplyContext, chosen: list[tuple[int, Parts]]) -> None:
    for first_seq, parts in chosen:
        remove_parts(context, first_seq, parts)


def _move(context: ApplyContext, chosen: list[tuple[int, Parts]], due_ms: int) -> None:
    check(RowState.SCHEDULED, Event.RESCHEDULE, RowState.SCHEDULED)
    for first_seq, parts in chosen:
        _expire_later(context, first_seq, _all(parts), due_ms)
        if context.feed is not None:
            context.feed.items(EventKind.RESCHEDULED, first_seq, _all(parts), due_ms=due_ms)
        _detached(context, first_seq, parts)
        alike: dict[tuple[int, int, int, int, int, int], int] = {}
        for segment, part in parts:
            name = (
                segment.attempt, segment.releases, segment.position, segment.priority,
                segment.flow, segment.place,
            )  # fmt: skip
            alike[name] = alike.get(name, 0) | part
        join_scheduled(context, first_seq, due_ms, alike)


def _run(context: ApplyContext, chosen: list[tuple[int, Parts]]) -> None:
    """Makes the items ready in the order of (due, sequence), as if their time had come."""
    together: dict[tuple[int, int], Parts] = {}
    for first_seq, parts in chosen:
        _expire_later(context, first_seq, _all(parts), context.now_ms)
        for segment, part in parts:
            together.setdefault((segment.locator, first_seq), []).append((segment, part))
    for (_, first_seq), parts in sorted(together.items(), key=lambda one: one[0]):
        come_due(context, first_seq, parts)


def _expire_later(context: ApplyContext, first_seq: int, mask: int, base_ms: int) -> None:
    """Dates the expiry of items as if they had been produced for `base_ms`."""
    block = block_of(context, first_seq)
    queue_timeout_ms = context.queue.expire_timeout_ms
    if not (block.own or block.expire_at_ms or queue_timeout_ms):
        return
    own = {times.ordinal: times for times in block.own}
    changed = False
    for ordinal in masks.ordinals(mask):
        times = own.get(ordinal) or OwnTimes(ordinal, block.expire_at_ms, 0, 0)
        at_ms = expire_at(base_ms, shorter(times.expire_timeout_ms, queue_timeout_ms))
        if at_ms != times.expire_at_ms:
            own[ordinal] = msgspec.structs.replace(times, expire_at_ms=at_ms)
            changed = True
    if changed:
        put_times(context, first_seq, block, (own[ordinal] for ordinal in sorted(own)))
