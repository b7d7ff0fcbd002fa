"""RewindExecution: an execution continues from one of its records, in its next run.

    stays                                           goes
    ---------------------------------------------   ----------------------------------------------
    all records up to that one                      what the code has recorded behind it, and its
                                                    end
    signals behind it: they are unread again        cancellations behind it; a deadline that has
                                                    passed
    results of children that were started before    starts and results of children behind it
    message ids, published values, the origin:      timers that are set, resolutions of promises
    tokens of promises stay valid                   behind it: a promise can be resolved once more

A child that was started behind the record is cancelled. If the code starts it again, with the same
id, another one takes its place: the start knows by `cuts` that it is of a part that was removed,
whether it has ended or not. With `keep_children` it continues, and the start attaches to it. So
an id has one child in either case.

The lease of the activation is the fence: it ends. Each worker may run an execution that was pinned.
One that has ended is open again, and is no child any more, because its parent has its result.

What a call has had is not there any more when it is folded. So a record inside of a fold is
refused: `since` of the fold says where the call has begun.

The work is that of reading the journal once, and of the rows that go.
"""

from msgspec.structs import replace

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import RewindExecution, Rewound
from querator.model.executions import (
    ARRIVAL,
    CHILD_RESULTS,
    OUTCOMES,
    ExecutionState,
    RecordKind,
    child_result_path,
    decode_path,
)
from querator.model.limits import EXECUTION_REWINDS_MAX
from querator.partition.apply_context import ApplyContext
from querator.partition.execution_cancels import cancel
from querator.partition.execution_children import give, put_result
from querator.partition.execution_rows import (
    DEADLINE,
    HASH_BYTES,
    ExecutionRow,
    RecordRow,
    decode_child,
    decode_record,
    decode_wait,
)
from querator.partition.execution_starts import has_begun, remember
from querator.partition.executions import (
    ExecutionEvent,
    activate,
    count,
    drop_activation,
    drop_record,
    find_execution,
    free,
    load_execution,
    mark_of,
    move,
    notify,
    of_another_run,
    put_execution,
    put_time,
)
from querator.partition.pins import remove_pin
from querator.partition.rows import encode
from querator.storage.tables import (
    ARRIVALS,
    CHILDREN,
    EXECUTION_TIMES,
    RECORDS,
    RETAINED,
    WAITS,
)

_ENDS = OUTCOMES | {RecordKind.TERMINATED}
_Journal = dict[int, RecordRow]


def rewind(context: ApplyContext, command: RewindExecution) -> Rewound | Refusal:
    found = find_execution(context, command.id)
    if found is None:
        return Refusal(
            ErrorCode.EXECUTION_NOT_FOUND,
            f"there is no execution {command.id}",
            field="id",
            value=command.id,
        )
    number, row = found
    if has_begun(row, command.request):
        return Rewound(number, row.run, repeated=True)
    journal = {
        int.from_bytes(key[-8:], "big"): decode_record(raw)
        for key, raw in RECORDS.rows(context.txn, context.group, number)
    }
    refusal = of_another_run(command.run, row) or _refuse(command, row, journal)
    if refusal is not None:
        return refusal
    records = len(journal)
    children = _rewind(context, number, row, command, journal)
    return Rewound(number, row.run, records - row.records, children)


def _refuse(command: RewindExecution, row: ExecutionRow, journal: _Journal) -> Refusal | None:
    """The refusal of a record that is not there, is the end, or is inside of a fold; and of the
    33rd rewind.
    """
    to = command.record
    for index, one in sorted(journal.items()):
        if 0 < one.since <= to < index:
            where = ".".join(map(str, decode_path(one.path)))
            return _no_place(
                command,
                f"is inside of the call {one.name or where} (path {where}), whose records "
                f"{one.since} to {index} are one; rewind to before {one.since}, or to {index}",
            )
    if to not in journal:
        return _no_place(command, f"is not there; the last one is {max(journal)}")
    if journal[to].kind in _ENDS:
        return _no_place(command, "is the end of the execution; rewind to an earlier one")
    if len(_cuts(row, to)) > EXECUTION_REWINDS_MAX:
        return Refusal(
            ErrorCode.LIMIT_EXCEEDED,
            f"execution {row.id} was rewound {EXECUTION_REWINDS_MAX} times; rewind to a record "
            "before the earliest of these, or start it again",
            field="rewinds",
            limit=str(EXECUTION_REWINDS_MAX),
            value=str(EXECUTION_REWINDS_MAX + 1),
        )
    return None


def _no_place(command: RewindExecution, why: str) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        f"record {command.record} of execution {command.id} {why}",
        field="record",
        value=str(command.record),
    )


def _cuts(row: ExecutionRow, to: int) -> list[tuple[int, int]]:
    """What rewinds have removed, with all behind this record."""
    return [one for one in row.cuts if one[0] <= to] + [(to + 1, row.next_index)]


def _rewind(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    command: RewindExecution,
    journal: _Journal,
) -> int:
    """Returns how many children were cancelled."""
    to = command.record
    starts = {
        one.path
        for index, one in journal.items()
        if index <= to and one.kind == RecordKind.CHILD_STARTED
    }
    results = {child_result_path(path) for path in starts}
    kept = {
        index: one
        for index, one in journal.items()
        if index <= to
        or one.kind == RecordKind.SIGNAL
        or (one.kind in CHILD_RESULTS and one.path in results)
    }
    for index in journal.keys() - kept.keys():
        drop_record(context, number, index, journal[index])
        count(context, row, -1, -journal[index].weight)
    if row.cancelled not in kept:
        row.cancelled = 0
    _open_again(context, number, row)
    row.run += 1
    row.lapses = 0
    row.requests = remember(row.requests, command.request)
    row.seen = row.after = max(
        (one.after for one in kept.values() if one.kind < ARRIVAL), default=0
    )
    _index_arrivals(context, number, row, kept)
    children = _cut_children(context, number, row, to, results, keep=command.keep_children)
    _cut_waits(context, number, row, to=to, kept=kept, results=results)
    if not command.keep_children:
        row.cuts = _cuts(row, to)
    activate(context, number, row)
    put_execution(context, number, row)
    return children


def _open_again(context: ApplyContext, number: int, row: ExecutionRow) -> None:
    """Whatever its state was, it has no activation and is open."""
    txn, group = context.txn, context.group
    if row.activation:
        notify(context, number)
        drop_activation(context, row)
    if row.state == ExecutionState.PINNED:
        remove_pin(txn, group, row)
    free(row)
    if row.closed:
        RETAINED.delete(txn, group, row.until_ms, number)
        row.closed_ms = row.end_index = row.until_ms = 0
        row.parent = row.parent_run = row.parent_index = 0
        row.parent_id = ""
    move(context, row, ExecutionEvent.REWIND)
    if row.deadline_ms and not row.cancelled:
        if row.deadline_ms > context.now_ms:
            put_time(context, number, row.deadline_ms, DEADLINE)
        else:
            EXECUTION_TIMES.delete(txn, group, row.deadline_ms, number, DEADLINE)
            row.deadline_ms = 0


def _index_arrivals(
    context: ApplyContext, number: int, row: ExecutionRow, journal: _Journal
) -> None:
    """The index has what the code has not been given, and the row counts it."""
    txn, group = context.txn, context.group
    for key in [bytes(key) for key, _ in ARRIVALS.rows(txn, group, number)]:
        txn.delete(key)
    row.last_arrival = row.unseen = row.unread = 0
    for index, one in sorted(journal.items()):
        if one.kind < ARRIVAL:
            continue
        row.last_arrival = index
        if index > row.seen:
            row.unseen += 1
            row.unread += one.kind == RecordKind.SIGNAL
            value = bytes((one.kind,)) + mark_of(one)
            ARRIVALS.put(txn, group, number, index, value=value)


def _cut_children(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    to: int,
    results: set[bytes],
    *,
    keep: bool,
) -> int:
    """Cancels the children that were started behind the record, and have not ended; with `keep`
    none. Others arrive for the operations before it alone. Returns how many were cancelled.
    """
    txn, group = context.txn, context.group
    cancelled = 0
    for key, raw in [(bytes(key), raw) for key, raw in CHILDREN.rows(txn, group, number)]:
        known = decode_child(raw)
        child = int.from_bytes(key[-8:], "big")
        other = load_execution(context, child)
        assert other is not None, "a child that has not ended has its row"
        if other.parent_index > to and not keep:
            txn.delete(key)
            cancel(context, child, other, "parent", f"its parent {row.id} was rewound".encode())
            put_execution(context, child, other)
            cancelled += 1
            continue
        paths = tuple(path for path in known.paths if path in results)
        CHILDREN.put(txn, group, number, child, value=encode(replace(known, paths=paths)))
    return cancelled


def _cut_waits(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    *,
    to: int,
    kept: _Journal,
    results: set[bytes],
) -> None:
    """What the records that stay have waited for stays. Results of children that came while the
    execution had ended arrive.
    """
    txn, group = context.txn, context.group
    row.timers = row.promises = row.children = 0
    for key, raw in [(bytes(key), raw) for key, raw in WAITS.rows(txn, group, number)]:
        wait = decode_wait(raw)
        if wait.child and not wait.index and wait.path in results:
            row.children += 1
            if CHILDREN.get(txn, group, number, wait.child) is None:
                _give_late(context, number, row, wait.child, wait.path)
        elif 0 < wait.index <= to or (wait.index and wait.index in kept):
            row.promises += wait.kind in (RecordKind.RESOLVED, RecordKind.REJECTED)
        else:
            txn.delete(key)
            if wait.due_ms and not wait.index:
                EXECUTION_TIMES.delete(txn, group, wait.due_ms, number, key[-HASH_BYTES:])


def _give_late(
    context: ApplyContext, number: int, row: ExecutionRow, child: int, path: bytes
) -> None:
    other = load_execution(context, child)
    if other is not None and other.closed and (other.parent, other.parent_run) == (
        number, row.origin,
    ):  # fmt: skip
        give(context, number, row, child, other, path=path)
        return
    lost = RecordRow(RecordKind.CHILD_LOST, path=path, at_ms=context.now_ms)
    put_result(context, number, row, child, lost)
