"""The frames of the produce stream and the lease stream.

An invalid request inside a frame does not end the stream: its answer is an `Error` with the number
of the frame. If not even the number can be read, the parse functions raise, and the stream ends. A
produce request is not copied out of its frame.
"""

import msgspec
from google.protobuf.message import DecodeError

from querator.model import limits
from querator.model.calls import (
    CompleteCall,
    ExtendCall,
    ExtendReply,
    LeaseReply,
    ProduceCall,
    ProduceReply,
    RetryCall,
    SettleReply,
    SubscribeCall,
)
from querator.model.errors import QueratorError, invalid
from querator.v1 import queue_service_pb2
from querator.wire import field_checks, lease, produce, settle
from querator.wire.errors import error_message
from querator.wire.field_checks import DEFAULT_LIMITS, RequestLimits
from querator.wire.fields import (
    LEN,
    VARINT,
    MalformedError,
    next_field,
    prefix,
    read_varint,
    varint,
)

_NUMBER_FIELD = queue_service_pb2.ProduceStreamRequest.REQUEST_NUMBER_FIELD_NUMBER
_PRODUCE_FIELD = queue_service_pb2.ProduceStreamRequest.PRODUCE_FIELD_NUMBER
_PRODUCED_FIELD = queue_service_pb2.ProduceStreamResponse.PRODUCED_FIELD_NUMBER
_LEASED_FIELD = queue_service_pb2.LeaseStreamResponse.LEASED_FIELD_NUMBER
assert _NUMBER_FIELD == queue_service_pb2.LeaseStreamRequest.REQUEST_NUMBER_FIELD_NUMBER
assert _NUMBER_FIELD == queue_service_pb2.ProduceStreamResponse.REQUEST_NUMBER_FIELD_NUMBER
_NUMBER_TAG = varint(_NUMBER_FIELD << 3 | VARINT)


class Credit(msgspec.Struct, frozen=True):
    """Credit that a consumer grants. `bytes` 0: as many bytes as the items have."""

    items: int
    bytes: int


class EndDeliveries(msgspec.Struct, frozen=True):
    """A consumer takes no further deliveries on its stream."""


LeaseFrame = SubscribeCall | Credit | EndDeliveries | CompleteCall | RetryCall | ExtendCall


def parse_produce_frame(
    frame: bytes, *, now_ms: int, request_limits: RequestLimits = DEFAULT_LIMITS
) -> tuple[int, ProduceCall | QueratorError]:
    """Parses a `ProduceStreamRequest`: its number, and the request or the error that refuses it.

    Raises `QueratorError` when the number cannot be read.
    """
    try:
        message = queue_service_pb2.ProduceStreamRequest.FromString(frame)
    except DecodeError as error:
        return _number_of_malformed(frame, error, queue_service_pb2.ProduceStreamRequest)
    number = message.request_number
    try:
        if not message.HasField("produce"):
            raise invalid("produce", "is missing")
        spans = _spans(frame)
        return number, produce.check_produce(message.produce, frame, spans, now_ms, request_limits)
    except QueratorError as error:
        return number, error


def _spans(frame: bytes) -> list[tuple[int, int]]:
    """The bounds of each `produce` field's content; protobuf merges several of them."""
    spans = []
    pos, stop = 0, len(frame)
    while pos < stop:
        try:
            number, wire_type, body, pos = next_field(frame, pos, stop)
        except MalformedError as error:
            raise field_checks.malformed(queue_service_pb2.ProduceStreamRequest) from error
        if number == _PRODUCE_FIELD and wire_type == LEN:
            spans.append((body, pos))
    return spans


def parse_lease_frame(
    frame: bytes,
    *,
    subscribed: SubscribeCall | None,
    now_ms: int,
    request_limits: RequestLimits = DEFAULT_LIMITS,
) -> tuple[int, LeaseFrame | QueratorError]:
    """Parses a `LeaseStreamRequest`: its number, and the call or the error that refuses it.

    `subscribed` is the first frame's call, None before it: only the first frame subscribes. A
    settle frame may leave namespace and queue empty, but must not name other ones. Raises
    `QueratorError` when the number cannot be read.
    """
    try:
        message = queue_service_pb2.LeaseStreamRequest.FromString(frame)
    except DecodeError as error:
        return _number_of_malformed(frame, error, queue_service_pb2.LeaseStreamRequest)
    try:
        return message.request_number, _lease_frame(message, subscribed, now_ms, request_limits)
    except QueratorError as error:
        return message.request_number, error


def _lease_frame(
    message: queue_service_pb2.LeaseStreamRequest,
    subscribed: SubscribeCall | None,
    now_ms: int,
    request_limits: RequestLimits,
) -> LeaseFrame:
    kind = message.WhichOneof("frame")
    if kind is None:
        raise invalid("frame", "is missing or unknown")
    if subscribed is None:
        if kind != "subscribe":
            raise invalid(kind, "must come after subscribe, which is the first frame")
        return lease.check_subscribe(message.subscribe)
    namespace, queue = subscribed.namespace, subscribed.queue
    if kind == "credit":
        return _credit(message.credit)
    if kind == "end_deliveries":
        return EndDeliveries()
    if kind == "complete":
        _check_own_queue(message.complete, namespace, queue)
        return settle.check_complete(message.complete, namespace, queue, now_ms, request_limits)
    if kind == "retry":
        _check_own_queue(message.retry, namespace, queue)
        return settle.check_retry(message.retry, namespace, queue, now_ms, request_limits)
    if kind == "extend":
        _check_own_queue(message.extend, namespace, queue)
        return settle.check_extend(message.extend, namespace, queue, subscribed.client_id)
    raise invalid(kind, "must come once only, as the first frame")


def _credit(credit: queue_service_pb2.Credit) -> Credit:
    if not credit.items and not credit.bytes:
        raise invalid("credit", "must not be empty")
    most = limits.STREAM_CREDIT_ITEMS_MAX
    items = field_checks.check_range(
        credit.items, field="credit.items", least=0, most=most, unit="items"
    )
    return Credit(items=items, bytes=credit.bytes)


def _check_own_queue(
    message: queue_service_pb2.CompleteRequest
    | queue_service_pb2.RetryRequest
    | queue_service_pb2.ExtendRequest,
    namespace: str,
    queue: str,
) -> None:
    if message.namespace not in ("", namespace):
        raise invalid("namespace", "is not that of the stream", value=message.namespace)
    if message.queue not in ("", queue):
        raise invalid("queue", "is not that of the stream", value=message.queue)


def _number_of_malformed(
    frame: bytes,
    error: DecodeError,
    kind: type[queue_service_pb2.ProduceStreamRequest] | type[queue_service_pb2.LeaseStreamRequest],
) -> tuple[int, QueratorError]:
    """The number of a malformed frame, and the error that refuses it. Raises this error when the
    number cannot be read.
    """
    refusal = field_checks.malformed(kind)
    pos, stop = 0, len(frame)
    try:
        while pos < stop:
            number, wire_type, body, pos = next_field(frame, pos, stop)
            if number == _NUMBER_FIELD and wire_type == VARINT:
                return read_varint(frame, body, stop)[0], refusal
    except MalformedError:
        raise refusal from error
    raise refusal from error


def encode_produced_frame(number: int, reply: ProduceReply) -> bytes:
    """A `ProduceStreamResponse` for a request that is stored."""
    produced = produce.encode_produced(reply)
    return b"".join((_NUMBER_TAG, varint(number), prefix(_PRODUCED_FIELD, len(produced)), produced))


def encode_produce_error(number: int, error: QueratorError, *, request_id: str) -> bytes:
    """A `ProduceStreamResponse` for a request that was refused or failed."""
    return queue_service_pb2.ProduceStreamResponse(
        request_number=number, error=error_message(error, request_id=request_id)
    ).SerializeToString()


def encode_subscribed(number: int, *, lease_timeout_ms: int, durable: bool) -> bytes:
    """The `LeaseStreamResponse` that answers the first frame."""
    return queue_service_pb2.LeaseStreamResponse(
        request_number=number,
        subscribed=queue_service_pb2.Subscribed(
            lease_timeout=field_checks.duration(lease_timeout_ms), durable=durable
        ),
    ).SerializeToString()


def encode_completed_frame(number: int, reply: SettleReply) -> bytes:
    return queue_service_pb2.LeaseStreamResponse(
        request_number=number, completed=settle.completed_message(reply)
    ).SerializeToString()


def encode_retried_frame(number: int, reply: SettleReply) -> bytes:
    return queue_service_pb2.LeaseStreamResponse(
        request_number=number, retried=settle.retried_message(reply)
    ).SerializeToString()


def encode_extended_frame(number: int, reply: ExtendReply) -> bytes:
    return queue_service_pb2.LeaseStreamResponse(
        request_number=number, extended=settle.extended_message(reply)
    ).SerializeToString()


def encode_lease_error(number: int, error: QueratorError, *, request_id: str) -> bytes:
    """A `LeaseStreamResponse` for a frame that was refused."""
    return queue_service_pb2.LeaseStreamResponse(
        request_number=number, error=error_message(error, request_id=request_id)
    ).SerializeToString()


def encode_delivery(reply: LeaseReply) -> bytes:
    """A `LeaseStreamResponse` that delivers leased items; its number is 0."""
    parts = lease.leased_parts(reply)
    parts.insert(0, prefix(_LEASED_FIELD, sum(map(len, parts))))
    return b"".join(parts)
