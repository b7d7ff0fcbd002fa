"""Record: the worker that leases an activation appends to the journal, and says how it continues.

A Record is judged, and then applied as a whole or not at all:

    the last number of the lease again, or one of those before    the first answer
    the lease does not hold the activation                        LEASE_LOST
    another number than the next one of the lease                 SEQUENCE_GAP
    `seen` or `after` falls, or names what has not come           INVALID_ARGUMENT
    a fold of what it may not remove                              INVALID_ARGUMENT
    too many records, bytes, timers, published values             JOURNAL_FULL, LIMIT_EXCEEDED
    a new run of what is cancelled, or has children               INVALID_ARGUMENT
    items, when too many wait for their queues                    OVERLOADED
    park or close over an arrival that the code must be given     UNSEEN
    a worker ends a timer that the partition has                  INVALID_ARGUMENT, and it is STUCK

The lease is the fence: it holds the activation, whose segment names it, so that a worker whose
lease has ended appends nothing. That a path has one result follows: the worker with the lease has
read all that is recorded, and its numbers have no gap.

The work follows from what the command carries and from the arrivals that it has seen, and does not
grow with the journal. A fold reads what it removes.
"""

from collections.abc import Sequence

from querator.model.commands import Extend, LeaseItems, Refusal, Retry
from querator.model.errors import ErrorCode
from querator.model.execution_commands import Recorded, RecordProgress
from querator.model.executions import (
    FOLD_KINDS,
    Close,
    GiveBack,
    GoOn,
    NewRun,
    Note,
    Park,
    RecordKind,
    Timer,
    child_result_path,
)
from querator.model.limits import (
    EXECUTION_REFUSALS_MAX,
    EXECUTION_TIMERS_MAX,
    JOURNAL_BYTES_MAX,
    JOURNAL_RECORDS_KEPT,
    JOURNAL_RECORDS_MAX,
    RECORD_BYTES_MAX,
    RECORDS_UNANSWERED_MAX,
    SCHEDULE_AHEAD_MS_MAX,
)
from querator.partition.apply_context import ApplyContext
from querator.partition.execution_cancels import cancel_child
from querator.partition.execution_children import end, start_children
from querator.partition.execution_folds import (
    Folding,
    as_row,
    carry_out_fold,
    judge_folds,
    malformed,
    note_bytes,
)
from querator.partition.execution_items import refuse_items, send_items
from querator.partition.execution_published import PublishedChange, judge_published, publish
from querator.partition.execution_rows import (
    CANCELS,
    ExecutionRow,
    WaitRow,
    decode_wait,
    path_mark,
    signal_mark,
)
from querator.partition.execution_runs import begin_run, refuse_new_run
from querator.partition.executions import (
    ExecutionEvent,
    Part,
    append,
    drop_activation,
    drop_parts,
    load_execution,
    move,
    pin,
    put_execution,
    put_time,
    stick,
)
from querator.partition.extend import extend
from querator.partition.rows import RowState, encode
from querator.partition.segments import find_item
from querator.partition.settle import retry
from querator.storage.tables import ARRIVALS, EXECUTION_TIMES, WAITS

_ENDS = {
    RecordKind.COMPLETED: ExecutionEvent.COMPLETE,
    RecordKind.FAILED: ExecutionEvent.FAIL,
    RecordKind.CANCELLED: ExecutionEvent.CANCEL,
}


def record(
    context: ApplyContext,
    command: RecordProgress,
    parts: Sequence[Part],
    blocks: Sequence[tuple[int, int]],
) -> Recorded | Refusal:
    """Applies a Record. `parts` are its payloads with their sizes, and `blocks` the items that it
    produces, with their numbers.
    """
    row = load_execution(context, command.execution)
    result = _fenced(context, command, row)
    if result is not None:
        drop_parts(context, (*parts, *blocks))
        return result
    assert row is not None
    defect = _ends_timer(context, command)
    if defect is not None:
        stick(context, row, defect.message)
        put_execution(context, command.execution, row)
        drop_parts(context, (*parts, *blocks))
        return defect
    folds: list[Folding] = []
    changes: list[PublishedChange] = []
    refusal = (
        _out_of_order(command, row)
        or judge_folds(context, command, row, folds)
        or _too_much(context, command, row, folds, parts)
        or _bad_timers(context, command, row)
        or _bad_children(context, command)
        or refuse_new_run(context, command, row)
        or judge_published(context, command, row, changes)
        or refuse_items(context, command)
        or _unseen(context, command, row)
    )
    if refusal is not None:
        drop_parts(context, (*parts, *blocks))
        return refusal
    publish(context, command.execution, row, changes)
    send_items(context, command, blocks)
    return _carry_out(context, command, row, folds, parts)


def _fenced(
    context: ApplyContext, command: RecordProgress, row: ExecutionRow | None
) -> Recorded | Refusal | None:
    """The answer to a repeat, or the refusal of a command that is not the next one of the lease
    that holds the activation. None: it is.
    """
    if row is None:
        return Refusal(
            ErrorCode.EXECUTION_NOT_FOUND,
            f"the partition has no execution {command.execution}",
            field="execution",
            value=str(command.execution),
        )
    expected = 1
    if row.last_lease == command.lease:
        expected = row.last_number + 1
        behind = row.last_number - command.number
        if 0 <= behind < len(row.answers):
            first_index = row.answers[-1 - behind]
            return Recorded(command.number, first_index, repeated=True, now_ms=context.now_ms)
    if not _holds(context, command, row):
        return Refusal(
            ErrorCode.LEASE_LOST,
            f"the lease does not hold the activation of execution {row.id}",
            field="lease",
            value=str(command.lease),
        )
    if command.number != expected:
        return Refusal(
            ErrorCode.SEQUENCE_GAP,
            f"record number {command.number} of the lease is not the next one, {expected}",
            field="number",
            limit=str(expected),
            value=str(command.number),
        )
    return None


def _holds(context: ApplyContext, command: RecordProgress, row: ExecutionRow) -> bool:
    """Whether the lease holds the activation of the execution."""
    if not row.activation or row.activation != command.item:
        return False
    found = find_item(context.txn, context.group, command.item)
    if found is None:
        return False
    segment = found[1]
    return segment.state == RowState.LEASED and segment.locator == command.lease


def _ends_timer(context: ApplyContext, command: RecordProgress) -> Refusal | None:
    """The defect of a worker that ends a timer itself, which the partition has: it would end
    twice.
    """
    for nth, note in enumerate(command.records):
        if note.kind == RecordKind.TIMER_DONE and _wait(context, command.execution, note.path):
            return malformed(
                f"records[{nth}].path",
                f"{note.path.hex()} is a timer of the partition, which alone fires it",
                note.path.hex(),
            )
    return None


def _wait(context: ApplyContext, number: int, path: bytes) -> WaitRow | None:
    raw = WAITS.get(context.txn, context.group, number, path_mark(path))
    return None if raw is None else decode_wait(raw)


def _out_of_order(command: RecordProgress, row: ExecutionRow) -> Refusal | None:
    """The refusal of a command that has seen too little or too much. A worker that gives back what
    its code was not given has seen nothing.
    """
    unseen = isinstance(command.then, GiveBack) and not command.records
    if not (0 if unseen else row.seen) <= command.seen < row.next_index:
        return malformed(
            "seen",
            f"must be from {row.seen}, as the last Record has, to {row.next_index - 1}, the last "
            "record of the journal",
            command.seen,
        )
    after = row.after
    for nth, note in enumerate(command.records):
        if not after <= note.after <= command.seen:
            return malformed(
                f"records[{nth}].after",
                f"must be from {after}, as the record before it has, to {command.seen}, which is "
                "`seen`",
                note.after,
            )
        after = note.after
    return None


def _too_much(
    context: ApplyContext,
    command: RecordProgress,
    row: ExecutionRow,
    folds: list[Folding],
    parts: Sequence[Part],
) -> Refusal | None:
    """The refusal of records for which the journal has no room. A worker keeps the last ones for
    what undoes. Executions that are cancelled, or close, may have as many beyond the limit.
    """
    fresh = len(command.records) + len(command.children)
    size = sum(size for _, size in parts)
    # The arguments of a child, or of a new run, are in their own journal.
    size -= sum(parts[child.place - 1][1] for child in command.children if child.place)
    if isinstance(command.then, NewRun) and command.then.place:
        size -= parts[command.then.place - 1][1]
    size += sum(note_bytes(note) for note in command.records)
    for folding in folds:
        fresh -= len(folding.removed)
        size -= sum(one.weight for _, one in folding.removed)
        if folding.target is not None:
            size += note_bytes(folding.fold.note) - folding.target.weight
    if fresh <= 0 and size <= 0:
        return None
    ending = bool(row.cancelled) or isinstance(command.then, Close | NewRun)
    records_max = JOURNAL_RECORDS_MAX + (JOURNAL_RECORDS_KEPT if ending else 0)
    bytes_max = JOURNAL_BYTES_MAX + (RECORD_BYTES_MAX if ending else 0)
    if row.records + fresh > records_max:
        return _full("records", row.records + fresh, records_max, "records")
    if row.size + size > bytes_max:
        return _full("records", row.size + size, bytes_max, "bytes")
    return None


def _full(field: str, value: int, limit: int, unit: str) -> Refusal:
    return Refusal(
        ErrorCode.JOURNAL_FULL,
        f"the journal would have {value} {unit}; the limit is {limit} {unit}",
        field=field,
        limit=f"{limit} {unit}",
        value=f"{value} {unit}",
    )


def _bad_timers(
    context: ApplyContext, command: RecordProgress, row: ExecutionRow
) -> Refusal | None:
    """The refusal of timers that are too many, or too late, or of an operation whose timer has
    fired.
    """
    furthest_ms = context.now_ms + SCHEDULE_AHEAD_MS_MAX
    fresh = 0
    for nth, timer in enumerate(command.timers):
        field = f"timers[{nth}]"
        if timer.due_ms > furthest_ms:
            return Refusal(
                ErrorCode.LIMIT_EXCEEDED,
                f"{field} is due at {timer.due_ms}; the limit is {furthest_ms}",
                field=f"{field}.due_ms",
                limit=str(furthest_ms),
                value=str(timer.due_ms),
            )
        wait = _wait(context, command.execution, timer.path)
        if wait is None:
            fresh += timer.due_ms > 0
        elif wait.child:
            return malformed(f"{field}.path", "is the one of a child", timer.path.hex())
        elif timer.due_ms and 0 < wait.index <= command.seen:
            return malformed(f"{field}.path", "has arrived before", timer.path.hex())
        elif not timer.due_ms and not wait.index:
            fresh -= 1
    if fresh > 0 and row.timers + fresh > EXECUTION_TIMERS_MAX:
        return Refusal(
            ErrorCode.LIMIT_EXCEEDED,
            f"the execution would have {row.timers + fresh} timers; the limit is "
            f"{EXECUTION_TIMERS_MAX}",
            field="timers",
            limit=str(EXECUTION_TIMERS_MAX),
            value=str(row.timers + fresh),
        )
    return None


def _bad_children(context: ApplyContext, command: RecordProgress) -> Refusal | None:
    """The refusal of a child that starts again for the same path."""
    for nth, child in enumerate(command.children):
        if _wait(context, command.execution, child_result_path(child.path)) is not None:
            return malformed(f"children[{nth}].path", "has started a child", child.path.hex())
    return None


def _unseen(context: ApplyContext, command: RecordProgress, row: ExecutionRow) -> Refusal | None:
    """The refusal of an end that overlooks an arrival; of a park that nothing would end."""
    then = command.then
    if isinstance(then, Park):
        for nth, path in enumerate(then.paths):
            wait = _wait(context, command.execution, path)
            if wait is not None and 0 < wait.index <= command.seen:
                return malformed(
                    f"park.paths[{nth}]", "has arrived, and the code was given it", path.hex()
                )
        if _waits_left(context, command, row, then) is None:
            return _not_seen("the execution waits for what has arrived", command, row)
    elif isinstance(then, Close) and then.drain:
        if any(kind == RecordKind.SIGNAL for _, kind, _ in _behind(context, command, row)):
            return _not_seen("the execution closes over signals", command, row)
    return None


def _not_seen(why: str, command: RecordProgress, row: ExecutionRow) -> Refusal:
    return Refusal(
        ErrorCode.UNSEEN,
        f"{why}; read the journal up to record {row.last_arrival}",
        field="seen",
        limit=str(row.last_arrival),
        value=str(command.seen),
    )


def _behind(
    context: ApplyContext, command: RecordProgress, row: ExecutionRow
) -> list[tuple[int, int, bytes]]:
    """The arrivals that the code has not been given: index, kind, mark."""
    if row.last_arrival <= command.seen:
        return []
    group, number = context.group, command.execution
    _, stop = ARRIVALS.bounds(group, number)
    return [
        (int.from_bytes(key[-8:], "big"), value[0], bytes(value[1:]))
        for key, value in context.txn.scan(ARRIVALS.key(group, number, command.seen + 1), stop)
    ]


def _waits_left(
    context: ApplyContext, command: RecordProgress, row: ExecutionRow, park: Park
) -> set[bytes] | None:
    """The marks of what a park still waits for; empty: any arrival. None: what it waits for has
    arrived.
    """
    waits = {path_mark(path) for path in park.paths} | {signal_mark(name) for name in park.names}
    behind = {mark for _, _, mark in _behind(context, command, row)}
    if CANCELS in behind or (park.anything and behind):
        return None
    if park.all_of:
        return waits - behind or None
    return None if waits & behind else waits


def _carry_out(
    context: ApplyContext,
    command: RecordProgress,
    row: ExecutionRow,
    folds: list[Folding],
    parts: Sequence[Part],
) -> Recorded:
    number, then = command.execution, command.then
    first_index = row.next_index
    for note in command.records:
        append(context, number, row, as_row(context, note, parts))
        row.after = note.after
    sent = {
        note.path: first_index + nth
        for nth, note in enumerate(command.records)
        if note.kind in FOLD_KINDS
    }
    for folding in folds:
        carry_out_fold(context, number, row, folding, parts, sent=sent)
    left = _waits_left(context, command, row, then) if isinstance(then, Park) else None
    _see(context, command, row)
    for timer in command.timers:
        _set_timer(context, number, row, timer)
    for path in command.cancels:
        cancel_child(context, number, row, path)
    start_children(context, number, row, command, parts)
    _remember_answer(command, row, first_index)
    row.version = command.version or row.version
    if command.records or command.children or not isinstance(then, GoOn | GiveBack):
        row.lapses = 0
    deadline_ms = 0
    if isinstance(then, Park):
        assert left is not None
        drop_activation(context, row)
        move(context, row, ExecutionEvent.PARK)
        row.wake, row.wake_all = b"".join(sorted(left)), then.all_of
    elif isinstance(then, Close):
        row.after = command.seen
        last = Note(then.outcome, after=row.after, at_ms=context.now_ms,
                    payload=then.payload, place=then.place)  # fmt: skip
        append(context, number, row, as_row(context, last, parts))
        end(context, number, row, _ENDS[RecordKind(then.outcome)])
    elif isinstance(then, NewRun):
        begin_run(context, number, row, then, parts)
    elif isinstance(then, GiveBack):
        _give_back(context, command, row, then)
    elif command.extend_ms:
        extended = extend(context, Extend((command.lease,), lease_timeout_ms=command.extend_ms))
        assert not isinstance(extended, Refusal)
        deadline_ms = extended.outcomes[0][1]
    put_execution(context, number, row)
    return Recorded(command.number, first_index, deadline_ms=deadline_ms, now_ms=context.now_ms)


def _give_back(
    context: ApplyContext, command: RecordProgress, row: ExecutionRow, then: GiveBack
) -> None:
    if then.stuck:
        stick(context, row, then.reason)
        return
    if then.pinned:
        row.reason = then.reason
        if then.refused and then.refused not in row.refused:
            row.refused = [*row.refused, then.refused][-EXECUTION_REFUSALS_MAX:]
    if then.pinned or row.pin:
        pin(context, command.execution, row)
    else:
        held = LeaseItems(command.lease, ((command.item, 1),))
        retry(context, Retry((held,), count_attempt=False))


def _remember_answer(command: RecordProgress, row: ExecutionRow, first_index: int) -> None:
    if command.lease == row.last_lease:
        row.answers = [*row.answers, first_index][-RECORDS_UNANSWERED_MAX:]
    else:
        row.answers = [first_index]
    row.last_lease, row.last_number = command.lease, command.number


def _see(context: ApplyContext, command: RecordProgress, row: ExecutionRow) -> None:
    """The code has been given the arrivals up to `seen`."""
    if row.unseen and command.seen > row.seen:
        txn, group, number = context.txn, context.group, command.execution
        start, _ = ARRIVALS.bounds(group, number)
        given = list(txn.scan(start, ARRIVALS.key(group, number, command.seen + 1)))
        for key, value in given:
            row.unread -= value[0] == RecordKind.SIGNAL
            txn.delete(key)
        row.unseen -= len(given)
    row.seen = max(row.seen, command.seen)


def _set_timer(context: ApplyContext, number: int, row: ExecutionRow, timer: Timer) -> None:
    """The partition has a timer from now on, or does not have it any more. One that has fired stays
    as it is: its arrival is on its way to the code.
    """
    txn, group, mark = context.txn, context.group, path_mark(timer.path)
    wait = _wait(context, number, timer.path)
    if wait is not None:
        if wait.index:
            return
        EXECUTION_TIMES.delete(txn, group, wait.due_ms, number, mark)
        WAITS.delete(txn, group, number, mark)
        row.timers -= 1
    if timer.due_ms:
        WAITS.put(txn, group, number, mark, value=encode(WaitRow(timer.path, due_ms=timer.due_ms)))
        put_time(context, number, timer.due_ms, mark)
        row.timers += 1
