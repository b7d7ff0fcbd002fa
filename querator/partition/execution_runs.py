"""A new run: an execution continues with new arguments and an empty journal, under its id. Its code
asks for it, or a start after its end.

    stays                                           goes
    ---------------------------------------------   ----------------------------------------------
    id, number, secret, parent, deadline            all records that the code has been given
    signals that the code has not received, in      other arrivals: timers, promises, children
    their order; a cancellation that it does not
    know of
    remembered message ids, published values        what it waits for; detached children continue,
                                                    and their results go nowhere

Record 0 has the new arguments. A start with the id is still compared with the first ones. Indexes
continue, so that an arrival keeps its place, and no index is used twice. Tokens of promises name
their run: those of an older one prove nothing any more.

A start that begins an execution again which has ended leaves less: its id, its number and the
message ids. Its journal is empty; what it has published, its deadline and its parent are gone, and
what it has started and is attached is cancelled. A start with the id is compared with the new
arguments from then on.

The work is that of the records and waits that leave the journal. Each leaves it once, as by a fold.
"""

from bisect import bisect_right
from collections.abc import Sequence

from msgspec.structs import replace

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import RecordProgress
from querator.model.executions import NewRun, RecordKind
from querator.model.limits import EXECUTION_CHILDREN_MAX
from querator.partition.apply_context import ApplyContext
from querator.partition.execution_cancels import forget_children
from querator.partition.execution_rows import (
    DEADLINE,
    HASH_BYTES,
    ChildEnds,
    ExecutionRow,
    RecordRow,
    decode_child,
    decode_record,
    decode_wait,
)
from querator.partition.executions import (
    ExecutionEvent,
    Part,
    activate,
    count,
    drop_activation,
    drop_record,
    free,
    mark_of,
    move,
    put_execution,
    put_time,
    stored,
)
from querator.partition.rows import encode
from querator.storage.tables import (
    ARRIVALS,
    CHILDREN,
    EXECUTION_TIMES,
    PUBLISHED,
    RECORDS,
    RETAINED,
    WAITS,
)


def refuse_new_run(
    context: ApplyContext, command: RecordProgress, row: ExecutionRow
) -> Refusal | None:
    """The refusal of a new run of what the code knows to be cancelled, or of one with children."""
    if not isinstance(command.then, NewRun):
        return None
    if 0 < row.cancelled <= command.seen:
        return _refused(f"execution {row.id} is cancelled, and begins no other run", row.cancelled)
    for key, raw in CHILDREN.rows(context.txn, context.group, command.execution):
        if decode_child(raw).ends != ChildEnds.NEVER:
            child = int.from_bytes(key[-8:], "big")
            return _refused(f"child {child} of execution {row.id} has not ended", child)
    return None


def _refused(why: str, value: int) -> Refusal:
    return Refusal(ErrorCode.INVALID_ARGUMENT, f"new_run: {why}", field="new_run", value=str(value))


def begin_run(
    context: ApplyContext, number: int, row: ExecutionRow, then: NewRun, parts: Sequence[Part]
) -> None:
    """The execution has a new run and a new activation. `row.seen` is what the code of the one
    before it has been given. The caller writes the row.
    """
    drop_activation(context, row)
    _drop_records(context, number, row, then.unread)
    _drop_waits(context, number, row)
    free(row)
    move(context, row, ExecutionEvent.RENEW)
    row.run += 1
    row.origin = row.run
    row.cuts = []
    row.seen = row.after = row.lapses = 0
    _put_started(context, number, row, stored(context, then.place, parts, then.payload))
    activate(context, number, row)


def restart(
    context: ApplyContext,
    number: int,
    row: ExecutionRow,
    begun: ExecutionRow,
    arguments: tuple[bytes, int, int, int],
    *,
    due_ms: int,
) -> ExecutionRow:
    """An execution that has ended has a new run, which is as `begun` says. `arguments` are as
    `stored` returns them. Returns its row, which is written.
    """
    txn, group = context.txn, context.group
    RETAINED.delete(txn, group, row.until_ms, number)
    if row.deadline_ms:
        EXECUTION_TIMES.delete(txn, group, row.deadline_ms, number, DEADLINE)
    forget_children(context, number, EXECUTION_CHILDREN_MAX, reason=b"its parent begins again")
    for index, one in _records(context, number):
        drop_record(context, number, index, one)
        count(context, row, -1, -one.weight)
    _index_arrivals(context, number)
    _drop_waits(context, number, row)
    for key in [bytes(key) for key, _ in PUBLISHED.rows(txn, group, number)]:
        txn.delete(key)
    move(context, row, ExecutionEvent.RESTART)
    row = replace(
        begun, run=row.run + 1, origin=row.run + 1, next_index=row.next_index, signals=row.signals,
        last_lease=row.last_lease, last_number=row.last_number, answers=row.answers,
        published_version=row.published_version,
    )  # fmt: skip
    if row.deadline_ms:
        put_time(context, number, row.deadline_ms, DEADLINE)
    _put_started(context, number, row, arguments)
    activate(context, number, row, due_ms=due_ms)
    put_execution(context, number, row)
    return row


def _put_started(
    context: ApplyContext, number: int, row: ExecutionRow, arguments: tuple[bytes, int, int, int]
) -> None:
    started = RecordRow(
        RecordKind.STARTED, b"", row.function, "", 0, context.now_ms, *arguments
    )  # fmt: skip
    RECORDS.put(context.txn, context.group, number, 0, value=encode(started))
    count(context, row, 1, started.weight)


def _records(context: ApplyContext, number: int) -> list[tuple[int, RecordRow]]:
    return [
        (int.from_bytes(key[-8:], "big"), decode_record(raw))
        for key, raw in RECORDS.rows(context.txn, context.group, number)
    ]


def _drop_records(
    context: ApplyContext, number: int, row: ExecutionRow, unread: tuple[tuple[int, int], ...]
) -> None:
    """What stays is what the code of the next run is given first."""
    dropped: list[tuple[int, RecordRow]] = []
    row.last_arrival = row.unseen = row.unread = 0
    for index, one in _records(context, number):
        is_signal = one.kind == RecordKind.SIGNAL
        if index > row.seen:
            stays = is_signal or one.kind == RecordKind.CANCEL
        else:
            stays = is_signal and _is_in(index, unread)
        if not stays:
            dropped.append((index, one))
            continue
        row.last_arrival = index
        row.unseen += 1
        row.unread += is_signal
    for index, one in dropped:
        drop_record(context, number, index, one)
        count(context, row, -1, -one.weight)
    _index_arrivals(context, number)


def _is_in(index: int, runs: tuple[tuple[int, int], ...]) -> bool:
    place = bisect_right(runs, index, key=lambda run: run[0]) - 1
    return place >= 0 and index < sum(runs[place])


def _index_arrivals(context: ApplyContext, number: int) -> None:
    """The index has what the code has not been given."""
    txn, group = context.txn, context.group
    for key in [bytes(key) for key, _ in ARRIVALS.rows(txn, group, number)]:
        txn.delete(key)
    for index, one in _records(context, number):
        ARRIVALS.put(txn, group, number, index, value=bytes((one.kind,)) + mark_of(one))


def _drop_waits(context: ApplyContext, number: int, row: ExecutionRow) -> None:
    txn, group = context.txn, context.group
    waits = [(bytes(key), decode_wait(raw)) for key, raw in WAITS.rows(txn, group, number)]
    for key, wait in waits:
        txn.delete(key)
        if wait.due_ms and not wait.index:
            EXECUTION_TIMES.delete(txn, group, wait.due_ms, number, key[-HASH_BYTES:])
    for key in [bytes(key) for key, _ in CHILDREN.rows(txn, group, number)]:
        txn.delete(key)
    row.timers = row.promises = row.children = 0
