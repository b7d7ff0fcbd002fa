"""Arrive: what clients send to an execution: signals, values of promises, its end.

    kind              on one that has not ended                       on one that has ended
    ---------------   ---------------------------------------------   ----------------------------
    SIGNAL            appended, once for each message id              EXECUTION_CLOSED, or repeat
    RESOLVE, REJECT   the first one is appended and wins; others      as on the left, or
                      get its answer                                  EXECUTION_CLOSED
    CANCEL            appended, once                                  repeat, or EXECUTION_CLOSED
    TERMINATE         appended; the execution ends                    repeat, or EXECUTION_CLOSED
    RETRY             one that is stuck or pinned is runnable, for    EXECUTION_CLOSED
                      any worker; no record

A promise is proved by a hash under the secret of its execution, so that it needs no row before it
is resolved.
"""

import hmac
from collections.abc import Sequence

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import Arrive, Arrived
from querator.model.executions import ArriveKind, ExecutionState, RecordKind, promise_mac
from querator.model.limits import (
    EXECUTION_PROMISES_MAX,
    JOURNAL_BYTES_MAX,
    JOURNAL_RECORDS_KEPT,
    JOURNAL_RECORDS_MAX,
    SIGNALS_REMEMBERED_MAX,
    SIGNALS_UNREAD_MAX,
)
from querator.partition.apply_context import ApplyContext
from querator.partition.execution_cancels import forsake
from querator.partition.execution_children import end
from querator.partition.execution_rows import (
    ExecutionRow,
    RecordRow,
    WaitRow,
    decode_wait,
    name_hash,
    path_mark,
)
from querator.partition.executions import (
    ExecutionEvent,
    Part,
    activate,
    append,
    arrive,
    drop_parts,
    find_execution,
    free,
    load_execution,
    move,
    notify,
    of_another_run,
    put_execution,
    stored,
)
from querator.partition.pins import remove_pin
from querator.partition.rows import encode
from querator.storage.tables import SIGNAL_ORDER, SIGNALS_SEEN, WAITS


def take(context: ApplyContext, command: Arrive, parts: Sequence[Part]) -> Arrived | Refusal:
    """Applies an Arrive. `parts` are its attachments with their sizes."""
    promise = command.kind in (ArriveKind.RESOLVE, ArriveKind.REJECT)
    if promise:
        row = load_execution(context, command.execution)
        found = None if row is None else (command.execution, row)
    else:
        found = find_execution(context, command.id)
    if found is None:
        drop_parts(context, parts)
        return _token_invalid() if promise else _not_found(command)
    number, row = found
    if promise:
        result = _resolve(context, command, number, row, parts)
    else:
        result = of_another_run(command.run, row) or _by_kind(context, command, number, row, parts)
    if isinstance(result, Refusal) or result.repeated:
        drop_parts(context, parts)
    else:
        put_execution(context, number, row)
    return result


def _by_kind(
    context: ApplyContext,
    command: Arrive,
    number: int,
    row: ExecutionRow,
    parts: Sequence[Part],
) -> Arrived | Refusal:
    match command.kind:
        case ArriveKind.SIGNAL:
            return _signal(context, command, number, row, parts)
        case ArriveKind.CANCEL:
            return _cancel(context, command, number, row, parts)
        case ArriveKind.TERMINATE:
            return _terminate(context, command, number, row, parts)
        case _:
            assert command.kind == ArriveKind.RETRY
            return _retry(context, number, row)


def _not_found(command: Arrive) -> Refusal:
    return Refusal(
        ErrorCode.EXECUTION_NOT_FOUND,
        f"there is no execution {command.id}",
        field="id",
        value=command.id,
    )


def _token_invalid() -> Refusal:
    return Refusal(ErrorCode.TOKEN_INVALID, "no execution has made this promise", field="proof")


def _closed(row: ExecutionRow) -> Refusal:
    state = ExecutionState(row.state).name
    return Refusal(
        ErrorCode.EXECUTION_CLOSED,
        f"execution {row.id} has ended: {state}",
        field="id",
        value=state,
    )


def _record_of(
    context: ApplyContext,
    kind: RecordKind,
    command: Arrive,
    parts: Sequence[Part],
    name: str = "",
) -> RecordRow:
    return RecordRow(
        kind, command.path, name, "", 0, context.now_ms,
        *stored(context, command.place, parts, command.payload),
    )  # fmt: skip


def _signal(
    context: ApplyContext,
    command: Arrive,
    number: int,
    row: ExecutionRow,
    parts: Sequence[Part],
) -> Arrived | Refusal:
    txn, group = context.txn, context.group
    message = name_hash(command.message_id) if command.message_id else b""
    if message:
        raw = SIGNALS_SEEN.get(txn, group, number, message)
        if raw is not None:
            index = int.from_bytes(raw, "big")
            return Arrived(number, row.run, index, RecordKind.SIGNAL, repeated=True)
    if row.closed:
        return _closed(row)
    if row.unread >= SIGNALS_UNREAD_MAX:
        return Refusal(
            ErrorCode.SIGNALS_FULL,
            f"execution {row.id} has {row.unread} unread signals; the limit is "
            f"{SIGNALS_UNREAD_MAX}",
            field="id",
            limit=str(SIGNALS_UNREAD_MAX),
            value=str(row.unread),
        )
    refusal = _no_room(row, command, parts)
    if refusal is not None:
        return refusal
    record = _record_of(context, RecordKind.SIGNAL, command, parts, command.name)
    index = arrive(context, number, row, record)
    if message:
        SIGNALS_SEEN.put(txn, group, number, message, value=index.to_bytes(8, "big"))
        SIGNAL_ORDER.put(txn, group, number, index, value=message)
        row.signals += 1
        if row.signals > SIGNALS_REMEMBERED_MAX:
            _forget_signal(context, number, row)
    return Arrived(number, row.run, index, RecordKind.SIGNAL)


def _forget_signal(context: ApplyContext, number: int, row: ExecutionRow) -> None:
    """Forgets the message id of the oldest remembered signal."""
    key, message = next(SIGNAL_ORDER.rows(context.txn, context.group, number))
    SIGNALS_SEEN.delete(context.txn, context.group, number, bytes(message))
    context.txn.delete(bytes(key))
    row.signals -= 1


def _no_room(row: ExecutionRow, command: Arrive, parts: Sequence[Part]) -> Refusal | None:
    """The refusal of an arrival for which the journal has no room. Timers, cancellations and
    terminations always have some.
    """
    records_max = JOURNAL_RECORDS_MAX - JOURNAL_RECORDS_KEPT
    size = row.size + len(command.payload) + sum(size for _, size in parts)
    if row.records < records_max and size <= JOURNAL_BYTES_MAX:
        return None
    return Refusal(
        ErrorCode.JOURNAL_FULL,
        f"the journal of execution {row.id} has {row.records} records and {row.size} bytes; the "
        f"limits are {records_max} records and {JOURNAL_BYTES_MAX} bytes",
        field="id",
        limit=f"{records_max} records, {JOURNAL_BYTES_MAX} bytes",
        value=f"{row.records + 1} records, {size} bytes",
    )


def _resolve(
    context: ApplyContext,
    command: Arrive,
    number: int,
    row: ExecutionRow,
    parts: Sequence[Part],
) -> Arrived | Refusal:
    expected = promise_mac(row.secret, number, command.run, command.path)
    if command.run > row.origin or not hmac.compare_digest(expected, command.mac):
        return _token_invalid()
    if command.run != row.origin:
        return Refusal(
            ErrorCode.TOKEN_INVALID,
            f"the promise is of run {command.run} of execution {row.id}, which is in run {row.run}",
            field="run",
            limit=str(row.origin),
            value=str(command.run),
        )
    txn, group, mark = context.txn, context.group, path_mark(command.path)
    raw = WAITS.get(txn, group, number, mark)
    if raw is not None:
        wait = decode_wait(raw)
        if wait.kind not in (RecordKind.RESOLVED, RecordKind.REJECTED):
            return _token_invalid()
        return Arrived(number, row.run, wait.index, wait.kind, repeated=True)
    if row.closed:
        return _closed(row)
    if row.promises >= EXECUTION_PROMISES_MAX:
        return Refusal(
            ErrorCode.JOURNAL_FULL,
            f"execution {row.id} has {row.promises} resolved promises; the limit is "
            f"{EXECUTION_PROMISES_MAX}",
            field="path",
            limit=str(EXECUTION_PROMISES_MAX),
            value=str(row.promises + 1),
        )
    refusal = _no_room(row, command, parts)
    if refusal is not None:
        return refusal
    resolved = command.kind == ArriveKind.RESOLVE
    kind = RecordKind.RESOLVED if resolved else RecordKind.REJECTED
    index = arrive(context, number, row, _record_of(context, kind, command, parts))
    row.promises += 1
    WAITS.put(txn, group, number, mark, value=encode(WaitRow(command.path, kind, index=index)))
    return Arrived(number, row.run, index, kind)


def _cancel(
    context: ApplyContext,
    command: Arrive,
    number: int,
    row: ExecutionRow,
    parts: Sequence[Part],
) -> Arrived | Refusal:
    if row.cancelled:
        # Also when it has ended since: a client that had no answer asks once more.
        return Arrived(number, row.run, row.cancelled, RecordKind.CANCEL, repeated=True)
    if row.closed:
        return _closed(row)
    record = _record_of(context, RecordKind.CANCEL, command, parts, "cancel")
    row.cancelled = row.next_index
    index = arrive(context, number, row, record)
    forsake(context, number, row)
    return Arrived(number, row.run, index, RecordKind.CANCEL)


def _terminate(
    context: ApplyContext,
    command: Arrive,
    number: int,
    row: ExecutionRow,
    parts: Sequence[Part],
) -> Arrived | Refusal:
    if row.state == ExecutionState.TERMINATED:
        return Arrived(number, row.run, row.end_index, RecordKind.TERMINATED, repeated=True)
    if row.closed:
        return _closed(row)
    if row.activation:
        notify(context, number)
    index = append(context, number, row, _record_of(context, RecordKind.TERMINATED, command, parts))
    end(context, number, row, ExecutionEvent.TERMINATE)
    return Arrived(number, row.run, index, RecordKind.TERMINATED)


def _retry(context: ApplyContext, number: int, row: ExecutionRow) -> Arrived | Refusal:
    if row.closed:
        return _closed(row)
    if row.state == ExecutionState.PINNED:
        remove_pin(context.txn, context.group, row)
    elif row.state != ExecutionState.STUCK:
        return Arrived(number, row.run, 0, 0, repeated=True)
    free(row)
    move(context, row, ExecutionEvent.RETRY)
    activate(context, number, row)
    return Arrived(number, row.run, 0, 0)
