"""How items die and how they become ready again, and where a dead item goes.

Expiry is a comparison of times (`rows.Block.expired`): leases and readers make it for the items
that they meet, and `expire` for the others. All of them call `kill`.

A dead item goes to the dead queue through the outbox (state MOVING). If the queue has no dead
queue, the item is dropped and counted. The target of a move is fixed when its row is written.
"""

import hashlib

from msgspec.structs import replace

from querator.model.commands import DeadTarget
from querator.model.event_calls import EventKind
from querator.model.limits import SCHEDULE_NOW_MS
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.dedup_rows import free_items
from querator.partition.flows import ROOT
from querator.partition.results import died
from querator.partition.rows import (
    Block,
    DeadCause,
    FollowUps,
    OutboxRow,
    OutboxTarget,
    RowState,
    Segment,
    decode_target,
    encode,
)
from querator.partition.segments import (
    LANE,
    check,
    detach,
    flows_of,
    place_held,
    place_ready,
    place_scheduled,
    put_segment,
    remove,
    restore,
    tail_position,
    without,
)
from querator.partition.states import Event
from querator.storage.tables import OUTBOX, OUTBOX_TARGETS

NO_TARGET = OutboxTarget(1, 0)


def become_ready(
    context: ApplyContext,
    first_seq: int,
    block: Block,
    mask: int,
    event: Event,
    *,
    came_from: int,
    attempt: int,
    releases: int,
    priority: int,
    flow: int,
    age: int | None = None,
    position: int | None = None,
    lane: int = LANE,
) -> None:
    """Makes detached items ready, at the tail or back at `position`, or holds them in another
    `lane` at `position`. `age` None: they begin to wait now. Expired items among them die.
    """
    if age is None:
        age = context.age
    expired = block.expired(mask, context.now_ms)
    alive = mask & ~expired
    # The living items first: a block without segments is removed.
    if alive:
        check(came_from, event, RowState.READY if lane == LANE else RowState.HELD)
        if flow and event is Event.RELEASE:
            flows_of(context).released(flow, alive.bit_count())
        if lane != LANE:
            assert position is not None
            place_held(
                context, first_seq, alive,
                attempt=attempt, releases=releases, position=position, lane=lane,
                priority=priority, age=age, flow=flow,
            )  # fmt: skip
        elif position is None:
            place_ready(
                context, first_seq, alive,
                attempt=attempt, releases=releases, position=tail_position(context),
                priority=priority, age=age, flow=flow,
            )  # fmt: skip
        else:
            pieces = [(alive, attempt, releases)]
            restore(
                context, first_seq, pieces,
                position=position, priority=priority, age=age, flow=flow,
            )  # fmt: skip
    if expired:
        kill(
            context,
            first_seq,
            block,
            expired,
            DeadCause.EXPIRED,
            came_from=came_from,
            attempt=attempt,
            priority=priority,
            flow=flow,
        )


def attempt_failed(
    context: ApplyContext,
    first_seq: int,
    block: Block,
    mask: int,
    event: Event,
    *,
    lease: int,
    attempt: int,
    releases: int,
    due_ms: int | None,
    priority: int,
    flow: int,
    position: int,
) -> int:
    """Gives back items of a lease whose attempt counts: dead when their attempts are used up, else
    scheduled for `due_ms`, or at once (0): to the tail, or those of a key to their `position`.
    None: their retry policy says when. Returns the number of pieces into which they part.
    """
    spent = worn(context, block, mask, attempt)
    alive = mask & ~spent
    if alive and due_ms is not None:
        returning = {due_ms: alive}
    else:
        returning = _retry_due_ms(context, first_seq, block, alive, lease=lease, attempt=attempt)
    # The living items first: a block without segments is removed.
    feed = context.feed
    kind = EventKind.LAPSED if event is Event.LAPSE else EventKind.RETRIED
    for at_ms, items in sorted(returning.items()):
        if feed is not None and items:
            feed.items(
                kind, first_seq, items, lease=lease, attempt=attempt,
                produced_at_ms=block.produced_at_ms, due_ms=at_ms, flow=flow,
            )  # fmt: skip
        if at_ms:
            become_scheduled(
                context, first_seq, block, items,
                attempt=attempt, releases=releases, due_ms=at_ms, priority=priority,
                flow=flow, position=position,
            )  # fmt: skip
        else:
            become_ready(
                context, first_seq, block, items, event,
                came_from=RowState.LEASED, attempt=attempt, releases=releases, priority=priority,
                flow=flow, position=position if is_of_key(context, flow) else None,
            )  # fmt: skip
    if spent:
        if feed is not None:
            feed.items(
                kind, first_seq, spent, lease=lease, attempt=attempt,
                produced_at_ms=block.produced_at_ms, flow=flow,
            )  # fmt: skip
        kill(
            context, first_seq, block, spent, DeadCause.ATTEMPTS,
            came_from=RowState.LEASED, attempt=attempt, priority=priority, flow=flow,
        )  # fmt: skip
    return len(returning) + bool(spent)


def become_scheduled(
    context: ApplyContext,
    first_seq: int,
    block: Block,
    mask: int,
    *,
    attempt: int,
    releases: int,
    due_ms: int,
    priority: int,
    flow: int,
    position: int,
) -> None:
    """Schedules items of a lease for `due_ms`. Items that have expired meanwhile die at once: the
    sweep has already passed them. Those of a key return to their `position` and keep back the later
    ones, unless the settings of the queue say that they step aside.
    """
    expired = block.expired(mask, context.now_ms)
    alive = mask & ~expired
    if alive:
        check(RowState.LEASED, Event.RETRY_LATER, RowState.SCHEDULED)
        place = 0
        if is_of_key(context, flow) and flows_of(context).settings.key_retry_blocks:
            place = position
        place_scheduled(
            context, first_seq, alive,
            attempt=attempt, releases=releases, due_ms=due_ms, priority=priority,
            flow=flow, place=place,
        )  # fmt: skip
    if expired:
        kill(
            context, first_seq, block, expired, DeadCause.EXPIRED,
            came_from=RowState.LEASED, attempt=attempt, priority=priority, flow=flow,
        )  # fmt: skip


def is_of_key(context: ApplyContext, flow: int) -> bool:
    """Whether a flow is a key, whose items keep their order."""
    return flow > ROOT and context.keyed


def _retry_due_ms(
    context: ApplyContext, first_seq: int, block: Block, mask: int, *, lease: int, attempt: int
) -> dict[int, int]:
    """When items return whose attempt under this lease has failed, by their retry policies: sets of
    items by instant; 0: at once.

    The random part follows from the entry, whose time the leader has set: every replica decides the
    same. Items of one policy return together.
    """
    found: dict[int, int] = {}
    drawn = -1
    queue = context.queue
    pieces = [(0, queue.retry, mask)] if mask else []
    if block.own:
        pieces = block.by_retry(mask, 0, queue.retry)
    for _, policy, items in pieces:
        wait_ms = policy.longest_ms(attempt)
        if policy.jitter and wait_ms:
            if drawn < 0:
                which = f"{context.now_ms} {context.index} {lease} {first_seq}".encode()
                drawn = int.from_bytes(hashlib.blake2b(which, digest_size=8).digest(), "big")
            wait_ms = wait_ms * drawn >> 64
        at_ms = context.now_ms + wait_ms if wait_ms >= SCHEDULE_NOW_MS else 0
        found[at_ms] = found.get(at_ms, 0) | items
    return found


def worn(context: ApplyContext, block: Block, mask: int, attempt: int) -> int:
    """Those of the items, all with this number of attempts, that may not be leased again."""
    most = context.queue.max_attempts
    if not block.own or not attempt:
        return mask if 0 < most <= attempt else 0
    spent = 0
    for own_most, _, items in block.by_retry(mask, most, context.queue.retry):
        if 0 < own_most <= attempt:
            spent |= items
    return spent


def kill(
    context: ApplyContext,
    first_seq: int,
    block: Block,
    mask: int,
    reason: DeadCause,
    *,
    came_from: int,
    attempt: int,
    priority: int,
    flow: int,
    follow_ups: FollowUps | None = None,
) -> None:
    """Detached items die: they go to the dead queue, or are dropped and counted if there is none.
    `follow_ups` are as in the row of the outbox.
    """
    count = mask.bit_count()
    context.state.dead += count
    if reason is DeadCause.EXPIRED:
        context.state.expired += count
    if context.state.asked:
        died(context, first_seq, mask, reason, attempt)
    targets = context.queue.dead_targets
    if context.feed is not None:
        context.feed.items(
            EventKind.DEAD, first_seq, mask, attempt=attempt, produced_at_ms=block.produced_at_ms,
            detail=reason, flow=flow, dropped=not targets,
        )  # fmt: skip
    if targets:
        if context.state.lasting_keys:
            free_items(context, first_seq, mask)
        check(came_from, Event.DIE, RowState.MOVING)
        target = home_of(targets, context.queue.partition)
        send(
            context, first_seq, mask,
            attempt=attempt, reason=reason, target_group=target.group, priority=priority, flow=flow,
            follow_ups=follow_ups,
        )  # fmt: skip
    else:
        check(came_from, Event.DROP, None)
        context.state.dropped += count
        remove(context, first_seq, block, mask)


def bury(
    context: ApplyContext,
    first_seq: int,
    block: Block,
    segment: Segment,
    *,
    expired: int,
    spent: int,
) -> Segment:
    """Dead items of a segment die. Returns the segment without them."""
    for dead, reason in ((expired, DeadCause.EXPIRED), (spent, DeadCause.ATTEMPTS)):
        if dead:
            detach(context, first_seq, segment, dead)
            kill(
                context, first_seq, block, dead, reason,
                came_from=RowState.READY, attempt=segment.attempt, priority=segment.priority,
                flow=segment.flow,
            )  # fmt: skip
            segment = without(segment, dead)
    return segment


def home_of(targets: tuple[DeadTarget, ...], partition: int) -> DeadTarget:
    """The partition with the same number if there is one, else one that follows from the number."""
    for target in targets:
        if target.partition == partition:
            return target
    return targets[partition % len(targets)]


def send(
    context: ApplyContext,
    first_seq: int,
    mask: int,
    *,
    attempt: int,
    reason: int,
    target_group: int,
    priority: int,
    flow: int,
    died_at_ms: int = 0,
    follow_ups: FollowUps | None = None,
) -> None:
    """Puts detached items into the outbox, with one move number for each in the order of sequence.
    `died_at_ms` 0 means now. `follow_ups` are as in the row.
    """
    txn, group = context.txn, context.group
    row = OUTBOX_TARGETS.get(txn, group, target_group)
    target = NO_TARGET if row is None else decode_target(row)
    count = mask.bit_count()
    move = target.next_move
    OUTBOX_TARGETS.put(
        txn, group, target_group, value=encode(replace(target, next_move=move + count))
    )
    outgoing = OutboxRow(
        first_seq=first_seq,
        mask=masks.to_bytes(mask),
        attempt=attempt,
        reason=reason,
        died_at_ms=died_at_ms or context.now_ms,
        priority=priority,
        follow_ups=follow_ups,
    )
    OUTBOX.put(txn, group, target_group, move, value=encode(outgoing))
    put_segment(
        context,
        first_seq,
        Segment(
            state=RowState.MOVING,
            attempt=attempt,
            releases=0,
            position=move,
            locator=target_group,
            mask=mask,
            priority=priority,
            flow=flow,
        ),
    )
    if flow:
        flows_of(context).came(flow, RowState.MOVING, count)
    context.state.moving += count
