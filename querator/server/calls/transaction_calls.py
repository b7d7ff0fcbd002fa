"""The calls of TransactionService."""

from collections.abc import Mapping

from querator.server.calls.grpc_calls import (
    Context,
    Unary,
    answer_within_ms,
    now_ms,
    within_deadline,
)
from querator.service.queue_service import QueueService
from querator.wire import transactions
from querator.wire.field_checks import RequestLimits


def transaction_calls(service: QueueService, request_limits: RequestLimits) -> Mapping[str, Unary]:
    """A handler by the name of its method."""

    async def stage(data: bytes, context: Context) -> bytes:
        call = transactions.parse_stage(data, now_ms=now_ms(), request_limits=request_limits)
        return transactions.encode_staged(await service.stage(within_deadline(call, context)))

    async def commit(data: bytes, context: Context) -> bytes:
        call = within_deadline(transactions.parse_commit(data), context)
        return transactions.encode_committed(await service.commit(call))

    async def abort(data: bytes, context: Context) -> bytes:
        call = within_deadline(transactions.parse_abort(data), context)
        return transactions.encode_aborted(await service.abort(call))

    async def list_txns(data: bytes, context: Context) -> bytes:
        namespace, queue = transactions.parse_list(data)
        found = await service.staged(namespace, queue, timeout_ms=answer_within_ms(context))
        return transactions.encode_list(found)

    async def get_producer(data: bytes, context: Context) -> bytes:
        asked = transactions.parse_producer(data)
        totals = await service.producer_totals(*asked, timeout_ms=answer_within_ms(context))
        return transactions.encode_totals(totals)

    return {
        "Stage": stage,
        "CommitTxn": commit,
        "AbortTxn": abort,
        "ListTxns": list_txns,
        "GetTxnProducer": get_producer,
    }
