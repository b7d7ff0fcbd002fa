"""Answers of a leader to queries about its executions."""

from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_calls import ExecutionPage, JournalPage, ReadActivation
from querator.model.executions import ExecutionState
from querator.model.limits import (
    ACTIVATION_JOURNAL_BYTES_MAX,
    EXECUTION_ROWS_READ_MAX,
    PAGE_ITEMS_MAX,
    REPLY_BYTES_DEFAULT,
)
from querator.partition.execution_queries import (
    execution_at,
    execution_of,
    is_held,
    journal_page,
    list_executions,
)
from querator.partition.queries import state_time
from querator.service.routing.forwarder import ActivationsQuery, ExecutionsQuery, JournalQuery
from querator.storage import generations
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import ReadTransaction


def answer_executions(
    txn: ReadTransaction, query: ExecutionsQuery | JournalQuery
) -> ExecutionPage | JournalPage:
    """Raises QueratorError: STORAGE_FAILED for a payload that is damaged here."""
    group = query.group
    txn = generations.view(txn, group)
    if isinstance(query, JournalQuery):
        return _journal(
            txn, group, query.number,
            first=query.first, count_max=query.count_max, bytes_max=query.bytes_max,
        )  # fmt: skip
    if query.id:
        view = execution_of(txn, group, query.id)
        return ExecutionPage(() if view is None else (view,))
    return list_executions(
        txn,
        group,
        after=query.after,
        function=query.function,
        state=ExecutionState(query.state) if query.state else None,
        count_max=query.limit,
        rows_max=EXECUTION_ROWS_READ_MAX,
    )


def are_leased(txn: ReadTransaction, query: ActivationsQuery) -> bool:
    """Whether the lease holds all of the activations here. Then this replica has applied the lease,
    and all that was recorded before it; behind it, only its holder records.
    """
    txn = generations.view(txn, query.group)
    return all(is_held(txn, query.group, seq, query.lease) for seq in query.seqs)


def read_activations(txn: ReadTransaction, query: ActivationsQuery) -> tuple[ReadActivation, ...]:
    """Each with up to ACTIVATION_JOURNAL_BYTES_MAX of its journal; with one record only when all
    together have REPLY_BYTES_DEFAULT. Raises STORAGE_FAILED.
    """
    group = query.group
    txn = generations.view(txn, group)
    now_ms = state_time(txn, group)
    found: list[ReadActivation] = []
    left = REPLY_BYTES_DEFAULT
    for seq in query.seqs:
        view = execution_at(txn, group, seq)
        if view is None:
            continue
        bytes_max = max(1, min(left, ACTIVATION_JOURNAL_BYTES_MAX))
        journal = _journal(
            txn, group, view.number, first=0, count_max=PAGE_ITEMS_MAX, bytes_max=bytes_max
        )
        left -= min(view.size, bytes_max)
        found.append(ReadActivation(view, journal, now_ms))
    return tuple(found)


def _journal(
    txn: ReadTransaction, group: int, number: int, *, first: int, count_max: int, bytes_max: int
) -> JournalPage:
    try:
        return journal_page(
            txn, group, number, first=first, count_max=count_max, bytes_max=bytes_max
        )
    except AttachmentDamaged as error:
        raise QueratorError(
            ErrorCode.STORAGE_FAILED,
            f"a record of execution {number} is damaged on this node: {error}",
        ) from error
