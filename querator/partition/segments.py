"""How sets of items change their state: segments, and the rows that index them.

The key of a segment is its block and its lowest ordinal, which no other segment of the block can
have. `detach` takes a part out of a segment. Then one of the placing functions (or `remove`) puts
the part into its new place. In between, the row at the part's lowest ordinal is stale: the placing
function overwrites or deletes it.

Order: a segment is ready at a position of the lane. Items that became ready together share their
block and position, and are in the order of their sequences. `restore` cuts segments that would
interleave.
"""

from itertools import pairwise

from querator.model.limits import BLOCK_ITEMS_MAX
from querator.partition import masks
from querator.partition.rows import (
    Block,
    ItemState,
    Segment,
    decode_block,
    decode_segment,
    encode_segment,
)
from querator.partition.states import Event, allowed
from querator.partition.turn import Turn, earlier
from querator.storage import attachments
from querator.storage.environment import ReadTransaction
from querator.storage.tables import (
    BLOCKS,
    HELD,
    LIVING,
    OVERLAYS,
    READY,
    SCHEDULED,
    SEGMENTS,
    delete_block,
)

LANE = 0
"""The one lane from which a partition leases; the locator of READY segments. Held segments lie in
other lanes (`partition.holds`).
"""
IN_PLACE = (ItemState.READY, ItemState.LEASED, ItemState.RESERVED, ItemState.HELD)
"""States in which items keep their `position`. Items in any other state cannot come back to theirs.
"""


def load_block(txn: ReadTransaction, group: int, first_seq: int) -> Block:
    row = BLOCKS.get(txn, group, first_seq)
    assert row is not None, f"block {first_seq} has segments and no row"
    return decode_block(row)


def block_of(turn: Turn, first_seq: int) -> Block:
    """As `load_block`, but read once per entry: blocks do not change."""
    block = turn.blocks.get(first_seq)
    if block is None:
        block = turn.blocks[first_seq] = load_block(turn.txn, turn.group, first_seq)
    return block


def load_segment(txn: ReadTransaction, group: int, first_seq: int, slot: int) -> Segment:
    row = SEGMENTS.get(txn, group, first_seq, slot)
    assert row is not None, f"segment {first_seq}+{slot} is indexed and not there"
    return decode_segment(row)


def segments_of(txn: ReadTransaction, group: int, first_seq: int) -> list[Segment]:
    """All segments of a block, in the order of their lowest ordinals."""
    return [decode_segment(row) for _, row in SEGMENTS.rows(txn, group, first_seq)]


def put_segment(turn: Turn, first_seq: int, segment: Segment) -> None:
    SEGMENTS.put(
        turn.txn, turn.group, first_seq, masks.low(segment.mask), value=encode_segment(segment)
    )


def without(segment: Segment, part: int) -> Segment:
    return Segment(
        segment.state,
        segment.attempt,
        segment.releases,
        segment.position,
        segment.locator,
        segment.mask & ~part,
    )


def detach(turn: Turn, first_seq: int, segment: Segment, part: int) -> None:
    """Takes `part` out of a stored segment and its index. The rest stays as it was."""
    txn, group, state = turn.txn, turn.group, turn.state
    rest = segment.mask & ~part
    slot = masks.low(segment.mask)
    rest_slot = -1
    if rest:
        rest_slot = masks.low(rest)
        put_segment(turn, first_seq, without(segment, part))
    moved = rest_slot != slot
    count = part.bit_count()
    if segment.state in IN_PLACE:
        turn.count_ahead(segment.position, -count)
    if segment.state in (ItemState.READY, ItemState.HELD):
        if segment.state == ItemState.READY:
            state.ready -= count
            index = READY
        else:
            state.held -= count
            index = HELD
        lane, position = segment.locator, segment.position
        if moved:
            index.delete(txn, group, lane, position, slot)
            if rest:
                value = first_seq.to_bytes(8, "big")
                index.put(txn, group, lane, position, rest_slot, value=value)
    elif segment.state == ItemState.LEASED:
        state.leased -= count
    elif segment.state == ItemState.SCHEDULED:
        state.scheduled -= count
        if moved:
            SCHEDULED.delete(txn, group, segment.locator, first_seq, slot)
            if rest:
                SCHEDULED.put(txn, group, segment.locator, first_seq, rest_slot, value=b"")
    elif segment.state == ItemState.RESERVED:
        state.reserved -= count
    else:
        state.moving -= count


def tail_position(turn: Turn) -> int:
    position = turn.state.next_position
    turn.state.next_position = position + 1
    return position


def place_ready(
    turn: Turn, first_seq: int, mask: int, *, attempt: int, releases: int, position: int
) -> None:
    """Makes items ready at a position that no other segment has."""
    slot = masks.low(mask)
    put_segment(turn, first_seq, Segment(ItemState.READY, attempt, releases, position, 0, mask))
    READY.put(turn.txn, turn.group, LANE, position, slot, value=first_seq.to_bytes(8, "big"))
    turn.state.ready += mask.bit_count()
    turn.count_ahead(position, mask.bit_count())


def place_held(
    turn: Turn, first_seq: int, mask: int, *, attempt: int, releases: int, position: int, lane: int
) -> None:
    """Keeps items in a lane from which nothing is leased. `restore` makes them ready."""
    put_segment(turn, first_seq, Segment(ItemState.HELD, attempt, releases, position, lane, mask))
    slot, value = masks.low(mask), first_seq.to_bytes(8, "big")
    HELD.put(turn.txn, turn.group, lane, position, slot, value=value)
    turn.state.held += mask.bit_count()
    turn.count_ahead(position, mask.bit_count())


def restore(
    turn: Turn, first_seq: int, mask: int, *, attempt: int, releases: int, position: int
) -> None:
    """Makes items ready at a position that other items of their block may have, in the order of
    their sequences.
    """
    txn, group = turn.txn, turn.group
    there = [
        load_segment(txn, group, first_seq, key[-1])
        for key, _ in READY.rows(txn, group, LANE, position)
    ]
    together = sorted(
        [
            *((segment.mask, segment.attempt, segment.releases) for segment in there),
            (mask, attempt, releases),
        ],
        key=lambda piece: masks.low(piece[0]),
    )
    apart = all(
        before[0].bit_length() <= masks.low(after[0]) for before, after in pairwise(together)
    )
    if apart:
        place_ready(turn, first_seq, mask, attempt=attempt, releases=releases, position=position)
        return
    SEGMENTS.delete(txn, group, first_seq, masks.low(mask))
    for segment in there:
        slot = masks.low(segment.mask)
        SEGMENTS.delete(txn, group, first_seq, slot)
        READY.delete(txn, group, LANE, position, slot)
        turn.state.ready -= segment.mask.bit_count()
        turn.count_ahead(position, -segment.mask.bit_count())
    for piece, piece_attempt, piece_releases in _untangled(together):
        place_ready(
            turn,
            first_seq,
            piece,
            attempt=piece_attempt,
            releases=piece_releases,
            position=position,
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
    turn: Turn,
    first_seq: int,
    mask: int,
    *,
    attempt: int,
    releases: int,
    due_ms: int,
    lane: int = LANE,
) -> None:
    """Schedules items. `lane` is the lane in which they are held when they become due, if that lane
    still waits.
    """
    slot = masks.low(mask)
    put_segment(
        turn, first_seq, Segment(ItemState.SCHEDULED, attempt, releases, lane, due_ms, mask)
    )
    SCHEDULED.put(turn.txn, turn.group, due_ms, first_seq, slot, value=b"")
    turn.state.scheduled += mask.bit_count()
    turn.state.schedule_head_ms = earlier(turn.state.schedule_head_ms, due_ms)


def remove(turn: Turn, first_seq: int, block: Block, mask: int) -> None:
    """Removes detached items. With its last item, the block and its attachment are removed, too."""
    SEGMENTS.delete(turn.txn, turn.group, first_seq, masks.low(mask))
    leave_block(turn, first_seq, block, mask)


def leave_block(turn: Turn, first_seq: int, block: Block, mask: int) -> None:
    """As `remove`, for items whose segments are already deleted."""
    txn, group, state = turn.txn, turn.group, turn.state
    state.bytes -= block.size(mask)
    if state.overlays:
        _remove_overlays(turn, first_seq, mask)
    every = masks.full(block.count)
    if mask != every:
        row = LIVING.get(txn, group, first_seq)
        living = (every if row is None else masks.from_bytes(row)) & ~mask
        if living:
            LIVING.put(txn, group, first_seq, value=masks.to_bytes(living))
            return
        LIVING.delete(txn, group, first_seq)
    delete_block(txn, group, first_seq, block.expiries() if block.expiry_head_ms else ())
    attachments.drop(txn, group, block.index, block.part, log_first=turn.log_first)


def _remove_overlays(turn: Turn, first_seq: int, mask: int) -> None:
    start = OVERLAYS.key(turn.group, first_seq + masks.low(mask))
    stop = OVERLAYS.key(turn.group, first_seq + mask.bit_length())
    doomed = [
        key
        for key, _ in turn.txn.scan(start, stop)
        if mask >> (int.from_bytes(key[-8:], "big") - first_seq) & 1
    ]
    for key in doomed:
        turn.txn.delete(key)
    turn.state.overlays -= len(doomed)


def check(state: int | None, event: Event, target: ItemState | None) -> None:
    assert allowed(state, event, target), f"{event.name} does not lead from {state} to {target}"


def find_item(txn: ReadTransaction, group: int, seq: int) -> tuple[int, Segment] | None:
    """The block and segment of an item; None if it is not there."""
    start, _ = BLOCKS.bounds(group)
    for key, _ in txn.scan(start, BLOCKS.key(group, seq) + b"\0", reverse=True):
        first_seq = int.from_bytes(key[-8:], "big")
        if seq - first_seq >= BLOCK_ITEMS_MAX:
            return None
        bit = 1 << (seq - first_seq)
        for segment in segments_of(txn, group, first_seq):
            if segment.mask & bit:
                return first_seq, segment
        return None
    return None
