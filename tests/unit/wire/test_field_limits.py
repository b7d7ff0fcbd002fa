"""Every limit of a single field: a value at the limit passes, and the next larger one is refused.
The refusal names the field, the limit and the value.
"""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model import limits
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import admin_service_pb2, items_pb2, queue_service_pb2
from querator.wire import (
    dead_letters,
    frames,
    item_changes,
    lease,
    produce,
    queues,
    results,
    settle,
)
from querator.wire.field_checks import RequestLimits
from querator.wire.fields import prefix
from tests.unit.wire import valid_requests as make

SMALL = RequestLimits(payload_bytes_max=100, request_bytes_max=2_000, request_items_max=3)
# For limits that the limit of a request's bytes would hide.
WIDE = RequestLimits(request_bytes_max=limits.REQUEST_BYTES_CAP)


def produce_small(message: queue_service_pb2.ProduceRequest) -> object:
    return produce.parse_produce(
        message.SerializeToString(), now_ms=make.NOW_MS, request_limits=SMALL
    )


def produce_item(**fields: Any) -> object:
    """Parses a request whose second item has these fields."""
    message = make.produce(items_pb2.Item(payload=b"first"), items_pb2.Item(**fields))
    return produce.parse_produce(
        message.SerializeToString(), now_ms=make.NOW_MS, request_limits=WIDE
    )


def produce_bytes(total: int) -> object:
    empty = make.produce(*[items_pb2.Item(payload=b"p" * 90)] * 2, namespace="n")
    unknown = total - len(empty.SerializeToString()) - 4
    data = empty.SerializeToString() + b"\xf2\x1f" + prefix(1, unknown)[1:] + b"u" * unknown
    assert len(data) == total
    return produce.parse_produce(data, now_ms=make.NOW_MS, request_limits=SMALL)


def produce_with(**fields: Any) -> object:
    return produce.parse_produce(make.produce(**fields).SerializeToString(), now_ms=make.NOW_MS)


def lease_with(**fields: Any) -> object:
    return lease.parse_lease(make.lease(**fields).SerializeToString())


def retry_with(**fields: Any) -> object:
    return settle.parse_retry(make.retry(**fields).SerializeToString(), now_ms=make.NOW_MS)


def policy(delay_ms: int, **fields: Any) -> items_pb2.RetryPolicy:
    return items_pb2.RetryPolicy(delay=make.milliseconds(delay_ms), **fields)


def attributes(values: dict[str, str]) -> items_pb2.Attributes:
    return items_pb2.Attributes(values=values)


def complete_with(**fields: Any) -> object:
    return settle.parse_complete(make.complete(**fields).SerializeToString(), now_ms=make.NOW_MS)


def extend_with(**fields: Any) -> object:
    return settle.parse_extend(make.extend(**fields).SerializeToString())


def result(seq: int, data: bytes = b"") -> queue_service_pb2.ItemResult:
    return queue_service_pb2.ItemResult(lease_id=make.LEASE_ID, seq=seq, data=data)


def wait_with(**fields: Any) -> object:
    given = {"queue": "orders", "item_ids": ["0-1"], **fields}
    message = queue_service_pb2.WaitResultsRequest(**given)
    return results.parse_wait_results(message.SerializeToString())


def checkpoint(seq: int, data: bytes = b"") -> queue_service_pb2.ItemCheckpoint:
    return queue_service_pb2.ItemCheckpoint(lease_id=make.LEASE_ID, seq=seq, data=data)


def lease_frame(**frame: Any) -> object:
    message = queue_service_pb2.LeaseStreamRequest(request_number=1, **frame)
    parsed = frames.parse_lease_frame(
        message.SerializeToString(), subscribed=make.SUBSCRIBED, now_ms=make.NOW_MS
    )[1]
    if isinstance(parsed, QueratorError):
        raise parsed
    return parsed


def subscribe_with(**fields: Any) -> object:
    message = queue_service_pb2.LeaseStreamRequest(subscribe=make.subscribe(**fields))
    parsed = frames.parse_lease_frame(message.SerializeToString(), subscribed=None, now_ms=0)[1]
    if isinstance(parsed, QueratorError):
        raise parsed
    return parsed


def create_with(**fields: Any) -> object:
    return queues.parse_create_queue(make.create_queue(**fields).SerializeToString())


def listing(**fields: Any) -> object:
    message = admin_service_pb2.ListQueuesRequest(**fields)
    return queues.parse_list_queues(message.SerializeToString())


def redrive(count: int) -> object:
    message = admin_service_pb2.RedriveDeadLettersRequest(queue="orders", item_ids=["0-1"] * count)
    return dead_letters.parse_redrive(message.SerializeToString())


def cancel(count: int) -> object:
    message = admin_service_pb2.CancelItemsRequest(queue="orders", item_ids=["0-1"] * count)
    return item_changes.parse_cancel(message.SerializeToString())


def purge_on(count: int) -> object:
    message = admin_service_pb2.PurgeQueueRequest(queue="orders", page_token="t" * count)
    return item_changes.parse_purge(message.SerializeToString())


def drop(count: int) -> object:
    message = admin_service_pb2.DropDeadLettersRequest(queue="orders", item_ids=["0-1"] * count)
    return dead_letters.parse_drop(message.SerializeToString())


Send = Callable[[int], object]
HOUR_MS, DAY_MS = limits.HOUR_MS, limits.DAY_MS
LEASE_MS = (limits.LEASE_TIMEOUT_MS_MIN, limits.LEASE_TIMEOUT_MS_MAX)
AHEAD_MS = limits.SCHEDULE_AHEAD_MS_MAX

# (name, field, limit, refused value, unit, function that sends a value)
TABLE: list[tuple[str, str, int, int, str, Send]] = [
    # -- produce
    ("request bytes", "request", 2_000, 2_001, "bytes", produce_bytes),
    ("request items", "items", 3, 4, "items", lambda n: produce_small(
        make.produce(*[items_pb2.Item(payload=b"x")] * n))),
    ("payload", "items[0].payload", 100, 101, "bytes", lambda n: produce_small(
        make.produce(items_pb2.Item(payload=b"x" * n)))),
    ("payload by default", "items[1].payload", limits.PAYLOAD_BYTES_MAX,
        limits.PAYLOAD_BYTES_MAX + 1, "bytes", lambda n: produce_item(payload=b"x" * n)),
    ("kind", "items[1].kind", 255, 256, "characters", lambda n: produce_item(kind="é" * n)),
    ("encoding", "items[1].encoding", 255, 256, "characters",
        lambda n: produce_item(encoding="e" * n)),
    ("reference", "items[1].reference", 2_000, 2_001, "characters",
        lambda n: produce_item(reference="\N{SNOWMAN}" * n)),
    ("attributes", "items[1].attributes", 64, 65, "attributes",
        lambda n: produce_item(attributes=make.attributes(n, 4_000))),
    ("attributes' bytes", "items[1].attributes", 8_192, 8_193, "bytes",
        lambda n: produce_item(attributes=make.attributes(64, n))),
    ("group", "items[1].group", 512, 513, "bytes", lambda n: produce_item(group="g" * n)),
    ("key", "items[1].key", 512, 513, "bytes", lambda n: produce_item(key="k" * n)),
    ("dedup_key", "items[1].dedup_key", 512, 513, "bytes",
        lambda n: produce_item(dedup_key="d" * n)),
    ("enqueue_at", "items[1].enqueue_at", AHEAD_MS, AHEAD_MS + 1, "ms ahead",
        lambda n: produce_item(enqueue_at=make.instant(make.NOW_MS + n))),
    ("expire_timeout", "items[1].expire_timeout", limits.EXPIRE_TIMEOUT_MS_MAX,
        limits.EXPIRE_TIMEOUT_MS_MAX + 1, "ms",
        lambda n: produce_item(expire_timeout=make.milliseconds(n))),
    ("item's max_attempts", "items[1].max_attempts", 65_535, 65_536, "",
        lambda n: produce_item(max_attempts=n)),
    ("item's retry delay", "items[1].retry.delay", 30 * DAY_MS, 30 * DAY_MS + 1, "ms",
        lambda n: produce_item(retry=policy(n))),
    ("item's least retry delay", "items[1].retry.delay", 100, 99, "ms",
        lambda n: produce_item(retry=policy(n))),
    ("item's longest retry delay", "items[1].retry.delay_max", 30 * DAY_MS, 30 * DAY_MS + 1, "ms",
        lambda n: produce_item(retry=policy(0, delay_max=make.milliseconds(n)))),
    ("item's least longest one", "items[1].retry.delay_max", 100, 99, "ms",
        lambda n: produce_item(retry=policy(0, delay_max=make.milliseconds(n)))),
    ("least expire_timeout", "items[1].expire_timeout", 1, 0, "ms",
        lambda n: produce_item(expire_timeout=make.milliseconds(n))),
    ("item's lease_timeout", "items[1].lease_timeout", LEASE_MS[1], LEASE_MS[1] + 1, "ms",
        lambda n: produce_item(lease_timeout=make.milliseconds(n))),
    ("item's least lease_timeout", "items[1].lease_timeout", LEASE_MS[0], LEASE_MS[0] - 1, "ms",
        lambda n: produce_item(lease_timeout=make.milliseconds(n))),
    ("request_timeout", "request_timeout", 900_000, 900_001, "ms",
        lambda n: produce_with(request_timeout=make.milliseconds(n))),
    ("namespace", "namespace", 255, 256, "characters", lambda n: produce_with(namespace="n" * n)),
    # -- lease
    ("queue", "queue", 255, 256, "characters", lambda n: lease_with(queue="q" * n)),
    ("client_id", "client_id", 128, 129, "characters", lambda n: lease_with(client_id="c" * n)),
    ("request_id", "request_id", 128, 129, "characters", lambda n: lease_with(request_id="r" * n)),
    ("max_items", "max_items", 1_000, 1_001, "items", lambda n: lease_with(max_items=n)),
    ("least max_items", "max_items", 1, 0, "items", lambda n: lease_with(max_items=n)),
    ("max_bytes", "max_bytes", limits.REPLY_BYTES_MAX, limits.REPLY_BYTES_MAX + 1, "bytes",
        lambda n: lease_with(max_bytes=n)),
    ("wait_timeout", "wait_timeout", 900_000, 900_001, "ms",
        lambda n: lease_with(wait_timeout=make.milliseconds(n))),
    ("lease_timeout", "lease_timeout", LEASE_MS[1], LEASE_MS[1] + 1, "ms",
        lambda n: lease_with(lease_timeout=make.milliseconds(n))),
    ("least lease_timeout", "lease_timeout", LEASE_MS[0], LEASE_MS[0] - 1, "ms",
        lambda n: lease_with(lease_timeout=make.milliseconds(n))),
    ("partition", "partition", 1_023, 1_024, "", lambda n: lease_with(partition=n)),
    # -- settle
    ("leases to complete", "leases", 1_000, 1_001, "leases",
        lambda n: complete_with(leases=[make.lease_items()] * n)),
    ("ranges to complete", "leases", 10_000, 10_001, "ranges",
        lambda n: complete_with(leases=[make.lease_items(*[(1, 1)] * n)])),
    ("error", "error", 1_000, 1_001, "characters", lambda n: retry_with(error="e" * n)),
    ("attributes of a retry", "attributes", 64, 65, "attributes",
        lambda n: retry_with(attributes=attributes({str(place): "" for place in range(n)}))),
    ("bytes of them", "attributes", 8_192, 8_193, "bytes",
        lambda n: retry_with(attributes=attributes({"é": "x" * (n - 2)}))),
    ("retry_at", "retry_at", AHEAD_MS, AHEAD_MS + 1, "ms ahead",
        lambda n: retry_with(retry_at=make.instant(make.NOW_MS + n))),
    ("checkpoints", "checkpoints", 100, 101, "checkpoints",
        lambda n: extend_with(checkpoints=[checkpoint(seq) for seq in range(1, n + 1)])),
    ("bytes of a checkpoint", "checkpoints[0].data", 65_536, 65_537, "bytes",
        lambda n: extend_with(checkpoints=[checkpoint(1, b"x" * n)])),
    ("bytes of all checkpoints", "checkpoints", 1_048_576, 1_048_577, "bytes",
        lambda n: extend_with(checkpoints=[
            checkpoint(seq + 1, b"x" * min(65_536, n - seq * 65_536)) for seq in range(17)
        ])),
    ("keep_result", "items[1].keep_result", 3_600_000, 3_600_001, "ms",
        lambda n: produce_item(keep_result=make.milliseconds(n))),
    ("least keep_result", "items[1].keep_result", 1_000, 999, "ms",
        lambda n: produce_item(keep_result=make.milliseconds(n))),
    ("results", "results", 1_000, 1_001, "results",
        lambda n: complete_with(results=[result(seq) for seq in range(1, n + 1)])),
    ("bytes of a result", "results[0].data", 1_048_576, 1_048_577, "bytes",
        lambda n: complete_with(results=[result(1, b"x" * n)])),
    ("bytes of all results", "results", 2_097_152, 2_097_153, "bytes",
        lambda n: complete_with(results=[
            result(seq + 1, b"x" * min(1_048_576, n - seq * 1_048_576)) for seq in range(3)
        ])),
    ("items to wait for", "item_ids", 1_000, 1_001, "items",
        lambda n: wait_with(item_ids=[f"0-{seq}" for seq in range(1, n + 1)])),
    ("wait for results", "wait_timeout", 900_000, 900_001, "ms",
        lambda n: wait_with(wait_timeout=make.milliseconds(n))),
    ("leases to extend", "lease_ids", 1_000, 1_001, "leases",
        lambda n: extend_with(lease_ids=[make.LEASE_ID] * n)),
    ("extend by", "lease_timeout", LEASE_MS[1], LEASE_MS[1] + 1, "ms",
        lambda n: extend_with(lease_timeout=make.milliseconds(n))),
    # -- lease stream
    ("stream's client_id", "client_id", 128, 129, "characters",
        lambda n: subscribe_with(client_id="c" * n)),
    ("stream's max_items", "max_items", 1_000, 1_001, "items",
        lambda n: subscribe_with(max_items=n)),
    ("stream's max_bytes", "max_bytes", limits.REPLY_BYTES_MAX, limits.REPLY_BYTES_MAX + 1,
        "bytes", lambda n: subscribe_with(max_bytes=n)),
    ("stream's lease_timeout", "lease_timeout", LEASE_MS[0], LEASE_MS[0] - 1, "ms",
        lambda n: subscribe_with(lease_timeout=make.milliseconds(n))),
    ("consumer_id", "consumer_id", 64, 65, "characters",
        lambda n: subscribe_with(consumer_id="c" * n, stream_number=1)),
    ("held_lease_ids", "held_lease_ids", 10_000, 10_001, "leases",
        lambda n: subscribe_with(
            consumer_id="c", stream_number=2, held_lease_ids=[make.LEASE_ID] * n)),
    ("credit", "credit.items", 100_000, 100_001, "items",
        lambda n: lease_frame(credit=queue_service_pb2.Credit(items=n))),
    # -- queues
    ("partitions", "settings.partitions", 1_024, 1_025, "", lambda n: create_with(partitions=n)),
    ("queue's lease_timeout", "settings.lease_timeout", LEASE_MS[1], LEASE_MS[1] + 1, "ms",
        lambda n: create_with(lease_timeout=make.milliseconds(n))),
    ("queue's least lease_timeout", "settings.lease_timeout", LEASE_MS[0], LEASE_MS[0] - 1, "ms",
        lambda n: create_with(lease_timeout=make.milliseconds(n))),
    ("queue's expire_timeout", "settings.expire_timeout", limits.EXPIRE_TIMEOUT_MS_MAX,
        limits.EXPIRE_TIMEOUT_MS_MAX + 1, "ms",
        lambda n: create_with(expire_timeout=make.milliseconds(n))),
    ("max_attempts", "settings.max_attempts", 65_535, 65_536, "",
        lambda n: create_with(max_attempts=n)),
    ("dedup_window", "settings.dedup_window", 7 * DAY_MS, 7 * DAY_MS + 1, "ms",
        lambda n: create_with(dedup_window=make.milliseconds(n))),
    ("retry_delay", "settings.retry_delay", 30 * DAY_MS, 30 * DAY_MS + 1, "ms",
        lambda n: create_with(retry_delay=make.milliseconds(n))),
    ("retry_delay_max", "settings.retry_delay_max", 30 * DAY_MS, 30 * DAY_MS + 1, "ms",
        lambda n: create_with(retry_delay_max=make.milliseconds(n))),
    ("priority_aging", "settings.priority_aging", 30 * DAY_MS, 30 * DAY_MS + 1, "ms",
        lambda n: create_with(priority_aging=make.milliseconds(n))),
    ("least priority_aging", "settings.priority_aging", 1_000, 999, "ms",
        lambda n: create_with(priority_aging=make.milliseconds(n))),
    ("least retry_delay_max", "settings.retry_delay_max", 100, 99, "ms",
        lambda n: create_with(retry_delay_max=make.milliseconds(n))),
    ("dead_queue", "settings.dead_queue", 255, 256, "characters",
        lambda n: create_with(dead_queue="d" * n)),
    ("description", "settings.description", 1_000, 1_001, "characters",
        lambda n: create_with(description="d" * n)),
    ("page_size", "page_size", 1_000, 1_001, "", lambda n: listing(page_size=n)),
    ("page_token", "page_token", 1_024, 1_025, "characters",
        lambda n: listing(page_token="t" * n)),
    ("item_ids", "item_ids", 1_000, 1_001, "items", redrive),
    ("item_ids to cancel", "item_ids", 1_000, 1_001, "items", cancel),
    ("item_ids to drop", "item_ids", 1_000, 1_001, "items", drop),
    ("page_token of a purge", "page_token", 32_768, 32_769, "characters", purge_on),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "passes", "refused", "unit", "send"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_limit(field: str, passes: int, refused: int, unit: str, send: Send) -> None:
    send(passes)
    with pytest.raises(QueratorError) as caught:
        send(refused)
    error = caught.value
    suffix = f" {unit}" if unit else ""
    assert error.code is ErrorCode.LIMIT_EXCEEDED
    assert error.field == field
    assert error.limit == f"{passes}{suffix}"
    assert error.value == f"{refused}{suffix}"
    assert field in error.message
    assert error.limit in error.message
    assert error.value in error.message


def test_limits_in_the_attributes_count_names_and_values_in_bytes() -> None:
    value = "é" * (limits.ATTRIBUTES_BYTES_MAX // 2 - 1)
    produce_item(attributes={"é": value})
    with pytest.raises(QueratorError, match="8193 bytes"):
        produce_item(attributes={"aé": value})


DURATION_FIELDS: dict[str, Callable[[Any], object]] = {
    "request_timeout": lambda d: produce_with(request_timeout=d),
    "items[1].expire_timeout": lambda d: produce_item(expire_timeout=d),
    "items[1].lease_timeout": lambda d: produce_item(lease_timeout=d),
    "wait_timeout": lambda d: lease_with(wait_timeout=d),
    "lease_timeout": lambda d: extend_with(lease_timeout=d),
    "settings.lease_timeout": lambda d: create_with(lease_timeout=d),
    "settings.expire_timeout": lambda d: create_with(expire_timeout=d),
    "settings.dedup_window": lambda d: create_with(dedup_window=d),
}


@pytest.mark.parametrize("field", DURATION_FIELDS)
@pytest.mark.parametrize(
    "duration",
    [
        make.seconds(-1),
        make.seconds(0, -1),
        make.seconds(1, -1),
        make.seconds(-1, 1),
        make.seconds(1, 1_000_000_000),
        make.seconds(2**63 - 1),
        make.seconds(-(2**63)),
        make.seconds(0, 2**31 - 1),
        make.seconds(315_576_000_001),
    ],
    ids=lambda d: f"{d.seconds}s{d.nanos}ns",
)
def test_absurd_duration_is_refused_by_name(field: str, duration: object) -> None:
    with pytest.raises(QueratorError) as caught:
        DURATION_FIELDS[field](duration)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (Timestamp(seconds=-1), ErrorCode.INVALID_ARGUMENT),
        (Timestamp(seconds=-62_135_596_800), ErrorCode.INVALID_ARGUMENT),
        (Timestamp(seconds=-(2**63)), ErrorCode.INVALID_ARGUMENT),
        (Timestamp(seconds=2**63 - 1), ErrorCode.INVALID_ARGUMENT),
        (Timestamp(nanos=-1), ErrorCode.INVALID_ARGUMENT),
        (Timestamp(nanos=1_000_000_000), ErrorCode.INVALID_ARGUMENT),
        (Timestamp(seconds=253_402_300_799), ErrorCode.LIMIT_EXCEEDED),
    ],
)
def test_absurd_instant_is_refused_by_name(at: object, code: ErrorCode) -> None:
    for field, send in (
        ("items[1].enqueue_at", lambda: produce_item(enqueue_at=at)),
        ("retry_at", lambda: retry_with(retry_at=at)),
    ):
        with pytest.raises(QueratorError) as caught:
            send()
        assert (caught.value.code, caught.value.field) == (code, field)


REFUSED: list[tuple[str, str, Callable[[], object]]] = [
    ("no items", "items", lambda: produce.parse_produce(
        queue_service_pb2.ProduceRequest(queue="q").SerializeToString(), now_ms=0)),
    ("no queue", "queue", lambda: lease_with(queue="")),
    ("queue with a space", "queue", lambda: lease_with(queue="a b")),
    ("queue with a slash", "queue", lambda: complete_with(queue="a/b")),
    ("queue with a newline", "queue", lambda: lease_with(queue="a\n")),
    ("queue in another script", "queue", lambda: lease_with(queue="ключ")),
    ("namespace", "namespace", lambda: retry_with(namespace="ö")),
    ("dead queue", "settings.dead_queue", lambda: create_with(dead_queue="a b")),
    ("short producer", "producer_id", lambda: produce_with(producer_id=b"x" * 15, sequence=1)),
    ("long producer", "producer_id", lambda: produce_with(producer_id=b"x" * 17, sequence=1)),
    ("UUIDv4 producer", "producer_id", lambda: produce_with(
        producer_id=bytes.fromhex("018bcfe5687b4abc8123456789abcdef"), sequence=1)),
    ("wrong variant", "producer_id", lambda: produce_with(
        producer_id=bytes.fromhex("018bcfe5687b7abc0123456789abcdef"), sequence=1)),
    ("no sequence", "sequence", lambda: produce_with(producer_id=make.PRODUCER_ID)),
    ("sequence alone", "sequence", lambda: produce_with(sequence=1)),
    ("ordered alone", "ordered", lambda: produce_with(ordered=True)),
    ("no delay", "items[1].retry.delay", lambda: produce_item(retry=items_pb2.RetryPolicy())),
    ("unknown backoff", "items[1].retry.backoff", lambda: produce_item(
        retry=policy(0, backoff=9))),
    ("no client", "client_id", lambda: lease_with(client_id="")),
    ("nothing to complete", "leases", lambda: complete_with(leases=[])),
    ("lease id", "leases[0].lease_id", lambda: retry_with(
        leases=[queue_service_pb2.LeaseItems(lease_id="nonsense")])),
    ("sequence 0", "leases[0].ranges[1].first_seq", lambda: complete_with(
        leases=[make.lease_items((1, 1), (0, 1))])),
    ("count 0", "leases[0].ranges[0].count", lambda: complete_with(
        leases=[make.lease_items((1, 0))])),
    ("range too far", "leases[0].ranges[0]", lambda: complete_with(
        leases=[make.lease_items((2**64 - 1, 2))])),
    ("dead and later", "retry_at", lambda: retry_with(dead=True, retry_at=make.instant(1))),
    ("extend nothing", "client_id", lambda: extend_with(lease_ids=[])),
    ("extend nonsense", "lease_ids[1]", lambda: extend_with(lease_ids=[make.LEASE_ID, "x"])),
    ("settle elsewhere", "queue", lambda: lease_frame(complete=make.complete(queue="other"))),
    ("settle in another namespace", "namespace", lambda: lease_frame(
        retry=make.retry(namespace="other"))),
    ("empty frame", "frame", lease_frame),
    ("empty credit", "credit", lambda: lease_frame(credit=queue_service_pb2.Credit())),
    ("second subscribe", "subscribe", lambda: lease_frame(subscribe=make.subscribe())),
    ("consumer without a stream number", "stream_number", lambda: subscribe_with(consumer_id="c")),
    ("stream number alone", "stream_number", lambda: subscribe_with(stream_number=1)),
    ("leases held at the first stream", "held_lease_ids", lambda: subscribe_with(
        consumer_id="c", stream_number=1, held_lease_ids=[make.LEASE_ID])),
    ("held nonsense", "held_lease_ids[1]", lambda: subscribe_with(
        consumer_id="c", stream_number=2, held_lease_ids=[make.LEASE_ID, "x"])),
    ("state", "state", lambda: queues.parse_peek_items(
        admin_service_pb2.PeekItemsRequest(
            queue="q", state=items_pb2.ItemState.ValueType(9)).SerializeToString())),
    ("item id", "item_ids[0]", lambda: dead_letters.parse_redrive(
        admin_service_pb2.RedriveDeadLettersRequest(
            queue="q", item_ids=["01-1"]).SerializeToString())),
    ("no mask", "update_mask", lambda: queues.parse_update_queue(
        admin_service_pb2.UpdateQueueRequest(queue="q").SerializeToString())),
    ("unknown in the mask", "update_mask.paths[0]", lambda: queues.parse_update_queue(
        admin_service_pb2.UpdateQueueRequest(
            queue="q", update_mask=FieldMask(paths=["nonsense"])).SerializeToString())),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "send"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_malformed_field_is_refused_by_name(field: str, send: Callable[[], object]) -> None:
    with pytest.raises(QueratorError) as caught:
        send()
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert caught.value.field == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    "parse",
    [
        lambda data: produce.parse_produce(data, now_ms=0),
        lease.parse_lease,
        lambda data: settle.parse_complete(data, now_ms=0),
        lambda data: settle.parse_retry(data, now_ms=0),
        settle.parse_extend,
        queues.parse_create_queue,
        queues.parse_get_queue,
        queues.parse_delete_queue,
        queues.parse_queue_stats,
        queues.parse_list_queues,
        queues.parse_update_queue,
        queues.parse_peek_items,
        queues.parse_list_dead_letters,
        dead_letters.parse_redrive,
        dead_letters.parse_drop,
        item_changes.parse_cancel,
        item_changes.parse_purge,
        item_changes.parse_prioritize,
    ],
)
@pytest.mark.parametrize(
    "data",
    [b"\xff", b"\x0a\x05abc", b"\x0a\x02\xff\xfe", b"\x0b", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["tag", "cut off", "not UTF-8", "open group", "another protocol"],
)
def test_garbage_is_an_invalid_argument(parse: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(QueratorError) as caught:
        parse(data)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
