"""Requests that remove items or choose dead letters: what they become, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model.calls import CancelCall, CancelReply, PurgeCall, PurgeReply
from querator.model.commands import LetterFilter
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import admin_service_pb2, items_pb2
from querator.wire import dead_letters, item_changes
from querator.wire.dead_letters import LettersCall
from tests.unit.wire.valid_requests import NOW_MS, instant

FILTER = admin_service_pb2.DeadLetterFilter


def cancel(**fields: Any) -> CancelCall:
    message = admin_service_pb2.CancelItemsRequest(**{"queue": "orders", **fields})
    return item_changes.parse_cancel(message.SerializeToString(), timeout_ms=7)


def purge(**fields: Any) -> PurgeCall:
    message = admin_service_pb2.PurgeQueueRequest(**{"queue": "orders", **fields})
    return item_changes.parse_purge(message.SerializeToString(), timeout_ms=7)


def redrive(**fields: Any) -> LettersCall:
    message = admin_service_pb2.RedriveDeadLettersRequest(**{"queue": "orders", **fields})
    return dead_letters.parse_redrive(message.SerializeToString())


def drop(**fields: Any) -> LettersCall:
    message = admin_service_pb2.DropDeadLettersRequest(**{"queue": "orders", **fields})
    return dead_letters.parse_drop(message.SerializeToString())


def reason(number: int) -> items_pb2.DeadReason.ValueType:
    return items_pb2.DeadReason.ValueType(number)


def test_requests():
    assert cancel(item_ids=["0-1", "3-7"]) == CancelCall("default", "orders", ("0-1", "3-7"), 7)
    assert purge() == PurgeCall("default", "orders", timeout_ms=7)
    assert purge(namespace="n", keep_scheduled=True, page_token="t") == PurgeCall(
        "n", "orders", keep_scheduled=True, page_token="t", timeout_ms=7
    )
    assert purge(dry_run=True) == PurgeCall("default", "orders", dry_run=True, timeout_ms=7)


@pytest.mark.parametrize("parse", [redrive, drop])
def test_letters(parse: Callable[..., LettersCall]):
    assert parse(item_ids=["0-1", "1-7"]) == LettersCall("default", "orders", ("0-1", "1-7"))
    assert parse(filter=FILTER(), dry_run=True) == LettersCall("default", "orders", dry_run=True)
    chosen = FILTER(
        reasons=[reason(3), reason(1), reason(3)], died_from=instant(5), died_until=instant(NOW_MS)
    )
    assert parse(filter=chosen).chosen == LetterFilter((1, 3), 5, NOW_MS)


def test_a_redrive_without_ids_and_filter_is_of_all_letters():
    assert redrive() == LettersCall("default", "orders")
    assert redrive(dry_run=True).dry_run


REFUSED = {
    "cancel nothing": (lambda: cancel(), "item_ids", "must not be empty"),
    "cancel nonsense": (lambda: cancel(item_ids=["0-1", "x"]), "item_ids[1]", "x"),
    "cancel in no queue": (lambda: cancel(queue="", item_ids=["0-1"]), "queue", "queue"),
    "purge without a name": (lambda: purge(queue=""), "queue", "queue"),
    "purge in a strange namespace": (lambda: purge(namespace="a b"), "namespace", "a b"),
    "count from a token": (
        lambda: purge(dry_run=True, page_token="t"), "dry_run", "leave page_token out"),
    "drop without a choice": (lambda: drop(), "item_ids", "one of them is required"),
    "drop by ids and a filter": (
        lambda: drop(item_ids=["0-1"], filter=FILTER()), "item_ids", "not both"),
    "redrive by ids and a filter": (
        lambda: redrive(item_ids=["0-1"], filter=FILTER()), "item_ids", "not both"),
    "count named letters": (
        lambda: drop(item_ids=["0-1"], dry_run=True), "dry_run", "ListDeadLetters"),
    "no reason": (
        lambda: drop(filter=FILTER(reasons=[reason(0)])),
        "filter.reasons[0]", "DEAD_REASON_ATTEMPTS, DEAD_REASON_EXPIRED, DEAD_REASON_REJECTED"),
    "unknown reason": (
        lambda: redrive(filter=FILTER(reasons=[reason(1), reason(4)])),
        "filter.reasons[1]", "must be one of"),
    "empty span": (
        lambda: drop(filter=FILTER(died_from=instant(5), died_until=instant(5))),
        "filter.died_until", "must be after filter.died_from"),
    "before 1970": (
        lambda: drop(filter=FILTER(died_from=Timestamp(seconds=-1))), "filter.died_from", "1970"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    send, field, words = REFUSED[name]
    with pytest.raises(QueratorError) as caught:
        send()
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_ARGUMENT, field)
    assert words in str(caught.value.message)


def test_replies():
    cancelled = admin_service_pb2.CancelItemsResponse.FromString(
        item_changes.encode_cancelled(CancelReply(3, ("0-1",)))
    )
    assert (cancelled.cancelled, list(cancelled.not_waiting)) == (3, ["0-1"])
    purged = admin_service_pb2.PurgeQueueResponse.FromString(
        item_changes.encode_purged(PurgeReply(9, "t", 1, 2, 3, 4))
    )
    assert (purged.removed, purged.next_page_token) == (9, "t")
    assert (purged.leased, purged.reserved, purged.moving, purged.scheduled) == (1, 2, 3, 4)
    redriven = admin_service_pb2.RedriveDeadLettersResponse
    assert redriven.FromString(dead_letters.encode_redriven(12)).redriven == 12
    dropped = admin_service_pb2.DropDeadLettersResponse
    assert dropped.FromString(dead_letters.encode_dropped(12)).dropped == 12
