"""Encoding and decoding of items.

An item is sent as its protobuf bytes behind its tag, field 15 of `ProduceRequest`. A protobuf
message is the concatenation of its fields, so the bytes of a request are its small fields followed
by its items. An item is encoded once, when it is given to the client. The payload is copied once,
when the request's frame is joined.

A bare payload costs a table look-up, because the bytes before it depend on its length alone. The
protobuf library encodes all other items, 1-3 µs an item.
"""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.client import clock, values
from querator.client.checks import AHEAD_MOST, check, check_priority, check_zone
from querator.client.errors import ErrorCode, RequestError, make_error
from querator.client.typed import check_fields, json_hint, wrong_type
from querator.model import limits
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire import fields

ITEMS_FIELD = 15
_PAYLOAD_FIELD = 1
_PRODUCE_FIELD = 2
_NUMBER_TAG = b"\x08"
_HEADS_MAX = 8192
_heads: dict[int, bytes] = {}

AnyItem = values.Item | bytes | str


class Encoded(NamedTuple):
    """Encoded items: pieces of bytes to be joined, their length in bytes, and number of items."""

    pieces: list[bytes]
    size: int
    items: int


def _head(payload_size: int) -> bytes:
    """The bytes before a payload of this size in an item without other fields."""
    inner = fields.prefix(_PAYLOAD_FIELD, payload_size) if payload_size else b""
    head = fields.prefix(ITEMS_FIELD, len(inner) + payload_size) + inner
    if len(_heads) < _HEADS_MAX:
        _heads[payload_size] = head
    return head


def encode_items(items: Iterable[AnyItem]) -> Encoded:
    """Encodes items in their order. Raises TypeError for a value that is not an item, ValueError
    for a naive datetime or for both `enqueue_at` and `delay`, `LimitExceeded` for a time that a
    queue does not keep.
    """
    pieces: list[bytes] = []
    add = pieces.append
    size = count = 0
    heads = _heads
    for item in items:
        if type(item) is not bytes:
            if type(item) is str:
                item = item.encode()
            elif not _is_bare(item):
                whole = encode_item(item)
                add(whole)
                size += len(whole)
                count += 1
                continue
            else:
                assert isinstance(item, values.Item)
                item = _payload(item)
        length = len(item)
        head = heads.get(length) or _head(length)
        add(head)
        add(item)
        size += len(head) + length
        count += 1
    return Encoded(pieces, size, count)


def cut(items: list[AnyItem], bytes_max: int) -> Iterable[Encoded]:
    """Yields the items encoded in parts of at most `bytes_max` bytes; a larger item is a part of
    its own. Raises as `encode_items`.
    """
    encoded = encode_items(items)
    if encoded.size <= bytes_max or encoded.items == 1:
        yield encoded
        return
    for part in (items[: len(items) // 2], items[len(items) // 2 :]):
        yield from cut(part, bytes_max)


def has_key(item: AnyItem) -> bool:
    """Whether a key determines the partition of the item."""
    return isinstance(item, values.Item) and bool(item.key or item.dedup_key)


def keyed_by_content(item: AnyItem) -> values.Item:
    """The item with a dedup key that is the same for all items of its kind with its payload:
    `sha256:` and the SHA-256 of the kind (UTF-8), a zero byte and the payload, in hexadecimal. An
    item with a dedup key is returned as it is. Raises TypeError.
    """
    item = values.Item(item) if isinstance(item, bytes | str) else item
    if not _is_bare(item) and item.dedup_key:
        return item
    content = hashlib.sha256(item.kind.encode())
    content.update(b"\0")
    content.update(_payload(item))
    return msgspec.structs.replace(item, dedup_key=f"sha256:{content.hexdigest()}")


_NOTHING_MORE = msgspec.structs.astuple(values.Item())[1:]


def _is_bare(item: AnyItem) -> bool:
    """Whether the item has only a payload."""
    if not isinstance(item, values.Item):
        raise wrong_type("an item", item, "an Item, bytes or str" + json_hint("an item", item))
    return msgspec.structs.astuple(item)[1:] == _NOTHING_MORE


def _payload(item: values.Item) -> bytes:
    payload = item.payload
    if isinstance(payload, str):
        return payload.encode()
    if type(payload) is bytes:
        return payload
    if not isinstance(payload, bytes | bytearray | memoryview):
        words = "bytes or a text" + json_hint("item.payload", payload)
        raise wrong_type("item.payload", payload, words)
    # A caller's bytearray or memoryview may change before the request is sent.
    return bytes(payload)


def encode_item(item: AnyItem) -> bytes:
    """Encodes one item with its tag and length."""
    if not isinstance(item, values.Item):
        return b"".join(encode_items((item,)).pieces)
    try:
        body = _message(item).SerializeToString()
    except (AttributeError, TypeError):
        _check_types(item)
        raise
    return _prefix(len(body)) + body


def item_message(item: AnyItem) -> items_pb2.Item:
    """One item as a message. Raises as `encode_items`."""
    if isinstance(item, bytes | str):
        item = values.Item(item)
    try:
        return _message(item)
    except (AttributeError, TypeError):
        _check_types(item)
        raise


def _message(item: values.Item) -> items_pb2.Item:
    # Setting only the given fields costs half of naming all fields in the constructor.
    message = items_pb2.Item(payload=_payload(item))
    if item.kind:
        message.kind = item.kind
    if item.encoding:
        message.encoding = item.encoding
    if item.reference:
        message.reference = item.reference
    if item.group:
        message.group = item.group
    if item.key:
        message.key = item.key
    if item.dedup_key:
        message.dedup_key = item.dedup_key
    if item.attributes:
        message.attributes.update(item.attributes)
    if item.priority:
        check_priority("priority", item.priority)
        message.priority = item.priority
    if item.max_attempts is not None:
        check("max_attempts", item.max_attempts, 0, limits.ATTEMPTS_MAX)
        message.max_attempts = item.max_attempts
    if item.retry is not None:
        _add_retry(message.retry, item.retry)
    _add_times(message, item)
    return message


def _check_types(item: values.Item) -> None:
    """Raises TypeError that names the field of a wrong type, if there is one."""
    check_fields(item, "item")
    for key, value in item.attributes.items():
        if not isinstance(key, str):
            raise wrong_type("a key of item.attributes", key, "a text")
        if not isinstance(value, str):
            raise wrong_type(f"item.attributes[{key!r}]", value, "a text")


@lru_cache(_HEADS_MAX)
def _prefix(size: int) -> bytes:
    return fields.prefix(ITEMS_FIELD, size)


def _add_times(message: items_pb2.Item, item: values.Item) -> None:
    if item.delay is not None:
        if item.enqueue_at is not None:
            raise ValueError("an item has either enqueue_at or delay")
        if item.delay < timedelta(0):
            raise _negative("delay", item.delay)
        if item.delay > AHEAD_MOST:
            raise _too_long("delay", item.delay, AHEAD_MOST)
        message.enqueue_at.CopyFrom(timestamp(clock.now() + item.delay, "delay"))
    elif item.enqueue_at is not None:
        message.enqueue_at.CopyFrom(timestamp(item.enqueue_at, "enqueue_at"))
    if item.expire_timeout is not None:
        message.expire_timeout.CopyFrom(duration(item.expire_timeout, "expire_timeout"))
    if item.lease_timeout is not None:
        message.lease_timeout.CopyFrom(duration(item.lease_timeout, "lease_timeout"))
    if item.debounce_max is not None:
        message.debounce_max.CopyFrom(duration(item.debounce_max, "debounce_max"))
    if item.keep_result is not None:
        message.keep_result.CopyFrom(duration(item.keep_result, "keep_result"))
    if item.on_duplicate != "keep":
        message.on_duplicate = on_duplicate_number(item.on_duplicate)


def _add_retry(message: items_pb2.RetryPolicy, policy: values.RetryPolicy) -> None:
    check_fields(policy, "item.retry")
    message.delay.CopyFrom(duration(policy.delay, "retry_delay"))
    message.delay_max.CopyFrom(duration(policy.delay_max, "retry_delay_max"))
    message.backoff = backoff_number("item.retry.backoff", policy.backoff)
    message.jitter = policy.jitter


def encode_retry(policy: values.RetryPolicy) -> bytes:
    """A policy as the message of an item. Raises TypeError, ValueError."""
    message = items_pb2.RetryPolicy()
    _add_retry(message, policy)
    return message.SerializeToString()


def backoff_number(name: str, backoff: str) -> items_pb2.RetryBackoff.ValueType:
    """Raises ValueError that names the argument."""
    if backoff not in values.BACKOFFS:
        words = ", ".join(values.BACKOFFS)
        raise ValueError(f"{name} is {backoff!r}; it must be one of {words}")
    return items_pb2.RetryBackoff.Value(f"RETRY_BACKOFF_{backoff.upper()}")


def on_duplicate_number(value: str) -> items_pb2.OnDuplicate.ValueType:
    """Raises ValueError that names the argument."""
    if value not in values.ON_DUPLICATE:
        words = ", ".join(values.ON_DUPLICATE)
        raise ValueError(f"item.on_duplicate is {value!r}; it must be one of {words}")
    return items_pb2.OnDuplicate.Value(f"ON_DUPLICATE_{value.upper()}")


def _retry_policy(message: items_pb2.RetryPolicy) -> values.RetryPolicy:
    """The policy of an item as it was produced, with defaults for what is unset."""
    policy = values.RetryPolicy(span(message.delay))
    delay_max = span(message.delay_max) if message.HasField("delay_max") else policy.delay_max
    number = message.backoff or items_pb2.RETRY_BACKOFF_EXPONENTIAL
    return values.RetryPolicy(
        policy.delay,
        delay_max,
        values.BACKOFFS[number - 1],
        message.jitter if message.HasField("jitter") else True,
    )


def produce_frame(
    number: int,
    head: queue_service_pb2.ProduceRequest,
    *,
    seconds_left: float,
    pieces: list[bytes],
    size: int,
) -> bytes:
    """Encodes a `ProduceStreamRequest`: the head without items, then the pieces (`size` bytes)."""
    head.request_timeout.FromMilliseconds(max(1, int(seconds_left * 1000)))
    start = head.SerializeToString()
    return b"".join(
        (
            _NUMBER_TAG,
            fields.varint(number),
            fields.prefix(_PRODUCE_FIELD, len(start) + size),
            start,
            *pieces,
        )
    )


def decode_item(message: items_pb2.Item) -> values.Item:
    """Returns the item as it was produced."""
    return values.Item(
        payload=message.payload,
        kind=message.kind,
        encoding=message.encoding,
        reference=message.reference,
        attributes=dict(message.attributes),
        priority=message.priority,
        group=message.group,
        key=message.key,
        enqueue_at=instant(message.enqueue_at) if message.HasField("enqueue_at") else None,
        expire_timeout=(
            span(message.expire_timeout) if message.HasField("expire_timeout") else None
        ),
        lease_timeout=span(message.lease_timeout) if message.HasField("lease_timeout") else None,
        dedup_key=message.dedup_key,
        max_attempts=message.max_attempts if message.HasField("max_attempts") else None,
        retry=_retry_policy(message.retry) if message.HasField("retry") else None,
        on_duplicate=values.ON_DUPLICATE[max(message.on_duplicate, 1) - 1],
        debounce_max=span(message.debounce_max) if message.HasField("debounce_max") else None,
        keep_result=span(message.keep_result) if message.HasField("keep_result") else None,
    )


def decode_dead_letter(message: items_pb2.DeadLetter) -> values.DeadLetter:
    return values.DeadLetter(
        origin_queue=message.origin_queue,
        origin_id=values.ItemId(message.origin_partition, message.origin_seq),
        attempts=message.attempts,
        reason=values.DeadReason(message.reason),
        errors=tuple(message.errors),
        produced_at=instant(message.produced_at),
        died_at=instant(message.died_at),
    )


def timestamp(value: datetime, name: str) -> Timestamp:
    """Raises ValueError for a naive datetime; `name`: that of the argument."""
    check_zone(name, value)
    message = Timestamp()
    message.FromDatetime(value)
    return message


def duration(value: timedelta, name: str) -> Duration:
    """Raises `InvalidArgument` for a negative duration, and `LimitExceeded` for one that is too
    long for a request; `name`: that of the argument. The server checks its own limits.
    """
    if value < timedelta(0):
        raise _negative(name, value)
    if value > _CARRIED_MOST:
        raise _too_long(name, value, _LONGEST[name])
    message = Duration()
    message.FromTimedelta(value)
    return message


_CARRIED_MOST = timedelta(days=3_650_000)
"""Protobuf carries no more than 10,000 years."""
_LONGEST = {
    "lease_timeout": timedelta(milliseconds=limits.LEASE_TIMEOUT_MS_MAX),
    "expire_timeout": timedelta(milliseconds=limits.EXPIRE_TIMEOUT_MS_MAX),
    "dedup_window": timedelta(milliseconds=limits.DEDUP_WINDOW_MS_MAX),
    "retry_delay": timedelta(milliseconds=limits.RETRY_DELAY_MS_MAX),
    "retry_delay_max": timedelta(milliseconds=limits.RETRY_DELAY_MS_MAX),
    "priority_aging": timedelta(milliseconds=limits.PRIORITY_AGING_MS_MAX),
    "events_retention": timedelta(milliseconds=limits.EVENTS_RETENTION_MS_MAX),
    "debounce_max": timedelta(milliseconds=limits.DEBOUNCE_MAX_MS_MAX),
    "keep_result": timedelta(milliseconds=limits.KEEP_RESULT_MS_MAX),
    "wait_timeout": timedelta(milliseconds=limits.REQUEST_TIMEOUT_MS_MAX),
    "interval": timedelta(milliseconds=limits.SCHEDULE_INTERVAL_MS_MAX),
    "phase": timedelta(milliseconds=limits.RECURRENCE_INTERVAL_MS_MAX),
    "jitter": timedelta(milliseconds=limits.RECURRENCE_JITTER_MS_MAX),
    "missed_after": timedelta(milliseconds=limits.MISSED_AFTER_MS_MAX),
}


def _negative(name: str, value: timedelta) -> RequestError:
    return make_error(
        ErrorCode.INVALID_ARGUMENT,
        f"{name} is {value}; it must not be negative",
        field=name,
        value=str(value),
    )


def _too_long(name: str, value: timedelta, most: timedelta) -> RequestError:
    return make_error(
        ErrorCode.LIMIT_EXCEEDED,
        f"{name} is {value}; at most {most}",
        field=name,
        limit=str(most),
        value=str(value),
    )


def instant(message: Timestamp) -> datetime:
    return message.ToDatetime(UTC)


def span(message: Duration) -> timedelta:
    return message.ToTimedelta()


def id_texts(item_ids: Iterable[values.ItemId | str]) -> list[str]:
    """Ids as the protocol has them. Raises TypeError for a value that is not one."""
    expected = "an ItemId or a text such as '0-17'"
    if isinstance(item_ids, str | values.ItemId):
        raise wrong_type("item_ids", item_ids, "a list or another iterable of item ids")
    texts = []
    for index, item in enumerate(item_ids):
        if not isinstance(item, values.ItemId | str):
            raise wrong_type(f"item_ids[{index}]", item, expected)
        texts.append(str(item))
    return texts
