"""Requests about scheduled items: what they become, and what is refused; and their replies."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model.calls import BrowsedItem, PeekedPage
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import SCHEDULE_INTERVAL_MS_MAX
from querator.model.schedule_calls import (
    CountScheduledCall,
    DueFilter,
    ListScheduledCall,
    RescheduleCall,
    RescheduleReply,
    ScheduledCounts,
)
from querator.v1 import admin_service_pb2, items_pb2, queue_service_pb2
from querator.wire import schedules
from tests.unit.wire.valid_requests import NOW_MS, instant, milliseconds

YEAR_9999 = Timestamp(seconds=253_402_300_799, nanos=999_000_000)
YEAR_12000 = Timestamp(seconds=316_516_204_800)
FILTER = admin_service_pb2.ScheduledFilter


def listed(**fields: Any) -> ListScheduledCall:
    message = admin_service_pb2.ListScheduledItemsRequest(queue="orders", **fields)
    return schedules.parse_list_scheduled(message.SerializeToString(), timeout_ms=7)


def counted(**fields: Any) -> CountScheduledCall:
    message = admin_service_pb2.CountScheduledItemsRequest(queue="orders", **fields)
    return schedules.parse_count_scheduled(message.SerializeToString(), timeout_ms=7)


def changed(**fields: Any) -> RescheduleCall:
    given = {"queue": "orders", "item_ids": ["0-1"], "run_now": True, **fields}
    message = admin_service_pb2.RescheduleItemsRequest(
        **{name: value for name, value in given.items() if value is not None}
    )
    return schedules.parse_reschedule(message.SerializeToString(), timeout_ms=7)


def test_lists():
    assert listed() == ListScheduledCall("default", "orders", timeout_ms=7)
    due = {"due_from": instant(NOW_MS), "due_until": YEAR_9999, "kind": "mail"}
    paged = listed(**due, page_size=5, page_token="t", stale=True, namespace="n")
    assert paged == ListScheduledCall(
        "n", "orders", DueFilter(NOW_MS, 253_402_300_799_999, "mail"), 5, "t", True, 7
    )


def test_counts():
    assert counted() == CountScheduledCall("default", "orders", timeout_ms=7)
    assert counted(due_from=instant(0)).from_ms == 0
    due = {"due_from": instant(5), "due_until": instant(NOW_MS), "kind": "mail"}
    span = counted(**due, interval=milliseconds(1_500), stale=True)
    assert span == CountScheduledCall(
        namespace="default",
        queue="orders",
        from_ms=5,
        until_ms=NOW_MS,
        kind="mail",
        interval_ms=1_500,
        stale=True,
        timeout_ms=7,
    )


def test_changes():
    assert changed() == RescheduleCall("default", "orders", ("0-1",), timeout_ms=7)
    assert changed(run_now=None, cancel=True).cancel
    moved = changed(run_now=None, due_at=instant(NOW_MS))
    assert (moved.due_at_ms, moved.cancel) == (NOW_MS, False)
    chosen = changed(item_ids=None, filter=FILTER(kind="mail", due_until=instant(9)), dry_run=True)
    assert (chosen.due, chosen.dry_run) == (DueFilter(0, 9, "mail"), True)
    assert changed(item_ids=None, filter=FILTER()).due == DueFilter()


Send = Callable[..., object]


@pytest.mark.parametrize("send", [listed, counted])
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"due_from": Timestamp(seconds=-1)}, "due_from"),
        ({"due_from": YEAR_12000}, "due_from"),
        ({"due_until": YEAR_12000}, "due_until"),
        ({"due_until": Timestamp(seconds=2**62)}, "due_until"),
        ({"due_from": Timestamp(nanos=-1)}, "due_from"),
        ({"due_from": instant(9), "due_until": instant(9)}, "due_until"),
        ({"due_until": instant(0)}, "due_until"),
    ],
)
def test_spans_that_are_none(send: Send, fields: dict[str, Any], field: str):
    with pytest.raises(QueratorError) as caught:
        send(**fields)
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_ARGUMENT, field)
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"item_ids": None}, "item_ids"),
        ({"filter": FILTER()}, "item_ids"),
        ({"item_ids": ["0-1", "0-x"]}, "item_ids[1]"),
        ({"run_now": None}, "action"),
        ({"run_now": False}, "run_now"),
        ({"run_now": None, "cancel": False}, "cancel"),
        ({"dry_run": True}, "dry_run"),
        ({"run_now": None, "due_at": YEAR_12000}, "due_at"),
        ({"run_now": None, "due_at": Timestamp(seconds=-(2**62))}, "due_at"),
        ({"item_ids": None, "filter": FILTER(due_from=YEAR_12000)}, "filter.due_from"),
        (
            {"item_ids": None, "filter": FILTER(due_from=instant(9), due_until=instant(8))},
            "filter.due_until",
        ),
    ],
)
def test_changes_that_are_none(fields: dict[str, Any], field: str):
    with pytest.raises(QueratorError) as caught:
        changed(**fields)
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_ARGUMENT, field)
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("send", "field", "limit", "value"),
    [
        (lambda: listed(page_size=1_001), "page_size", "1000", "1001"),
        (
            lambda: listed(page_token="t" * 1_025),
            "page_token",
            "1024 characters",
            "1025 characters",
        ),
        (lambda: listed(kind="k" * 256), "kind", "255 characters", "256 characters"),
        (lambda: counted(interval=milliseconds(999)), "interval", "1000 ms", "999 ms"),
        (lambda: counted(interval=Duration()), "interval", "1000 ms", "0 ms"),
        (
            lambda: counted(interval=milliseconds(SCHEDULE_INTERVAL_MS_MAX + 1)),
            "interval",
            f"{SCHEDULE_INTERVAL_MS_MAX} ms",
            f"{SCHEDULE_INTERVAL_MS_MAX + 1} ms",
        ),
        (lambda: changed(item_ids=["0-1"] * 1_001), "item_ids", "1000 items", "1001 items"),
        (
            lambda: changed(item_ids=None, filter=FILTER(kind="k" * 256)),
            "filter.kind",
            "255 characters",
            "256 characters",
        ),
    ],
)
def test_limits(send: Send, field: str, limit: str, value: str):
    with pytest.raises(QueratorError) as caught:
        send()
    error = caught.value
    assert (error.code, error.field) == (ErrorCode.LIMIT_EXCEEDED, field)
    assert (error.limit, error.value) == (limit, value)


def test_a_page_arrives():
    item = items_pb2.Item(payload=b"p", kind="mail")
    stored = queue_service_pb2.ProduceRequest(items=[item]).SerializeToString()
    one = BrowsedItem(
        seq=9,
        state=3,
        attempt=2,
        produced_at_ms=1_000,
        due_at_ms=NOW_MS,
        lease=0,
        dead_letter=None,
        errors=("slow",),
        item=stored,
    )
    data = schedules.encode_scheduled(PeekedPage(((7, 1, one),), "next"))
    page = admin_service_pb2.ListScheduledItemsResponse.FromString(data)
    [got] = page.items
    assert (got.partition, got.seq, got.attempt, got.item) == (1, 9, 2, item)
    assert got.state == items_pb2.ITEM_STATE_SCHEDULED
    assert (got.due_at, list(got.errors)) == (instant(NOW_MS), ["slow"])
    assert page.next_page_token == "next"


def test_counts_arrive():
    data = schedules.encode_scheduled_counts(
        ScheduledCounts(((NOW_MS, 3), (NOW_MS + 5, 4)), 7, 1, 2)
    )
    counts = admin_service_pb2.CountScheduledItemsResponse.FromString(data)
    assert [(one.starts_at, one.items) for one in counts.buckets] == [
        (instant(NOW_MS), 3),
        (instant(NOW_MS + 5), 4),
    ]
    assert (counts.total, counts.before, counts.after) == (7, 1, 2)


def test_a_reply_to_a_change_arrives():
    data = schedules.encode_rescheduled(RescheduleReply(3, ("0-1", "2-5")))
    reply = admin_service_pb2.RescheduleItemsResponse.FromString(data)
    assert (reply.changed, list(reply.not_scheduled)) == (3, ["0-1", "2-5"])
