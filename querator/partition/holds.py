"""Items of keys whose slots have moved here wait for those that were ready before them elsewhere.

When the number of a queue's partitions changes, slots move, and items of one key may be in two
partitions. Each partition that slots leave draws a boundary at its Route: what is ready, leased or
reserved there has places below it, and what becomes ready later has not, for places are given in
ascending order. It has *passed* when nothing has a place below the boundary any more, and it does
not itself hold anything for an earlier change. That stays true for ever: an item that is given back
politely has kept its place all the time, and any other comes back at the tail.

Until then the partitions that the slots have come to keep their items in lanes of their own, one
for each change and partition that they wait for, from which nothing is leased. An item belongs in
the lane of the latest change that its slot waits for. Unhold says who has passed. Then a lane is
emptied into the lane that is leased from, from its head on, each item at its place; only when it is
empty do further items of its slots not go into it. So what became ready first is leased first.

Nothing waits in a circle: what is held for a change waits for places that were given before it, and
these for earlier changes only. A change is forgotten when nothing is held for it here, and others
have nothing to wait for: of a partition that knows the version and no such change, it has passed.
"""

from collections.abc import Iterator

import msgspec

from querator.model.commands import Done, Route, Unhold
from querator.model.limits import APPLY_SEGMENTS_MAX, PARTITIONS_MAX
from querator.model.routing import SLOTS, partitions_sharing
from querator.partition import masks
from querator.partition.dead import become_ready
from querator.partition.places import slot_at
from querator.partition.rows import ItemState, KeyChange, SettingsRow, State
from querator.partition.segments import LANE, block_of, detach, load_segment
from querator.partition.states import Event
from querator.partition.turn import Turn
from querator.storage.tables import HELD

_PARTITION_BITS = 16
assert PARTITIONS_MAX <= 1 << _PARTITION_BITS


def begin(turn: Turn, row: SettingsRow, command: Route) -> tuple[KeyChange, ...]:
    """The changes that are not over, when that of a Route has begun: with the one that is open, for
    what was pinned for a transaction before it is published by then.
    """
    own, state = row.settings.partition, turn.state
    waits = partitions_sharing(own, command.partitions, command.before) - {own}
    leaves = partitions_sharing(own, command.before, command.partitions) - {own}
    if not waits and not leaves:
        return row.changes
    boundary = state.next_position if leaves else 0
    in_place = state.ready + state.held + state.leased + state.reserved
    state.ahead.append(in_place if leaves else 0)
    mask = sum(1 << source for source in waits)
    change = KeyChange(
        command.version, command.before, command.partitions, boundary, masks.to_bytes(mask)
    )
    return (*row.changes, change)


def lanes(turn: Turn, slots: bytes, alive: int) -> dict[int, int]:
    """Of a set of items, with slots as of `Produce`, those that are to be held, by lane."""
    held: dict[int, int] = {}
    if slots and any(change.waits for change in turn.share.changes):
        for ordinal in masks.ordinals(alive):
            lane = _lane_of(turn.share, slot_at(slots, ordinal))
            if lane != LANE:
                held[lane] = held.get(lane, 0) | 1 << ordinal
    return held


def _lane_of(share: SettingsRow, slot: int) -> int:
    own = share.settings.partition
    for change in reversed(share.changes if slot < SLOTS else ()):
        if slot % change.partitions == own and change.waits_for(slot % change.before):
            return _lane(change.version, slot % change.before)
    return LANE


def _lane(version: int, source: int) -> int:
    return version << _PARTITION_BITS | source


def is_waiting(share: SettingsRow, lane: int) -> bool:
    """Whether a lane is one in which items are held as yet."""
    version, source = lane >> _PARTITION_BITS, lane & (1 << _PARTITION_BITS) - 1
    return any(change.version == version and change.waits_for(source) for change in share.changes)


def waited_for(share: SettingsRow) -> tuple[int, ...]:
    """Numbers of the partitions that items are held for, or would be."""
    waits = 0
    for change in share.changes:
        waits |= masks.from_bytes(change.waits)
    return tuple(masks.ordinals(waits))


def passed(share: SettingsRow, state: State) -> Iterator[tuple[KeyChange, bool]]:
    """The changes that are not over, and whether this partition has passed."""
    waits = False
    for change, ahead in zip(share.changes, state.ahead, strict=True):
        yield change, not (ahead or waits)
        waits = waits or bool(change.waits)


def unhold(turn: Turn, command: Unhold) -> Done:
    """`changed` counts segments; with APPLY_SEGMENTS_MAX and more the command is to be repeated."""
    share, state = turn.share, turn.state
    changed = 0
    changes: list[KeyChange] = []
    for change in share.changes:
        waits = masks.from_bytes(change.waits)
        if change.version == command.version:
            for source in masks.ordinals(waits & masks.from_bytes(command.passed)):
                changed += _empty(turn, _lane(change.version, source), APPLY_SEGMENTS_MAX - changed)
                if changed >= APPLY_SEGMENTS_MAX:
                    break
                waits &= ~(1 << source)
        changes.append(msgspec.structs.replace(change, waits=masks.to_bytes(waits)))
    share = msgspec.structs.replace(share, changes=tuple(changes))
    over = [done and not change.waits for change, done in passed(share, state)]
    left = [change for change, done in zip(changes, over, strict=True) if not done]
    state.ahead = [ahead for ahead, done in zip(state.ahead, over, strict=True) if not done]
    share = msgspec.structs.replace(share, changes=tuple(left))
    if share != turn.share:
        turn.put_share(share)
    return Done(changed)


def _empty(turn: Turn, lane: int, segments_max: int) -> int:
    """Makes what a lane holds ready, from its head on; how many segments. Those of one place go
    together.
    """
    txn, group = turn.txn, turn.group
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
        assert (segment.state, segment.locator) == (ItemState.HELD, lane)
        detach(turn, first_seq, segment, segment.mask)
        become_ready(
            turn, first_seq, block_of(turn, first_seq), segment.mask, Event.FOLLOW,
            came_from=ItemState.HELD, attempt=segment.attempt, releases=segment.releases,
            position=position,
        )  # fmt: skip
    return len(rows)
