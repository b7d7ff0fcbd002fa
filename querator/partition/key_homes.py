"""The home of a key is the partition to which its slot belongs. Items that become ready elsewhere
go there.

When the number of a keyed queue's partitions changes, slots move. Items that are in place stay
where they are, and the items at the new partition of their key wait for them (`held_keys`). No item
waits for one that is scheduled and does not keep back its key: it may be due in years. When such an
item comes due, later items of its key may be leased at its home. Here it would be leased beside
them. So it goes to its home through the outbox (reason HOME), and becomes ready when it arrives. It
keeps its attempts, errors, attributes, checkpoint and expiry, and gets another sequence. The same
holds for a dead letter that returns because its dead queue was deleted.

While a change is carried out, nothing leaves: the boundary of a partition is set when its Route
opens, and the items that are ready before it are in place. An arrival is judged by the routing of
the target, as that of a follow-up: it waits for the same version, and is sent on when its key has
moved meanwhile.

Some items stay, and may be leased beside others of their key:

- an item for whose result a producer waits: the result is kept where the producer asks for it
- an item whose dedup key lasts until it is done: repeats are compared with it there
"""

from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from querator.model.commands import MovedItem
from querator.model.routing import slot_of_key
from querator.partition import held_keys, masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import send
from querator.partition.dedup_rows import with_lasting_keys
from querator.partition.flows import ROOT
from querator.partition.item_times import put_times
from querator.partition.produce import expire_at
from querator.partition.results import waited_for
from querator.partition.rows import DeadCause, RowState
from querator.partition.segments import (
    LANE,
    block_of,
    check,
    flows_of,
    place_held,
    place_ready,
    tail_position,
)
from querator.partition.states import Event


def send_home(
    context: ApplyContext,
    first_seq: int,
    mask: int,
    *,
    came_from: RowState,
    attempt: int,
    flow: int,
    left_group: int = 0,
) -> int:
    """Puts detached items of one flow into the outbox if the home of their key is another
    partition. Returns those that stay. `left_group`: the partition from which they return.
    """
    home = _home_of(context, flow)
    if not home or home == left_group:
        return mask
    staying = 0
    if context.state.asked:
        staying |= waited_for(context, first_seq, mask)
    if context.state.lasting_keys:
        staying |= with_lasting_keys(context, first_seq, mask)
    if leaving := mask & ~staying:
        check(came_from, Event.GO_HOME, RowState.MOVING)
        send(
            context, first_seq, leaving,
            attempt=attempt, reason=DeadCause.HOME, target_group=home, priority=0, flow=flow,
        )  # fmt: skip
    return staying


def _home_of(context: ApplyContext, flow: int) -> int:
    """The group of the other partition to which the key of a flow belongs; 0: none."""
    share = context.share
    if flow <= ROOT or not (share.groups and share.open and context.keyed):
        return 0
    home = slot_of_key(flows_of(context).name_of(flow)) % share.routed
    return 0 if home == share.settings.partition else share.groups[home]


def lane_now(context: ApplyContext, flow: int, lane: int = LANE) -> int:
    """The lane of items that become ready now: LANE, or one in which they are held. `lane` is the
    one for which they were meant. That of a key is decided again: its slot may have left and come
    back meanwhile.
    """
    share = context.share
    if not share.changes:
        return LANE
    if flow > ROOT and context.keyed:
        return held_keys.lane_of(share, slot_of_key(flows_of(context).name_of(flow)))
    return lane if held_keys.is_waiting(share, lane) else LANE


def arrive(
    context: ApplyContext,
    first_seq: int,
    items: Sequence[MovedItem],
    mask: int,
    *,
    away: int,
    held: dict[int, int],
    flow_of: Sequence[int],
) -> None:
    """Places those of a block's items that have come home, and sends on those that are `away`.
    `mask`, `away` and `held` (the items that wait, by lane) count from the block.
    """
    block = block_of(context, first_seq)
    times = {own.ordinal: own for own in block.own}
    for ordinal in masks.ordinals(mask):
        if at_ms := items[ordinal].expire_at_ms:
            # An item that has expired on its way is found by the sweep.
            at_ms = max(at_ms, expire_at(context.now_ms, 1))
            own = times.get(ordinal) or block.own_times(ordinal)
            times[ordinal] = replace(own, ordinal=ordinal, expire_at_ms=at_ms)
    put_times(context, first_seq, block, (times[ordinal] for ordinal in sorted(times)))

    def place_of(ordinal: int) -> tuple[int, int, int]:
        lane = next((lane for lane, waiting in held.items() if waiting >> ordinal & 1), LANE)
        return items[ordinal].attempts, flow_of[ordinal] if flow_of else 0, lane

    for (attempt, flow, lane), together in groupby(masks.ordinals(mask & ~away), key=place_of):
        part = sum(1 << ordinal for ordinal in together)
        position, age = tail_position(context), context.age
        if lane == LANE:
            check(None, Event.MOVE_IN, RowState.READY)
            place_ready(
                context, first_seq, part, attempt=attempt, releases=0, position=position,
                priority=0, age=age, flow=flow,
            )  # fmt: skip
        else:
            check(None, Event.HOLD, RowState.HELD)
            place_held(
                context, first_seq, part, attempt=attempt, releases=0, position=position,
                lane=lane, priority=0, age=age, flow=flow,
            )  # fmt: skip
