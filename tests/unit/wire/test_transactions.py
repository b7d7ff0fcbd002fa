"""Stage, commit, abort and list: incoming requests, and their answers."""

from typing import Any

import pytest

from querator.model import limits
from querator.model.errors import ErrorCode, QueratorError
from querator.model.transactions import ProducerTotals, StagedTotals, TransactionState
from querator.model.txn_calls import (
    AbortCall,
    AbortReply,
    CommitCall,
    CommitReply,
    CommittedAttempt,
    StagedPart,
    StageReply,
    TxnList,
)
from querator.v1 import items_pb2
from querator.v1 import transaction_service_pb2 as pb
from querator.wire import transactions
from querator.wire.field_checks import RequestLimits
from tests.unit.wire import valid_requests as make

ATTEMPT = bytes(range(16))


def stage(**changes: Any) -> pb.StageRequest:
    fields: dict[str, Any] = {
        "queue": "orders",
        "producer": "query",
        "batch": 7,
        "task": 3,
        "attempt": ATTEMPT,
        "sequence": 1,
        "items": [items_pb2.Item(payload=b"a"), items_pb2.Item(payload=b"b", key="k")],
    }
    return pb.StageRequest(**(fields | changes))


def commit(**changes: Any) -> pb.CommitTxnRequest:
    part = pb.StagedPart(partition=2, count=5, checksum=77)
    fields: dict[str, Any] = {
        "queue": "orders",
        "producer": "query",
        "batch": 7,
        "stages": [pb.StagedAttempt(task=3, attempt=ATTEMPT, parts=[part])],
    }
    return pb.CommitTxnRequest(**(fields | changes))


def parse_stage(request: pb.StageRequest, **bounds: int) -> Any:
    return transactions.parse_stage(
        request.SerializeToString(), now_ms=make.NOW_MS, request_limits=RequestLimits(**bounds)
    )


def test_a_stage_has_its_items_as_they_came() -> None:
    request = stage(namespace="n", partition=0, request_timeout=make.seconds(5))
    call = parse_stage(request)
    assert (call.namespace, call.queue, call.producer, call.batch) == ("n", "orders", "query", 7)
    assert (call.task, call.attempt, call.sequence) == (3, ATTEMPT, 1)
    assert (call.partition, call.timeout_ms) == (0, 5_000)
    assert pb.StageRequest.FromString(call.items).items == request.items
    assert len(call.lengths) == 8
    assert call.slots[:2] == b"\xff\xff"
    bare = parse_stage(stage())
    assert (bare.namespace, bare.partition, bare.timeout_ms) == ("default", None, 0)


BAD_STAGES: list[tuple[dict[str, Any], str, ErrorCode]] = [
    ({"items": []}, "items", ErrorCode.INVALID_ARGUMENT),
    ({"queue": ""}, "queue", ErrorCode.INVALID_ARGUMENT),
    ({"namespace": "a b"}, "namespace", ErrorCode.INVALID_ARGUMENT),
    ({"producer": ""}, "producer", ErrorCode.INVALID_ARGUMENT),
    ({"producer": "p" * 129}, "producer", ErrorCode.LIMIT_EXCEEDED),
    ({"batch": 1 << 63}, "batch", ErrorCode.LIMIT_EXCEEDED),
    ({"task": 1 << 31}, "task", ErrorCode.LIMIT_EXCEEDED),
    ({"attempt": b"short"}, "attempt", ErrorCode.INVALID_ARGUMENT),
    ({"attempt": b""}, "attempt", ErrorCode.INVALID_ARGUMENT),
    ({"sequence": 0}, "sequence", ErrorCode.LIMIT_EXCEEDED),
    ({"request_timeout": make.seconds(1_000)}, "request_timeout", ErrorCode.LIMIT_EXCEEDED),
    ({"items": [items_pb2.Item(kind="k" * 256)]}, "items[0].kind", ErrorCode.LIMIT_EXCEEDED),
]


@pytest.mark.parametrize(("change", "field", "code"), BAD_STAGES)
def test_bad_stages(change: dict[str, Any], field: str, code: ErrorCode) -> None:
    with pytest.raises(QueratorError) as caught:
        parse_stage(stage(**change))
    assert (caught.value.field, caught.value.code) == (field, code)


@pytest.mark.parametrize(
    ("bounds", "field"),
    [({"request_bytes_max": 20}, "request"), ({"request_items_max": 1}, "items")],
)
def test_stages_keep_to_the_limits_of_requests(bounds: dict[str, int], field: str) -> None:
    with pytest.raises(QueratorError) as caught:
        parse_stage(stage(), **bounds)
    assert (caught.value.field, caught.value.code) == (field, ErrorCode.LIMIT_EXCEEDED)
    assert caught.value.limit


def test_what_is_no_stage_request() -> None:
    with pytest.raises(QueratorError, match="not a message"):
        transactions.parse_stage(b"\xff", now_ms=make.NOW_MS)


def test_a_commit() -> None:
    parts = (StagedPart(2, 5, 77),)
    call = CommitCall("default", "orders", "query", 7, (CommittedAttempt(3, ATTEMPT, parts),))
    assert transactions.parse_commit(commit().SerializeToString()) == call
    empty = transactions.parse_commit(commit(stages=[]).SerializeToString())
    assert empty.attempts == ()


PART = pb.StagedPart(partition=2, count=5, checksum=77)
BAD_COMMITS: list[tuple[dict[str, Any], str]] = [
    ({"producer": ""}, "producer"),
    ({"queue": "no queue"}, "queue"),
    ({"stages": [pb.StagedAttempt(task=1 << 31, attempt=ATTEMPT)]}, "stages[0].task"),
    ({"stages": [pb.StagedAttempt(attempt=b"x")]}, "stages[0].attempt"),
    (
        {"stages": [pb.StagedAttempt(attempt=ATTEMPT, parts=[pb.StagedPart(partition=1)])]},
        "stages[0].parts[0].count",
    ),
    ({"stages": [pb.StagedAttempt(attempt=ATTEMPT, parts=[PART, PART])]}, "stages[0].parts"),
]


@pytest.mark.parametrize(("change", "field"), BAD_COMMITS)
def test_bad_commits(change: dict[str, Any], field: str) -> None:
    with pytest.raises(QueratorError) as caught:
        transactions.parse_commit(commit(**change).SerializeToString())
    assert caught.value.field == field


def test_aborts_and_lists() -> None:
    request = pb.AbortTxnRequest(queue="orders", producer="query", batch=7)
    call = AbortCall("default", "orders", "query", 7)
    assert transactions.parse_abort(request.SerializeToString()) == call
    listed = pb.ListTxnsRequest(namespace="n", queue="orders")
    assert transactions.parse_list(listed.SerializeToString()) == ("n", "orders")
    with pytest.raises(QueratorError):
        transactions.parse_list(b"")


def test_producers() -> None:
    request = pb.GetTxnProducerRequest(queue="orders", producer="query")
    asked = transactions.parse_producer(request.SerializeToString())
    assert asked == ("default", "orders", "query")
    with pytest.raises(QueratorError) as caught:
        transactions.parse_producer(pb.GetTxnProducerRequest(queue="orders").SerializeToString())
    assert caught.value.field == "producer"
    totals = transactions.encode_totals(ProducerTotals(0, 3, 4))
    assert pb.GetTxnProducerResponse.FromString(totals) == pb.GetTxnProducerResponse(
        batch=0, batch_items=3, items=4
    )
    unknown = pb.GetTxnProducerResponse.FromString(transactions.encode_totals(ProducerTotals()))
    assert not unknown.HasField("batch")


def test_answers() -> None:
    whole = (StagedPart(0, 5, 2**32 - 1, True), StagedPart(1, 1, 2, True))
    staged = pb.StageResponse.FromString(transactions.encode_staged(StageReply(whole, True)))
    assert [(one.partition, one.count, one.checksum) for one in staged.parts] == [
        (0, 5, 2**32 - 1), (1, 1, 2),
    ]  # fmt: skip
    assert (staged.already_committed, staged.repeated_answer, staged.durable) == (False, True, True)
    fresh = StageReply((*whole, StagedPart(2, 1, 1)), True)
    assert not pb.StageResponse.FromString(transactions.encode_staged(fresh)).repeated_answer
    none = transactions.encode_staged(StageReply((), False, committed=True))
    assert pb.StageResponse.FromString(none) == pb.StageResponse(already_committed=True)
    done = transactions.encode_committed(CommitReply(True, False))
    assert pb.CommitTxnResponse.FromString(done) == pb.CommitTxnResponse(repeated_answer=True)
    gone = transactions.encode_aborted(AbortReply(False, 4))
    assert pb.AbortTxnResponse.FromString(gone) == pb.AbortTxnResponse(stages=4)


def test_every_state_has_its_number() -> None:
    batches = tuple(
        StagedTotals(
            producer="query",
            batch=number,
            stages=2,
            items=3,
            bytes=4,
            begun_ms=5_000,
            since_ms=6_000,
            state=state,
        )
        for number, state in enumerate(TransactionState)
    )
    found = pb.ListTxnsResponse.FromString(transactions.encode_list(TxnList(batches, True)))
    assert found.more
    assert [one.state for one in found.txns] == [
        pb.TXN_STATE_STAGED, pb.TXN_STATE_PREPARING, pb.TXN_STATE_COMMITTED, pb.TXN_STATE_ABORTED,
    ]  # fmt: skip
    first = found.txns[0]
    assert (first.producer, first.stages, first.items, first.bytes) == ("query", 2, 3, 4)
    assert (first.begun_at.seconds, first.changed_at.seconds) == (5, 6)


def test_the_limits_are_those_of_the_partition() -> None:
    assert limits.TXN_ATTEMPT_BYTES == len(ATTEMPT)
    call = parse_stage(stage(batch=limits.TXN_NUMBER_MAX, task=limits.TXN_TASKS_MAX - 1))
    assert (call.batch, call.task) == (2**63 - 1, 2**31 - 1)
