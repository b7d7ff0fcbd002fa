"""Events of queues: the call of a follower, and its reply."""

from querator.model import ids, limits
from querator.model.errors import invalid
from querator.model.event_calls import (
    EventKind,
    EventsReply,
    EventStart,
    ReadEventsCall,
    RecordedEvent,
)
from querator.model.ids import GroupId, LeaseNumber, PartitionNumber, check_name
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire import field_checks

_KINDS = frozenset(map(int, EventKind))
_POSITION_MAX = 2**63 - 1


def parse_read_events(data: bytes) -> ReadEventsCall:
    """A `ReadEventsRequest`."""
    message = field_checks.parse_message(queue_service_pb2.ReadEventsRequest, data)
    wait_ms = 0
    if message.HasField("wait_timeout"):
        wait_ms = field_checks.duration_ms(
            message.wait_timeout,
            field="wait_timeout",
            least_ms=0,
            most_ms=limits.REQUEST_TIMEOUT_MS_MAX,
        )
    for place, kind in enumerate(message.kinds):
        if int(kind) not in _KINDS:
            raise invalid(f"kinds[{place}]", "is not a known kind", value=kind)
    if message.start not in queue_service_pb2.EventStart.values():
        raise invalid("start", "is not a known start", value=message.start)
    return ReadEventsCall(
        namespace=field_checks.check_namespace(message.namespace),
        queue=check_name(message.queue, field="queue"),
        partition=field_checks.check_range(
            message.partition, field="partition", least=0, most=limits.PARTITIONS_MAX - 1
        ),
        feed=GroupId(message.feed),
        position=field_checks.check_range(
            message.position, field="position", least=0, most=_POSITION_MAX
        ),
        start=message.start or EventStart.FIRST,
        kinds=frozenset(message.kinds),
        events_max=field_checks.check_range(
            message.max_events or limits.EVENTS_READ_DEFAULT,
            field="max_events",
            least=1,
            most=limits.EVENTS_READ_MAX,
        ),
        wait_ms=wait_ms,
    )


def encode_events(reply: EventsReply) -> bytes:
    """A `ReadEventsResponse`."""
    return queue_service_pb2.ReadEventsResponse(
        events=[_event(reply, event) for event in reply.events],
        feed=reply.feed,
        next_position=reply.next_position,
        first_position=reply.first_position,
        end_position=reply.end_position,
        partitions=reply.partitions,
    ).SerializeToString()


def _event(reply: EventsReply, event: RecordedEvent) -> queue_service_pb2.QueueEvent:
    message = queue_service_pb2.QueueEvent(
        position=event.position,
        kind=queue_service_pb2.EventKind.ValueType(event.kind),
        at=field_checks.timestamp(event.at_ms),
        items=[items_pb2.SeqRange(first_seq=first, count=count) for first, count in event.ranges],
        client_id=event.client_id,
        attempt=event.attempt,
        group=event.flow.decode(),
        dropped=event.dropped,
    )
    if event.lease:
        message.lease_id = ids.format_lease_id(
            reply.feed, PartitionNumber(reply.partition), LeaseNumber(event.lease)
        )
    if event.produced_at_ms:
        message.produced_at.CopyFrom(field_checks.timestamp(event.produced_at_ms))
    if event.due_ms:
        message.due_at.CopyFrom(field_checks.timestamp(event.due_ms))
    _add_detail(message, event)
    return message


def _add_detail(message: queue_service_pb2.QueueEvent, event: RecordedEvent) -> None:
    detail = event.detail
    match event.kind:
        case EventKind.DEAD:
            message.reason = items_pb2.DeadReason.ValueType(detail)
        case EventKind.PRIORITIZED:
            message.priority = detail
        case EventKind.PAUSED | EventKind.RESUMED:
            message.part = queue_service_pb2.PausedPart.ValueType(detail)
        case EventKind.RESIZED:
            message.partitions = detail
        case EventKind.SETTINGS_CHANGED:
            message.settings_version = detail
        case EventKind.BREAKER_CHANGED:
            message.breaker = detail
