"""Recurrences: a queue produces items by itself, exactly one for each due time.

Replicas do not evaluate cron expressions: their libraries and their time zones may be of different
versions. The leader's service finds due times, and the state machine decides about them:

    waiting for its time ──Remind──► waiting for the leader ──Fire──► waiting for its time
                                       ▲
           made, changed, continued ───┘

A row knows up to which instant its due times are decided (`after_ms`). Fire names that instant, and
carries the next due times, their items, and the due time that follows. It is applied only if the
row is as the leader has seen it. So of two leaders, or of a repeat, one command decides each due
time. The items, the instant and the following due time change in one entry.

Nothing here polls. `recurring_head_ms` says when Remind is due, by the leader's state time. Remind
moves the rows whose time has come to the instant 0 of the index, and the effects count those.

A run is skipped if the policy says so and the item of the run before is not finished: it is in the
partition, and not on its way to the dead queue.

In a keyed queue the items may have a key, which may belong to another partition. Such items are
stored in the outbox, in the entry that decides about their due times, and arrive like follow-ups
(`partition.follow_ups`). Whether they are finished is not known here, so no such run is skipped.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

import msgspec

from querator.model.commands import Done, FollowTarget, Produce, Refusal
from querator.model.errors import ErrorCode
from querator.model.item_options import NO_SLOT
from querator.model.limits import RECURRENCE_SPANS_MAX, RECURRENCES_MAX
from querator.model.recurrences import (
    DecidedSpan,
    DeleteRecurrence,
    Fire,
    Overlap,
    PauseRecurrence,
    PutRecurrence,
    RecurrenceResult,
    RecurrenceRow,
    RecurrenceState,
    RunsRow,
    jitter_ms,
)
from querator.partition import held_keys, masks
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.follow_ups import send_away
from querator.partition.produce import no_place, place_block, refuse_elsewhere
from querator.partition.rows import RowState, encode
from querator.partition.segments import find_item
from querator.storage import attachments
from querator.storage.environment import ReadTransaction
from querator.storage.tables import (
    RECURRENCE_NAMES,
    RECURRENCE_RUNS,
    RECURRENCE_TIMES,
    RECURRENCES,
)

NEVER = -1
"""`place_ms` of a paused recurrence."""
NOW = 0
"""`place_ms` of a recurrence that waits for the leader."""

decode_recurrence = msgspec.msgpack.Decoder(RecurrenceRow).decode
decode_runs = msgspec.msgpack.Decoder(RunsRow).decode


def name_hash(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


def load(txn: ReadTransaction, group: int, number: int) -> RecurrenceState | None:
    row = RECURRENCES.get(txn, group, number)
    runs = RECURRENCE_RUNS.get(txn, group, number)
    if row is None or runs is None:
        return None
    return RecurrenceState(number, decode_recurrence(row), decode_runs(runs))


def named(txn: ReadTransaction, group: int, name: str) -> RecurrenceState | None:
    raw = RECURRENCE_NAMES.get(txn, group, name_hash(name))
    found = None if raw is None else load(txn, group, int.from_bytes(raw, "big"))
    return found if found is not None and found.row.name == name else None


# --- operators -------------------------------------------------------------------------------


def put_recurrence(context: ApplyContext, command: PutRecurrence) -> RecurrenceResult | Refusal:
    found = named(context.txn, context.group, command.name)
    if not command.revision:
        return _made(context, command) if found is None else _same(found, command)
    if found is None:
        return _not_found(command.name)
    row = found.row
    if row.revision == command.revision + 1 and row.spec == command.spec:
        return RecurrenceResult(found, changed=False)
    if row.revision != command.revision:
        return Refusal(
            ErrorCode.VERSION_CONFLICT,
            f"recurrence {row.name} has revision {row.revision}, not {command.revision}",
            field="expected_revision",
            value=str(command.revision),
        )
    if row.spec == command.spec:
        return RecurrenceResult(found, changed=False)
    begins = row.spec.schedule != command.spec.schedule
    row = msgspec.structs.replace(row, spec=command.spec, revision=row.revision + 1)
    runs = _begun(context, found.runs, paused=row.paused, spans=()) if begins else found.runs
    return _changed(context, found, row, runs)


def pause_recurrence(context: ApplyContext, command: PauseRecurrence) -> RecurrenceResult | Refusal:
    found = named(context.txn, context.group, command.name)
    if found is None:
        return _not_found(command.name)
    if found.row.paused == command.paused:
        return RecurrenceResult(found, changed=False)
    row = msgspec.structs.replace(found.row, paused=command.paused, revision=found.row.revision + 1)
    runs = _begun(context, found.runs, paused=command.paused, spans=found.runs.spans)
    return _changed(context, found, row, runs)


def delete_recurrence(
    context: ApplyContext, command: DeleteRecurrence
) -> RecurrenceResult | Refusal:
    txn, group = context.txn, context.group
    found = named(txn, group, command.name)
    if found is None:
        return _not_found(command.name)
    _leave(context, found.number, found.runs)
    RECURRENCES.delete(txn, group, found.number)
    RECURRENCE_RUNS.delete(txn, group, found.number)
    RECURRENCE_NAMES.delete(txn, group, name_hash(command.name))
    context.state.recurrences -= 1
    return RecurrenceResult(found, changed=True)


def _made(context: ApplyContext, command: PutRecurrence) -> RecurrenceResult | Refusal:
    state = context.state
    hashed = name_hash(command.name)
    if state.recurrences >= RECURRENCES_MAX or RECURRENCE_NAMES.get(
        context.txn, context.group, hashed
    ):
        return Refusal(
            ErrorCode.TOO_MANY_RECURRENCES,
            f"the queue has {state.recurrences} recurrences; the limit is {RECURRENCES_MAX}",
            field="name",
            limit=str(RECURRENCES_MAX),
            value=str(state.recurrences + 1),
        )
    number = state.next_recurrence
    state.next_recurrence = number + 1
    state.recurrences += 1
    row = RecurrenceRow(command.name, command.spec, 1, False, context.now_ms)
    RECURRENCE_NAMES.put(context.txn, context.group, hashed, value=number.to_bytes(8, "big"))
    RECURRENCES.put(context.txn, context.group, number, value=encode(row))
    runs = RunsRow(context.now_ms)
    _enter(context, number, runs)
    return RecurrenceResult(RecurrenceState(number, row, runs), changed=True)


def _same(found: RecurrenceState, command: PutRecurrence) -> RecurrenceResult | Refusal:
    if found.row.spec == command.spec:
        return RecurrenceResult(found, changed=False)
    return Refusal(
        ErrorCode.RECURRENCE_EXISTS,
        f"recurrence {command.name} exists with another specification",
        field="name",
        value=command.name,
    )


def _not_found(name: str) -> Refusal:
    return Refusal(
        ErrorCode.RECURRENCE_NOT_FOUND,
        f"the queue has no recurrence {name}",
        field="name",
        value=name,
    )


def _begun(
    context: ApplyContext, runs: RunsRow, *, paused: bool, spans: tuple[DecidedSpan, ...]
) -> RunsRow:
    """The progress of a recurrence whose due times count from now on."""
    return msgspec.structs.replace(
        runs,
        after_ms=context.now_ms,
        place_ms=NEVER if paused else NOW,
        next_due_ms=0,
        spans=spans,
        is_open=False,
        error="",
    )


def _changed(
    context: ApplyContext, before: RecurrenceState, row: RecurrenceRow, runs: RunsRow
) -> RecurrenceResult:
    RECURRENCES.put(context.txn, context.group, before.number, value=encode(row))
    _move(context, before.number, before.runs, runs)
    return RecurrenceResult(RecurrenceState(before.number, row, runs), changed=True)


# --- the index of times ----------------------------------------------------------------------


def _move(context: ApplyContext, number: int, before: RunsRow, after: RunsRow) -> None:
    _leave(context, number, before)
    _enter(context, number, after)


def _leave(context: ApplyContext, number: int, runs: RunsRow) -> None:
    if runs.place_ms != NEVER:
        RECURRENCE_TIMES.delete(context.txn, context.group, runs.place_ms, number)
        context.state.recurring -= runs.place_ms == NOW


def _enter(context: ApplyContext, number: int, runs: RunsRow) -> None:
    state = context.state
    RECURRENCE_RUNS.put(context.txn, context.group, number, value=encode(runs))
    if runs.place_ms == NEVER:
        return
    RECURRENCE_TIMES.put(context.txn, context.group, runs.place_ms, number, value=b"")
    if runs.place_ms == NOW:
        state.recurring += 1
    else:
        state.recurring_head_ms = earlier(state.recurring_head_ms, runs.place_ms)


def remind(context: ApplyContext) -> Done:
    """Lets the recurrences whose time has come wait for the leader. `changed` counts them."""
    txn, group = context.txn, context.group
    due: list[int] = []
    head_ms = 0
    start, stop = RECURRENCE_TIMES.bounds(group)
    for key, _ in txn.scan(max(start, RECURRENCE_TIMES.key(group, NOW + 1, 0)), stop):
        at_ms, number = RECURRENCE_TIMES.parts(key)
        assert isinstance(at_ms, int)
        assert isinstance(number, int)
        if at_ms > context.now_ms:
            head_ms = at_ms
            break
        due.append(number)
    for number in due:
        runs = _runs(context, number)
        _move(context, number, runs, msgspec.structs.replace(runs, place_ms=NOW))
    context.state.recurring_head_ms = head_ms
    return Done(len(due))


def _runs(context: ApplyContext, number: int) -> RunsRow:
    raw = RECURRENCE_RUNS.get(context.txn, context.group, number)
    assert raw is not None, "the index of times names a recurrence"
    return decode_runs(raw)


def put_back(context: ApplyContext) -> None:
    """State time has gone back: due times after it are to come again. Those that are in the spans
    of a recurrence get no second item.
    """
    for key, raw in list(RECURRENCE_RUNS.rows(context.txn, context.group)):
        runs = decode_runs(bytes(raw))
        if runs.after_ms > context.now_ms:
            number = int.from_bytes(key[-8:], "big")
            again = _begun(context, runs, paused=runs.place_ms == NEVER, spans=runs.spans)
            _move(context, number, runs, again)


# --- runs ------------------------------------------------------------------------------------


def fire(context: ApplyContext, command: Fire, parts: Sequence[tuple[int, int]]) -> Done | Refusal:
    """Decides due times. `changed` is 0 if the recurrence is not as the leader has seen it; else
    it is 1. `parts` are (attachment, number of items).
    """
    found = load(context.txn, context.group, command.recurrence)
    if found is None or not _is_next(context, found, command):
        _drop(context, parts)
        return Done(0)
    runs = found.runs
    skips = found.row.spec.overlap == Overlap.SKIP
    count = len(command.lengths) >> 2
    alive = 0 if skips and _is_unfinished(context, runs.last_seq) else masks.full(count)
    items = _as_produce(command)
    refusal: Refusal | None = None
    if alive:
        refusal = refuse_elsewhere(context, items) or no_place(
            context, items, count, context.state.occupied
        )
    if refusal is not None:
        _drop(context, parts)
        return refusal
    first_seq = context.state.next_seq
    if alive:
        _produce(context, command, items, parts)
    else:
        _drop(context, parts)
    produced = alive.bit_count()
    due_ms = command.due_ms
    after = msgspec.structs.replace(
        runs,
        after_ms=command.upto_ms,
        place_ms=NOW if command.next_at_ms <= context.now_ms else command.next_at_ms,
        next_due_ms=command.next_due_ms,
        spans=_with_span(runs, command) if due_ms else runs.spans,
        is_open=bool(due_ms) or (runs.is_open and not command.missed),
        fired=runs.fired + produced,
        skipped=runs.skipped + len(due_ms) - produced,
        missed=runs.missed + command.missed,
        error=command.error,
    )
    if produced:
        after = msgspec.structs.replace(
            after,
            last_due_ms=due_ms[produced - 1],
            last_at_ms=context.now_ms,
            last_seq=0 if command.target_group else first_seq + produced - 1,
        )
    _move(context, command.recurrence, runs, after)
    _count(context, found, command, produced)
    return Done(1)


def _count(context: ApplyContext, found: RecurrenceState, command: Fire, produced: int) -> None:
    """Counts the due times of a command, of which the first ones have `produced` items."""
    state = context.state
    state.runs_fired += produced
    state.runs_skipped += len(command.due_ms) - produced
    state.runs_missed += command.missed
    for due_ms in command.due_ms[:produced]:
        at_ms = due_ms + jitter_ms(context.group, found.number, found.row.spec, due_ms)
        state.runs_late_ms += max(0, context.now_ms - at_ms)


def _is_next(context: ApplyContext, found: RecurrenceState, command: Fire) -> bool:
    """Whether the leader has seen the recurrence as it is, and the due times have come."""
    runs = found.runs
    seen = (found.row.revision, runs.after_ms, runs.fired + 1, runs.place_ms)
    if seen != (command.revision, command.after_ms, command.number, NOW):
        return False
    due_ms = command.due_ms
    ascending = all(one < other for one, other in pairwise(due_ms))
    upto_ms = due_ms[-1] if due_ms else runs.after_ms
    some = bool(due_ms) and found.row.spec.overlap == Overlap.SKIP
    return (
        ascending
        and (not due_ms or due_ms[0] > runs.after_ms)
        and upto_ms <= command.upto_ms <= max(context.now_ms, runs.after_ms)
        and not any(span.from_ms <= at <= span.upto_ms for span in runs.spans for at in due_ms)
        and len(command.lengths) == (4 if some else 4 * len(due_ms))
        and (bool(command.error) or command.upto_ms < command.next_due_ms <= command.next_at_ms)
    )


def _is_unfinished(context: ApplyContext, seq: int) -> bool:
    found = find_item(context.txn, context.group, seq) if seq else None
    return found is not None and found[1].state != RowState.MOVING


def _as_produce(command: Fire) -> Produce:
    count = len(command.lengths) >> 2
    slots = b"" if command.slot == NO_SLOT else command.slot.to_bytes(2, "little") * count
    return Produce(
        lengths=command.lengths,
        specials=command.specials,
        routing=command.routing,
        slots=slots,
        flows=None if command.target_group else command.flows,
    )


def _produce(
    context: ApplyContext, command: Fire, items: Produce, parts: Sequence[tuple[int, int]]
) -> None:
    state, flows = context.state, context.flows
    first_seq, count = state.next_seq, len(items.lengths) >> 2
    target = FollowTarget(context.queue.queue, command.partition, command.target_group, count)
    flow_of = [] if flows is None else flows.numbers(items.flows, count)
    held = {} if target.group else held_keys.lanes(context, items.slots, masks.full(count))
    start = 0
    for part, length in parts:
        stop = start + length
        specials = [one for one in items.specials if start <= one.ordinal < stop]
        place_block(
            context=context,
            attachment=(context.index, part),
            first_seq=first_seq + start,
            lengths=items.lengths[start * 4 : stop * 4],
            alive=masks.full(length),
            specials=specials,
            held=held,
            flow_of=flow_of[start:stop],
            start=start,
            away=masks.full(length) if target.group else 0,
        )
        if target.group:
            send_away(
                context,
                target,
                first_seq=first_seq,
                ordinals=range(start, stop),
                specials=specials,
                slots=items.slots,
                start=start,
            )
        start = stop
    state.next_seq += count
    state.produced += count


def _drop(context: ApplyContext, parts: Sequence[tuple[int, int]]) -> None:
    for part, _ in parts:
        attachments.drop(
            context.txn, context.group, context.index, part, log_first=context.log_first
        )


def _with_span(runs: RunsRow, command: Fire) -> tuple[DecidedSpan, ...]:
    """The spans with the due times of a command."""
    first_ms, last_ms = command.due_ms[0], command.due_ms[-1]
    before = [span for span in runs.spans if span.upto_ms < first_ms]
    later = runs.spans[len(before) :]
    if before and runs.is_open and not command.missed:
        before[-1] = DecidedSpan(before[-1].from_ms, last_ms)
    else:
        before.append(DecidedSpan(first_ms, last_ms))
    return (*before, *later)[-RECURRENCE_SPANS_MAX:]
