"""Frames of ExecutionStream, against the generated messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.errors import ErrorCode, QueratorError
from querator.v1 import execution_service_pb2 as v1
from querator.v1 import queue_service_pb2
from querator.wire import execution_frames
from querator.wire.execution_frames import METHODS, NumberedCall

numbers = st.integers(0, 2**64 - 1)
ids = st.text(max_size=9)
requests: st.SearchStrategy[dict[str, Any]] = st.one_of(
    ids.map(lambda id_: {"start": v1.StartExecutionRequest(id=id_)}),
    ids.map(lambda id_: {"signal": v1.SignalExecutionRequest(id=id_)}),
    ids.map(lambda id_: {"extend": queue_service_pb2.ExtendRequest(lease_ids=[id_])}),
    st.just({}),
)
calls = st.builds(
    lambda number, timeout, request: v1.ExecutionCall(number=number, timeout_ms=timeout, **request),
    numbers,
    st.integers(0, 2**32 - 1),
    requests,
)


@given(st.lists(calls, max_size=5), st.lists(numbers, max_size=5))
def test_a_frame_is_read_as_protobuf_reads_it(
    sent: list[v1.ExecutionCall], given_up: list[int]
) -> None:
    frame = v1.ExecutionStreamRequest(calls=sent, given_up=given_up).SerializeToString()
    parsed, dropped = execution_frames.parse_frame(frame)
    assert dropped == given_up
    assert [one.number for one in parsed] == [one.number for one in sent]
    assert [one.timeout_ms for one in parsed] == [one.timeout_ms for one in sent]
    for one, call in zip(parsed, sent, strict=True):
        kind = call.WhichOneof("call")
        if kind is None:
            assert one.field == 0
        else:
            assert one.field == v1.ExecutionCall.DESCRIPTOR.fields_by_name[kind].number
            assert one.request == getattr(call, kind).SerializeToString()


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        execution_frames.parse_frame(data)
    except QueratorError as error:
        assert error.code is ErrorCode.INVALID_ARGUMENT  # noqa: PT017 - either is right


def test_numbers_that_are_not_packed_are_given_up_too() -> None:
    field = v1.ExecutionStreamRequest.GIVEN_UP_FIELD_NUMBER
    assert execution_frames.parse_frame(bytes((field << 3, 7, field << 3, 9)))[1] == [7, 9]


def test_the_last_request_of_a_call_counts() -> None:
    first = v1.ExecutionCall(number=1, get=v1.GetExecutionRequest(id="a")).SerializeToString()
    last = v1.ExecutionCall(wait=v1.WaitExecutionsRequest(ids=["b"])).SerializeToString()
    frame = bytes((v1.ExecutionStreamRequest.CALLS_FIELD_NUMBER << 3 | 2, len(first + last)))
    [[call], _] = execution_frames.parse_frame(frame + first + last)
    assert METHODS[call.field] == "WaitExecutions"


@given(st.lists(st.tuples(numbers, ids), max_size=5))
def test_answers_are_joined_to_one_frame(answers: list[tuple[int, str]]) -> None:
    field = v1.ExecutionCall.GET_FIELD_NUMBER
    frame = b"".join(
        execution_frames.encode_answer(
            NumberedCall(number, field, b"", 0),
            v1.GetExecutionResponse(execution=v1.Execution(id=id_)).SerializeToString(),
        )
        for number, id_ in answers
    )
    read = v1.ExecutionStreamResponse.FromString(frame).answers
    assert [(one.number, one.found.execution.id) for one in read] == answers


def test_a_refusal_names_its_call() -> None:
    error = QueratorError(ErrorCode.LEASE_LOST, "it is lost", field="lease_id", value="a.0.1")
    call = NumberedCall(7, v1.ExecutionCall.RECORD_FIELD_NUMBER, b"", 0)
    frame = execution_frames.encode_refusal(call, error, request_id="r")
    [answer] = v1.ExecutionStreamResponse.FromString(frame).answers
    assert answer.number == 7
    assert (answer.error.field, answer.error.request_id) == ("lease_id", "r")


def test_each_call_has_a_method_and_an_answer() -> None:
    asked = {field.number for field in _oneof(v1.ExecutionCall, "call")}
    answered = {field.number for field in _oneof(v1.ExecutionAnswer, "answer")}
    assert asked == set(METHODS) == answered - {v1.ExecutionAnswer.ERROR_FIELD_NUMBER}


def test_a_call_without_a_request_is_refused() -> None:
    with pytest.raises(QueratorError, match="call is missing or unknown"):
        execution_frames.check_call(NumberedCall(1, 0, b"", 0))


def _oneof(message: Any, name: str) -> list[Any]:
    return list(message.DESCRIPTOR.oneofs_by_name[name].fields)
