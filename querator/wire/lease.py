"""Lease requests and answers.

A message is the concatenation of its fields. So a `LeasedRun` is a small header, serialised here,
followed by the unchanged stored bytes of its items. This module adds the length prefixes around it.
The cost of an answer depends on the number of its batches, not of its items.
"""

from querator.model import limits
from querator.model.calls import (
    ChosenItems,
    DeadOrigin,
    LaterAttributes,
    LeaseCall,
    LeasedRun,
    LeaseReply,
    SubscribeCall,
)
from querator.model.errors import invalid, over_limit
from querator.model.ids import check_name, parse_lease_id
from querator.v1 import execution_service_pb2, items_pb2, queue_service_pb2
from querator.wire import field_checks
from querator.wire.fields import prefix
from querator.wire.item_ids import named_items

_BATCHES_FIELD = queue_service_pb2.LeaseResponse.BATCHES_FIELD_NUMBER
_DURABLE = queue_service_pb2.LeaseResponse(durable=True).SerializeToString()


def parse_partition(
    message: queue_service_pb2.LeaseRequest | execution_service_pb2.LeaseActivationsRequest,
) -> int | None:
    """The partition that a repeat names."""
    if not message.HasField("partition"):
        return None
    return field_checks.check_range(
        message.partition, field="partition", least=0, most=limits.PARTITIONS_MAX - 1
    )


def parse_lease(data: bytes) -> LeaseCall:
    """A `LeaseRequest`."""
    message = field_checks.parse_message(queue_service_pb2.LeaseRequest, data)
    wait_ms = 0
    if message.HasField("wait_timeout"):
        wait_ms = field_checks.duration_ms(
            message.wait_timeout,
            field="wait_timeout",
            least_ms=0,
            most_ms=limits.REQUEST_TIMEOUT_MS_MAX,
        )
    return LeaseCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        client_id=field_checks.check_client_id(message.client_id),
        request_id=field_checks.check_chars(
            message.request_id, limits.REQUEST_ID_CHARS_MAX, field="request_id"
        ),
        max_items=field_checks.check_range(
            message.max_items,
            field="max_items",
            least=1,
            most=limits.REQUEST_ITEMS_MAX,
            unit="items",
        ),
        max_bytes=_max_bytes(message.max_bytes),
        lease_timeout_ms=_lease_timeout_ms(message),
        wait_ms=wait_ms,
        partition=parse_partition(message),
        chosen=_chosen(message) if message.item_ids or message.HasField("filter") else None,
        completes=message.complete_on_delivery,
    )


def _chosen(message: queue_service_pb2.LeaseRequest) -> ChosenItems:
    if message.wait_timeout.seconds or message.wait_timeout.nanos:
        reason = "must not be given with item_ids or filter: such a lease does not wait"
        raise invalid("wait_timeout", reason)
    if not message.HasField("filter"):
        return ChosenItems(named_items(message.item_ids))
    if message.item_ids:
        raise invalid("filter", "must not be given with item_ids")
    chosen = message.filter
    if not chosen.kinds and not chosen.attributes:
        raise invalid("filter", "must not be empty: give kinds or attributes")
    if len(chosen.kinds) > limits.BROWSE_KINDS_MAX:
        most = limits.BROWSE_KINDS_MAX
        raise over_limit("filter.kinds", value=len(chosen.kinds), limit=most, unit="kinds")
    for place, kind in enumerate(chosen.kinds):
        field_checks.check_chars(kind, limits.KIND_CHARS_MAX, field=f"filter.kinds[{place}]")
    field_checks.check_attributes(chosen.attributes, field="filter.attributes")
    return ChosenItems(
        kinds=tuple(chosen.kinds), attributes=tuple(sorted(chosen.attributes.items()))
    )


def check_subscribe(message: queue_service_pb2.Subscribe) -> SubscribeCall:
    _check_consumer(message)
    return SubscribeCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        client_id=field_checks.check_client_id(message.client_id),
        max_items=field_checks.check_range(
            message.max_items or limits.STREAM_BATCH_ITEMS_DEFAULT,
            field="max_items",
            least=1,
            most=limits.REQUEST_ITEMS_MAX,
            unit="items",
        ),
        max_bytes=_max_bytes(message.max_bytes),
        lease_timeout_ms=_lease_timeout_ms(message),
        auto_extend=message.auto_extend,
        release_on_disconnect=message.release_on_disconnect,
        consumer_id=message.consumer_id,
        stream_number=message.stream_number,
        held_lease_ids=tuple(message.held_lease_ids),
    )


def _check_consumer(message: queue_service_pb2.Subscribe) -> None:
    consumer, number, held = message.consumer_id, message.stream_number, message.held_lease_ids
    field_checks.check_chars(consumer, limits.CONSUMER_ID_CHARS_MAX, field="consumer_id")
    if bool(consumer) != bool(number):
        raise invalid("stream_number", "must be given with consumer_id, only then", value=number)
    if held and number < 2:
        reason = "must be empty unless stream_number is above 1"
        raise invalid("held_lease_ids", reason, value=held[0][:64])
    if len(held) > limits.STREAM_LEASES_MAX:
        most = limits.STREAM_LEASES_MAX
        raise over_limit("held_lease_ids", value=len(held), limit=most, unit="leases")
    for place, lease_id in enumerate(held):
        parse_lease_id(lease_id, field=f"held_lease_ids[{place}]")


def _lease_timeout_ms(message: queue_service_pb2.LeaseRequest | queue_service_pb2.Subscribe) -> int:
    if not message.HasField("lease_timeout"):
        return 0
    return field_checks.lease_timeout_ms(message.lease_timeout)


def _max_bytes(value: int) -> int:
    return field_checks.check_range(
        value or limits.REPLY_BYTES_DEFAULT,
        field="max_bytes",
        least=1,
        most=limits.REPLY_BYTES_MAX,
        unit="bytes",
    )


def encode_leased(reply: LeaseReply) -> bytes:
    """A `LeaseResponse`."""
    return b"".join(leased_parts(reply))


def leased_parts(reply: LeaseReply) -> list[bytes]:
    """Pieces that, joined, are a `LeaseResponse`."""
    parts: list[bytes] = []
    for batch in reply.batches:
        head = _head(batch)
        items = batch.loaded.items
        parts += (prefix(_BATCHES_FIELD, len(head) + len(items)), head, items)
    if reply.durable:
        parts.append(_DURABLE)
    return parts


def _head(batch: LeasedRun) -> bytes:
    """An encoded `LeasedRun` without its items."""
    loaded = batch.loaded
    message = items_pb2.LeasedBatch(
        lease_id=batch.lease_id,
        queue=batch.queue,
        partition=batch.partition,
        first_seq=loaded.first_seq,
        ordinals=loaded.ordinals,
        attempt=batch.attempt,
        deadline=field_checks.timestamp(batch.deadline_ms),
        lease_remaining=field_checks.duration(max(0, batch.remaining_ms)),
        produced_at=field_checks.timestamp(loaded.produced_at_ms),
        repeated_answer=batch.repeated,
        priority=batch.priority,
    )
    for overlay in loaded.overlays:
        _add_overlay(message, overlay)
    return message.SerializeToString()


def _add_overlay(message: items_pb2.LeasedBatch, overlay: LaterAttributes) -> None:
    added = message.overlays.add(index=overlay.index, errors=overlay.errors)
    if overlay.dead_letter is not None:
        added.dead_letter.CopyFrom(dead_letter_message(overlay.dead_letter))
    if overlay.attributes is not None:
        added.attributes.CopyFrom(items_pb2.Attributes(values=dict(overlay.attributes)))
    added.checkpoint = overlay.checkpoint


def dead_letter_message(letter: DeadOrigin) -> items_pb2.DeadLetter:
    return items_pb2.DeadLetter(
        origin_queue=letter.origin_queue,
        origin_partition=letter.origin_partition,
        origin_seq=letter.origin_seq,
        attempts=letter.attempts,
        reason=items_pb2.DeadReason.ValueType(letter.reason),
        errors=letter.errors,
        produced_at=field_checks.timestamp(letter.produced_at_ms),
        died_at=field_checks.timestamp(letter.died_at_ms),
    )


def item_message(item: bytes) -> items_pb2.Item:
    """Parses one stored item, tagged and length-prefixed as in a batch."""
    items = items_pb2.LeasedBatch.FromString(item).items
    if len(items) != 1:
        raise invalid("item", "is not the bytes of one item")
    return items[0]
