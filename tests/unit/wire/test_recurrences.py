"""The calls about recurrences as bytes, and the items of a template."""

from datetime import timedelta
from typing import Any

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.recurrence_calls import ShownRecurrence
from querator.model.recurrences import (
    MissedRuns,
    Overlap,
    RecurrenceRow,
    RecurrenceSpec,
    RecurrenceState,
    RunsRow,
)
from querator.v1 import items_pb2, queue_service_pb2, recurrences_pb2
from querator.wire import recurrences

pb: Any = recurrences_pb2
"""Untyped: times are given as Python's."""
NAMED = {"queue": "q", "name": "r"}
DAY = timedelta(days=1)


def raised(call: Any, data: bytes) -> QueratorError:
    with pytest.raises(QueratorError) as caught:
        call(data)
    return caught.value


def create(**spec: Any) -> bytes:
    message = pb.CreateRecurrenceRequest(**NAMED, spec=pb.RecurrenceSpec(**spec))
    return bytes(message.SerializeToString())


def test_a_specification_has_defaults():
    call = recurrences.parse_create(create(cron="@daily"), timeout_ms=7)
    assert (call.namespace, call.queue, call.name, call.timeout_ms) == ("default", "q", "r", 7)
    assert call.spec == RecurrenceSpec(cron="@daily")
    assert (call.spec.missed, call.spec.missed_max) == (MissedRuns.ONE, 100)
    assert (call.spec.missed_after_ms, call.spec.overlap) == (60_000, Overlap.ALLOW)


def test_all_fields_travel_both_ways():
    item = items_pb2.Item(payload=b"x", kind="k", attributes={"a": "1", "b": "2"})
    message = pb.RecurrenceSpec(
        interval=timedelta(seconds=90),
        phase=timedelta(milliseconds=1),
        jitter=timedelta(seconds=2),
        missed=pb.MISSED_RUNS_ALL,
        missed_max=5,
        missed_after=timedelta(minutes=5),
        overlap=pb.RUN_OVERLAP_SKIP,
        item=item,
    )
    request = pb.CreateRecurrenceRequest(**NAMED, spec=message)
    spec = recurrences.parse_create(request.SerializeToString()).spec
    assert (spec.interval_ms, spec.phase_ms, spec.jitter_ms) == (90_000, 1, 2_000)
    runs = RunsRow(5, 8_000, 7_000, fired=3, skipped=2, missed=1, last_due_ms=4, last_at_ms=5,
                   last_seq=9, error="slow")  # fmt: skip
    shown = ShownRecurrence(
        RecurrenceState(1, RecurrenceRow("r", spec, 4, True, 6), runs), 8_000, True
    )
    back = pb.CreateRecurrenceResponse.FromString(recurrences.encode_created(shown))
    assert (back.created, back.recurrence.spec) == (True, message)
    one = back.recurrence
    assert (one.name, one.revision, one.paused, one.fired) == ("r", 4, True, 3)
    assert (one.skipped, one.missed, one.last_item_id, one.error) == (2, 1, "0-9", "slow")
    assert (one.next_due_at.ToMilliseconds(), one.next_fire_at.ToMilliseconds()) == (7_000, 8_000)
    assert (one.last_due_at.ToMilliseconds(), one.last_fired_at.ToMilliseconds()) == (4, 5)


BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a short interval": (
        {"interval": timedelta(milliseconds=999)}, "spec.interval", "1000 ms", "999 ms",
    ),
    "a long interval": (
        {"interval": 367 * DAY}, "spec.interval", "31622400000 ms", "31708800000 ms",
    ),
    "a long jitter": ({"jitter": 2 * DAY}, "spec.jitter", "86400000 ms", "172800000 ms"),
    "no patience": (
        {"missed_after": timedelta(milliseconds=1)}, "spec.missed_after", "1000 ms", "1 ms",
    ),
    "too much patience": ({"missed_after": 8 * DAY}, "spec.missed_after", "604800000 ms",
                          "691200000 ms"),
    "no missed run": ({"missed_max": 0}, "spec.missed_max", "1", "0"),
    "too many missed runs": ({"missed_max": 1_001}, "spec.missed_max", "1000", "1001"),
    "a long expression": (
        {"cron": "*" * 257}, "spec.cron", "256 characters", "257 characters",
    ),
    "a long zone": ({"time_zone": "z" * 65}, "spec.time_zone", "64 characters", "65 characters"),
    "a long phase": ({"phase": 366 * DAY}, "spec.phase", "31622399999 ms", "31622400000 ms"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_fields_have_limits(name):
    spec, field, limit, value = BAD[name]
    error = raised(recurrences.parse_create, create(**spec))
    assert error.code is ErrorCode.LIMIT_EXCEEDED
    assert (error.field, error.limit, error.value) == (field, limit, value)


@pytest.mark.parametrize("field", ["missed", "overlap"])
def test_policies_are_known(field):
    error = raised(recurrences.parse_create, create(**{field: 9}))
    assert (error.code, error.field, error.value) == (
        ErrorCode.INVALID_ARGUMENT, f"spec.{field}", "9",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "parse", "field"),
    [
        (pb.GetRecurrenceRequest(queue="q"), recurrences.parse_get, "name"),
        (pb.GetRecurrenceRequest(name="r"), recurrences.parse_get, "queue"),
        (pb.DeleteRecurrenceRequest(queue="q", name="a/b"), recurrences.parse_delete, "name"),
        (pb.PauseRecurrenceRequest(queue="q", name="x" * 256), recurrences.parse_pause, "name"),
        (pb.ListRecurrencesRequest(queue="q", page_size=1_001), recurrences.parse_list,
         "page_size"),
        (pb.ListRecurrencesRequest(queue="q", page_token="x" * 1_025), recurrences.parse_list,
         "page_token"),
        (pb.UpdateRecurrenceRequest(**NAMED), recurrences.parse_update, "update_mask"),
        (pb.UpdateRecurrenceRequest(**NAMED, update_mask={"paths": ["x"]}),
         recurrences.parse_update, "update_mask.paths[0]"),
        (pb.GetRecurrenceTimesRequest(queue="q"), recurrences.parse_times, "name"),
        (pb.GetRecurrenceTimesRequest(**NAMED, spec={}), recurrences.parse_times, "name"),
        (pb.GetRecurrenceTimesRequest(queue="q", spec={}), recurrences.parse_times, "queue"),
        (pb.GetRecurrenceTimesRequest(**NAMED, count=101), recurrences.parse_times, "count"),
    ],
)  # fmt: skip
def test_requests_name_what_they_are_for(request_, parse, field):
    assert raised(parse, request_.SerializeToString()).field == field


def test_an_update_has_a_mask_of_the_models_names():
    request = pb.UpdateRecurrenceRequest(
        **NAMED, spec={"jitter": DAY}, update_mask={"paths": ["jitter", "missed", "jitter"]},
        expected_revision=4,
    )  # fmt: skip
    call = recurrences.parse_update(request.SerializeToString())
    assert (call.mask, call.expected_revision) == (("jitter_ms", "missed"), 4)
    assert call.spec.jitter_ms == 86_400_000


def test_bytes_that_are_no_message_are_refused():
    for parse in (recurrences.parse_create, recurrences.parse_times, recurrences.parse_list):
        assert raised(parse, b"\xff").code is ErrorCode.INVALID_ARGUMENT


def test_a_placeholder_may_come_often_and_other_braces_stay():
    template = items_pb2.Item(payload=b"{{number}}{{number}} {x} {{ number }} {{{due_ms}}}")
    made = recurrences.make_item(
        template.SerializeToString(), name="r", due_ms=1_700_000_000_123, number=42
    )
    [item] = queue_service_pb2.ProduceRequest.FromString(made.data).items
    assert item.payload == b"4242 {x} {{ number }} {1700000000123}"
    assert item.attributes["recurrence-due-at"] == "2023-11-14T22:13:20.123Z"
    assert made.special is None


def test_a_template_may_have_what_makes_an_item_special():
    template = items_pb2.Item(priority=4, max_attempts=2)
    template.lease_timeout.FromTimedelta(timedelta(seconds=9))
    made = recurrences.make_item(template.SerializeToString(), name="r", due_ms=0, number=1)
    special = made.special
    assert special is not None
    assert (special.priority, special.max_attempts, special.lease_timeout_ms) == (4, 2, 9_000)
