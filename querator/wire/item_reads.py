"""Reads of items by id: requests to calls, and replies to bytes."""

from querator.model.calls import FoundItems, GetItemsCall
from querator.model.errors import invalid
from querator.model.ids import check_name
from querator.v1 import admin_service_pb2
from querator.wire import field_checks
from querator.wire.item_ids import named_items
from querator.wire.queues import peeked_message


def parse_get(data: bytes, *, timeout_ms: int = 0) -> GetItemsCall:
    message = field_checks.parse_message(admin_service_pb2.GetItemsRequest, data)
    if not message.item_ids:
        raise invalid("item_ids", "must not be empty")
    return GetItemsCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        item_ids=named_items(message.item_ids),
        stale=message.stale,
        timeout_ms=timeout_ms,
    )


def encode_found(found: FoundItems) -> bytes:
    return admin_service_pb2.GetItemsResponse(
        items=[peeked_message(*entry) for entry in found.items],
        missing=found.missing,
        unread=found.unread,
    ).SerializeToString()
