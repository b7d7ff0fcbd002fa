"""The unary calls of QueueService."""

from collections.abc import Mapping

from querator.server.calls.grpc_calls import (
    Context,
    Unary,
    now_ms,
    waiting_within_deadline,
    within_deadline,
)
from querator.service.queue_service import QueueService
from querator.wire import events, lease, produce, results, routing, settle
from querator.wire.field_checks import RequestLimits


def queue_calls(service: QueueService, request_limits: RequestLimits) -> Mapping[str, Unary]:
    """A handler by the name of its method."""

    async def produce_items(data: bytes, context: Context) -> bytes:
        call = produce.parse_produce(data, now_ms=now_ms(), request_limits=request_limits)
        return produce.encode_produced(await service.produce(within_deadline(call, context)))

    async def lease_items(data: bytes, context: Context) -> bytes:
        call = waiting_within_deadline(lease.parse_lease(data), context)
        return lease.encode_leased(await service.lease(call))

    async def complete_items(data: bytes, context: Context) -> bytes:
        parsed = settle.parse_complete(data, now_ms=now_ms(), request_limits=request_limits)
        call = within_deadline(parsed, context)
        return settle.encode_completed(await service.complete(call))

    async def retry_items(data: bytes, context: Context) -> bytes:
        parsed = settle.parse_retry(data, now_ms=now_ms(), request_limits=request_limits)
        call = within_deadline(parsed, context)
        return settle.encode_retried(await service.retry(call))

    async def extend_leases(data: bytes, context: Context) -> bytes:
        call = within_deadline(settle.parse_extend(data), context)
        return settle.encode_extended(await service.extend(call))

    async def wait_results(data: bytes, context: Context) -> bytes:
        call = waiting_within_deadline(results.parse_wait_results(data), context)
        return results.encode_results(await service.wait_results(call))

    async def read_events(data: bytes, context: Context) -> bytes:
        call = waiting_within_deadline(events.parse_read_events(data), context)
        return events.encode_events(await service.read_events(call))

    async def get_routing(data: bytes, _: Context) -> bytes:
        asked = routing.parse_get_routing(data)
        return routing.encode_routing(await service.routing(asked.namespace, asked.name))

    return {
        "GetRouting": get_routing,
        "Produce": produce_items,
        "Lease": lease_items,
        "Complete": complete_items,
        "Retry": retry_items,
        "Extend": extend_leases,
        "WaitResults": wait_results,
        "ReadEvents": read_events,
    }
