"""Children: executions that another one has started, and waits for.

    a Record of the parent starts one     its row, its arguments and its activation are made in the
                                          same entry; CHILD_STARTED in the journal of the parent
    it may not be started                 CHILD_REFUSED in the journal of the parent
    it has ended                          its result in the journal of the parent, in the same entry
    the parent is cancelled, or ends      the children that are attached are cancelled

So a child is started once: the arrival that says so is in the entry of the start, and a worker
starts nothing for a path that has it. Its result arrives once: the row in CHILDREN goes with it.

A child is a neighbour of its parent: both are in one partition. If the parent has ended, or is
gone, the result is dropped: nothing reads it. Children are cancelled by FireTimers, up to
EXECUTION_FIRES_MAX in one command, because each of them may have as many.
"""

from collections.abc import Sequence

import msgspec

from querator.model.errors import ErrorCode
from querator.model.execution_commands import RecordProgress
from querator.model.executions import (
    ChildRefusal,
    ChildStart,
    ExecutionState,
    RecordKind,
    child_result_path,
    child_secret,
)
from querator.model.limits import (
    EXECUTION_CHILD_WAITS_MAX,
    EXECUTION_CHILDREN_DEEP_MAX,
    EXECUTION_CHILDREN_MAX,
    EXECUTIONS_MAX,
    JOURNAL_BYTES_MAX,
    JOURNAL_RECORDS_KEPT,
    JOURNAL_RECORDS_MAX,
)
from querator.partition.apply_context import ApplyContext
from querator.partition.execution_rows import (
    ORPHANS,
    ChildEnds,
    ChildRow,
    ExecutionRow,
    RecordRow,
    WaitRow,
    decode_child,
    decode_record,
    decode_wait,
    path_mark,
)
from querator.partition.executions import (
    ExecutionEvent,
    Part,
    arrive,
    close,
    counts_of,
    create,
    drop_parts,
    find_execution,
    load_execution,
    put_execution,
    put_time,
    stored,
)
from querator.partition.rows import encode
from querator.storage import attachments
from querator.storage.attachments import AttachmentDamaged
from querator.storage.tables import CHILDREN, RECORDS, WAITS

_RESULTS = {
    ExecutionState.COMPLETED: RecordKind.CHILD_DONE,
    ExecutionState.FAILED: RecordKind.CHILD_FAILED,
    ExecutionState.CANCELLED: RecordKind.CHILD_CANCELLED,
    ExecutionState.TERMINATED: RecordKind.CHILD_TERMINATED,
}


def start_children(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    command: RecordProgress,
    parts: Sequence[Part],
) -> None:
    """Starts the children of a Record, or says why not. The caller writes the row of the parent."""
    for child in command.children:
        found = find_execution(context, child.id)
        refusal = _refused(context, number, row, child, found)
        if child.place and (found is not None or refusal is not None):
            drop_parts(context, [parts[child.place - 1]])
        kind, payload = RecordKind.CHILD_STARTED, b""
        if refusal is not None:
            kind, payload = RecordKind.CHILD_REFUSED, msgspec.json.encode(refusal)
        said = RecordRow(
            kind, path=child.path, name=child.function, site=child.site,
            at_ms=context.now_ms, payload=payload,
        )  # fmt: skip
        arrive(context, number, row, said)
        if refusal is not None:
            continue
        if found is None:
            _start(context, number, row, child, parts, is_late=command.seen < row.cancelled)
        else:
            _attach(context, number, row, child, *found)


def _refused(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    child: ChildStart,
    found: tuple[int, ExecutionRow] | None,
) -> ChildRefusal | None:
    room = JOURNAL_RECORDS_MAX - (0 if row.cancelled else JOURNAL_RECORDS_KEPT)
    # The start is a record, and the result of each that waits will be one.
    records = row.records + row.children + 2
    held = counts_of(context).executions
    if row.children >= EXECUTION_CHILDREN_MAX:
        return _limit("children that have not ended", row.children + 1, EXECUTION_CHILDREN_MAX)
    if records > room:
        message = f"the journal would have {records} records; the limit is {room}"
        return ChildRefusal(ErrorCode.JOURNAL_FULL.name, message)
    if found is not None:
        return _taken(context, number, row, child, *found)
    if row.deep >= EXECUTION_CHILDREN_DEEP_MAX:
        return _limit("ancestors of the child", row.deep + 1, EXECUTION_CHILDREN_DEEP_MAX)
    if held >= EXECUTIONS_MAX:
        message = f"the partition holds {held} executions, and may hold {EXECUTIONS_MAX}"
        return ChildRefusal(ErrorCode.QUEUE_FULL.name, message)
    return None


def _limit(what: str, value: int, limit: int) -> ChildRefusal:
    message = f"there would be {value} {what}; the limit is {limit}"
    return ChildRefusal(ErrorCode.LIMIT_EXCEEDED.name, message)


def _taken(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    child: ChildStart,
    found: int,
    other: ExecutionRow,
) -> ChildRefusal | None:
    """The refusal of an id that an execution has. None: it is the same child."""
    if (other.parent, other.parent_run) != (number, row.run):
        ancestor = found == number or found in _ancestors(context, row)
        of = "it is the execution itself, or its ancestor" if ancestor else "another one has it"
    elif (other.function, other.arguments) != (child.function, child.arguments):
        of = f"that child is one of {other.function}, or has other arguments"
    else:
        raw = CHILDREN.get(context.txn, context.group, number, found)
        if raw is not None and len(decode_child(raw).paths) >= EXECUTION_CHILD_WAITS_MAX:
            return _limit(f"operations that wait for child {child.id}",
                          EXECUTION_CHILD_WAITS_MAX + 1, EXECUTION_CHILD_WAITS_MAX)  # fmt: skip
        return None
    message = f"there is an execution {child.id}: {of}"
    return ChildRefusal(ErrorCode.EXECUTION_EXISTS.name, message)


def _ancestors(context: ApplyContext, row: ExecutionRow) -> set[int]:
    """The numbers of the ancestors, as far as their rows are there."""
    found: set[int] = set()
    above: ExecutionRow | None = row
    while above is not None and above.parent:
        found.add(above.parent)
        above = load_execution(context, above.parent)
    return found


def _start(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    child: ChildStart,
    parts: Sequence[Part],
    *,
    is_late: bool,
) -> None:
    """`is_late`: the parent was cancelled, and its code did not know it when it started the
    child.
    """
    made = ExecutionRow(
        id=child.id,
        function=child.function,
        version=child.version,
        secret=child_secret(row.secret, number, row.run, child.path),
        arguments=child.arguments,
        created_ms=context.now_ms,
        priority=row.priority,
        parent=number,
        parent_run=row.run,
        parent_id=row.id,
        deep=row.deep + 1,
    )
    content = stored(context, child.place, parts, child.payload)
    made_number = create(context, made, content, due_ms=0)
    ends = ChildEnds.WITH_END if child.shielded else ChildEnds.WITH_CANCEL
    if child.detached:
        ends = ChildEnds.NEVER
    elif ends is ChildEnds.WITH_CANCEL and row.cancelled:
        # The cancellation that the parent knows of is not one of this child.
        ends = ChildEnds.WITH_END
        if is_late:
            ends = ChildEnds.NEVER
            cancel(context, made_number, made, "parent", _reason(row))
            put_execution(context, made_number, made)
    _await(context, number, row, made_number, ChildRow((), ends), path=child.path)


def _await(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    child: int,
    known: ChildRow,
    *,
    path: bytes,
) -> None:
    """The parent waits for a child."""
    txn, group, result = context.txn, context.group, child_result_path(path)
    known = msgspec.structs.replace(known, paths=(*known.paths, result))
    CHILDREN.put(txn, group, number, child, value=encode(known))
    wait = WaitRow(result, RecordKind.CHILD_DONE, child=child)
    WAITS.put(txn, group, number, path_mark(result), value=encode(wait))
    row.children += 1


def _attach(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    child: ChildStart,
    found: int,
    other: ExecutionRow,
) -> None:
    """The child was there: its result arrives for this path, too."""
    if not other.closed:
        raw = CHILDREN.get(context.txn, context.group, number, found)
        assert raw is not None, "a child that has not ended has a row at its parent"
        _await(context, number, row, found, decode_child(raw), path=child.path)
        return
    row.children += 1
    _give(context, number, row, found, other, path=child_result_path(child.path))


def end(context: ApplyContext, number: int, row: ExecutionRow, event: ExecutionEvent) -> None:
    """An execution has ended, and its last record is appended: its parent gets the result, and its
    children are cancelled. The caller writes the row.
    """
    close(context, number, row, event)
    forsake(context, number, row)
    raw = CHILDREN.get(context.txn, context.group, row.parent, number) if row.parent else None
    if raw is None:
        return
    CHILDREN.delete(context.txn, context.group, row.parent, number)
    parent = load_execution(context, row.parent)
    if parent is None:
        # It is being removed.
        return
    for path in decode_child(raw).paths:
        if parent.closed:
            WAITS.delete(context.txn, context.group, row.parent, path_mark(path))
            parent.children -= 1
        else:
            _give(context, row.parent, parent, number, row, path=path)
    put_execution(context, row.parent, parent)


def _give(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    child: int,
    ended: ExecutionRow,
    *,
    path: bytes,
) -> None:
    """The result of a child arrives at its parent, for a path for which it is counted. It is a copy
    in the row of the record, because the child may be removed before its parent.
    """
    txn, group = context.txn, context.group
    raw = RECORDS.get(txn, group, child, ended.end_index)
    assert raw is not None, "an execution that has ended has its last record"
    last = decode_record(raw)
    kind = _RESULTS[ExecutionState(ended.state)]
    payload = last.payload
    if row.size + len(last.payload) + last.size > JOURNAL_BYTES_MAX:
        kind, payload = RecordKind.CHILD_LOST, b""
    elif last.index:
        data = attachments.read(txn, group, last.index, last.part)
        if data is None:
            raise AttachmentDamaged(group, last.index, last.part, "missing")
        payload = data
    result = RecordRow(
        kind, path=path, name=ended.function, at_ms=context.now_ms, payload=payload
    )  # fmt: skip
    index = arrive(context, number, row, result)
    wait = WaitRow(path, kind, index=index, child=child)
    WAITS.put(txn, group, number, path_mark(path), value=encode(wait))
    row.children -= 1


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
    if row.children:
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
        cancel(context, wait.child, child, "parent", _reason(row))
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
        cancel(context, child, other, "parent", _reason(row))
        kept = msgspec.structs.replace(known, ends=ChildEnds.NEVER)
        CHILDREN.put(context.txn, context.group, number, child, value=encode(kept))
    return len(doomed)


def forget_children(context: ApplyContext, number: int, rows_max: int, *, reason: bytes) -> int:
    """Deletes up to `rows_max` rows of children of an execution that is gone, or begins again.
    Those that were to be cancelled are.
    """
    found: list[tuple[bytes, ChildRow]] = []
    for key, raw in CHILDREN.rows(context.txn, context.group, number):
        if len(found) >= rows_max:
            break
        found.append((key, decode_child(raw)))
    for key, known in found:
        context.txn.delete(key)
        if known.ends != ChildEnds.NEVER:
            child = int.from_bytes(key[-8:], "big")
            other = load_execution(context, child)
            assert other is not None, "a child that has not ended has its row"
            cancel(context, child, other, "parent", reason)
            put_execution(context, child, other)
    return len(found)


def _reason(row: ExecutionRow) -> bytes:
    why = "has ended" if row.closed else "was cancelled" if row.cancelled else "cancels it"
    return f"its parent {row.id} {why}".encode()
