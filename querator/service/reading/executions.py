"""Answers of a leader to queries about its executions."""

from querator.model.errors import ErrorCode, QueratorError
from querator.model.execution_calls import ExecutionPage, JournalPage
from querator.model.executions import ExecutionState
from querator.model.limits import EXECUTION_ROWS_READ_MAX
from querator.partition.execution_queries import (
    execution_at,
    execution_of,
    journal_page,
    list_executions,
)
from querator.service.routing.forwarder import ExecutionsQuery, JournalQuery
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
        try:
            return journal_page(
                txn, group, query.number,
                first=query.first, count_max=query.count_max, bytes_max=query.bytes_max,
            )  # fmt: skip
        except AttachmentDamaged as error:
            raise QueratorError(
                ErrorCode.STORAGE_FAILED,
                f"a record of execution {query.number} is damaged on this node: {error}",
            ) from error
    if query.id:
        view = execution_of(txn, group, query.id)
        return ExecutionPage(() if view is None else (view,))
    if query.seqs:
        views = (execution_at(txn, group, seq) for seq in query.seqs)
        return ExecutionPage(tuple(view for view in views if view is not None))
    return list_executions(
        txn,
        group,
        after=query.after,
        function=query.function,
        state=ExecutionState(query.state) if query.state else None,
        count_max=query.limit,
        rows_max=EXECUTION_ROWS_READ_MAX,
    )
