"""Produce: stores items.

All produces of an entry are applied together, before the entry's other commands. Their calls are
all unanswered, so that any order of them is right, and their items share blocks. Each item of the
entry gets a sequence. Items of a refused command and repeats of a dedup key get one, too, but are
not stored.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from struct import pack, unpack
from types import MappingProxyType
from typing import Final

import msgspec

from querator.model.commands import ItemSpecial, Produce, ProduceResult, Refusal
from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind
from querator.model.item_options import OnDuplicate
from querator.model.limits import (
    EXPIRE_TIMEOUT_MS_MAX,
    EXPIRY_GRAIN_MS,
    LEASE_TIMEOUT_MS_MAX,
    PRODUCER_ID_BYTES,
    SCHEDULE_AHEAD_MS_MAX,
    SCHEDULE_NOW_MS,
)
from querator.partition import held_keys, masks, request_places
from querator.partition.apply_context import ApplyContext, earlier, producers_paused, unconfigured
from querator.partition.dedup import NEVER, known_keys, remember_keys, too_many_keys, unsure
from querator.partition.duplicates import (
    Fresh,
    LeftPlace,
    carry_out,
    judge,
    keep_back,
    place_all_apart,
    start_of,
    takes_over,
)
from querator.partition.flows import by_flow, wrong_names
from querator.partition.producers import admit, remember
from querator.partition.results import ask, removed
from querator.partition.rows import Block, OwnTimes, ProducerRow, RowState, encode
from querator.partition.segments import (
    LANE,
    check,
    place_held,
    place_ready,
    place_scheduled,
    tail_position,
)
from querator.partition.states import Event
from querator.storage import attachments
from querator.storage.tables import LIVING, put_block

NO_PLACES: Final[Mapping[int, LeftPlace]] = MappingProxyType({})
_KEEP: Final = OnDuplicate.KEEP


def produce(
    context: ApplyContext, commands: Sequence[Produce], parts: Sequence[int]
) -> list[ProduceResult | Refusal]:
    """Applies the produces of an entry. `parts` are the numbers of items of their attachments."""
    state = context.state
    base = state.next_seq
    results: list[ProduceResult | Refusal] = []
    living = 0
    held: dict[int, int] = {}
    specials: list[ItemSpecial] = []
    fresh = Fresh(base, specials, [], {})
    flow_of: list[int] = []
    flows = context.flows
    offset = accepted = 0
    for command in commands:
        count = len(command.lengths) >> 2
        result, alive, own = _accept(context, command, base + offset, accepted, fresh)
        results.append(result)
        if alive:
            accepted += alive.bit_count()
            if flows is not None:
                flow_of += flows.numbers(command.flows, count)
            living |= alive << offset
            for lane, mask in held_keys.lanes(context, command.slots, alive).items():
                held[lane] = held.get(lane, 0) | mask << offset
            specials += [
                ItemSpecial(
                    special.ordinal + offset,
                    special.enqueue_at_ms,
                    special.expire_timeout_ms,
                    special.lease_timeout_ms,
                    priority=special.priority,
                    max_attempts=special.max_attempts,
                    retry=special.retry,
                    dedup_key=b"" if special.on_duplicate is _KEEP else special.dedup_key,
                    on_duplicate=special.on_duplicate,
                    debounce_max_ms=special.debounce_max_ms,
                )
                for special in own
                if alive >> special.ordinal & 1
            ]
        elif flows is not None:
            flow_of += [0] * count
        offset += count
    state.next_seq = base + offset
    state.produced += accepted
    for seq in fresh.gone:
        living &= ~(1 << (seq - base))
        if state.asked:
            removed(context, seq, 1)
        if context.feed is not None:
            context.feed.items(EventKind.PRODUCED, seq, 1)
            context.feed.items(EventKind.REPLACED, seq, 1)
    lengths = b"".join([command.lengths for command in commands])
    start = 0
    for part, count in enumerate(parts):
        alive = (living >> start) & masks.full(count)
        if alive:
            here = (
                [
                    special
                    for special in specials
                    if start <= special.ordinal < start + count and living >> special.ordinal & 1
                ]
                if fresh.gone
                else [special for special in specials if start <= special.ordinal < start + count]
            )
            place_block(
                context=context,
                attachment=(context.index, part),
                first_seq=base + start,
                lengths=lengths[start * 4 : (start + count) * 4],
                alive=alive,
                specials=here,
                held=held,
                start=start,
                flow_of=flow_of[start : start + count],
                places=fresh.places,
            )
        else:
            attachments.drop(
                context.txn, context.group, context.index, part, log_first=context.log_first
            )
        start += count
    assert start == offset, "the entry's parts hold all its items"
    return results


def _accept(
    context: ApplyContext, command: Produce, first_seq: int, accepted: int, fresh: Fresh
) -> tuple[ProduceResult | Refusal, int, tuple[ItemSpecial, ...]]:
    """The answer, the set of the command's items that are stored, and its specials as they are
    stored.
    """
    state = context.state
    count = len(command.lengths) >> 2
    if context.row is None:
        return unconfigured(), 0, ()
    refusal = refuse_elsewhere(context, command)
    if refusal is not None:
        return refusal, 0, ()
    if not count or len(command.producer_id) not in (0, PRODUCER_ID_BYTES):
        return _malformed(command), 0, ()
    producer: ProducerRow | None = None
    if command.producer_id:
        admitted = admit(context, command)
        if not isinstance(admitted, ProducerRow):
            state.duplicates += admitted.count if isinstance(admitted, ProduceResult) else 0
            return admitted, 0, ()
        producer = admitted
    stored = (
        request_places.stored(context, command) if producer is not None and command.slots else ()
    )
    duplicates = known_keys(context, command.specials, first_seq, stored)
    specials, verdict, replaced = command.specials, None, 0
    if duplicates and takes_over(context, command.specials):
        verdict = judge(context, command.specials, first_seq, stored, fresh)
        specials, duplicates = verdict.specials, verdict.duplicates
        replaced = len(verdict.replaced)
    queue = context.queue
    refusal = (
        (producers_paused(queue) if queue.produce_paused else None)
        or (unsure(context, specials, duplicates) if state.away_keys else None)
        or no_place(context, command, count - len(duplicates) - replaced, state.occupied + accepted)
        or too_many_keys(context, specials, duplicates, replaced)
        or (ask(context, specials, first_seq, duplicates) if specials else None)
    )
    if refusal is not None:
        return refusal, 0, ()
    result = ProduceResult(first_seq, count, duplicates=duplicates)
    since = NEVER
    if verdict is not None:
        result = msgspec.structs.replace(result, replaced=verdict.replaced)
        carry_out(context, verdict, first_seq, fresh)
        since = verdict.since
    if producer is not None:
        remember(context, command, producer, result)
    alive = masks.full(count)
    if command.specials or duplicates:
        remember_keys(context, command, first_seq, duplicates, since)
        for duplicate in duplicates:
            alive &= ~(1 << duplicate[0])
        state.duplicates += len(duplicates)
    return result, alive, specials


def _has_executions(context: ApplyContext) -> Refusal:
    queue = context.queue.queue
    message = f"queue {queue} has executions, and takes no items"
    return Refusal(ErrorCode.QUEUE_KIND, message, field="queue", value=queue)


def _no_room(context: ApplyContext, fresh: int, held: int) -> Refusal | None:
    """The refusal if `fresh` more items do not fit into the partition; None if they fit."""
    items_max = context.queue.items_max
    if not 0 < items_max < held + fresh:
        return None
    return Refusal(
        ErrorCode.QUEUE_FULL,
        f"the partition holds {held} items; {fresh} more would exceed its limit of {items_max}",
        field="items",
        limit=str(items_max),
        value=str(held + fresh),
    )


def no_place(context: ApplyContext, command: Produce, fresh: int, held: int) -> Refusal | None:
    """The refusal if `fresh` more items, or their flows, do not fit into the partition; None if
    they fit.
    """
    flows = context.flows
    refusal = _no_room(context, fresh, held)
    if refusal is not None:
        return refusal
    if flows is None:
        return None
    count = len(command.lengths) >> 2
    return wrong_names(command.flows, count, flows.settings.kind) or flows.too_many(command.flows)


def refuse_elsewhere(context: ApplyContext, command: Produce) -> Refusal | None:
    """The refusal if the request does not belong to this partition under the current routing, or to
    no queue of executions.
    """
    share = context.share
    if context.activations is not None:
        return _has_executions(context)
    if share.closing:
        message = "the partition is closing; it takes no items"
    elif not (command.producer_id or command.slots):
        return None
    elif not share.open:
        message = "the partitions of the queue are being changed"
    elif command.routing != share.routing:
        message = f"routing version {command.routing} of the queue is out of date"
    else:
        return None
    return Refusal(ErrorCode.ROUTING_CHANGED, f"{message}; not executed", value=str(share.routing))


def _malformed(command: Produce) -> Refusal:
    """The refusal of a command without items, or with a producer id of another length."""
    if not command.lengths:
        return Refusal(ErrorCode.INVALID_ARGUMENT, "items must not be empty", field="items")
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        f"producer_id has {len(command.producer_id)} bytes; it must have {PRODUCER_ID_BYTES}",
        field="producer_id",
    )


def expire_at(base_ms: int, timeout_ms: int) -> int:
    """When an item expires; 0 means never. Rounded up to whole seconds, the grain at which expiry
    is checked.
    """
    if timeout_ms <= 0:
        return 0
    exact = base_ms + min(timeout_ms, EXPIRE_TIMEOUT_MS_MAX)
    return -(-exact // EXPIRY_GRAIN_MS) * EXPIRY_GRAIN_MS


def shorter(one_ms: int, other_ms: int) -> int:
    """The shorter of two timeouts. 0 means none."""
    return min(one_ms, other_ms) if one_ms and other_ms else one_ms or other_ms


def place_block(
    context: ApplyContext,
    attachment: tuple[int, int],
    first_seq: int,
    lengths: bytes,
    alive: int,
    specials: list[ItemSpecial],
    held: dict[int, int],
    flow_of: Sequence[int],
    start: int = 0,
    away: int = 0,
    event: Event = Event.PRODUCE,
    places: Mapping[int, LeftPlace] = NO_PLACES,
) -> None:
    """Writes a block of produced items and places them. `attachment` is the index of its entry, and
    the part. `specials` are those of the block's living items. `held` has items by the lane in
    which they wait, and `places` what items take over. The ordinals of all three count from
    `start`. `flow_of` is as in `flows.by_flow`. Living items in `away` (a mask that counts from the
    block) are not placed and do not expire here. `event` makes items ready.
    """
    now_ms = context.now_ms
    queue_timeout_ms = context.queue.expire_timeout_ms
    own: list[OwnTimes] = []
    later: dict[tuple[int, int, int, int], int] = {}
    priorities: dict[int, int] = {}
    apart: dict[int, ItemSpecial] = {}
    for special in specials:
        ordinal = special.ordinal - start
        retries = special.max_attempts is not None or special.retry is not None
        timed = special.expire_timeout_ms > 0 or special.lease_timeout_ms > 0 or retries
        if away >> ordinal & 1:
            if timed:
                own.append(_own_times(special, ordinal, 0))
            continue
        start_ms = special.enqueue_at_ms
        if special.on_duplicate is not _KEEP:
            apart[ordinal] = special
            start_ms = start_of(special, now_ms)
        priority = special.priority
        if priority and flow_of and context.keyed:
            priority = 0
        if priority:
            priorities[priority] = priorities.get(priority, 0) | 1 << ordinal
        due_ms = min(start_ms, now_ms + SCHEDULE_AHEAD_MS_MAX)
        if due_ms - now_ms < SCHEDULE_NOW_MS:
            due_ms = 0
        else:
            lane = next((lane for lane in held if held[lane] >> special.ordinal & 1), LANE)
            name = due_ms, lane, priority, flow_of[ordinal] if flow_of else 0
            later[name] = later.get(name, 0) | 1 << ordinal
        timeout_ms = shorter(max(special.expire_timeout_ms, 0), queue_timeout_ms)
        if timed or (due_ms and timeout_ms):
            expires = expire_at(max(now_ms, start_ms if due_ms else 0), timeout_ms)
            own.append(_own_times(special, ordinal, expires))
    expires_ms = expire_at(now_ms, queue_timeout_ms)
    add_block(
        context=context,
        attachment=attachment,
        first_seq=first_seq,
        lengths=lengths,
        alive=alive,
        expire_at_ms=expires_ms,
        own=own,
        arrived=event is Event.MOVE_IN,
    )
    ready = alive & ~away
    taken = {ordinal - start: place for ordinal, place in places.items()} if apart else NO_PLACES
    for mask in later.values():
        ready &= ~mask
    if later:
        _add_later(context, first_seq, later, apart, taken)
    if ready:
        by_lane = {lane: (mask >> start) & ready for lane, mask in held.items()}
        _add_ready(
            context=context,
            first_seq=first_seq,
            ready=ready,
            held=by_lane,
            priorities=priorities,
            flow_of=flow_of,
            event=event,
            apart=apart,
            taken=taken,
        )


def _add_later(
    context: ApplyContext,
    first_seq: int,
    later: Mapping[tuple[int, int, int, int], int],
    apart: Mapping[int, ItemSpecial],
    taken: Mapping[int, LeftPlace],
) -> None:
    """Schedules items: sets of them by (due time, lane, priority, flow)."""
    check(None, Event.PRODUCE_LATER, RowState.SCHEDULED)
    for (due_ms, lane, priority, flow), mask in sorted(later.items()):
        rest = mask
        if taken:
            rest = keep_back(
                context=context,
                first_seq=first_seq,
                mask=mask,
                due_ms=due_ms,
                flow=flow,
                apart=apart,
                taken=taken,
            )
        if rest:
            place_scheduled(
                context, first_seq, rest,
                attempt=0, releases=0, due_ms=due_ms, priority=priority, flow=flow, lane=lane,
            )  # fmt: skip


def _own_times(special: ItemSpecial, ordinal: int, expire_at_ms: int) -> OwnTimes:
    return OwnTimes(
        ordinal=ordinal,
        expire_at_ms=expire_at_ms,
        expire_timeout_ms=max(special.expire_timeout_ms, 0),
        lease_timeout_ms=min(max(special.lease_timeout_ms, 0), LEASE_TIMEOUT_MS_MAX),
        max_attempts=special.max_attempts,
        retry=special.retry,
    )


def by_priority(mask: int, priorities: dict[int, int]) -> list[tuple[int, int]]:
    """A set cut into (priority, items). Items that are in no set of `priorities` have 0."""
    found: list[tuple[int, int]] = []
    for priority, items in sorted(priorities.items()):
        if part := mask & items:
            found.append((priority, part))
            mask &= ~part
    if mask:
        found.append((0, mask))
    return found


def _add_ready(
    context: ApplyContext,
    first_seq: int,
    ready: int,
    held: dict[int, int],
    priorities: dict[int, int],
    flow_of: Sequence[int],
    event: Event,
    apart: Mapping[int, ItemSpecial],
    taken: Mapping[int, LeftPlace],
) -> None:
    """Places items that are not scheduled. `held` has those of them that wait, by lane. Those of
    `apart` get places for themselves, some those that are `taken`.
    """
    position, age = tail_position(context), context.age
    for lane in sorted(held):
        mask = held[lane]
        if mask:
            ready &= ~mask
            check(None, Event.HOLD, RowState.HELD)
            for flow, together in by_flow(mask, flow_of):
                for priority, part in by_priority(together, priorities):
                    place_held(
                        context, first_seq, part,
                        attempt=0, releases=0, position=position, lane=lane,
                        priority=priority, age=age, flow=flow,
                    )  # fmt: skip
    if ready:
        check(None, event, RowState.READY)
        stretches = [(ready, position)]
        if apart:
            stretches = place_all_apart(
                context=context,
                first_seq=first_seq,
                ready=ready,
                flow_of=flow_of,
                position=position,
                apart=apart,
                taken=taken,
            )
        for stretch, at in stretches:
            for flow, together in by_flow(stretch, flow_of) if flow_of else ((0, stretch),):
                for priority, part in by_priority(together, priorities):
                    place_ready(
                        context, first_seq, part,
                        attempt=0, releases=0, position=at, priority=priority, age=age,
                        flow=flow,
                    )  # fmt: skip


def add_block(
    context: ApplyContext,
    attachment: tuple[int, int],
    first_seq: int,
    lengths: bytes,
    alive: int,
    expire_at_ms: int,
    own: list[OwnTimes],
    arrived: bool,
) -> None:
    """Writes the row of a block and its expiries. The caller places the items. `arrived`: they come
    from another partition.
    """
    count = len(lengths) >> 2
    offsets = [0, *accumulate(unpack(f"<{count}I", lengths))]
    head_ms = 0
    if expire_at_ms or own:
        for instant in (expire_at_ms, *(times.expire_at_ms for times in own)):
            if instant:
                head_ms = earlier(head_ms, instant)
    block = Block(
        *attachment,
        count,
        context.now_ms,
        expire_at_ms,
        head_ms,
        pack(f"<{count + 1}I", *offsets),
        tuple(own),
    )
    expiries = block.expiries() if head_ms else ()
    put_block(context.txn, context.group, first_seq, encode(block), expiries)
    context.state.bytes += block.size(alive)
    if context.feed is not None:
        kind = EventKind.ARRIVED if arrived else EventKind.PRODUCED
        context.feed.items(kind, first_seq, alive)
    if alive != masks.full(count):
        LIVING.put(context.txn, context.group, first_seq, value=masks.to_bytes(alive))
    if head_ms:
        context.state.expiry_head_ms = earlier(context.state.expiry_head_ms, head_ms)
