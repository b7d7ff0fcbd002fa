"""FireTimers: timers and deadlines of executions that are due, and executions that were kept long
enough; children of what was cancelled, or has ended.

The leader proposes it when the head of the counts is due. The head is a lower bound, as those of
the state row are (`expire`). One command fires up to EXECUTION_FIRES_MAX timers, each of which may
make an activation, cancels as many children, and deletes up to APPLY_SEGMENTS_MAX rows; the rest is
due again at once.

An execution that is removed loses its row and its name first, so that its id is free and no reader
finds a part of it. The row in RETAINED stays until its other rows are gone.
"""

from querator.model.commands import Done
from querator.model.executions import RecordKind
from querator.model.limits import APPLY_SEGMENTS_MAX, EXECUTION_FIRES_MAX
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.execution_cancels import cancel, cancel_children, forget_children
from querator.partition.execution_rows import (
    DEADLINE,
    DISCARDED,
    ORPHANS,
    ChildEnds,
    ExecutionRow,
    RecordRow,
    decode_record,
    decode_wait,
    name_hash,
)
from querator.partition.executions import (
    arrive,
    counts_of,
    drop_record,
    load_execution,
    put_execution,
)
from querator.partition.rows import encode
from querator.storage.keys import Table
from querator.storage.tables import (
    ARRIVALS,
    EXECUTION_NAMES,
    EXECUTION_TIMES,
    EXECUTIONS,
    PUBLISHED,
    RECORDS,
    RETAINED,
    SIGNAL_ORDER,
    SIGNALS_SEEN,
    WAITS,
)


def fire_timers(context: ApplyContext) -> Done:
    """`changed` counts timers that were due and rows that were deleted."""
    work = _fire(context)
    work += _forget(context, APPLY_SEGMENTS_MAX)
    counts = counts_of(context)
    counts.head_ms = 0
    for table in (EXECUTION_TIMES, RETAINED):
        for key, _ in table.rows(context.txn, context.group):
            counts.head_ms = earlier(counts.head_ms, int.from_bytes(key[9:17], "big"))
            break
    return Done(work)


def _fire(context: ApplyContext) -> int:
    """Fires what is due, in the order of (due, execution, path), and cancels children. Returns the
    number of rows.
    """
    due: list[tuple[bytes, int, bytes]] = []
    for key, _ in EXECUTION_TIMES.rows(context.txn, context.group):
        due_ms, number, mark = EXECUTION_TIMES.parts(key)
        assert isinstance(due_ms, int)
        assert isinstance(number, int)
        assert isinstance(mark, bytes)
        if due_ms > context.now_ms or len(due) == EXECUTION_FIRES_MAX:
            break
        due.append((key, number, mark))
    rows: dict[int, ExecutionRow] = {}
    cancelled = 0
    for key, number, mark in due:
        row = rows.get(number) or load_execution(context, number)
        # A run that has begun since does not lose its children.
        if mark == ORPHANS and row is not None and (row.closed or row.cancelled):
            cancelled += cancel_children(
                context, number, row, rows, EXECUTION_FIRES_MAX - cancelled
            )
            if cancelled == EXECUTION_FIRES_MAX:
                # It may have more: the next command sees.
                break
        context.txn.delete(key)
        if row is None or row.closed or mark == ORPHANS:
            continue
        rows[number] = row
        if mark == DEADLINE:
            cancel(context, number, row, "deadline", b"")
        else:
            _fire_one(context, number, row, mark)
    for number, row in sorted(rows.items()):
        put_execution(context, number, row)
    return len(due) + cancelled


def _fire_one(context: ApplyContext, number: int, row: ExecutionRow, mark: bytes) -> None:
    raw = WAITS.get(context.txn, context.group, number, mark)
    assert raw is not None, "a time has its timer"
    wait = decode_wait(raw)
    fired = RecordRow(RecordKind.TIMER_FIRED, wait.path, at_ms=context.now_ms)
    index = arrive(context, number, row, fired)
    row.timers -= 1
    counts_of(context).fired += 1
    arrived = type(wait)(wait.path, wait.kind, wait.due_ms, index)
    WAITS.put(context.txn, context.group, number, mark, value=encode(arrived))


def _forget(context: ApplyContext, rows_max: int) -> int:
    """Removes executions that were kept long enough, up to `rows_max` rows."""
    txn, group = context.txn, context.group
    due: list[tuple[bytes, int, bytes]] = []
    for key, value in RETAINED.rows(txn, group):
        until_ms, number = RETAINED.parts(key)
        assert isinstance(until_ms, int)
        assert isinstance(number, int)
        if until_ms > context.now_ms or len(due) == rows_max:
            break
        due.append((key, number, bytes(value)))
    work = 0
    for key, number, value in due:
        if work >= rows_max:
            break
        row = load_execution(context, number)
        if row is not None:
            forget_row(context, number, row)
            work += 1
        work += _forget_records(context, number, rows_max - work)
        work += forget_children(
            context, number, rows_max - work, reason=b"its parent is gone",
            least=ChildEnds.NEVER if value == DISCARDED else ChildEnds.WITH_END,
        )  # fmt: skip
        for table in (WAITS, ARRIVALS, SIGNALS_SEEN, SIGNAL_ORDER, PUBLISHED):
            work += _forget_rows(context, table, number, rows_max - work)
        if work < rows_max:
            txn.delete(key)
            work += 1
    return work


def forget_row(context: ApplyContext, number: int, row: ExecutionRow) -> None:
    """Removes its row and its name. What else it has is removed with its row in RETAINED."""
    txn, group, counts = context.txn, context.group, counts_of(context)
    EXECUTIONS.delete(txn, group, number)
    EXECUTION_NAMES.delete(txn, group, name_hash(row.id))
    if row.deadline_ms:
        EXECUTION_TIMES.delete(txn, group, row.deadline_ms, number, DEADLINE)
    counts.executions -= 1
    counts.closed -= 1
    counts.removed += 1
    counts.records -= row.records
    counts.bytes -= row.size


def _forget_records(context: ApplyContext, number: int, rows_max: int) -> int:
    found: list[tuple[int, RecordRow]] = []
    for key, raw in RECORDS.rows(context.txn, context.group, number):
        if len(found) >= rows_max:
            break
        found.append((int.from_bytes(key[-8:], "big"), decode_record(raw)))
    for index, record in found:
        drop_record(context, number, index, record)
    return len(found)


def _forget_rows(context: ApplyContext, table: Table, number: int, rows_max: int) -> int:
    """Deletes rows of an execution; those of timers with their times."""
    found: list[tuple[bytes, bytes]] = []
    for key, value in table.rows(context.txn, context.group, number):
        if len(found) >= rows_max:
            break
        found.append((key, value))
    for key, value in found:
        context.txn.delete(key)
        if table is WAITS:
            wait = decode_wait(value)
            if wait.due_ms and not wait.index:
                EXECUTION_TIMES.delete(
                    context.txn, context.group, wait.due_ms, number, key[-len(DEADLINE) :]
                )
    return len(found)
