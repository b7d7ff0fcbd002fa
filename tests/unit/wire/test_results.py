"""Results on the wire: what asks for one, what returns one, and the call that waits for them."""

from typing import Any

import pytest

from querator.model.calls import CompleteCall, LeasedRanges, ReturnedResult
from querator.model.errors import ErrorCode, QueratorError
from querator.model.result_calls import EndedItem, ItemEnd, ResultsReply, WaitResultsCall
from querator.v1 import items_pb2, queue_service_pb2, recurrences_pb2, transaction_service_pb2
from querator.wire import produce, recurrences, results, settle, transactions
from tests.unit.wire import valid_requests as make

NOW_MS = 1_700_000_000_000


def asking(**fields: Any) -> items_pb2.Item:
    item = items_pb2.Item(payload=b"x", **fields)
    item.keep_result.FromSeconds(60)
    return item


def refusal(call: Any, *args: Any, **more: Any) -> QueratorError:
    with pytest.raises(QueratorError) as refused:
        call(*args, **more)
    return refused.value


def returned(**fields: Any) -> queue_service_pb2.ItemResult:
    given = {"lease_id": make.LEASE_ID, "seq": 7, "data": b"done", **fields}
    return queue_service_pb2.ItemResult(**given)


def complete(*of: queue_service_pb2.ItemResult, **fields: Any) -> bytes:
    return queue_service_pb2.CompleteRequest(
        queue="q",
        leases=[queue_service_pb2.LeaseItems(lease_id=make.LEASE_ID)],
        results=of,
        **fields,
    ).SerializeToString()


def test_an_item_that_asks_is_special() -> None:
    request = queue_service_pb2.ProduceRequest(queue="q", items=[items_pb2.Item(), asking()])
    call = produce.parse_produce(request.SerializeToString(), now_ms=NOW_MS)
    [special] = call.specials
    assert (special.ordinal, special.keep_result_ms) == (1, 60_000)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (items_pb2.ON_DUPLICATE_REPLACE, "ON_DUPLICATE_REPLACE"),
        (items_pb2.ON_DUPLICATE_BUMP, "ON_DUPLICATE_BUMP"),
    ],
)
def test_an_item_that_replaces_another_one_has_no_result(
    number: items_pb2.OnDuplicate.ValueType, name: str
) -> None:
    item = asking(dedup_key="k", on_duplicate=number)
    item.enqueue_at.FromSeconds(1)
    request = queue_service_pb2.ProduceRequest(queue="q", items=[item])
    error = refusal(produce.parse_produce, request.SerializeToString(), now_ms=NOW_MS)
    assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "items[0].keep_result")
    assert error.value == name


def test_a_follow_up_has_no_result() -> None:
    part = queue_service_pb2.FollowUps(queue="next", items=[items_pb2.Item(), asking()])
    error = refusal(settle.parse_complete, complete(follow_ups=[part]), now_ms=NOW_MS)
    assert (error.code, error.field, error.value) == (
        ErrorCode.INVALID_ARGUMENT, "follow_ups[0].items[1].keep_result", "60000 ms",
    )  # fmt: skip


def test_an_item_of_a_transaction_has_no_result() -> None:
    request = transaction_service_pb2.StageRequest(
        queue="q", producer="p", attempt=b"a" * 16, sequence=1, items=[asking()]
    )
    error = refusal(transactions.parse_stage, request.SerializeToString(), now_ms=NOW_MS)
    assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "items[0].keep_result")
    assert "items of a transaction" in error.message


def test_an_item_of_a_recurrence_has_no_result() -> None:
    error = refusal(recurrences.check_template, asking().SerializeToString(), name="r")
    assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "spec.item.keep_result")
    assert recurrences_pb2.RecurrenceSpec(item=asking()).item.HasField("keep_result")


def test_a_complete_with_results() -> None:
    data = complete(returned(), returned(seq=8, data=b""))
    assert settle.parse_complete(data, now_ms=NOW_MS) == CompleteCall(
        "default",
        "q",
        (LeasedRanges(make.LEASE_ID),),
        results=(
            ReturnedResult(make.LEASE_ID, 7, b"done"),
            ReturnedResult(make.LEASE_ID, 8, b""),
        ),
    )


@pytest.mark.parametrize(
    ("of", "field", "words"),
    [
        ((returned(), returned(lease_id="a.0.9")), "results[1].lease_id", "must be among leases"),
        ((returned(seq=0),), "results[0].seq", "must be at least 1"),
        ((returned(), returned(seq=8), returned()), "results[2].seq", "is that of results[0]"),
    ],
)
def test_results_that_are_refused(of: Any, field: str, words: str) -> None:
    error = refusal(settle.parse_complete, complete(*of), now_ms=NOW_MS)
    assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, field)
    assert words in error.message


def test_results_are_refused_with_follow_ups() -> None:
    part = queue_service_pb2.FollowUps(items=[items_pb2.Item()])
    error = refusal(settle.parse_complete, complete(returned(), follow_ups=[part]), now_ms=NOW_MS)
    assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "results")
    assert "not possible with follow_ups" in error.message


def test_a_call_that_waits() -> None:
    request = queue_service_pb2.WaitResultsRequest(queue="q", item_ids=["0-17", "3-1", "0-17"])
    request.wait_timeout.FromMilliseconds(1_500)
    call = results.parse_wait_results(request.SerializeToString())
    assert call == WaitResultsCall("default", "q", ((0, 17), (3, 1)), 1_500)
    request.ClearField("wait_timeout")
    assert results.parse_wait_results(request.SerializeToString()).wait_ms == 0


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"item_ids": []}, "item_ids", "must not be empty"),
        ({"item_ids": ["0-17", "17"]}, "item_ids[1]", "is not an item id"),
        ({"queue": ""}, "queue", "must not be empty"),
    ],
)
def test_calls_that_are_refused(fields: dict[str, Any], field: str, words: str) -> None:
    request = queue_service_pb2.WaitResultsRequest(**{"queue": "q", "item_ids": ["0-17"], **fields})
    error = refusal(results.parse_wait_results, request.SerializeToString())
    assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, field)
    assert words in error.message


def test_the_answer() -> None:
    reply = ResultsReply(
        (
            (0, EndedItem(17, ItemEnd.COMPLETED, b"done", ended_ms=NOW_MS)),
            (3, EndedItem(1, ItemEnd.DEAD, reason=3, error="no", attempts=2, ended_ms=1)),
            (0, EndedItem(9, ItemEnd.NONE, error="gone")),
        )
    )
    message = queue_service_pb2.WaitResultsResponse.FromString(results.encode_results(reply))
    done, dead, none = message.items
    assert (done.item_id, done.outcome, done.data) == ("0-17", 1, b"done")
    assert done.ended_at.ToMilliseconds() == NOW_MS
    assert (dead.item_id, dead.outcome, dead.reason) == (
        "3-1", queue_service_pb2.ITEM_OUTCOME_DEAD, items_pb2.DEAD_REASON_REJECTED,
    )  # fmt: skip
    assert (dead.error, dead.attempts) == ("no", 2)
    assert (none.outcome, none.error) == (queue_service_pb2.ITEM_OUTCOME_NONE, "gone")
    assert not none.HasField("ended_at")
    assert set(queue_service_pb2.ItemOutcome.values()) == {*ItemEnd}
