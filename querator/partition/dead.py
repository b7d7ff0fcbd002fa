"""How items die and how they become ready: the only place that judges expiry and attempts.

A dead item goes to the dead queue through the outbox (state MOVING). If the queue has no dead
queue, the item is dropped and counted. The target of a move is fixed when its row is written.
"""

from querator.model.commands import DeadTarget
from querator.partition import masks
from querator.partition.rows import (
    Block,
    DeadReason,
    ItemState,
    OutboxRow,
    OutboxTarget,
    Segment,
    decode_target,
    encode,
)
from querator.partition.segments import (
    LANE,
    check,
    place_held,
    place_ready,
    place_scheduled,
    put_segment,
    remove,
    restore,
    tail_position,
)
from querator.partition.states import Event
from querator.partition.turn import Turn
from querator.storage.tables import OUTBOX, OUTBOX_TARGETS

NO_TARGET = OutboxTarget(1, 0)


def become_ready(
    turn: Turn,
    first_seq: int,
    block: Block,
    mask: int,
    event: Event,
    *,
    came_from: int,
    attempt: int,
    releases: int,
    position: int | None = None,
    lane: int = LANE,
) -> None:
    """Makes detached items ready, at the tail or back at `position`, or holds them in another
    `lane` at `position`. Expired items among them die.
    """
    expired = block.expired(mask, turn.now_ms)
    alive = mask & ~expired
    # The living items first: a block without segments is removed.
    if alive:
        check(came_from, event, ItemState.READY if lane == LANE else ItemState.HELD)
        if lane != LANE:
            assert position is not None
            place_held(
                turn, first_seq, alive,
                attempt=attempt, releases=releases, position=position, lane=lane,
            )  # fmt: skip
        elif position is None:
            place_ready(
                turn, first_seq, alive,
                attempt=attempt, releases=releases, position=tail_position(turn),
            )  # fmt: skip
        else:
            restore(turn, first_seq, alive, attempt=attempt, releases=releases, position=position)
    if expired:
        kill(
            turn,
            first_seq,
            block,
            expired,
            DeadReason.EXPIRED,
            came_from=came_from,
            attempt=attempt,
        )


def become_ready_or_worn(
    turn: Turn,
    first_seq: int,
    block: Block,
    mask: int,
    event: Event,
    *,
    attempt: int,
    releases: int,
) -> None:
    """Gives back items of a lease whose attempt counts: to the tail, or dead when their attempts
    are used up.
    """
    if worn(turn, attempt):
        kill(
            turn,
            first_seq,
            block,
            mask,
            DeadReason.ATTEMPTS,
            came_from=ItemState.LEASED,
            attempt=attempt,
        )
    else:
        become_ready(
            turn, first_seq, block, mask, event,
            came_from=ItemState.LEASED, attempt=attempt, releases=releases,
        )  # fmt: skip


def become_scheduled(
    turn: Turn,
    first_seq: int,
    block: Block,
    mask: int,
    *,
    attempt: int,
    releases: int,
    due_ms: int,
) -> None:
    """Schedules items of a lease for `due_ms`. Items that have expired meanwhile die at once: the
    sweep has already passed them.
    """
    expired = block.expired(mask, turn.now_ms)
    alive = mask & ~expired
    if alive:
        check(ItemState.LEASED, Event.RETRY_LATER, ItemState.SCHEDULED)
        place_scheduled(turn, first_seq, alive, attempt=attempt, releases=releases, due_ms=due_ms)
    if expired:
        kill(
            turn, first_seq, block, expired, DeadReason.EXPIRED,
            came_from=ItemState.LEASED, attempt=attempt,
        )  # fmt: skip


def worn(turn: Turn, attempt: int) -> bool:
    """Whether an item with this number of attempts may not be leased again."""
    return 0 < turn.queue.max_attempts <= attempt


def kill(
    turn: Turn,
    first_seq: int,
    block: Block,
    mask: int,
    reason: DeadReason,
    *,
    came_from: int,
    attempt: int,
) -> None:
    """Detached items die: they go to the dead queue, or are dropped and counted if there
    is none.
    """
    count = mask.bit_count()
    turn.state.dead += count
    if reason is DeadReason.EXPIRED:
        turn.state.expired += count
    targets = turn.queue.dead_targets
    if targets:
        check(came_from, Event.DIE, ItemState.MOVING)
        target = home_of(targets, turn.queue.partition)
        send(turn, first_seq, mask, attempt=attempt, reason=reason, target_group=target.group)
    else:
        check(came_from, Event.DROP, None)
        turn.state.dropped += count
        remove(turn, first_seq, block, mask)


def home_of(targets: tuple[DeadTarget, ...], partition: int) -> DeadTarget:
    """The partition with the same number if there is one, else one that follows from the number."""
    for target in targets:
        if target.partition == partition:
            return target
    return targets[partition % len(targets)]


def send(
    turn: Turn,
    first_seq: int,
    mask: int,
    *,
    attempt: int,
    reason: int,
    target_group: int,
    died_at_ms: int = 0,
) -> None:
    """Puts detached items into the outbox, with one move number for each in the order of sequence.
    `died_at_ms` 0 means now.
    """
    txn, group = turn.txn, turn.group
    row = OUTBOX_TARGETS.get(txn, group, target_group)
    target = NO_TARGET if row is None else decode_target(row)
    count = mask.bit_count()
    move = target.next_move
    OUTBOX_TARGETS.put(
        txn, group, target_group, value=encode(OutboxTarget(move + count, target.done))
    )
    outgoing = OutboxRow(
        first_seq, masks.to_bytes(mask), attempt, reason, died_at_ms or turn.now_ms
    )
    OUTBOX.put(txn, group, target_group, move, value=encode(outgoing))
    put_segment(turn, first_seq, Segment(ItemState.MOVING, attempt, 0, move, target_group, mask))
    turn.state.moving += count
