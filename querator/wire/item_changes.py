"""Changes and removals of items by an operator: requests to calls, and replies to bytes."""

from querator.model import limits
from querator.model.calls import (
    CancelCall,
    CancelReply,
    PrioritizeCall,
    PrioritizeReply,
    PurgeCall,
    PurgeReply,
)
from querator.model.errors import invalid
from querator.model.ids import check_name
from querator.v1 import admin_service_pb2
from querator.wire import field_checks
from querator.wire.item_ids import named_items


def parse_prioritize(data: bytes, *, timeout_ms: int = 0) -> PrioritizeCall:
    message = field_checks.parse_message(admin_service_pb2.PrioritizeItemsRequest, data)
    if not message.item_ids:
        raise invalid("item_ids", "must not be empty")
    return PrioritizeCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        item_ids=named_items(message.item_ids),
        priority=message.priority,
        timeout_ms=timeout_ms,
    )


def encode_prioritized(reply: PrioritizeReply) -> bytes:
    return admin_service_pb2.PrioritizeItemsResponse(
        changed=reply.changed, not_waiting=reply.not_waiting
    ).SerializeToString()


def parse_cancel(data: bytes, *, timeout_ms: int = 0) -> CancelCall:
    message = field_checks.parse_message(admin_service_pb2.CancelItemsRequest, data)
    if not message.item_ids:
        raise invalid("item_ids", "must not be empty")
    return CancelCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        item_ids=named_items(message.item_ids),
        timeout_ms=timeout_ms,
    )


def encode_cancelled(reply: CancelReply) -> bytes:
    return admin_service_pb2.CancelItemsResponse(
        cancelled=reply.cancelled, not_waiting=reply.not_waiting
    ).SerializeToString()


def parse_purge(data: bytes, *, timeout_ms: int = 0) -> PurgeCall:
    message = field_checks.parse_message(admin_service_pb2.PurgeQueueRequest, data)
    token = field_checks.check_chars(
        message.page_token, limits.PURGE_TOKEN_CHARS_MAX, field="page_token"
    )
    if message.dry_run and token:
        raise invalid("dry_run", "counts all items at once; leave page_token out", value="true")
    return PurgeCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        keep_scheduled=message.keep_scheduled,
        dry_run=message.dry_run,
        page_token=token,
        timeout_ms=timeout_ms,
    )


def encode_purged(reply: PurgeReply) -> bytes:
    return admin_service_pb2.PurgeQueueResponse(
        removed=reply.removed,
        next_page_token=reply.next_page_token,
        leased=reply.leased,
        reserved=reply.reserved,
        moving=reply.moving,
        scheduled=reply.scheduled,
    ).SerializeToString()
