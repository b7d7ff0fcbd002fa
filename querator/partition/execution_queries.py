"""Reads of executions for other threads, in a view of the generation in use."""

from collections.abc import Sequence

from msgspec.structs import replace

from querator.model.execution_calls import (
    EndedExecution,
    EndedPage,
    ExecutionPage,
    ExecutionView,
    JournalPage,
    KnownJournal,
    NewsPage,
    PublishedPage,
    ReadValue,
)
from querator.model.executions import ExecutionState, JournalRecord, RecordKind
from querator.partition.execution_rows import (
    ExecutionRow,
    RecordRow,
    decode_execution,
    decode_published,
    decode_record,
    decode_wait,
    name_hash,
)
from querator.partition.rows import RowState
from querator.partition.segments import find_item
from querator.storage import attachments
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import ReadTransaction
from querator.storage.tables import (
    ACTIVATIONS,
    EXECUTION_NAMES,
    EXECUTIONS,
    PUBLISHED,
    RECORDS,
    WAITS,
)

_WITH_REASON = (ExecutionState.STUCK, ExecutionState.PINNED)


def execution_of(txn: ReadTransaction, group: int, execution_id: str) -> ExecutionView | None:
    """The execution with this id, and the paths of its timers. None: there is none."""
    found = _row_of(txn, group, execution_id)
    return None if found is None else _with_timers(txn, group, _view(*found))


def _row_of(txn: ReadTransaction, group: int, execution_id: str) -> tuple[int, ExecutionRow] | None:
    raw_number = EXECUTION_NAMES.get(txn, group, name_hash(execution_id))
    if raw_number is None:
        return None
    number = int.from_bytes(raw_number, "big")
    raw = EXECUTIONS.get(txn, group, number)
    row = None if raw is None else decode_execution(raw)
    return (number, row) if row is not None and row.id == execution_id else None


def execution_view(txn: ReadTransaction, group: int, number: int) -> ExecutionView | None:
    raw = EXECUTIONS.get(txn, group, number)
    return None if raw is None else _view(number, decode_execution(raw))


def execution_at(txn: ReadTransaction, group: int, seq: int) -> ExecutionView | None:
    """The execution with this activation. None: it has another one, or is gone."""
    raw = ACTIVATIONS.get(txn, group, seq)
    view = None if raw is None else execution_view(txn, group, int.from_bytes(raw, "big"))
    return None if view is None else _with_timers(txn, group, view)


def _with_timers(txn: ReadTransaction, group: int, view: ExecutionView) -> ExecutionView:
    if not view.timers:
        return view
    waits = (decode_wait(raw) for _, raw in WAITS.rows(txn, group, view.number))
    paths = tuple(wait.path for wait in waits if wait.due_ms and not wait.index)
    return replace(view, timer_paths=paths)


def ended_executions(
    txn: ReadTransaction, group: int, ids: tuple[str, ...], *, bytes_max: int
) -> EndedPage:
    """Those of the executions that have ended, or do not exist, up to `bytes_max` of results, but
    at least one. Raises AttachmentDamaged.
    """
    found: list[EndedExecution] = []
    size = 0
    for execution_id in ids:
        there = _row_of(txn, group, execution_id)
        if there is None:
            found.append(EndedExecution(execution_id))
            continue
        if not there[1].closed:
            # Most of those that a client waits for.
            continue
        view = _view(*there)
        end = end_of(txn, group, view)
        if end is None:
            continue
        size += len(end.note.payload)
        if found and size > bytes_max:
            break
        found.append(EndedExecution(execution_id, view, end))
    return EndedPage(tuple(found))


def news_page(txn: ReadTransaction, group: int, known: Sequence[KnownJournal]) -> NewsPage:
    """Those of the executions at work for which something has arrived behind what is known, and
    those whose activation the lease does not hold any more.
    """
    arrived: list[int] = []
    lost: list[int] = []
    for place, one in enumerate(known):
        raw = EXECUTIONS.get(txn, group, one.execution)
        row = None if raw is None else decode_execution(raw)
        if row is None or not is_held(txn, group, one.item, one.lease):
            lost.append(place)
        elif row.last_arrival > one.index:
            arrived.append(place)
    return NewsPage(tuple(arrived), tuple(lost))


def is_held(txn: ReadTransaction, group: int, item: int, lease: int) -> bool:
    """Whether a lease holds an activation."""
    found = find_item(txn, group, item)
    return found is not None and (found[1].state, found[1].locator) == (RowState.LEASED, lease)


def published_page(
    txn: ReadTransaction, group: int, execution_id: str, *, key: str, after: int
) -> PublishedPage:
    """The published values of versions above `after`: that of a key (empty: all)."""
    raw = EXECUTION_NAMES.get(txn, group, name_hash(execution_id))
    number = 0 if raw is None else int.from_bytes(raw, "big")
    raw = EXECUTIONS.get(txn, group, number) if number else None
    row = None if raw is None else decode_execution(raw)
    if row is None or row.id != execution_id:
        return PublishedPage()
    if key:
        raw = PUBLISHED.get(txn, group, number, name_hash(key))
        found = [] if raw is None else [decode_published(raw)]
    else:
        found = [decode_published(raw) for _, raw in PUBLISHED.rows(txn, group, number)]
    values = sorted(
        (ReadValue(one.key, one.value, one.version) for one in found if one.version > after),
        key=lambda one: one.version,
    )
    return PublishedPage(tuple(values), row.published_version, found=True, closed=row.closed)


def list_executions(
    txn: ReadTransaction,
    group: int,
    *,
    after: int,
    function: str,
    state: ExecutionState | None,
    count_max: int,
    rows_max: int,
) -> ExecutionPage:
    """Executions with numbers above `after`, in their order, of a function (empty: any) and in a
    state (None: any). Reads up to `rows_max` rows.
    """
    found: list[ExecutionView] = []
    start, stop = EXECUTIONS.key(group, after + 1), EXECUTIONS.bounds(group)[1]
    number = after
    for read, (key, raw) in enumerate(txn.scan(start, stop)):
        if len(found) == count_max or read == rows_max:
            return ExecutionPage(tuple(found), number)
        number = int.from_bytes(key[-8:], "big")
        row = decode_execution(raw)
        if function and row.function != function:
            continue
        if state is not None and row.state != state:
            continue
        found.append(_view(number, row))
    return ExecutionPage(tuple(found))


def journal_page(
    txn: ReadTransaction, group: int, number: int, *, first: int, count_max: int, bytes_max: int
) -> JournalPage:
    """Records of an execution from index `first` on: at least one if there is one, then up to both
    bounds. Raises AttachmentDamaged.
    """
    records: list[JournalRecord] = []
    size = 0
    stop = RECORDS.bounds(group, number)[1]
    for key, raw in txn.scan(RECORDS.key(group, number, first), stop):
        index, row = int.from_bytes(key[-8:], "big"), decode_record(raw)
        size += row.weight
        if records and (len(records) == count_max or size > bytes_max):
            return JournalPage(tuple(records), index)
        records.append(row.as_record(index, _payload(txn, group, row)))
    return JournalPage(tuple(records), 0)


def end_of(txn: ReadTransaction, group: int, view: ExecutionView) -> JournalRecord | None:
    """The last record of an execution that has ended: its result. None: it has not, or is gone.
    Raises AttachmentDamaged.
    """
    raw = RECORDS.get(txn, group, view.number, view.end_index) if view.closed_ms else None
    if raw is None:
        return None
    row = decode_record(raw)
    assert row.kind in (
        RecordKind.COMPLETED, RecordKind.FAILED, RecordKind.CANCELLED, RecordKind.TERMINATED,
    )  # fmt: skip
    return row.as_record(view.end_index, _payload(txn, group, row))


def _payload(txn: ReadTransaction, group: int, row: RecordRow) -> bytes:
    if not row.index:
        return row.payload
    data = attachments.read(txn, group, row.index, row.part)
    if data is None:
        raise AttachmentDamaged(group, row.index, row.part, "missing")
    return data


def _view(number: int, row: ExecutionRow) -> ExecutionView:
    return ExecutionView(
        number=number,
        id=row.id,
        function=row.function,
        version=row.version,
        run=row.run,
        state=ExecutionState(row.state),
        created_ms=row.created_ms,
        closed_ms=row.closed_ms,
        deadline_ms=row.deadline_ms,
        records=row.records,
        size=row.size,
        next_index=row.next_index,
        seen=row.seen,
        unread=row.unread,
        timers=row.timers,
        lapses=row.lapses,
        cancelled=row.cancelled > 0,
        reason=row.reason if row.state in _WITH_REASON else "",
        end_index=row.end_index,
        secret=row.secret,
        activation=row.activation,
        parent_id=row.parent_id,
        children=0 if row.closed else row.children,
        refused=tuple(row.refused),
        origin=row.origin,
    )
