"""Events on the wire: the call of a follower, and the fields of each kind of event."""

from typing import Any

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.event_calls import (
    EventKind,
    EventsReply,
    EventStart,
    PausedPart,
    ReadEventsCall,
    RecordedEvent,
)
from querator.model.ids import GroupId
from querator.model.limits import EVENTS_READ_DEFAULT
from querator.v1 import items_pb2
from querator.v1 import queue_service_pb2 as pb
from querator.wire import events

AT_MS = 1_700_000_000_123


def request(**fields: Any) -> bytes:
    message = pb.ReadEventsRequest(**({"queue": "q"} | fields))
    return message.SerializeToString()


def refusal(data: bytes) -> QueratorError:
    with pytest.raises(QueratorError) as refused:
        events.parse_read_events(data)
    return refused.value


def test_a_call_with_all_fields():
    message = pb.ReadEventsRequest(
        namespace="n",
        queue="q",
        partition=3,
        feed=17,
        position=5,
        start=pb.EVENT_START_END,
        kinds=[pb.EVENT_KIND_DEAD, pb.EVENT_KIND_PAUSED, pb.EVENT_KIND_DEAD],
        max_events=7,
    )
    message.wait_timeout.FromMilliseconds(1_500)
    assert events.parse_read_events(message.SerializeToString()) == ReadEventsCall(
        namespace="n", queue="q", partition=3, feed=GroupId(17), position=5, start=EventStart.END,
        kinds=frozenset({EventKind.DEAD, EventKind.PAUSED}), events_max=7, wait_ms=1_500,
    )  # fmt: skip


def test_what_is_not_given_has_its_default():
    assert events.parse_read_events(request()) == ReadEventsCall(
        namespace="default", queue="q", partition=0, feed=GroupId(0), position=0,
        start=EventStart.FIRST, kinds=frozenset(), events_max=EVENTS_READ_DEFAULT, wait_ms=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"queue": ""}, ErrorCode.INVALID_ARGUMENT, "queue"),
        ({"partition": 1_024}, ErrorCode.LIMIT_EXCEEDED, "partition"),
        ({"position": 2**63}, ErrorCode.LIMIT_EXCEEDED, "position"),
        ({"kinds": [1, 99]}, ErrorCode.INVALID_ARGUMENT, "kinds[1]"),
        ({"kinds": [0]}, ErrorCode.INVALID_ARGUMENT, "kinds[0]"),
        ({"start": 9}, ErrorCode.INVALID_ARGUMENT, "start"),
        ({"max_events": 2_001}, ErrorCode.LIMIT_EXCEEDED, "max_events"),
    ],
)
def test_a_field_out_of_its_limits_is_refused(fields, code, field):
    refused = refusal(request(**fields))
    assert (refused.code, refused.field) == (code, field)


def test_a_wait_beyond_its_limit_is_refused():
    message = pb.ReadEventsRequest(queue="q")
    message.wait_timeout.FromSeconds(901)
    refused = refusal(message.SerializeToString())
    assert (refused.code, refused.field) == (ErrorCode.LIMIT_EXCEEDED, "wait_timeout")


def encoded(*of: RecordedEvent) -> pb.ReadEventsResponse:
    reply = EventsReply(
        events=of, partition=3, feed=GroupId(0x1F), next_position=9, first_position=2,
        end_position=12, partitions=4,
    )  # fmt: skip
    return pb.ReadEventsResponse.FromString(events.encode_events(reply))


def test_a_reply_says_where_to_continue():
    reply = encoded()
    assert (reply.feed, reply.next_position, reply.first_position, reply.end_position) == (
        0x1F, 9, 2, 12,
    )  # fmt: skip
    assert (list(reply.events), reply.partitions) == ([], 4)


def test_an_event_of_items():
    [event] = encoded(
        RecordedEvent(
            position=8, kind=EventKind.LEASED, at_ms=AT_MS, ranges=((1, 2), (7, 1)), lease=0x2A,
            client_id="worker", attempt=2, produced_at_ms=AT_MS - 5, due_ms=AT_MS + 5,
            flow="größe".encode(),
        )
    ).events  # fmt: skip
    assert (event.position, event.kind) == (8, pb.EVENT_KIND_LEASED)
    assert event.at.ToMilliseconds() == AT_MS
    assert [(run.first_seq, run.count) for run in event.items] == [(1, 2), (7, 1)]
    assert (event.lease_id, event.client_id, event.attempt) == ("1f.3.2a", "worker", 2)
    assert event.produced_at.ToMilliseconds() == AT_MS - 5
    assert event.due_at.ToMilliseconds() == AT_MS + 5
    assert event.group == "größe"


def test_what_is_not_known_is_not_set():
    [event] = encoded(RecordedEvent(position=1, kind=EventKind.PRODUCED, at_ms=AT_MS)).events
    assert not event.HasField("produced_at")
    assert not event.HasField("due_at")
    assert (event.lease_id, event.reason, event.dropped) == ("", 0, False)


@pytest.mark.parametrize(
    ("kind", "detail", "field", "value"),
    [
        (EventKind.DEAD, 2, "reason", items_pb2.DEAD_REASON_EXPIRED),
        (EventKind.PRIORITIZED, -7, "priority", -7),
        (EventKind.PAUSED, PausedPart.LEASES, "part", pb.PAUSED_PART_LEASES),
        (EventKind.RESUMED, PausedPart.PRODUCERS, "part", pb.PAUSED_PART_PRODUCERS),
        (EventKind.RESIZED, 12, "partitions", 12),
        (EventKind.SETTINGS_CHANGED, 2**40, "settings_version", 2**40),
        (EventKind.BREAKER_CHANGED, 2, "breaker", 2),
    ],
)
def test_the_detail_of_a_kind_has_its_field(kind, detail, field, value):
    [event] = encoded(RecordedEvent(position=1, kind=kind, at_ms=AT_MS, detail=detail)).events
    assert getattr(event, field) == value


def test_the_protocol_has_every_kind():
    named = {name.removeprefix("EVENT_KIND_"): number for name, number in pb.EventKind.items()}
    assert {one.name: one.value for one in EventKind} | {"UNSPECIFIED": 0} == named
    assert {one.value for one in EventStart} | {0} == set(pb.EventStart.values())
    assert {one.value for one in PausedPart} | {0} == set(pb.PausedPart.values())
