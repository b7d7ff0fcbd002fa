"""Valid requests for tests to start from, as a client would send them."""

from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model import limits
from querator.model.calls import SubscribeCall
from querator.v1 import admin_service_pb2, items_pb2, queue_service_pb2

NOW_MS = 1_700_000_000_123
PRODUCER_ID = bytes.fromhex("018bcfe5687b7abc8123456789abcdef")
LEASE_ID = "a.0.7"
SUBSCRIBED = SubscribeCall("default", "orders", "c", max_items=10, max_bytes=1_000)


def seconds(value: int, nanos: int = 0) -> Duration:
    return Duration(seconds=value, nanos=nanos)


def milliseconds(value_ms: int) -> Duration:
    return Duration(seconds=value_ms // 1000, nanos=value_ms % 1000 * 1_000_000)


def instant(at_ms: int) -> Timestamp:
    return Timestamp(seconds=at_ms // 1000, nanos=at_ms % 1000 * 1_000_000)


def produce(*items: items_pb2.Item, **fields: Any) -> queue_service_pb2.ProduceRequest:
    message = queue_service_pb2.ProduceRequest(queue="orders", **fields)
    message.items.extend(items or [items_pb2.Item(payload=b"work")])
    return message


def lease(**fields: Any) -> queue_service_pb2.LeaseRequest:
    given = {"queue": "orders", "client_id": "c", "max_items": 10, **fields}
    return queue_service_pb2.LeaseRequest(**given)


def lease_items(*ranges: tuple[int, int]) -> queue_service_pb2.LeaseItems:
    return queue_service_pb2.LeaseItems(
        lease_id=LEASE_ID,
        ranges=[items_pb2.SeqRange(first_seq=first, count=count) for first, count in ranges],
    )


def complete(**fields: Any) -> queue_service_pb2.CompleteRequest:
    given = {"queue": "orders", "leases": [lease_items()], **fields}
    return queue_service_pb2.CompleteRequest(**given)


def retry(**fields: Any) -> queue_service_pb2.RetryRequest:
    given = {"queue": "orders", "leases": [lease_items()], **fields}
    return queue_service_pb2.RetryRequest(**given)


def extend(**fields: Any) -> queue_service_pb2.ExtendRequest:
    given = {"queue": "orders", "lease_ids": [LEASE_ID], **fields}
    return queue_service_pb2.ExtendRequest(**given)


def subscribe(**fields: Any) -> queue_service_pb2.Subscribe:
    given = {"queue": "orders", "client_id": "c", **fields}
    return queue_service_pb2.Subscribe(**given)


def create_queue(**settings: Any) -> admin_service_pb2.CreateQueueRequest:
    return admin_service_pb2.CreateQueueRequest(
        queue="orders", settings=admin_service_pb2.QueueSettings(**settings)
    )


def attributes(count: int, total_bytes: int) -> dict[str, str]:
    """`count` attributes of `total_bytes` bytes together."""
    names = [f"{number:03}" for number in range(count)]
    result = dict.fromkeys(names, "")
    result[names[0]] = "v" * (total_bytes - 3 * count)
    return result


assert limits.ATTRIBUTES_MAX < 1000
