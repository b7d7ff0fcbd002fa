"""Every error code has its exception, on every way from the node to the client."""

import grpc
import grpc.aio
import pytest
from google.rpc import code_pb2

from querator.client import errors
from querator.client.errors import (
    AddressFault,
    ConnectionFault,
    ErrorCode,
    copy_error,
    make_error,
)
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
    ("text", "kind", "message"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:5: Failed to "
            "connect to remote host: Connection refused",
            ConnectionFault.REFUSED,
            "Connection refused at h:5.",
        ),
        (
            "errors resolving h:5: [field:hostname lookup error:address lookup failed for h:5]",
            ConnectionFault.NAME_UNKNOWN,
            "The name h cannot be resolved.",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:1.2.3.4:5: "
            "Socket closed",
            ConnectionFault.UNKNOWN,
            "No connection to h:5: Socket closed.",
        ),
    ],
)
def test_no_connection_names_the_address_and_the_cause(
    text: str, kind: ConnectionFault, message: str
):
    error = from_rpc(_rpc_error(grpc.StatusCode.UNAVAILABLE, text), address="h:5", changes=True)
    for got in (error, copy_error(error)):
        assert isinstance(got, errors.ConnectionFailed)
        assert got.message.startswith(message)
        assert got.fault is kind
        assert got.faults == (AddressFault("h:5", kind, message),)


def test_a_program_is_not_advised_to_start_a_new_node():
    # Its node may just have died: a new one would be another cluster, without the items.
    refused = "failed to connect to all addresses; last error: Connection refused"
    for address in ("127.0.0.1:4470", "10.0.0.1:4470"):
        status = _rpc_error(grpc.StatusCode.UNAVAILABLE, refused)
        message = from_rpc(status, address=address, changes=True).message
        assert message == (
            f"Connection refused at {address}. Nothing listens there: is the node up?"
        )


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
