"""Requests and answers of scans."""

from google.protobuf.timestamp_pb2 import Timestamp

from querator.model import limits
from querator.model.calls import BrowseCall, BrowsedPage
from querator.model.errors import invalid, over_limit
from querator.model.ids import check_name
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire import field_checks
from querator.wire.fields import prefix

_COLUMNS = queue_service_pb2.BrowseResponse.COLUMNS_FIELD_NUMBER
_SEQ_MAX = 2**63 - 1
_NANOS_PER_MS = 1_000_000


def parse_browse(data: bytes) -> BrowseCall:
    """A `BrowseRequest`."""
    message = field_checks.parse_message(queue_service_pb2.BrowseRequest, data)
    return BrowseCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        partition=field_checks.check_range(
            message.partition, field="partition", least=0, most=limits.PARTITIONS_MAX - 1
        ),
        from_seq=field_checks.check_range(
            message.from_seq, field="from_seq", least=0, most=_SEQ_MAX
        ),
        upto_seq=field_checks.check_range(
            message.upto_seq, field="upto_seq", least=0, most=_SEQ_MAX
        ),
        states=_states(message),
        kinds=_kinds(message),
        produced_from_ms=_instant_ms(message, "produced_from"),
        produced_before_ms=_instant_ms(message, "produced_before"),
        with_value=not message.without_value,
    )


def encode_browsed(page: BrowsedPage) -> bytes:
    """A `BrowseResponse`."""
    rest = queue_service_pb2.BrowseResponse(next_seq=page.next_seq, upto_seq=page.upto_seq)
    return b"".join((prefix(_COLUMNS, len(page.columns)), page.columns, rest.SerializeToString()))


def _states(message: queue_service_pb2.BrowseRequest) -> int:
    chosen = 0
    for place, state in enumerate(message.states):
        if not state or state not in items_pb2.ItemState.values():
            raise invalid(f"states[{place}]", "is not a state of items", value=state)
        chosen |= 1 << state
    return chosen


def _kinds(message: queue_service_pb2.BrowseRequest) -> tuple[str, ...]:
    if len(message.kinds) > limits.BROWSE_KINDS_MAX:
        most = limits.BROWSE_KINDS_MAX
        raise over_limit("kinds", value=len(message.kinds), limit=most, unit="kinds")
    return tuple(
        field_checks.check_chars(kind, limits.KIND_CHARS_MAX, field=f"kinds[{place}]")
        for place, kind in enumerate(message.kinds)
    )


def _instant_ms(message: queue_service_pb2.BrowseRequest, field: str) -> int:
    """The instant of a field in ms, 0 if it is unset. It is rounded up, which selects the same
    items as the instant itself, because items are produced at whole ms.
    """
    if not message.HasField(field):  # type: ignore[arg-type]
        return 0
    instant: Timestamp = getattr(message, field)
    return field_checks.instant_ms(instant, field=field) + (instant.nanos % _NANOS_PER_MS > 0)
