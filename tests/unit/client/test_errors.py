"""Every error code has its exception, on every way from the node to the client."""

import grpc
import grpc.aio
import pytest
from google.rpc import code_pb2

from querator.client import errors
from querator.client.errors import ErrorCode, copy_error, make_error
from querator.client.transport.rpc_errors import from_frame, from_rpc
from querator.model.errors import ERRORS, QueratorError
from querator.wire.errors import error_message, error_status


def _rpc_error(status: grpc.StatusCode, text: str = "", details: bytes | None = None):
    trailing = grpc.aio.Metadata()
    if details is not None:
        trailing.add("grpc-status-details-bin", details)
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), trailing, details=text)


@pytest.mark.parametrize("code", ErrorCode)
def test_a_refusal_arrives_whole_on_calls_and_on_streams(code):
    sent = QueratorError(
        code, "so it is", field="items[3].payload", limit="1 B", value="2 B", retry_delay_ms=250
    )
    status = error_status(sent, request_id="r-1")
    name = code_pb2.Code.Name(status.code)
    details = status.SerializeToString()
    on_call = from_rpc(
        _rpc_error(grpc.StatusCode[name], "so it is", details), address="a:1", changes=True
    )
    on_stream = from_frame(error_message(sent, request_id="r-1"))
    for got in (on_call, on_stream, copy_error(on_call)):
        assert type(got) is type(make_error(code, ""))
        assert got.code is code
        assert (got.field, got.limit, got.value) == ("items[3].payload", "1 B", "2 B")
        assert (got.retriable, got.retry_delay_ms) == (ERRORS[code].retriable, 250)
        assert got.request_id == "r-1"
        assert str(got) == f"{code.name}: so it is (request r-1)"


def test_each_code_has_a_class_of_its_own():
    classes = {type(make_error(code, "")) for code in ErrorCode}
    assert len(classes) == len(ErrorCode)
    assert all(issubclass(kind, errors.RequestError) for kind in classes)


@pytest.mark.parametrize(
    "text",
    [
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:5: refused",
        "errors resolving h: [field:hostname lookup error:address lookup failed for h]",
    ],
)
def test_nobody_listening_says_where_and_what_to_do(text):
    error = from_rpc(_rpc_error(grpc.StatusCode.UNAVAILABLE, text), address="h:5", changes=True)
    assert isinstance(error, errors.ConnectionFailed)
    assert "h:5" in error.message
    assert "querator serve" in error.message


@pytest.mark.parametrize(
    "status",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ],
)
def test_a_lost_answer_leaves_the_outcome_unknown_only_to_what_changes_something(status):
    lost = _rpc_error(status, "Socket closed")
    assert isinstance(from_rpc(lost, address="a", changes=True), errors.OutcomeUnknown)
    assert isinstance(from_rpc(lost, address="a", changes=False), errors.Unavailable)


def test_garbage_in_the_details_is_not_believed():
    error = from_rpc(
        _rpc_error(grpc.StatusCode.UNAVAILABLE, "x", b"\xff\xff"), address="a", changes=True
    )
    assert isinstance(error, errors.OutcomeUnknown)
