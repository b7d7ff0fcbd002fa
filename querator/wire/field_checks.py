"""Checks of single fields, and the limits of requests that an operator may raise.

Each check returns the value in the model's unit, or raises a `QueratorError` that names the field,
the limit and the value. Durations are rounded up to ms, so that a given timeout never becomes 0;
instants are rounded down.
"""

from collections.abc import Mapping
from typing import Protocol, TypedDict, TypeVar

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model import limits
from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.model.ids import DEFAULT_NAMESPACE, check_name

_NANOS_PER_MS = 1_000_000
_NANOS_PER_SECOND = 1_000_000_000
# Limits of google/protobuf/{duration,timestamp}.proto.
_DURATION_SECONDS_MAX = 315_576_000_000
_TIMESTAMP_SECONDS_MAX = 253_402_300_799

M = TypeVar("M", bound=Message)


class ListRequest(Protocol):
    """What the requests for pages of a queue's lists have in common."""

    namespace: str
    queue: str
    page_size: int
    page_token: str
    stale: bool


class ListFields(TypedDict):
    """The fields of the call for a page. `page_size`: 0 is the default."""

    namespace: str
    queue: str
    page_size: int
    page_token: str
    stale: bool
    timeout_ms: int


class RequestLimits(msgspec.Struct, frozen=True):
    """Limits of requests at one node. The operator may raise them up to the caps, which are
    asserted.
    """

    payload_bytes_max: int = limits.PAYLOAD_BYTES_MAX
    request_bytes_max: int = limits.REQUEST_BYTES_MAX
    request_items_max: int = limits.REQUEST_ITEMS_MAX

    def __post_init__(self) -> None:
        assert 0 < self.payload_bytes_max <= limits.PAYLOAD_BYTES_CAP
        assert 0 < self.request_bytes_max <= limits.REQUEST_BYTES_CAP
        assert 0 < self.request_items_max <= limits.REQUEST_ITEMS_CAP


DEFAULT_LIMITS = RequestLimits()


def parse_message(kind: type[M], data: bytes) -> M:
    """Parses `data` as a message of this kind. Raises INVALID_ARGUMENT."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise malformed(kind) from error


def malformed(kind: type[Message]) -> QueratorError:
    name = kind.DESCRIPTOR.full_name
    return QueratorError(ErrorCode.INVALID_ARGUMENT, f"the bytes are not a message of type {name}")


def within(path: str, error: QueratorError) -> QueratorError:
    """The same refusal of a field that is inside of another one. `path` ends with a dot."""
    return QueratorError(
        error.code,
        error.message.replace(error.field, path + error.field, 1) if error.field else error.message,
        field=path + error.field,
        limit=error.limit,
        value=error.value,
        retry_delay_ms=error.retry_delay_ms,
    )


def under_limit(field: str, *, value: object, limit: object, unit: str = "") -> QueratorError:
    """The error for a value below the lower limit; both are in `unit`."""
    suffix = f" {unit}" if unit else ""
    return QueratorError(
        ErrorCode.LIMIT_EXCEEDED,
        f"{field} is {value}{suffix}; the least is {limit}{suffix}",
        field=field,
        limit=f"{limit}{suffix}",
        value=f"{value}{suffix}",
    )


def check_namespace(text: str) -> str:
    return check_name(text, field="namespace") if text else DEFAULT_NAMESPACE


def list_fields(message: ListRequest, *, timeout_ms: int) -> ListFields:
    """Checks the fields of a request for a page of a queue's list."""
    return {
        "namespace": check_namespace(message.namespace),
        "queue": check_name(message.queue, field="queue"),
        "page_size": check_range(
            message.page_size, field="page_size", least=0, most=limits.PAGE_ITEMS_MAX
        ),
        "page_token": check_chars(
            message.page_token, limits.PAGE_TOKEN_CHARS_MAX, field="page_token"
        ),
        "stale": message.stale,
        "timeout_ms": timeout_ms,
    }


def check_chars(text: str, chars_max: int, *, field: str) -> str:
    if len(text) > chars_max:
        raise over_limit(field, value=len(text), limit=chars_max, unit="characters")
    return text


def check_bytes(text: str, bytes_max: int, *, field: str) -> bytes:
    """Checks the length of `text` in UTF-8; returns these bytes."""
    data = text.encode()
    if len(data) > bytes_max:
        raise over_limit(field, value=len(data), limit=bytes_max, unit="bytes")
    return data


def check_attributes(attributes: Mapping[str, str], *, field: str) -> None:
    most = limits.ATTRIBUTES_MAX
    if len(attributes) > most:
        raise over_limit(field, value=len(attributes), limit=most, unit="attributes")
    total = sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
    if total > limits.ATTRIBUTES_BYTES_MAX:
        raise over_limit(field, value=total, limit=limits.ATTRIBUTES_BYTES_MAX, unit="bytes")


def check_client_id(text: str, *, field: str = "client_id") -> str:
    if not text:
        raise invalid(field, "must not be empty")
    return check_chars(text, limits.CLIENT_ID_CHARS_MAX, field=field)


def check_range(value: int, *, field: str, least: int, most: int, unit: str = "") -> int:
    if value > most:
        raise over_limit(field, value=value, limit=most, unit=unit)
    if value < least:
        raise under_limit(field, value=value, limit=least, unit=unit)
    return value


def duration_ms(duration: Duration, *, field: str, least_ms: int, most_ms: int) -> int:
    """Checks a duration that is set; returns it in ms."""
    seconds, nanos = duration.seconds, duration.nanos
    well_formed = abs(seconds) <= _DURATION_SECONDS_MAX and abs(nanos) < _NANOS_PER_SECOND
    if not well_formed or seconds * nanos < 0:
        raise invalid(field, "is not a valid duration", value=f"{seconds} s {nanos} ns")
    if seconds < 0 or nanos < 0:
        raise invalid(field, "must not be negative", value=f"{seconds} s {nanos} ns")
    value_ms = seconds * 1000 + -(-nanos // _NANOS_PER_MS)
    return check_range(value_ms, field=field, least=least_ms, most=most_ms, unit="ms")


def lease_timeout_ms(duration: Duration, *, field: str = "lease_timeout") -> int:
    return duration_ms(
        duration,
        field=field,
        least_ms=limits.LEASE_TIMEOUT_MS_MIN,
        most_ms=limits.LEASE_TIMEOUT_MS_MAX,
    )


def instant_ms(instant: Timestamp, *, field: str) -> int:
    """Checks an instant; returns it in ms since 1970."""
    seconds, nanos = instant.seconds, instant.nanos
    if seconds > _TIMESTAMP_SECONDS_MAX or not 0 <= nanos < _NANOS_PER_SECOND:
        raise invalid(field, "is not a valid instant", value=f"{seconds} s {nanos} ns")
    if seconds < 0:
        raise invalid(field, "is before 1970", value=f"{seconds} s {nanos} ns")
    return seconds * 1000 + nanos // _NANOS_PER_MS


def scheduled_ms(instant: Timestamp, *, field: str, now_ms: int) -> int:
    """Checks an instant until which an item waits; returns it in ms since 1970. Past instants are
    allowed, but not before 1970 (as zero values of some languages' time types), and not more than
    SCHEDULE_AHEAD_MS_MAX ahead.
    """
    value_ms = instant_ms(instant, field=field)
    if value_ms - now_ms > limits.SCHEDULE_AHEAD_MS_MAX:
        ahead_ms = value_ms - now_ms
        raise over_limit(field, value=ahead_ms, limit=limits.SCHEDULE_AHEAD_MS_MAX, unit="ms ahead")
    return value_ms


def timestamp(at_ms: int) -> Timestamp:
    return Timestamp(seconds=at_ms // 1000, nanos=at_ms % 1000 * _NANOS_PER_MS)


def duration(value_ms: int) -> Duration:
    """A duration of `value_ms`, which is 0 or above."""
    return Duration(seconds=value_ms // 1000, nanos=value_ms % 1000 * _NANOS_PER_MS)


def signed_duration(value_ms: int) -> Duration:
    """A duration of `value_ms`, which may be negative."""
    span = Duration()
    span.FromMilliseconds(value_ms)
    return span
