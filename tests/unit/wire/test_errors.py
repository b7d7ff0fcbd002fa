"""Errors are transferred without loss, as a status and as a message."""

import pytest
from google.rpc import code_pb2, error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from querator.model.errors import ERRORS, ErrorCode, QueratorError, over_limit
from querator.v1 import errors_pb2, queue_service_pb2
from querator.wire import errors, frames
from querator.wire.fields import prefix


def test_codes_of_model_and_protocol_are_the_same() -> None:
    protocol = {
        name.removeprefix("ERROR_CODE_"): number
        for name, number in errors_pb2.ErrorCode.items()
        if number
    }
    assert protocol == {code.name: code.value for code in ErrorCode}
    assert set(ERRORS) == set(ErrorCode)


texts = st.text(max_size=50)
any_error = st.builds(
    QueratorError,
    st.sampled_from(ErrorCode),
    texts,
    field=texts,
    limit=texts,
    value=texts,
    retry_delay_ms=st.none() | st.integers(0, 10**7),
)


@given(any_error)
def test_nothing_of_an_error_is_lost_on_either_way(error: QueratorError) -> None:
    message = errors.error_message(error, request_id="r1")
    assert errors_pb2.ErrorCode.Name(message.code) == f"ERROR_CODE_{error.code.name}"
    assert (message.message, message.field) == (error.message, error.field)
    assert (message.limit, message.value) == (error.limit, error.value)
    assert (message.retriable, message.request_id) == (error.retriable, "r1")
    delay = message.retry_delay.ToMilliseconds() if message.HasField("retry_delay") else None
    assert delay == error.retry_delay_ms
    status = errors.error_status(error, request_id="r1")
    assert code_pb2.Code.Name(status.code) == ERRORS[error.code].grpc_status
    assert status.message == error.message
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (error.code.name, "querator")
    assert dict(info.metadata) == {
        key: value
        for key, value in {
            "field": error.field,
            "limit": error.limit,
            "value": error.value,
            "retriable": "true" if error.retriable else "false",
            "request_id": "r1",
        }.items()
        if value
    }


def test_a_status_has_the_details_that_other_languages_know() -> None:
    error = over_limit("items[3].payload", value=2_000_000, limit=1_048_576, unit="bytes")
    error.retry_delay_ms = 1_500
    status = errors.error_status(error, request_id="r1")
    info, retry, request = status.details
    error_info = error_details_pb2.ErrorInfo()
    assert info.Unpack(error_info)
    assert (error_info.reason, error_info.domain) == ("LIMIT_EXCEEDED", "querator")
    assert error_info.metadata["request_id"] == "r1"
    assert error_info.metadata["limit"] == "1048576 bytes"
    retry_info = error_details_pb2.RetryInfo()
    assert retry.Unpack(retry_info)
    assert retry_info.retry_delay.ToMilliseconds() == 1_500
    bad_request = error_details_pb2.BadRequest()
    assert request.Unpack(bad_request)
    assert bad_request.field_violations[0].field == "items[3].payload"


def test_a_status_fits_into_headers() -> None:
    long = "x" * 100_000
    error = QueratorError(ErrorCode.INTERNAL, long, field=long, limit=long, value=long)
    assert len(errors.error_status(error, request_id="r").SerializeToString()) < 8_192


def test_a_malformed_frame_is_answered_if_its_number_can_be_read() -> None:
    cut_off = b"\x08\x2a" + prefix(2, 50) + b"short"
    for parse in (
        lambda frame: frames.parse_produce_frame(frame, now_ms=0),
        lambda frame: frames.parse_lease_frame(frame, subscribed=None, now_ms=0),
    ):
        number, refusal = parse(cut_off)
        assert number == 42
        assert isinstance(refusal, QueratorError)
        assert refusal.code is ErrorCode.INVALID_ARGUMENT
        for unreadable in (b"\xff", cut_off[2:], b"\x0a\x01"):
            with pytest.raises(QueratorError):
                parse(unreadable)


def test_refusals_on_streams_carry_the_number() -> None:
    error = QueratorError(ErrorCode.QUEUE_FULL, "full")
    produced = queue_service_pb2.ProduceStreamResponse.FromString(
        frames.encode_produce_error(9, error, request_id="r")
    )
    leased = queue_service_pb2.LeaseStreamResponse.FromString(
        frames.encode_lease_error(9, error, request_id="r")
    )
    assert produced.request_number == leased.request_number == 9
    assert produced.error == leased.error == errors.error_message(error, request_id="r")
