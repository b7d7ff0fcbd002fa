"""Held items: items of slots that have moved here wait for items that became ready earlier
elsewhere.

When the number of a queue's partitions changes, slots move, and items of one key may be in two
partitions. Each partition that slots leave sets a boundary at its Route. Items that are ready,
held, leased or reserved there have positions below it. Items that become ready later have higher
positions, because positions are assigned in ascending order. The partition has *passed* when no
item has a position below the boundary any more, and the partition itself holds nothing for an
earlier change. That stays true for ever: an item that is released keeps its position, and any other
item comes back at the tail.

Until then the partitions that slots have come to keep the items of these slots in separate lanes,
one for each change and partition that they wait for. Nothing is leased from these lanes. An item
belongs to the lane of the latest change for which its slot waits. Unhold names the partitions that
have passed. The lane is then emptied into the lane that is leased from, beginning at its head, and
each item keeps its position. Further items of its slots go into it until it is empty. So items are
leased in the order in which they became ready.

There is no circular wait. Items that are held for a change wait for positions that were assigned
before it, and those wait for earlier changes only. A change is forgotten when nothing is held for
it here and other partitions have nothing to wait for. So a partition that knows the version and has
no such change has passed.
"""

from collections.abc import Iterator

import msgspec

from querator.model.commands import Done, Route, Unhold
from querator.model.limits import APPLY_SEGMENTS_MAX, PARTITIONS_MAX
from querator.model.routing import SLOTS, partitions_sharing
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import become_ready
from querator.partition.request_places import slot_at
from querator.partition.rows import KeyChange, PartitionState, RowState, SettingsRow
from querator.partition.segments import LANE, block_of, detach, load_segment
from querator.partition.states import Event
from querator.storage.tables import HELD

_PARTITION_BITS = 16
assert PARTITIONS_MAX <= 1 << _PARTITION_BITS


def begin(context: ApplyContext, row: SettingsRow, command: Route) -> tuple[KeyChange, ...]:
    """Begins the change of an open Route, and returns the changes that are not over. The change
    begins with the open Route because items that were pinned for a transaction before are published
    by then.
    """
    own, state = row.settings.partition, context.state
    waits = partitions_sharing(own, command.partitions, command.before) - {own}
    leaves = partitions_sharing(own, command.before, command.partitions) - {own}
    if not waits and not leaves:
        return row.changes
    boundary = state.next_position if leaves else 0
    in_place = state.ready + state.held + state.leased + state.reserved + state.blocking
    state.ahead.append(in_place if leaves else 0)
    mask = sum(1 << source for source in waits)
    change = KeyChange(
        command.version, command.before, command.partitions, boundary, masks.to_bytes(mask)
    )
    return (*row.changes, change)


def lanes(context: ApplyContext, slots: bytes, alive: int) -> dict[int, int]:
    """The items of a set that are to be held, by lane. `slots` are as in `Produce`."""
    held: dict[int, int] = {}
    if slots and any(change.waits for change in context.share.changes):
        for ordinal in masks.ordinals(alive):
            lane = lane_of(context.share, slot_at(slots, ordinal))
            if lane != LANE:
                held[lane] = held.get(lane, 0) | 1 << ordinal
    return held


def lane_of(share: SettingsRow, slot: int) -> int:
    """The lane of items of a slot that become ready now: LANE, or one in which they are held."""
    own = share.settings.partition
    for change in reversed(share.changes if slot < SLOTS else ()):
        if slot % change.partitions == own and change.waits_for(slot % change.before):
            return _lane(change.version, slot % change.before)
    return LANE


def _lane(version: int, source: int) -> int:
    return version << _PARTITION_BITS | source


def is_waiting(share: SettingsRow, lane: int) -> bool:
    """Whether items are still held in a lane."""
    version, source = lane >> _PARTITION_BITS, lane & (1 << _PARTITION_BITS) - 1
    return any(change.version == version and change.waits_for(source) for change in share.changes)


def waited_for(share: SettingsRow) -> tuple[int, ...]:
    """Numbers of the partitions for which items are held, or would be."""
    waits = 0
    for change in share.changes:
        waits |= masks.from_bytes(change.waits)
    return tuple(masks.ordinals(waits))


def passed(share: SettingsRow, state: PartitionState) -> Iterator[tuple[KeyChange, bool]]:
    """The changes that are not over, each with whether this partition has passed it."""
    waits = False
    for change, ahead in zip(share.changes, state.ahead, strict=True):
        yield change, not (ahead or waits)
        waits = waits or bool(change.waits)


def unhold(context: ApplyContext, command: Unhold) -> Done:
    """`changed` counts segments. At APPLY_SEGMENTS_MAX or more, the command is to be repeated."""
    share, state = context.share, context.state
    changed = 0
    changes: list[KeyChange] = []
    for change in share.changes:
        waits = masks.from_bytes(change.waits)
        if change.version == command.version:
            for source in masks.ordinals(waits & masks.from_bytes(command.passed)):
                changed += _empty(
                    context, _lane(change.version, source), APPLY_SEGMENTS_MAX - changed
                )
                if changed >= APPLY_SEGMENTS_MAX:
                    break
                waits &= ~(1 << source)
        changes.append(msgspec.structs.replace(change, waits=masks.to_bytes(waits)))
    share = msgspec.structs.replace(share, changes=tuple(changes))
    over = [done and not change.waits for change, done in passed(share, state)]
    left = [change for change, done in zip(changes, over, strict=True) if not done]
    state.ahead = [ahead for ahead, done in zip(state.ahead, over, strict=True) if not done]
    share = msgspec.structs.replace(share, changes=tuple(left))
    if share != context.share:
        context.put_share(share)
    return Done(changed)


def _empty(context: ApplyContext, lane: int, segments_max: int) -> int:
    """Makes the items of a lane ready, beginning at its head. Returns the number of segments. All
    segments of one position are moved together.
    """
    txn, group = context.txn, context.group
    rows: list[tuple[int, int, int]] = []
    for key, value in HELD.rows(txn, group, lane):
        _, position, slot = HELD.parts(key)
        assert isinstance(position, int)
        assert isinstance(slot, int)
        if len(rows) >= segments_max and rows[-1][0] != position:
            break
        rows.append((position, int.from_bytes(value, "big"), slot))
    for position, first_seq, slot in rows:
        segment = load_segment(txn, group, first_seq, slot)
        assert (segment.state, segment.locator) == (RowState.HELD, lane)
        detach(context, first_seq, segment, segment.mask)
        become_ready(
            context, first_seq, block_of(context, first_seq), segment.mask, Event.FOLLOW,
            came_from=RowState.HELD, attempt=segment.attempt, releases=segment.releases,
            priority=segment.priority, age=segment.age, position=position, flow=segment.flow,
        )  # fmt: skip
    return len(rows)
