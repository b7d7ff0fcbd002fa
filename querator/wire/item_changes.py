"""Changes of items that an operator names: requests to calls, and replies to bytes."""

from collections.abc import Sequence

from querator.model import ids, limits
from querator.model.calls import PrioritizeCall, PrioritizeReply
from querator.model.errors import invalid, over_limit
from querator.model.ids import check_name
from querator.v1 import admin_service_pb2
from querator.wire import field_checks


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


def named_items(item_ids: Sequence[str]) -> tuple[str, ...]:
    """Checks the ids of items in a request."""
    if len(item_ids) > limits.REQUEST_ITEMS_MAX:
        most = limits.REQUEST_ITEMS_MAX
        raise over_limit("item_ids", value=len(item_ids), limit=most, unit="items")
    for position, item_id in enumerate(item_ids):
        ids.parse_item_id(item_id, field=f"item_ids[{position}]")
    return tuple(item_ids)
