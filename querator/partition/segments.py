"""How sets of items change their state: segments, and the rows that index them.

The key of a segment is its block and its lowest ordinal, which no other segment of the block can
have. `detach` takes a part out of a segment. Then one of the placing functions (or `remove`) puts
the part into its new place. In between, the row at the part's lowest ordinal is stale: the placing
function overwrites or deletes it.

Order: a segment is ready at a position of the lane of its rank. The lane of the lowest rank comes
first. The rank is the priority, plus the age that the partition had when the items became ready. So
in a queue whose items gain priority with time, an item is before a more urgent one that became
ready long after it. Items of one rank that became ready together share their block and position,
and are in the order of their sequences. `restore` cuts segments that would interleave. In a fair or
keyed queue, the lanes are those of a flow (`flows`).

Longer than 500 lines: each placing function undoes what `detach` does, index by index, and a change
of one is a change of both.
"""

from collections.abc import Iterator
from itertools import chain, pairwise

from querator.model.limits import BLOCK_ITEMS_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.dedup_rows import free_items
from querator.partition.flows import RANK_0, Flows
from querator.partition.overlays import remove_overlays
from querator.partition.results import removed
from querator.partition.rows import (
    Block,
    PartitionState,
    RowState,
    Segment,
    decode_block,
    decode_segment,
    encode_segment,
)
from querator.partition.states import Event, allowed
from querator.storage import attachments
from querator.storage.environment import ReadTransaction
from querator.storage.tables import (
    BLOCKS,
    FLOW_READY,
    HELD,
    LIVING,
    READY,
    SCHEDULED,
    SEGMENTS,
    delete_block,
)

LANE = 0
"""The lane of items that are not held, and among READY segments that of rank 0. Held segments
lie in lanes of their own (`partition.held_keys`).
"""
LANES_PASSED_MAX = 1_000
"""Lanes that a reader with a last position passes over. In a queue whose priorities age there may
be a lane for each interval.
"""
_LANES = 1 << 64
_FIRST_URGENT = 1 << 63
IN_PLACE = (RowState.READY, RowState.LEASED, RowState.RESERVED, RowState.HELD)
"""States in which items keep their `position`. Items in any other state cannot come back to theirs.
"""


def load_block(txn: ReadTransaction, group: int, first_seq: int) -> Block:
    row = BLOCKS.get(txn, group, first_seq)
    assert row is not None, f"block {first_seq} has segments and no row"
    return decode_block(row)


def block_of(context: ApplyContext, first_seq: int) -> Block:
    """As `load_block`, but read once per entry. What writes a block puts it into `context.blocks`,
    too.
    """
    block = context.blocks.get(first_seq)
    if block is None:
        block = context.blocks[first_seq] = load_block(context.txn, context.group, first_seq)
    return block


def load_segment(txn: ReadTransaction, group: int, first_seq: int, slot: int) -> Segment:
    row = SEGMENTS.get(txn, group, first_seq, slot)
    assert row is not None, f"segment {first_seq}+{slot} is indexed and not there"
    return decode_segment(row)


def segments_of(txn: ReadTransaction, group: int, first_seq: int) -> list[Segment]:
    """All segments of a block, in the order of their lowest ordinals."""
    return [decode_segment(row) for _, row in SEGMENTS.rows(txn, group, first_seq)]


def put_segment(context: ApplyContext, first_seq: int, segment: Segment) -> None:
    SEGMENTS.put(
        context.txn,
        context.group,
        first_seq,
        masks.low(segment.mask),
        value=encode_segment(segment),
    )


def without(segment: Segment, part: int) -> Segment:
    return Segment(
        state=segment.state,
        attempt=segment.attempt,
        releases=segment.releases,
        position=segment.position,
        locator=segment.locator,
        mask=segment.mask & ~part,
        priority=segment.priority,
        age=segment.age,
        flow=segment.flow,
        place=segment.place,
    )


def lane_of(rank: int) -> int:
    """The lane in which items of a rank are ready. Lanes of ranks below 0 have the highest numbers,
    so that rank 0 has lane 0.
    """
    return rank % _LANES


def ready_rows(
    txn: ReadTransaction, group: int, state: PartitionState
) -> Iterator[tuple[bytes, bytes]]:
    """The rows of READY in the order of leasing: by rank, then by position."""
    return chain.from_iterable(txn.scan(*span) for span in _spans(group, state))


def ready_rows_upto(
    txn: ReadTransaction, group: int, state: PartitionState, position: int
) -> Iterator[tuple[bytes, bytes]]:
    """As `ready_rows`, up to a position in each lane. A lane that has later rows costs a seek, also
    when it gave rows before these; after LANES_PASSED_MAX of them the rows end.
    """
    last = position.to_bytes(8, "big")
    passed = 0
    for start, stop in _spans(group, state):
        at: bytes | None = start
        while at is not None:
            begin, at = at, None
            for key, value in txn.scan(begin, stop):
                if key[-9:-1] > last:
                    passed += 1
                    if passed > LANES_PASSED_MAX:
                        return
                    at = _behind_lane(group, key)
                    break
                yield key, value


def lane_heads(txn: ReadTransaction, group: int, state: PartitionState) -> Iterator[bytes]:
    """The block of the first ready segment of each lane, as bytes, in the order of leasing. One
    seek for each lane.
    """
    for start, stop in _spans(group, state):
        at: bytes | None = start
        while at is not None:
            begin, at = at, None
            for key, value in txn.scan(begin, stop):
                at = _behind_lane(group, key)
                yield value
                break


def _behind_lane(group: int, key: bytes) -> bytes:
    """Where the rows of the lane of a key of READY end."""
    return READY.bounds(group, int.from_bytes(key[-17:-9], "big"))[1]


def _spans(group: int, state: PartitionState) -> tuple[tuple[bytes, bytes], ...]:
    """Where READY has rows, as keys, in the order of leasing."""
    start, stop = READY.bounds(group)
    if not state.urgent:
        return ((start, stop),)
    middle, _ = READY.bounds(group, _FIRST_URGENT)
    return ((middle, stop), (start, middle))


def detach(context: ApplyContext, first_seq: int, segment: Segment, part: int) -> None:
    """Takes `part` out of a stored segment and its index. The rest stays as it was."""
    txn, group, state = context.txn, context.group, context.state
    rest = segment.mask & ~part
    slot = masks.low(segment.mask)
    rest_slot = -1
    if rest:
        rest_slot = masks.low(rest)
        put_segment(context, first_seq, without(segment, part))
    moved = rest_slot != slot
    count = part.bit_count()
    if segment.flow:
        _leave_flow(context, first_seq, segment, part)
    if segment.state in IN_PLACE:
        context.count_ahead(segment.position, -count)
    if segment.state in (RowState.READY, RowState.HELD):
        if segment.state == RowState.READY:
            state.ready -= count
            state.urgent -= count if segment.locator >= _FIRST_URGENT else 0
            index = FLOW_READY if segment.flow else READY
        else:
            state.held -= count
            index = HELD
        if moved:
            lane: tuple[int, ...] = (segment.locator,)
            lane = flow_lane(segment.flow, segment.locator) if index is FLOW_READY else lane
            position = segment.position
            index.delete(txn, group, *lane, position, slot)
            if rest:
                value = first_seq.to_bytes(8, "big")
                index.put(txn, group, *lane, position, rest_slot, value=value)
    elif segment.state == RowState.LEASED:
        state.leased -= count
    elif segment.state == RowState.SCHEDULED:
        state.scheduled -= count
        if moved:
            _leave_schedule(context, first_seq, segment, rest)
    elif segment.state == RowState.RESERVED:
        state.reserved -= count
    else:
        state.moving -= count


def _leave_flow(context: ApplyContext, first_seq: int, segment: Segment, part: int) -> None:
    count, place = part.bit_count(), segment.place
    flows_of(context).left(segment, count)
    if place:
        txn, group, rest = context.txn, context.group, segment.mask & ~part
        context.count_ahead(place, -count)
        FLOW_READY.delete(txn, group, segment.flow, 0, place, masks.low(segment.mask))
        if rest:
            value = first_seq.to_bytes(8, "big")
            FLOW_READY.put(txn, group, segment.flow, 0, place, masks.low(rest), value=value)


def _leave_schedule(context: ApplyContext, first_seq: int, segment: Segment, rest: int) -> None:
    txn, group, due_ms = context.txn, context.group, segment.locator
    SCHEDULED.delete(txn, group, due_ms, first_seq, masks.low(segment.mask))
    if rest:
        SCHEDULED.put(txn, group, due_ms, first_seq, masks.low(rest), value=b"")


def flows_of(context: ApplyContext) -> Flows:
    """The flows of a partition that has segments with one."""
    assert context.flows is not None
    return context.flows


def flow_lane(flow: int, lane: int) -> tuple[int, int]:
    """The flow and rank of ready segments, as in the keys of FLOW_READY."""
    return flow, lane ^ RANK_0


def tail_position(context: ApplyContext) -> int:
    position = context.state.next_position
    context.state.next_position = position + 1
    return position


def place_ready(
    context: ApplyContext,
    first_seq: int,
    mask: int,
    *,
    attempt: int,
    releases: int,
    position: int,
    priority: int,
    age: int,
    flow: int,
) -> None:
    """Makes items ready at a position that no other segment of their rank and flow has."""
    slot = masks.low(mask)
    lane = lane_of(priority + age)
    put_segment(
        context,
        first_seq,
        Segment(
            state=RowState.READY,
            attempt=attempt,
            releases=releases,
            position=position,
            locator=lane,
            mask=mask,
            priority=priority,
            age=age,
            flow=flow,
        ),
    )
    count, value = mask.bit_count(), first_seq.to_bytes(8, "big")
    if flow:
        flows_of(context).came(flow, RowState.READY, count)
        FLOW_READY.put(
            context.txn, context.group, *flow_lane(flow, lane), position, slot, value=value
        )
    else:
        READY.put(context.txn, context.group, lane, position, slot, value=value)
    context.state.ready += count
    if lane >= _FIRST_URGENT:
        context.state.urgent += count
    context.count_ahead(position, count)


def place_held(
    context: ApplyContext,
    first_seq: int,
    mask: int,
    *,
    attempt: int,
    releases: int,
    position: int,
    lane: int,
    priority: int,
    age: int,
    flow: int,
) -> None:
    """Keeps items in a lane from which nothing is leased. `restore` makes them ready."""
    put_segment(
        context,
        first_seq,
        Segment(
            state=RowState.HELD,
            attempt=attempt,
            releases=releases,
            position=position,
            locator=lane,
            mask=mask,
            priority=priority,
            age=age,
            flow=flow,
        ),
    )
    if flow:
        flows_of(context).came(flow, RowState.HELD, mask.bit_count())
    slot, value = masks.low(mask), first_seq.to_bytes(8, "big")
    HELD.put(context.txn, context.group, lane, position, slot, value=value)
    context.state.held += mask.bit_count()
    context.count_ahead(position, mask.bit_count())


def restore(
    context: ApplyContext,
    first_seq: int,
    pieces: list[tuple[int, int, int]],
    *,
    position: int,
    priority: int,
    age: int,
    flow: int,
) -> None:
    """Makes detached items of one priority and flow ready at a position that other items of their
    block may have, in the order of their sequences. `pieces` are (items, attempt, releases). The
    work grows with their number, and not with its square. Items with one position have one age.
    """
    txn, group = context.txn, context.group
    lane = lane_of(priority + age)
    rows = (
        FLOW_READY.rows(txn, group, *flow_lane(flow, lane), position)
        if flow
        else READY.rows(txn, group, lane, position)
    )
    there = [load_segment(txn, group, first_seq, key[-1]) for key, _ in rows]
    together = sorted(
        [
            *((segment.mask, segment.attempt, segment.releases) for segment in there),
            *pieces,
        ],
        key=lambda piece: masks.low(piece[0]),
    )
    apart = all(
        before[0].bit_length() <= masks.low(after[0]) for before, after in pairwise(together)
    )
    if apart:
        for mask, attempt, releases in pieces:
            place_ready(
                context, first_seq, mask,
                attempt=attempt, releases=releases, position=position, priority=priority, age=age,
                flow=flow,
            )  # fmt: skip
        return
    for mask, _, _ in pieces:
        SEGMENTS.delete(txn, group, first_seq, masks.low(mask))
    for segment in there:
        slot = masks.low(segment.mask)
        detach(context, first_seq, segment, segment.mask)
        SEGMENTS.delete(txn, group, first_seq, slot)
    for piece, piece_attempt, piece_releases in _untangled(together):
        place_ready(
            context,
            first_seq,
            piece,
            attempt=piece_attempt,
            releases=piece_releases,
            position=position,
            priority=priority,
            age=age,
            flow=flow,
        )


def _untangled(pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The same items in as few pieces as possible that do not interleave."""
    by_start = sorted(
        (start, masks.full(count) << start, attempt, releases)
        for mask, attempt, releases in pieces
        for start, count in masks.runs(mask)
    )
    untangled: list[tuple[int, int, int]] = []
    for _, run, attempt, releases in by_start:
        if untangled and untangled[-1][1:] == (attempt, releases):
            untangled[-1] = (untangled[-1][0] | run, attempt, releases)
        else:
            untangled.append((run, attempt, releases))
    return untangled


def place_scheduled(
    context: ApplyContext,
    first_seq: int,
    mask: int,
    *,
    attempt: int,
    releases: int,
    due_ms: int,
    priority: int,
    flow: int,
    lane: int = LANE,
    place: int = 0,
) -> None:
    """Schedules items. `lane` is the lane in which they are held when they become due, if that lane
    still waits. `place` is as in the segment.
    """
    slot = masks.low(mask)
    put_segment(
        context,
        first_seq,
        Segment(
            state=RowState.SCHEDULED,
            attempt=attempt,
            releases=releases,
            position=lane,
            locator=due_ms,
            mask=mask,
            priority=priority,
            flow=flow,
            place=place,
        ),
    )
    if flow:
        flows_of(context).came(flow, RowState.SCHEDULED, mask.bit_count(), blocking=place > 0)
        if place:
            value = first_seq.to_bytes(8, "big")
            FLOW_READY.put(context.txn, context.group, flow, 0, place, slot, value=value)
            context.count_ahead(place, mask.bit_count())
    SCHEDULED.put(context.txn, context.group, due_ms, first_seq, slot, value=b"")
    context.state.scheduled += mask.bit_count()
    context.state.schedule_head_ms = earlier(context.state.schedule_head_ms, due_ms)


def join_scheduled(
    context: ApplyContext,
    first_seq: int,
    due_ms: int,
    alike: dict[tuple[int, int, int, int, int, int], int],
) -> None:
    """Schedules sets of items of a block, each with its (attempt, releases, lane, priority, flow,
    place). Joins each with the segment of its kind that is due at the same instant.
    """
    txn, group = context.txn, context.group
    slots = [key[-1] for key, _ in SCHEDULED.rows(txn, group, due_ms, first_seq)]
    for slot in slots:
        there = load_segment(txn, group, first_seq, slot)
        name = (
            there.attempt, there.releases, there.position, there.priority, there.flow, there.place,
        )  # fmt: skip
        if name in alike:
            alike[name] |= there.mask
            detach(context, first_seq, there, there.mask)
            SEGMENTS.delete(txn, group, first_seq, slot)
    for (attempt, releases, lane, priority, flow, place), mask in sorted(alike.items()):
        place_scheduled(
            context, first_seq, mask,
            attempt=attempt, releases=releases, due_ms=due_ms, priority=priority, lane=lane,
            flow=flow, place=place,
        )  # fmt: skip


def remove(context: ApplyContext, first_seq: int, block: Block, mask: int) -> None:
    """Removes detached items. With its last item, the block and its attachment are removed, too."""
    SEGMENTS.delete(context.txn, context.group, first_seq, masks.low(mask))
    leave_block(context, first_seq, block, mask)


def leave_block(context: ApplyContext, first_seq: int, block: Block, mask: int) -> None:
    """As `remove`, for items whose segments are already deleted."""
    txn, group, state = context.txn, context.group, context.state
    state.bytes -= block.size(mask)
    if state.asked:
        removed(context, first_seq, mask)
    if state.lasting_keys:
        free_items(context, first_seq, mask)
    if state.overlays:
        remove_overlays(context, first_seq, mask)
    every = masks.full(block.count)
    if mask != every:
        row = LIVING.get(txn, group, first_seq)
        living = (every if row is None else masks.from_bytes(row)) & ~mask
        if living:
            LIVING.put(txn, group, first_seq, value=masks.to_bytes(living))
            return
        LIVING.delete(txn, group, first_seq)
    delete_block(txn, group, first_seq, block.expiries() if block.expiry_head_ms else ())
    attachments.drop(txn, group, block.index, block.part, log_first=context.log_first)


def check(state: int | None, event: Event, target: RowState | None) -> None:
    assert allowed(state, event, target), f"{event.name} does not lead from {state} to {target}"


def find_item(txn: ReadTransaction, group: int, seq: int) -> tuple[int, Segment] | None:
    """The block and segment of an item; None if it is not there."""
    start, _ = BLOCKS.bounds(group)
    for key, _ in txn.scan(start, BLOCKS.key(group, seq) + b"\0", reverse=True):
        first_seq = int.from_bytes(key[-8:], "big")
        if seq - first_seq >= BLOCK_ITEMS_MAX:
            return None
        for segment, _ in segments_with(txn, group, first_seq, 1 << (seq - first_seq)):
            return first_seq, segment
        return None
    return None


def segments_with(
    txn: ReadTransaction, group: int, first_seq: int, wanted: int
) -> list[tuple[Segment, int]]:
    """The segments of a block that have any of the `wanted` items, each with those items, by lowest
    ordinal. Reads backwards from the highest wanted item, and stops when all are found: an item is
    mostly in a segment that begins close to it.
    """
    row = LIVING.get(txn, group, first_seq)
    left = wanted if row is None else wanted & masks.from_bytes(row)
    found: list[tuple[Segment, int]] = []
    if not left:
        return found
    start, _ = SEGMENTS.bounds(group, first_seq)
    stop = SEGMENTS.key(group, first_seq, min(left.bit_length(), BLOCK_ITEMS_MAX) - 1) + b"\0"
    for _, value in txn.scan(start, stop, reverse=True):
        segment = decode_segment(value)
        part = segment.mask & left
        if part:
            found.append((segment, part))
            left &= ~part
            if not left:
                break
    found.reverse()
    return found
