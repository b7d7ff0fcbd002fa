"""The effects of time: leases lapse, items expire, schedules come due, remembered rows are
forgotten.

The leader proposes Expire and Activate when a head of the state row is due. Heads are lower bounds.
They are lowered when a row is written, and computed again here from the first row of each index. A
head that was too early costs one command that does nothing. A command that reaches its bound leaves
the head where it is, so that it is due again at once.
"""

from querator.model.commands import Done
from querator.model.limits import (
    APPLY_SEGMENTS_MAX,
    EXECUTION_LAPSES_MAX,
    LEASE_OUTCOME_WINDOW_MS,
    MINUTE_MS,
)
from querator.partition import breaker, masks
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.dead import attempt_failed, kill
from querator.partition.dedup import forget_keys
from querator.partition.ended_leases import end_lease, forget_ended
from querator.partition.executions import activations_lapsed
from querator.partition.feed import cleanup_ms, delete_old
from querator.partition.producers import forget_producers
from querator.partition.redate import redate
from querator.partition.reschedule import come_due
from querator.partition.results import forget_results
from querator.partition.rows import DeadCause, RowState, decode_block, decode_lease
from querator.partition.segments import (
    block_of,
    detach,
    flows_of,
    load_segment,
    segments_of,
)
from querator.partition.staging import forget_stages
from querator.partition.states import Event
from querator.partition.txn_producers import forget_txn_producers
from querator.storage.keys import Table
from querator.storage.tables import (
    BLOCKS,
    DEADLINES,
    DEDUP_ORDER,
    ENDED_ORDER,
    EXPIRIES,
    LEASES,
    PRODUCER_CHECKS,
    RESULT_TIMES,
    SCHEDULED,
    STAGE_CHECKS,
    TXN_PRODUCER_CHECKS,
)

_FORGETTING = (
    forget_ended, forget_keys, forget_producers, forget_stages, forget_txn_producers,
    forget_results, delete_old,
)  # fmt: skip


def expire(context: ApplyContext, *, lapses: bool) -> Done:
    """Expires items and forgets rows that are due, and lapses due leases if `lapses`. `changed`
    counts segments and forgotten rows.
    """
    work = _lapse(context, APPLY_SEGMENTS_MAX) if lapses else 0
    work += _sweep(context, APPLY_SEGMENTS_MAX - work)
    for forget in _FORGETTING:
        if work < APPLY_SEGMENTS_MAX:
            work += forget(context, APPLY_SEGMENTS_MAX - work)
    if context.state.redating is not None and work < APPLY_SEGMENTS_MAX:
        work += redate(context, APPLY_SEGMENTS_MAX - work)
    state, flows = context.state, context.flows
    if flows is not None and work < APPLY_SEGMENTS_MAX:
        work += flows.refill(APPLY_SEGMENTS_MAX - work, waits=False)
    if state.review_flow and work < APPLY_SEGMENTS_MAX:
        work += flows_of(context).review(APPLY_SEGMENTS_MAX - work)
    state.deadline_head_ms = _head(context, DEADLINES)
    state.expiry_head_ms = _head(context, EXPIRIES)
    state.cleanup_head_ms = _cleanup_head(context)
    return Done(work)


def activate(context: ApplyContext) -> Done:
    """Makes scheduled items ready in the order of (due, sequence). `changed` counts segments."""
    txn, group = context.txn, context.group
    due: dict[tuple[int, int], list[int]] = {}
    segments = 0
    for key, _ in SCHEDULED.rows(txn, group):
        due_ms, first_seq, slot = SCHEDULED.parts(key)
        assert isinstance(due_ms, int)
        assert isinstance(first_seq, int)
        assert isinstance(slot, int)
        # Items due together in one block share a position, so they must not be cut apart.
        together = (due_ms, first_seq) in due
        if due_ms > context.now_ms or (segments >= APPLY_SEGMENTS_MAX and not together):
            break
        due.setdefault((due_ms, first_seq), []).append(slot)
        segments += 1
    for (due_ms, first_seq), slots in due.items():
        loaded = [load_segment(txn, group, first_seq, slot) for slot in slots]
        assert all(segment.locator == due_ms for segment in loaded)
        come_due(context, first_seq, [(segment, segment.mask) for segment in loaded])
    context.state.schedule_head_ms = _head(context, SCHEDULED)
    return Done(segments)


def _lapse(context: ApplyContext, segments_max: int) -> int:
    """Lapses due leases, each completely. Stops after the lease that reaches the bound."""
    txn, group = context.txn, context.group
    due: list[int] = []
    for key, _ in DEADLINES.rows(txn, group):
        deadline_ms, lease = DEADLINES.parts(key)
        assert isinstance(deadline_ms, int)
        assert isinstance(lease, int)
        if deadline_ms > context.now_ms or len(due) >= segments_max:
            break
        due.append(lease)
    work = 0
    for lease in due:
        if work >= segments_max:
            break
        work += _lapse_lease(context, lease)
    return work


def _lapse_lease(context: ApplyContext, lease: int) -> int:
    """Ends a lease whose deadline has come. The attempts count. Returns the number of segments into
    which its items part, and of results that were waited for, at least 1.
    """
    txn, group = context.txn, context.group
    raw = LEASES.get(txn, group, lease)
    assert raw is not None, "a deadline names a live lease"
    row = decode_lease(raw)
    asked = context.state.asked
    activations: list[int] = []
    work = lapsed = 0
    for items in row.items:
        mask = masks.from_bytes(items.held)
        if not mask:
            continue
        items.held = b""
        segment = load_segment(txn, group, items.first_seq, masks.low(mask))
        assert segment.mask == mask
        lapsed += mask.bit_count()
        if context.activations is not None:
            activations += [items.first_seq + ordinal for ordinal in masks.ordinals(mask)]
        detach(context, items.first_seq, segment, mask)
        work += attempt_failed(
            context, items.first_seq, block_of(context, items.first_seq), mask, Event.LAPSE,
            lease=lease, attempt=segment.attempt, releases=segment.releases,
            due_ms=None, priority=segment.priority, flow=segment.flow,
            position=segment.position,
        )  # fmt: skip
    end_lease(context, lease, row)
    context.state.lapsed += lapsed
    if activations:
        activations_lapsed(context, activations, EXECUTION_LAPSES_MAX)
    if context.state.breaker is not None:
        breaker.failed(context, [(lease, lapsed)])
    return max(work + asked - context.state.asked, 1)


def _sweep(context: ApplyContext, segments_max: int) -> int:
    """Kills expired items that are ready, held or scheduled. Leased items are judged when they come
    back.
    """
    txn, group = context.txn, context.group
    if segments_max <= 0:
        return 0
    due: list[tuple[bytes, int]] = []
    for key, _ in EXPIRIES.rows(txn, group):
        expire_at_ms, first_seq = EXPIRIES.parts(key)
        assert isinstance(expire_at_ms, int)
        assert isinstance(first_seq, int)
        if expire_at_ms > context.now_ms or len(due) >= segments_max:
            break
        due.append((key, first_seq))
    work = 0
    for key, first_seq in due:
        if work >= segments_max:
            break
        raw = BLOCKS.get(txn, group, first_seq)
        work += 1
        txn.delete(key)
        if raw is None:
            # An earlier row of this sweep killed the block's last item.
            continue
        block = decode_block(raw)
        for segment in segments_of(txn, group, first_seq):
            if segment.state not in (RowState.READY, RowState.HELD, RowState.SCHEDULED):
                continue
            expired = block.expired(segment.mask, context.now_ms)
            if not expired:
                continue
            rows = context.state.lasting_keys + context.state.asked
            detach(context, first_seq, segment, expired)
            kill(
                context, first_seq, block, expired, DeadCause.EXPIRED,
                came_from=segment.state, attempt=segment.attempt, priority=segment.priority,
                flow=segment.flow,
            )  # fmt: skip
            work += 1 + rows - context.state.lasting_keys - context.state.asked
    return work


def _head(context: ApplyContext, table: Table) -> int:
    """The instant of the first row of a table whose keys begin with one. 0 means none."""
    for key, _ in table.rows(context.txn, context.group):
        return int.from_bytes(key[9:17], "big")
    return 0


def _cleanup_head(context: ApplyContext) -> int:
    """When the next row may be forgotten. At most once a minute: no caller waits for it."""
    if context.state.redating is not None or context.state.review_flow:
        return context.now_ms
    head_ms = 0
    if ended_ms := _head(context, ENDED_ORDER):
        head_ms = earlier(head_ms, ended_ms + LEASE_OUTCOME_WINDOW_MS)
    if (at_ms := _head(context, DEDUP_ORDER)) and context.row is not None:
        head_ms = earlier(head_ms, at_ms + context.queue.dedup_window_ms)
    if context.flows is not None and (due_ms := context.flows.due_ms(waits=False)):
        head_ms = earlier(head_ms, due_ms)
    if events_ms := cleanup_ms(context):
        head_ms = earlier(head_ms, events_ms)
    for table in (PRODUCER_CHECKS, STAGE_CHECKS, TXN_PRODUCER_CHECKS, RESULT_TIMES):
        if check_ms := _head(context, table):
            head_ms = earlier(head_ms, check_ms)
    if head_ms <= context.now_ms:
        return head_ms
    return max(head_ms, context.now_ms + MINUTE_MS)
