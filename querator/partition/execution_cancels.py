"""Cancellations: of an execution, and of the children of one that is cancelled, or has ended.

Children are cancelled by FireTimers, up to EXECUTION_FIRES_MAX in one command, because each of them
may have as many.
"""

from msgspec.structs import replace

from querator.model.executions import RecordKind, child_result_path
from querator.partition.apply_context import ApplyContext
from querator.partition.execution_rows import (
    ORPHANS,
    ChildEnds,
    ChildRow,
    ExecutionRow,
    RecordRow,
    decode_child,
    decode_wait,
    path_mark,
)
from querator.partition.executions import arrive, load_execution, put_execution, put_time
from querator.partition.rows import encode
from querator.storage.tables import CHILDREN, WAITS


def cancel(context: ApplyContext, number: int, row: ExecutionRow, name: str, reason: bytes) -> None:
    """Cancels an execution that has not ended, unless it is cancelled already. The caller writes
    the row.
    """
    if not row.cancelled:
        row.cancelled = row.next_index
        asked = RecordRow(
            RecordKind.CANCEL, name=name, at_ms=context.now_ms, payload=reason
        )  # fmt: skip
        arrive(context, number, row, asked)
        forsake(context, number, row)


def forsake(context: ApplyContext, number: int, row: ExecutionRow) -> None:
    """An execution was cancelled, or has ended: so are its children, soon."""
    if any(True for _ in CHILDREN.rows(context.txn, context.group, number)):
        put_time(context, number, context.now_ms, ORPHANS)


def cancel_child(context: ApplyContext, number: int, row: ExecutionRow, path: bytes) -> None:
    """The code of a parent cancels the child that the operation `path` has started, unless it has
    ended.
    """
    mark = path_mark(child_result_path(path))
    raw = WAITS.get(context.txn, context.group, number, mark)
    wait = None if raw is None else decode_wait(raw)
    if wait is not None and wait.child and not wait.index:
        child = load_execution(context, wait.child)
        assert child is not None, "a child that has not ended has its row"
        cancel(context, wait.child, child, "parent", reason_of(row))
        put_execution(context, wait.child, child)


def cancel_children(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    rows: dict[int, ExecutionRow],
    children_max: int,
) -> int:
    """Cancels up to `children_max` children of an execution that is cancelled or has ended. `rows`
    are those that the caller has loaded, and will write. Returns how many were cancelled.
    """
    least = ChildEnds.WITH_END if row.closed else ChildEnds.WITH_CANCEL
    doomed: list[tuple[int, ChildRow]] = []
    for key, raw in CHILDREN.rows(context.txn, context.group, number):
        if len(doomed) == children_max:
            break
        known = decode_child(raw)
        if known.ends >= least:
            doomed.append((int.from_bytes(key[-8:], "big"), known))
    for child, known in doomed:
        other = rows.get(child) or load_execution(context, child)
        assert other is not None, "a child that has not ended has its row"
        rows[child] = other
        cancel(context, child, other, "parent", reason_of(row))
        kept = replace(known, ends=ChildEnds.NEVER)
        CHILDREN.put(context.txn, context.group, number, child, value=encode(kept))
    return len(doomed)


def forget_children(
    context: ApplyContext,
    number: int,
    rows_max: int,
    *,
    reason: bytes,
    least: ChildEnds = ChildEnds.WITH_END,
) -> int:
    """Deletes up to `rows_max` rows of children of an execution that is gone, or begins again.
    Those that end with it, or sooner, are cancelled; `least`: also others.
    """
    found: list[tuple[bytes, ChildRow]] = []
    for key, raw in CHILDREN.rows(context.txn, context.group, number):
        if len(found) >= rows_max:
            break
        found.append((key, decode_child(raw)))
    for key, known in found:
        context.txn.delete(key)
        if known.ends >= least:
            child = int.from_bytes(key[-8:], "big")
            other = load_execution(context, child)
            assert other is not None, "a child that has not ended has its row"
            cancel(context, child, other, "parent", reason)
            put_execution(context, child, other)
    return len(found)


def reason_of(row: ExecutionRow) -> bytes:
    why = "has ended" if row.closed else "was cancelled" if row.cancelled else "cancels it"
    return f"its parent {row.id} {why}".encode()
