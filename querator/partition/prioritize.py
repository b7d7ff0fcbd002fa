"""Prioritize, by which operators give waiting items another priority.

Only items that are ready, held or scheduled are changed. An item that is leased gets another
priority by a retry. A command that is repeated finds the items with the priority that the first one
has given them, and changes nothing.

A ready item goes to the tail of its new priority, as if it had become ready now. So the work of a
command grows only with the number of its items: at its old position an item could be among others
of its block, and these would have to be cut apart. A held item keeps its position, because other
partitions may wait for it. Scheduled items are joined with those of their block that are due at the
same instant and have the priority already. So they come due as few segments, however they were
changed.
"""

from functools import reduce
from operator import or_

from querator.model.commands import ItemsChanged, Prioritize, Refusal
from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind
from querator.model.limits import PRIORITIZE_ITEMS_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.named_items import items_by_block, too_many_items
from querator.partition.rows import RowState, Segment
from querator.partition.segments import (
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

_WAITING = (RowState.READY, RowState.HELD, RowState.SCHEDULED)


def prioritize(context: ApplyContext, command: Prioritize) -> ItemsChanged | Refusal:
    refusal = too_many_items(command.ranges, PRIORITIZE_ITEMS_MAX)
    if refusal is not None:
        return refusal
    if context.keyed:
        return Refusal(
            ErrorCode.INVALID_ARGUMENT,
            "the queue is keyed: its items have no priority, because those of a key keep their "
            "order",
            field="priority",
            value=str(command.priority),
        )
    missing: list[tuple[int, int]] = []
    changed = 0
    for first_seq, wanted in items_by_block(context.txn, context.group, command.ranges, missing):
        parts: list[tuple[Segment, int]] = []
        for segment, part in segments_with(context.txn, context.group, first_seq, wanted):
            if segment.state in _WAITING:
                wanted &= ~part
                if segment.priority != command.priority:
                    parts.append((segment, part))
                    changed += part.bit_count()
        _change(context, first_seq, parts, command.priority)
        missing += masks.to_ranges(first_seq, wanted)
    return ItemsChanged(changed, masks.merge_ranges(missing))


def _change(
    context: ApplyContext, first_seq: int, parts: list[tuple[Segment, int]], priority: int
) -> None:
    """Changes items of one block. Alike ones are joined, and those that are ready share a position
    at the tail.
    """
    alike: dict[tuple[RowState, int, int, int, int, int, int], int] = {}
    for segment, part in parts:
        state = RowState(segment.state)
        check(state, Event.PRIORITIZE, state)
        detach(context, first_seq, segment, part)
        SEGMENTS.delete(context.txn, context.group, first_seq, masks.low(part))
        position, locator, age = segment.position, segment.locator, segment.age
        if state is RowState.READY:
            position = locator = age = 0
        name = state, segment.attempt, segment.releases, position, locator, age, segment.flow
        alike[name] = alike.get(name, 0) | part
    if context.feed is not None and alike:
        changed = reduce(or_, alike.values())
        context.feed.items(EventKind.PRIORITIZED, first_seq, changed, detail=priority)
    ready: dict[int, list[tuple[int, int, int]]] = {}
    scheduled: dict[int, dict[tuple[int, int, int, int, int, int], int]] = {}
    for (state, attempt, releases, position, locator, age, flow), mask in sorted(alike.items()):
        if state is RowState.READY:
            ready.setdefault(flow, []).append((mask, attempt, releases))
        elif state is RowState.HELD:
            place_held(
                context, first_seq, mask, attempt=attempt, releases=releases,
                position=position, lane=locator, priority=priority, age=age, flow=flow,
            )  # fmt: skip
        else:
            same_time = scheduled.setdefault(locator, {})
            same_time[attempt, releases, position, priority, flow, 0] = mask
    for due_ms, same_time in scheduled.items():
        join_scheduled(context, first_seq, due_ms, same_time)
    position = tail_position(context) if ready else 0
    for flow, pieces in ready.items():
        restore(
            context, first_seq, pieces,
            position=position, priority=priority, age=context.age, flow=flow,
        )  # fmt: skip
