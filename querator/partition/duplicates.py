"""What a new item does to the item that has its dedup key, by its `on_duplicate`.

    the item that has the key     KEEP            REPLACE                  BUMP
    ---------------------------   -------------   ----------------------   -------------------------
    waits: ready, held or         not stored      stored; the other one    stored; the other one is
    scheduled                                     is gone                  gone, and the start moved
    is leased, or in a reader's   not stored      stored; the other one    stored; the other one
    batch, or in another                          stays, without a key     stays, without a key
    partition

Only keys that last until their item is done are taken over. So what is replaced is an item that
waits, and not one that was done before: the newest payload is never lost.

A replaced item leaves its start to the one that replaces it: the due time of a scheduled item, and
the place of a ready one. It can leave its place only if it has it for itself, because the items of
a block share a place. So items that replace others are placed apart from the other items of their
block (`produce`), and the place is noted with the key. An item that shared its place is replaced at
the tail, once. So an item that is replaced again and again comes to its turn. A place belongs to a
priority and, in a fair or keyed queue, to a group or key: an item of another one does not take it.

In a keyed queue an item that is retried later may keep back its key. What replaces it does the same
if it gets its place; a bumped item does not.

A bumped item starts at its own `enqueue_at`, but not later than `debounce_max_ms` after the first
produce with the key since the key was free.

Items of one entry are placed together, after all its produces were judged. If one of them replaces
another one of the same entry, that one is never placed.
"""

from collections.abc import Mapping, Sequence

import msgspec

from querator.model.commands import ItemSpecial
from querator.model.event_calls import EventKind
from querator.model.item_options import OnDuplicate
from querator.model.limits import SCHEDULE_NOW_MS
from querator.model.queues import DedupUntil
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dedup import Duplicates
from querator.partition.dedup_rows import find, note_position
from querator.partition.rows import RowState, Segment
from querator.partition.segments import (
    block_of,
    check,
    detach,
    find_item,
    leave_block,
    place_ready,
    place_scheduled,
    tail_position,
)
from querator.partition.states import Event
from querator.storage.tables import SEGMENTS

_WAITING = (RowState.READY, RowState.HELD, RowState.SCHEDULED)


class LeftPlace(msgspec.Struct, frozen=True):
    """The place that an item leaves to the one that replaces it. It is taken if that one has the
    same priority and is of the same flow. `blocks`: the item was scheduled and kept back its key.
    """

    position: int
    age: int
    priority: int
    flow: int
    blocks: bool


class Fresh(msgspec.Struct):
    """The items of an entry that are accepted and not placed yet: those from `base` on. `specials`
    has ordinals that count from there, and so have `places`, which items take over. `gone` are
    sequences of those that others have replaced.
    """

    base: int
    specials: list[ItemSpecial]
    gone: list[int]
    places: dict[int, LeftPlace]


class Takeovers(msgspec.Struct, frozen=True):
    """What items of a command take over from others. `specials` are those of the command, with the
    starts that they get. `replaced` are (ordinal, sequence of the replaced item). `since` has the
    time of the first produce of the items that replace others, by ordinal.
    """

    duplicates: Duplicates
    specials: tuple[ItemSpecial, ...]
    replaced: tuple[tuple[int, int], ...]
    since: dict[int, int]


class _Holder(msgspec.Struct, frozen=True):
    """The item that has a key. `partition` -1: this one."""

    seq: int
    partition: int
    since_ms: int


def takes_over(context: ApplyContext, specials: tuple[ItemSpecial, ...]) -> bool:
    """Whether an item of a command may take a key from another one."""
    if context.queue.dedup_until is not DedupUntil.DONE:
        return False
    return any(special.on_duplicate is not OnDuplicate.KEEP for special in specials)


def judge(
    context: ApplyContext,
    specials: tuple[ItemSpecial, ...],
    first_seq: int,
    stored: Duplicates,
    fresh: Fresh,
) -> Takeovers:
    """As `dedup.known_keys`, for commands with items that may take keys. Changes nothing."""
    duplicates = {duplicate[0]: duplicate for duplicate in stored}
    holders: dict[bytes, _Holder] = {}
    found: dict[int, ItemSpecial] = {}
    replaced: list[tuple[int, int]] = []
    since: dict[int, int] = {}
    for special in specials:
        key, ordinal = special.dedup_key, special.ordinal
        found[ordinal] = special
        if not key or ordinal in duplicates:
            continue
        holder = holders.get(key) or _holder(context, key)
        since_ms = context.now_ms
        if holder is not None:
            if special.on_duplicate is OnDuplicate.KEEP:
                place = (holder.seq,) if holder.partition < 0 else (holder.seq, holder.partition)
                duplicates[ordinal] = (ordinal, *place)
                continue
            start_ms = _start_ms(context, holder, first_seq, found, fresh)
            if start_ms is not None:
                since_ms = since[ordinal] = holder.since_ms
                if special.on_duplicate is OnDuplicate.BUMP:
                    start_ms = min(special.enqueue_at_ms, since_ms + special.debounce_max_ms)
                found[ordinal] = msgspec.structs.replace(special, enqueue_at_ms=start_ms)
                replaced.append((ordinal, holder.seq))
        holders[key] = _Holder(first_seq + ordinal, -1, since_ms)
    return Takeovers(
        tuple(duplicates[ordinal] for ordinal in sorted(duplicates)),
        tuple(found.values()),
        tuple(replaced),
        since,
    )


def _holder(context: ApplyContext, key: bytes) -> _Holder | None:
    row = find(context, key)
    window_ms = context.queue.dedup_window_ms
    if row is None or row.key != key:
        return None
    if not row.lasting and row.at_ms + window_ms <= context.now_ms:
        return None
    return _Holder(row.seq, row.partition, row.since_ms or row.at_ms)


def _start_ms(
    context: ApplyContext,
    holder: _Holder,
    first_seq: int,
    found: dict[int, ItemSpecial],
    fresh: Fresh,
) -> int | None:
    """When an item that waits is due; 0: it is ready or held. None: it does not wait here."""
    if holder.partition >= 0:
        return None
    if holder.seq >= first_seq:
        return start_of(found[holder.seq - first_seq], context.now_ms)
    if holder.seq >= fresh.base:
        ordinal = holder.seq - fresh.base
        one = next((one for one in fresh.specials if one.ordinal == ordinal), None)
        return 0 if one is None else start_of(one, context.now_ms)
    item = find_item(context.txn, context.group, holder.seq)
    if item is None or item[1].state not in _WAITING:
        return None
    return item[1].locator if item[1].state == RowState.SCHEDULED else 0


def start_of(special: ItemSpecial, now_ms: int) -> int:
    """When a new item is to start."""
    if special.on_duplicate is OnDuplicate.BUMP:
        return min(special.enqueue_at_ms, now_ms + special.debounce_max_ms)
    return special.enqueue_at_ms


def carry_out(context: ApplyContext, verdict: Takeovers, first_seq: int, fresh: Fresh) -> None:
    """Removes the replaced items, whose keys are then free. Called for an accepted command."""
    specials = {special.ordinal: special for special in verdict.specials}
    for ordinal, seq in verdict.replaced:
        special = specials[ordinal]
        if seq >= fresh.base:
            fresh.gone.append(seq)
            place = fresh.places.pop(seq - fresh.base, None)
        else:
            item = find_item(context.txn, context.group, seq)
            assert item is not None, "a replaced item waits"
            place = _place(context, special, item[1])
            _remove(context, *item, seq)
        if place is not None and _takes(context, special, place):
            fresh.places[first_seq + ordinal - fresh.base] = place
    context.state.replaced += len(verdict.replaced)


def _takes(context: ApplyContext, special: ItemSpecial, place: LeftPlace) -> bool:
    """Whether an item takes a place, if it is of the flow of the place."""
    if place.priority != (0 if context.keyed else special.priority):
        return False
    if place.blocks and special.on_duplicate is OnDuplicate.REPLACE:
        return True
    return special.enqueue_at_ms - context.now_ms < SCHEDULE_NOW_MS


def _place(context: ApplyContext, special: ItemSpecial, segment: Segment) -> LeftPlace | None:
    """The place that an item leaves; None: it has none for itself."""
    row = find(context, special.dedup_key)
    assert row is not None, "a replaced item has the key"
    blocks = segment.place > 0
    if segment.state != RowState.READY and not blocks:
        return None
    position = segment.place or segment.position
    if row.position != position:
        return None
    return LeftPlace(position, segment.age, segment.priority, segment.flow, blocks)


def _remove(context: ApplyContext, first_seq: int, segment: Segment, seq: int) -> None:
    mask = 1 << (seq - first_seq)
    check(segment.state, Event.REPLACE, None)
    detach(context, first_seq, segment, mask)
    SEGMENTS.delete(context.txn, context.group, first_seq, seq - first_seq)
    if context.feed is not None:
        context.feed.items(EventKind.REPLACED, first_seq, mask)
    leave_block(context, first_seq, block_of(context, first_seq), mask)


def keep_back(
    context: ApplyContext,
    first_seq: int,
    mask: int,
    due_ms: int,
    flow: int,
    apart: Mapping[int, ItemSpecial],
    taken: Mapping[int, LeftPlace],
) -> int:
    """Schedules those of a key that take the place of one that kept the key back, as they do then.
    Returns the rest.
    """
    for ordinal in masks.ordinals(mask):
        place = taken.get(ordinal)
        if place is None or not place.blocks or place.flow != flow:
            continue
        check(None, Event.PRODUCE_LATER, RowState.SCHEDULED)
        place_scheduled(
            context, first_seq, 1 << ordinal,
            attempt=0, releases=0, due_ms=due_ms, priority=0, flow=flow, place=place.position,
        )  # fmt: skip
        note_position(context, apart[ordinal].dedup_key, place.position)
        mask &= ~(1 << ordinal)
    return mask


def place_all_apart(
    context: ApplyContext,
    first_seq: int,
    ready: int,
    flow_of: Sequence[int],
    position: int,
    apart: Mapping[int, ItemSpecial],
    taken: Mapping[int, LeftPlace],
) -> list[tuple[int, int]]:
    """Places those of `apart`. Returns the items between them, each set with its position."""
    between: list[tuple[int, int]] = []
    for ordinal in sorted(apart):
        bit = 1 << ordinal
        if not ready & bit:
            continue
        before = ready & (bit - 1)
        if before:
            between.append((before, position))
            position = tail_position(context)
        own = _place_apart(
            context=context,
            first_seq=first_seq,
            ordinal=ordinal,
            special=apart[ordinal],
            flow_of=flow_of,
            position=position,
            place=taken.get(ordinal),
        )
        ready &= ~(bit | before)
        if own == position:
            position = tail_position(context)
    return [*between, (ready, position)] if ready else between


def _place_apart(
    context: ApplyContext,
    first_seq: int,
    ordinal: int,
    special: ItemSpecial,
    flow_of: Sequence[int],
    position: int,
    place: LeftPlace | None,
) -> int:
    """Places an item for itself: at the place that it takes over, if its flow is the same, else at
    `position`. Returns its position.
    """
    flow, age = flow_of[ordinal] if flow_of else 0, context.age
    if place is not None and place.flow == flow:
        position, age = place.position, age if place.blocks else place.age
    place_ready(
        context, first_seq, 1 << ordinal,
        attempt=0, releases=0, position=position, age=age, flow=flow,
        priority=0 if context.keyed else special.priority,
    )  # fmt: skip
    note_position(context, special.dedup_key, position)
    return position
