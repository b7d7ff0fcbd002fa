"""Complete, retry, extend: requests, their frames, and their answers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.calls import (
    Checkpoint,
    CompleteCall,
    ExtendCall,
    ExtendReply,
    LeasedRanges,
    LeaseExtension,
    LeaseOutcome,
    RetryCall,
    SettleReply,
)
from querator.model.commands import Ranges
from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import errors_pb2, items_pb2, queue_service_pb2
from querator.wire import frames, settle
from tests.unit.wire import valid_requests as make

REF = (LeasedRanges(make.LEASE_ID),)


def frame_of(number: int = 5, **frame: Any) -> tuple[int, object]:
    data = queue_service_pb2.LeaseStreamRequest(request_number=number, **frame).SerializeToString()
    return frames.parse_lease_frame(data, subscribed=make.SUBSCRIBED, now_ms=make.NOW_MS)


def test_complete() -> None:
    request = make.complete(namespace="n", all_or_nothing=True)
    call = CompleteCall(namespace="n", queue="orders", leases=REF, all_or_nothing=True)
    assert settle.parse_complete(request.SerializeToString(), now_ms=make.NOW_MS) == call
    bare = queue_service_pb2.CompleteRequest(leases=[make.lease_items()])
    assert frame_of(complete=bare) == (5, CompleteCall("default", "orders", REF))
    named = make.complete(namespace="default")
    assert frame_of(complete=named) == (5, CompleteCall("default", "orders", REF))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RetryCall("default", "orders", REF)),
        ({"retry_at": make.instant(17)}, RetryCall("default", "orders", REF, retry_at_ms=17)),
        (
            {"dead": True, "error": "no"},
            RetryCall(
                namespace="default",
                queue="orders",
                leases=REF,
                retry_at_ms=0,
                dead=True,
                error="no",
            ),
        ),
        ({"count_attempt": True}, RetryCall("default", "orders", REF)),
        ({"count_attempt": False}, RetryCall("default", "orders", REF, count_attempt=False)),
        ({"priority": 0}, RetryCall("default", "orders", REF, priority=0)),
        (
            {"attributes": items_pb2.Attributes(values={"b": "2", "a": "1"})},
            RetryCall("default", "orders", REF, attributes=(("a", "1"), ("b", "2"))),
        ),
        (
            {"attributes": items_pb2.Attributes()},
            RetryCall("default", "orders", REF, attributes=()),
        ),
    ],
)
def test_retry(fields: dict[str, Any], expected: RetryCall) -> None:
    request = make.retry(**fields)
    assert settle.parse_retry(request.SerializeToString(), now_ms=make.NOW_MS) == expected
    assert frame_of(retry=request) == (5, expected)


def test_extend() -> None:
    one = make.extend(lease_timeout=make.seconds(5))
    call = ExtendCall("default", "orders", (make.LEASE_ID,), lease_timeout_ms=5_000)
    assert settle.parse_extend(one.SerializeToString()) == call
    assert frame_of(extend=one) == (5, call)
    bare = queue_service_pb2.ExtendRequest()
    assert frame_of(extend=bare) == (5, ExtendCall("default", "orders", (), client_id="c"))
    everything = make.extend(lease_ids=[], client_id="c")
    assert settle.parse_extend(everything.SerializeToString()) == ExtendCall(
        "default", "orders", (), client_id="c"
    )


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6)), max_size=8))
def test_ranges_are_put_in_order_and_joined(ranges: list[tuple[int, int]]) -> None:
    request = make.complete(leases=[make.lease_items(*ranges)])
    (ref,) = settle.parse_complete(request.SerializeToString(), now_ms=make.NOW_MS).leases
    named = {seq for first, count in ranges for seq in range(first, first + count)}
    got = [seq for first, count in ref.ranges for seq in range(first, first + count)]
    assert got == sorted(named)
    ends = [first + count for first, count in ref.ranges]
    starts = [first for first, _ in ref.ranges]
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))


def pairs(ranges: Any) -> Ranges:
    return tuple((each.first_seq, each.count) for each in ranges)


outcomes = st.builds(
    LeaseOutcome,
    lease_id=st.text(max_size=9),
    done=st.just(()) | st.just(((1, 2), (9, 1))),
    repeated=st.just(()) | st.just(((3, 4),)),
    lost=st.just(()) | st.just(((2**63, 2**31),)),
    error=st.none() | st.sampled_from(ErrorCode),
)


@given(st.builds(SettleReply, st.lists(outcomes, max_size=3).map(tuple)), st.integers(0, 2**64 - 1))
def test_outcomes_arrive(reply: SettleReply, number: int) -> None:
    completed = queue_service_pb2.CompleteResponse.FromString(settle.encode_completed(reply))
    for got, outcome in zip(completed.outcomes, reply.outcomes, strict=True):
        assert got.lease_id == outcome.lease_id
        assert pairs(got.done) == outcome.done
        assert pairs(got.repeated_answer) == outcome.repeated
        assert pairs(got.lost) == outcome.lost
        assert got.error == (outcome.error or 0)
    retried = queue_service_pb2.RetryResponse.FromString(settle.encode_retried(reply))
    assert retried.outcomes == completed.outcomes
    frame = queue_service_pb2.LeaseStreamResponse.FromString(
        frames.encode_completed_frame(number, reply)
    )
    assert (frame.request_number, frame.completed) == (number, completed)
    frame.ParseFromString(frames.encode_retried_frame(number, reply))
    assert (frame.request_number, frame.retried) == (number, retried)


def checkpoint(**fields: Any) -> queue_service_pb2.ItemCheckpoint:
    given = {"lease_id": make.LEASE_ID, "seq": 7, "data": b"half", **fields}
    return queue_service_pb2.ItemCheckpoint(**given)


def test_extend_with_checkpoints() -> None:
    request = make.extend(checkpoints=[checkpoint(revision=3), checkpoint(seq=8, data=b"")])
    call = ExtendCall(
        "default",
        "orders",
        (make.LEASE_ID,),
        checkpoints=(
            Checkpoint(make.LEASE_ID, 7, b"half", 3),
            Checkpoint(make.LEASE_ID, 8, b""),
        ),
    )
    assert settle.parse_extend(request.SerializeToString()) == call
    assert frame_of(extend=request) == (5, call)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"lease_ids": [], "client_id": "c"}, "lease_ids", "must name the leases"),
        (
            {"checkpoints": [checkpoint(), checkpoint(lease_id="a.0.9")]},
            "checkpoints[1].lease_id",
            "must be among lease_ids",
        ),
        ({"checkpoints": [checkpoint(seq=0)]}, "checkpoints[0].seq", "must be at least 1"),
        (
            {"checkpoints": [checkpoint(), checkpoint(seq=8), checkpoint()]},
            "checkpoints[2].seq",
            "is that of checkpoints[0]",
        ),
    ],
)
def test_checkpoints_that_are_refused(fields: dict[str, Any], field: str, words: str) -> None:
    request = make.extend(**{"checkpoints": [checkpoint()], **fields})
    with pytest.raises(QueratorError) as refused:
        settle.parse_extend(request.SerializeToString())
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_ARGUMENT, field)
    assert words in refused.value.message


def test_a_lost_checkpoint_is_named() -> None:
    reply = ExtendReply((LeaseExtension("a", 1_234, 567, (7, 9)), LeaseExtension("b", 0, 0, (1,))))
    message = queue_service_pb2.ExtendResponse.FromString(settle.encode_extended(reply))
    assert [list(one.lost_checkpoints) for one in message.outcomes] == [[7, 9], [1]]


def test_extended() -> None:
    reply = ExtendReply((LeaseExtension("a", 1_234, 567), LeaseExtension("b", 0, 0)))
    message = queue_service_pb2.ExtendResponse.FromString(settle.encode_extended(reply))
    held, lost = message.outcomes
    assert (held.lease_id, held.deadline.ToMilliseconds()) == ("a", 1_234)
    assert held.lease_remaining.ToMilliseconds() == 567
    assert held.error == errors_pb2.ErrorCode.ERROR_CODE_UNSPECIFIED
    assert (lost.lease_id, lost.HasField("deadline")) == ("b", False)
    assert lost.error == errors_pb2.ErrorCode.ERROR_CODE_LEASE_LOST
    frame = queue_service_pb2.LeaseStreamResponse.FromString(frames.encode_extended_frame(3, reply))
    assert (frame.request_number, frame.extended) == (3, message)


def test_credit_and_subscribed() -> None:
    credit = queue_service_pb2.Credit(items=7, bytes=8)
    assert frame_of(credit=credit) == (5, frames.Credit(items=7, bytes=8))
    frame = queue_service_pb2.LeaseStreamResponse.FromString(
        frames.encode_subscribed(4, lease_timeout_ms=30_001, durable=True)
    )
    assert frame.request_number == 4
    assert frame.subscribed.durable
    assert frame.subscribed.lease_timeout.ToMilliseconds() == 30_001
