"""The unary calls of ExecutionService. ExecutionStream has most of them too."""

from collections.abc import Mapping

import msgspec

from querator.server.calls.grpc_calls import (
    Timed,
    TimedCall,
    answer_within_ms,
    now_ms,
    waiting_within_deadline,
    within_deadline,
)
from querator.service.queue_service import QueueService
from querator.wire import executions, settle
from querator.wire.field_checks import RequestLimits


def execution_calls(
    service: QueueService, request_limits: RequestLimits
) -> Mapping[str, TimedCall]:
    """A handler by the name of its method."""

    async def start(data: bytes, context: Timed) -> bytes:
        call = within_deadline(executions.parse_start(data), context)
        return executions.encode_started(await service.executions.start(call))

    async def lease(data: bytes, context: Timed) -> bytes:
        call = waiting_within_deadline(executions.parse_lease(data), context)
        return executions.encode_leased(await service.executions.lease(call))

    async def record(data: bytes, context: Timed) -> bytes:
        call = within_deadline(
            executions.parse_progress(data, now_ms=now_ms(), request_limits=request_limits), context
        )
        return executions.encode_recorded(await service.executions.record(call))

    async def signal(data: bytes, context: Timed) -> bytes:
        call = within_deadline(executions.parse_signal(data), context)
        return executions.encode_signalled(await service.executions.arrive(call))

    async def resolve(data: bytes, context: Timed) -> bytes:
        call = within_deadline(executions.parse_resolve(data), context)
        return executions.encode_resolved(await service.executions.arrive(call))

    async def cancel(data: bytes, context: Timed) -> bytes:
        call = within_deadline(executions.parse_cancel(data), context)
        return executions.encode_cancelled(await service.executions.arrive(call))

    async def terminate(data: bytes, context: Timed) -> bytes:
        call = within_deadline(executions.parse_terminate(data), context)
        return executions.encode_terminated(await service.executions.arrive(call))

    async def retry(data: bytes, context: Timed) -> bytes:
        call = within_deadline(executions.parse_retry(data), context)
        return executions.encode_retried(await service.executions.arrive(call))

    async def rewind(data: bytes, context: Timed) -> bytes:
        call = within_deadline(executions.parse_rewind(data), context)
        return executions.encode_rewound(await service.executions.rewind(call))

    return {
        "StartExecution": start,
        "LeaseActivations": lease,
        "RecordProgress": record,
        "SignalExecution": signal,
        "ResolvePromise": resolve,
        "CancelExecution": cancel,
        "TerminateExecution": terminate,
        "RetryExecution": retry,
        "RewindExecution": rewind,
        **_reads(service),
    }


def streamed_calls(service: QueueService, request_limits: RequestLimits) -> Mapping[str, TimedCall]:
    """What may be called on an ExecutionStream."""

    async def extend(data: bytes, context: Timed) -> bytes:
        call = within_deadline(settle.parse_extend(data), context)
        return settle.encode_extended(await service.extend(call))

    return {**execution_calls(service, request_limits), "Extend": extend}


def _reads(service: QueueService) -> Mapping[str, TimedCall]:
    async def get(data: bytes, context: Timed) -> bytes:
        asked, for_replay = executions.parse_get(data)
        found = await service.executions.get(*asked, timeout_ms=answer_within_ms(context))
        return executions.encode_execution(found, for_replay=for_replay)

    async def wait(data: bytes, context: Timed) -> bytes:
        call = waiting_within_deadline(executions.parse_wait(data), context)
        return executions.encode_ended(await service.executions.wait(call))

    async def arrivals(data: bytes, context: Timed) -> bytes:
        call = waiting_within_deadline(executions.parse_arrivals(data), context)
        return executions.encode_news(await service.executions.news(call))

    async def published(data: bytes, context: Timed) -> bytes:
        call = waiting_within_deadline(executions.parse_published(data), context)
        return executions.encode_published(await service.executions.published(call))

    async def list_some(data: bytes, context: Timed) -> bytes:
        call = executions.parse_list(data)
        call = msgspec.structs.replace(call, timeout_ms=answer_within_ms(context))
        return executions.encode_list(await service.executions.page(call))

    async def journal(data: bytes, context: Timed) -> bytes:
        call = executions.parse_journal(data)
        call = msgspec.structs.replace(call, timeout_ms=answer_within_ms(context))
        return executions.encode_journal(await service.executions.journal(call))

    return {
        "GetExecution": get,
        "WaitExecutions": wait,
        "WaitArrivals": arrivals,
        "ReadPublished": published,
        "ListExecutions": list_some,
        "ReadJournal": journal,
    }
