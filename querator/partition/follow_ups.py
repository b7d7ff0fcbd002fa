"""Follow-ups: items that a complete or a retry produces in the same step.

The command settles items of one lease, all or none, and adds the follow-ups only if it has settled
them. So each settled item has its follow-ups once:

    all named items are settled now          the follow-ups are stored
    all were settled so under the lease      repeated: nothing is stored
    one is lost                              nothing is settled, nothing is stored
    some are settled so, others are held     refused: it is unclear whether they are stored

A verb with follow-ups is a verb of its own. What the follow-ups are is not compared: a second
request for the same items under the same lease counts as a repeat.

Follow-ups for this partition are placed like produced items, in the same entry. The others are put
into the outbox, in the state MOVING; the moves bring them to their targets exactly once
(`partition.moves`). Until they have arrived they count as items of this partition. A target decides
itself whether a follow-up with a dedup key is a repeat: it is counted there and not stored. The
settled items free their keys first, where keys last until their item is done.

Bounds that meet. A command that adds more items than it removes is refused when the partition
exceeds its limit of items; here and for the limit of dedup keys, repeats count as well. A command
that completes as many items as it adds is not: a chain of full queues keeps moving. Moves count for
the limit of a target only the items that do not wait in its own outbox. So two full queues that
send to each other still take from each other, as long as consumers complete their items. A
partition then has at most twice its limit of items.

When the queue of a target has been deleted, the follow-ups become dead letters of this queue
(UNDELIVERED). Their origin is the place that they were meant for: a redrive sends them to a queue
of that name.
"""

from collections.abc import Sequence

from querator.model.commands import (
    NO_SLOT,
    Complete,
    Follow,
    FollowTarget,
    Produce,
    Refusal,
    SettleResult,
)
from querator.model.errors import ErrorCode
from querator.model.execution_commands import SentItems
from querator.model.item_options import FollowUpFields, ItemSpecial
from querator.partition import held_keys, masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dead import send
from querator.partition.dedup import Duplicates, known_keys, remember_keys, too_many_keys, unsure
from querator.partition.flows import ROOT
from querator.partition.produce import by_priority, place_block, refuse_elsewhere
from querator.partition.request_places import slot_at
from querator.partition.rows import DeadCause, FollowUps
from querator.partition.settle import complete, retry
from querator.storage import attachments


class _Judged:
    """The follow-ups of a command: `here` are those for this partition, as a produce."""

    __slots__ = ("alive", "fresh", "here", "produce")

    def __init__(self, command: Follow) -> None:
        self.here = 0
        start = 0
        for target in command.targets:
            if not target.group:
                self.here |= masks.full(target.count) << start
            start += target.count
        keyed = any(
            slot_at(command.slots, ordinal) != NO_SLOT
            for ordinal in (masks.ordinals(self.here) if command.slots else ())
        )
        self.produce = Produce(
            lengths=command.lengths,
            specials=tuple(one for one in command.specials if self.here >> one.ordinal & 1),
            routing=command.routing,
            slots=command.slots if keyed else b"",
        )
        self.alive = masks.full(start)
        self.fresh = False
        """Whether the command has settled its items, so that the follow-ups are stored."""


def follow(
    context: ApplyContext, command: Follow, parts: Sequence[tuple[int, int]]
) -> SettleResult | Refusal:
    """`parts` are (attachment, number of items)."""
    count = len(command.lengths) >> 2
    first_seq = context.state.next_seq
    context.state.next_seq += count
    judged = _Judged(command)
    result: SettleResult | Refusal | None = _malformed(context, command, judged.alive)
    if result is None:

        def admit(settled: SettleResult) -> Refusal | None:
            return _admit(context, command, judged, first_seq, settled)

        if isinstance(command.settle, Complete):
            result = complete(context, command.settle, admit)
        else:
            result = retry(context, command.settle, admit)
    if isinstance(result, Refusal) or not judged.fresh:
        for part, _ in parts:
            attachments.drop(
                context.txn, context.group, context.index, part, log_first=context.log_first
            )
    else:
        _store(context, command, judged, first_seq, parts)
    return result


def _malformed(context: ApplyContext, command: Follow, items: int) -> Refusal | None:
    count = len(command.lengths) >> 2
    named = sum(target.count for target in command.targets)
    if not count or named != count or items != masks.full(count):
        return Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"the targets name {named} follow-ups; the command has {count}",
            field="follow_ups",
        )
    settle = command.settle
    if len(settle.leases) != 1 or not settle.all_or_nothing:
        return Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"a request with follow-ups settles items of one lease, all or none; it names "
            f"{len(settle.leases)} leases",
            field="leases",
            limit="1",
            value=str(len(settle.leases)),
        )
    return None


def _admit(
    context: ApplyContext,
    command: Follow,
    judged: _Judged,
    first_seq: int,
    settled: SettleResult,
) -> Refusal | None:
    """Refuses a command that can settle its items, and notes whether it will."""
    outcome = settled.outcomes[0]
    if not outcome.done:
        return None
    done = sum(count for _, count in outcome.done)
    if outcome.repeated:
        repeated = sum(count for _, count in outcome.repeated)
        return Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"{repeated} of the named items were settled with follow-ups before, and {done} were "
            "not: name only items that are not settled, or repeat the same request",
            field="leases",
            value=f"{repeated} items",
        )
    refusal = None
    if judged.here:
        refusal = _refuse_flows(context) or refuse_elsewhere(context, judged.produce)
    if refusal is not None:
        return refusal
    specials = judged.produce.specials
    # Which of them are repeats is decided once the items are settled: they may free a key.
    if context.state.away_keys:
        refusal = unsure(context, specials, known_keys(context, specials, first_seq))
    refusal = refusal or too_many_keys(context, specials, ())
    fresh = judged.alive.bit_count()
    freed = done if isinstance(command.settle, Complete) else 0
    held, items_max = context.state.occupied, context.queue.items_max
    if refusal is None and 0 < items_max < held + fresh - freed and fresh > freed:
        refusal = Refusal(
            ErrorCode.QUEUE_FULL,
            f"the partition holds {held} items; {fresh} follow-ups for {freed} completed items "
            f"would exceed its limit of {items_max}. Follow-ups count here until they have arrived",
            field="follow_ups",
            limit=str(items_max),
            value=str(held + fresh - freed),
        )
    judged.fresh = refusal is None
    return refusal


def _refuse_flows(context: ApplyContext) -> Refusal | None:
    if context.flows is None:
        return None
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        "a fair or keyed queue takes follow-ups of other queues only: settle without them, and "
        "produce",
        field="follow_ups",
        value=context.queue.queue,
    )


def _store(
    context: ApplyContext,
    command: Follow,
    judged: _Judged,
    first_seq: int,
    parts: Sequence[tuple[int, int]],
) -> None:
    produce, alive, state = judged.produce, judged.alive, context.state
    duplicates: Duplicates = ()
    if produce.specials:
        duplicates = known_keys(context, produce.specials, first_seq)
        remember_keys(context, produce, first_seq, duplicates)
    for duplicate in duplicates:
        alive &= ~(1 << duplicate[0])
    state.duplicates += len(duplicates)
    state.produced += alive.bit_count()
    held = held_keys.lanes(context, produce.slots, alive & judged.here)
    start = 0
    for part, count in parts:
        mask = (alive >> start) & masks.full(count)
        if mask:
            place_block(
                context=context,
                attachment=(context.index, part),
                first_seq=first_seq + start,
                lengths=command.lengths[start * 4 : (start + count) * 4],
                alive=mask,
                specials=[
                    special
                    for special in command.specials
                    if start <= special.ordinal < start + count and alive >> special.ordinal & 1
                ],
                held=held,
                flow_of=(),
                start=start,
                away=mask & ~(judged.here >> start),
            )
            send_block(context, command, first_seq, start, count)
        else:
            attachments.drop(
                context.txn, context.group, context.index, part, log_first=context.log_first
            )
        start += count


def send_block(
    context: ApplyContext, command: Follow | SentItems, first_seq: int, start: int, count: int
) -> None:
    """Puts those of the `count` items of a block, from `start` on, into the outbox that go
    elsewhere.
    """
    begin = 0
    for target in command.targets:
        first, stop = max(begin, start), min(begin + target.count, start + count)
        begin += target.count
        if not target.group or first >= stop:
            continue
        specials = [one for one in command.specials if first <= one.ordinal < stop]
        send_away(
            context,
            target,
            first_seq=first_seq,
            ordinals=range(first, stop),
            specials=specials,
            slots=command.slots,
            start=start,
        )


def send_away(
    context: ApplyContext,
    target: FollowTarget,
    *,
    first_seq: int,
    ordinals: range,
    specials: Sequence[ItemSpecial],
    slots: bytes,
    start: int,
) -> None:
    """Puts items of one block into the outbox to a target: those with the `ordinals` of a command
    of which the first item has the sequence `first_seq`. The block begins with the ordinal `start`.
    `specials` are those of these items.
    """
    priorities: dict[int, int] = {}
    for special in specials:
        if special.priority:
            bit = 1 << (special.ordinal - start)
            priorities[special.priority] = priorities.get(special.priority, 0) | bit
    mask = masks.full(len(ordinals)) << (ordinals.start - start)
    fields = fields_of(specials, slots, ordinals, base=start)
    for priority, items in by_priority(mask, priorities):
        send_follow_ups(
            context,
            first_seq + start,
            items,
            priority=priority,
            target_group=target.group,
            follow_ups=FollowUps(target.queue, target.partition, fields),
        )


def send_follow_ups(
    context: ApplyContext,
    first_seq: int,
    mask: int,
    *,
    priority: int,
    target_group: int,
    follow_ups: FollowUps,
) -> None:
    """Puts follow-ups of a block into the outbox. `follow_ups` may have fields of further items. In
    a fair or keyed queue they are in no group and have no key until they arrive.
    """
    fields = tuple(one for one in follow_ups.fields if mask >> one.ordinal & 1)
    send(
        context, first_seq, mask,
        attempt=0, reason=DeadCause.FOLLOW_UP, target_group=target_group, priority=priority,
        flow=0 if context.flows is None else ROOT,
        follow_ups=FollowUps(follow_ups.queue, follow_ups.partition, fields),
    )  # fmt: skip


def fields_of(
    specials: Sequence[ItemSpecial], slots: bytes, ordinals: Sequence[int], *, base: int
) -> tuple[FollowUpFields, ...]:
    """What the outbox keeps of follow-ups with these `ordinals` of their command; it names them by
    their place after `base`.
    """
    found = []
    by_ordinal = {special.ordinal: special for special in specials}
    for ordinal in ordinals if by_ordinal or slots else ():
        special = by_ordinal.get(ordinal)
        fields = FollowUpFields(
            ordinal - base,
            0 if special is None else special.enqueue_at_ms,
            b"" if special is None else special.dedup_key,
            slot_at(slots, ordinal) if slots else NO_SLOT,
        )
        if fields.enqueue_at_ms or fields.dedup_key or fields.slot != NO_SLOT:
            found.append(fields)
    return tuple(found)
