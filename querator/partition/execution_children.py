"""Children: executions that another one has started, and waits for.

    a Record of the parent starts one     its row, its arguments and its activation are made in the
                                          same entry; CHILD_STARTED in the journal of the parent
    it may not be started                 CHILD_REFUSED in the journal of the parent
    it has ended                          its result in the journal of the parent, in the same entry
    the parent is cancelled, or ends      the children that are attached are cancelled

So a child is started once: the arrival that says so is in the entry of the start, and a worker
starts nothing for a path that has it. Its result arrives once: the row in CHILDREN goes with it.

A child is a neighbour of its parent: both are in one partition. If the parent has ended, the result
is not written: nothing reads it, unless the parent is rewound.

A child that was started behind the record to which its parent was rewound gives its id away when it
is started again: it ends, if it has not, and another one takes its place in the same entry.
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
    EXECUTION_REWINDS_MAX,
    EXECUTIONS_MAX,
    JOURNAL_BYTES_MAX,
    JOURNAL_RECORDS_KEPT,
    JOURNAL_RECORDS_MAX,
)
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.execution_cancels import cancel, forsake, reason_of
from querator.partition.execution_rows import (
    DISCARDED,
    ChildEnds,
    ChildRow,
    ExecutionRow,
    RecordRow,
    WaitRow,
    decode_child,
    decode_record,
    path_mark,
)
from querator.partition.execution_time import forget_row
from querator.partition.executions import (
    ExecutionEvent,
    Part,
    append,
    arrive,
    close,
    counts_of,
    create,
    drop_parts,
    find_execution,
    load_execution,
    notify,
    put_execution,
    stored,
)
from querator.partition.rows import encode
from querator.storage import attachments
from querator.storage.attachments import AttachmentDamaged
from querator.storage.tables import CHILDREN, RECORDS, RETAINED, WAITS

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
        is_attached = found is not None and not is_cut(number, row, found[1])
        if child.place and (is_attached or refusal is not None):
            drop_parts(context, [parts[child.place - 1]])
        kind, payload = RecordKind.CHILD_STARTED, b""
        if refusal is not None:
            kind, payload = RecordKind.CHILD_REFUSED, msgspec.json.encode(refusal)
        said = RecordRow(
            kind, path=child.path, name=child.function, site=child.site,
            at_ms=context.now_ms, payload=payload,
        )  # fmt: skip
        index = arrive(context, number, row, said)
        if refusal is not None:
            continue
        if found is None or is_cut(number, row, found[1]):
            is_late = command.seen < row.cancelled
            _start(
                context, number, row, child, parts,
                found=found, index=index, is_late=is_late,
            )  # fmt: skip
        else:
            _attach(context, number, row, child, *found, index=index)


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
        if is_cut(number, row, found[1]):
            return None
        return _taken(context, number, row, child, *found)
    if row.deep >= EXECUTION_CHILDREN_DEEP_MAX:
        return _limit("ancestors of the child", row.deep + 1, EXECUTION_CHILDREN_DEEP_MAX)
    if held >= EXECUTIONS_MAX:
        message = f"the partition holds {held} executions, and may hold {EXECUTIONS_MAX}"
        return ChildRefusal(ErrorCode.QUEUE_FULL.name, message)
    return None


def is_cut(number: int, row: ExecutionRow, other: ExecutionRow) -> bool:
    """Whether an execution is a child whose start a rewind of its parent has removed, or the child
    of one whose place the parent has taken.
    """
    if other.parent in row.former:
        return True
    if (other.parent, other.parent_run) != (number, row.origin):
        return False
    return any(first <= other.parent_index < end for first, end in row.cuts)


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
    if (other.parent, other.parent_run) != (number, row.origin):
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
    found: tuple[int, ExecutionRow] | None,
    index: int,
    is_late: bool,
) -> None:
    """`found`: the child as it was started before its parent was rewound. Another one takes its
    place. `index` is the record of the start. `is_late`: the parent was cancelled, and its code did
    not know it when it started the child.
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
        parent_run=row.origin,
        parent_id=row.id,
        deep=row.deep + 1,
        parent_index=index,
        former=[] if found is None else [*found[1].former, found[0]][-EXECUTION_REWINDS_MAX:],
    )
    content = stored(context, child.place, parts, child.payload)
    if found is not None:
        _discard(context, *found)
    made_number = create(context, made, content, due_ms=0)
    ends = ChildEnds.WITH_END if child.shielded else ChildEnds.WITH_CANCEL
    if child.detached:
        ends = ChildEnds.NEVER
    elif ends is ChildEnds.WITH_CANCEL and row.cancelled:
        # The cancellation that the parent knows of is not one of this child.
        ends = ChildEnds.WITH_END
        if is_late:
            ends = ChildEnds.NEVER
            cancel(context, made_number, made, "parent", reason_of(row))
            put_execution(context, made_number, made)
    _await(context, number, row, made_number, ChildRow((), ends), path=child.path)


def _discard(context: ApplyContext, number: int, row: ExecutionRow) -> None:
    """A child of what a rewind has removed gives its id away: it ends, and its rows go bit by bit,
    as if it was kept long enough.
    """
    if not row.closed:
        last = RecordRow(
            RecordKind.TERMINATED, at_ms=context.now_ms, payload=b"its parent starts it again"
        )
        append(context, number, row, last)
        if row.activation:
            notify(context, number)
        end(context, number, row, ExecutionEvent.TERMINATE)
    RETAINED.delete(context.txn, context.group, row.until_ms, number)
    RETAINED.put(context.txn, context.group, context.now_ms, number, value=DISCARDED)
    counts = counts_of(context)
    counts.head_ms = earlier(counts.head_ms, context.now_ms)
    forget_row(context, number, row)


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
    *,
    index: int,
) -> None:
    """The child was there: its result arrives for this path, too."""
    if not other.closed:
        raw = CHILDREN.get(context.txn, context.group, number, found)
        assert raw is not None, "a child that has not ended has a row at its parent"
        known = decode_child(raw)
        if not known.paths:
            # A rewind has kept it, and has removed its start.
            other.parent_index = index
            put_execution(context, found, other)
        _await(context, number, row, found, known, path=child.path)
        return
    row.children += 1
    give(context, number, row, found, other, path=child_result_path(child.path))


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
    if parent is None or parent.closed:
        # It is being removed, or reads nothing any more; its waits stay, should it be rewound.
        return
    for path in decode_child(raw).paths:
        give(context, row.parent, parent, number, row, path=path)
    put_execution(context, row.parent, parent)


def give(
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
    put_result(context, number, row, child, result)


def put_result(
    context: ApplyContext, number: int, row: ExecutionRow, child: int, result: RecordRow
) -> None:
    """A result of a child arrives at its parent."""
    index = arrive(context, number, row, result)
    wait = WaitRow(result.path, result.kind, index=index, child=child)
    WAITS.put(context.txn, context.group, number, path_mark(result.path), value=encode(wait))
    row.children -= 1
