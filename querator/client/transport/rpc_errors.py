"""Conversion of errors of gRPC and the protocol to the exceptions of `errors`.

A node's refusal carries `google.rpc.Status` details, and its code says whether the request was
executed. An error without such details comes from gRPC itself or from a proxy in between. A request
that changes something may then have been executed, unless no connection was ever made.
"""

import re
from collections.abc import Sequence

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from querator.client.errors import (
    AddressFault,
    ConnectionFailed,
    ConnectionFault,
    ErrorCode,
    RequestError,
    make_error,
)
from querator.v1 import errors_pb2

_STATUS_DETAILS = "grpc-status-details-bin"
_NO_CONNECTION = (
    "failed to connect",
    "connection refused",
    "dns resolution failed",
    "errors resolving",
    "no route to host",
    "network is unreachable",
    "name resolution",
)
_NO_NAME = ("dns resolution failed", "errors resolving", "name resolution")
_PREFIX = re.compile(r"[A-Z_]+: (?:ipv[46]:\S+: )?")
"""What gRPC puts before a reason: a status, and the address."""
LOCAL_ADDRESSES = frozenset(("127.0.0.1:4470", "localhost:4470", "[::1]:4470"))
"""Addresses of a node that was started with defaults on this machine."""
_IS_IT_UP = "Nothing listens there: is the node up?"
_TLS = "querator.Tls.from_files(ca=…{})"
_ADVICE = {
    ConnectionFault.TLS_REQUIRED: f"Give the client tls={_TLS.format('')}.",
    ConnectionFault.NO_TLS: "Make the client without tls.",
    ConnectionFault.UNTRUSTED: f"Name the authority that has signed it: {_TLS.format('')}.",
    ConnectionFault.CERTIFICATE_REQUIRED: (
        f"Give the client one: {_TLS.format(', cert=…, key=…')}."
    ),
}
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
# Text of grpc.aio, with status INTERNAL, for a stream that ended while a frame was being written.
# It replaces the status with which the stream ended.
_CUT_WHILE_WRITING = "Internal error from Core"


def from_rpc(error: grpc.aio.AioRpcError, *, address: str, changes: bool) -> RequestError:
    """Converts the error of a call. `changes`: whether the call may have changed something when its
    outcome is not known.
    """
    converted = _converted(error, address, changes)
    converted.grpc_status = error.code().name
    converted.grpc_details = error.details() or ""
    return converted


def _converted(error: grpc.aio.AioRpcError, address: str, changes: bool) -> RequestError:
    named = _from_details(error)
    if named is not None:
        return named
    status, text = error.code(), error.details() or ""
    if status is grpc.StatusCode.UNAVAILABLE and _never_connected(text):
        return connection_failed((fault_from_text(address, text),))
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return make_error(
            ErrorCode.INTERNAL, f"what listens at {address} does not speak querator.v1: {text}"
        )
    if status in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE):
        return make_error(ErrorCode.LIMIT_EXCEEDED, f"gRPC refused the message: {text}")
    if status in _LOST or text == _CUT_WHILE_WRITING:
        cause = "connection cut" if text == _CUT_WHILE_WRITING else text or status.name
        if changes:
            return make_error(ErrorCode.OUTCOME_UNKNOWN, f"no answer from {address}: {cause}")
        code = (
            ErrorCode.DEADLINE_EXCEEDED
            if status is grpc.StatusCode.DEADLINE_EXCEEDED
            else ErrorCode.UNAVAILABLE
        )
        return make_error(code, f"no answer from {address}: {cause}")
    return make_error(ErrorCode.INTERNAL, f"{address} failed with {status.name}: {text}")


def connection_failed(faults: Sequence[AddressFault]) -> ConnectionFailed:
    """The error for these causes, one for each address."""
    texts = [f"{one.text} {advice}".rstrip() for one in faults for advice in (_advice(one),)]
    if len(texts) > 1:
        texts.insert(0, "No node can be reached.")
    error = ConnectionFailed(ErrorCode.UNAVAILABLE, " ".join(texts))
    error.faults = tuple(faults)
    return error


def fault_from_text(address: str, text: str) -> AddressFault:
    """The cause as far as the text of gRPC names it."""
    lowered = text.lower()
    if "connection refused" in lowered:
        return AddressFault(address, ConnectionFault.REFUSED, f"Connection refused at {address}.")
    if any(words in lowered for words in _NO_NAME):
        host = address.rpartition(":")[0]
        return AddressFault(
            address, ConnectionFault.NAME_UNKNOWN, f"The name {host} cannot be resolved."
        )
    reason = _PREFIX.sub("", text.rpartition("last error: ")[2]).rstrip(".")
    why = f": {reason}" if reason else ""
    return AddressFault(address, ConnectionFault.UNKNOWN, f"No connection to {address}{why}.")


def _advice(fault: AddressFault) -> str:
    if fault.kind is ConnectionFault.REFUSED:
        return _IS_IT_UP
    return _ADVICE.get(fault.kind, "")


def from_frame(message: errors_pb2.Error) -> RequestError:
    """Converts the error in one answer on a stream."""
    return make_error(
        code_of(message.code),
        message.message,
        field=message.field,
        limit=message.limit,
        value=message.value,
        retry_delay_ms=(
            message.retry_delay.ToMilliseconds() if message.HasField("retry_delay") else None
        ),
        request_id=message.request_id,
    )


def is_of_the_node(error: RequestError) -> bool:
    """Whether an error on a stream means that another node may succeed: the node is cut off, hangs,
    or is stopping. It does not know the outcome of requests that it accepted before.
    """
    return error.code in (ErrorCode.NOT_LEADER, ErrorCode.UNAVAILABLE, ErrorCode.OUTCOME_UNKNOWN)


def _never_connected(text: str) -> bool:
    lowered = text.lower()
    return any(words in lowered for words in _NO_CONNECTION)


def code_of(number: int) -> ErrorCode:
    """The error code of this number. An unknown code, from a newer node, becomes INTERNAL, because
    this client cannot handle it.
    """
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.INTERNAL


def _from_details(error: grpc.aio.AioRpcError) -> RequestError | None:
    for key, value in error.trailing_metadata() or ():
        if key == _STATUS_DETAILS and isinstance(value, bytes):
            try:
                return _from_status(status_pb2.Status.FromString(value))
            except DecodeError:
                return None
    return None


def _from_status(status: status_pb2.Status) -> RequestError | None:
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    found = False
    retry_delay_ms: int | None = None
    for detail in status.details:
        if detail.Unpack(info):
            found = info.reason in ErrorCode.__members__
        elif detail.Unpack(retry):
            retry_delay_ms = retry.retry_delay.ToMilliseconds()
    if not found:
        return None
    more = info.metadata
    return make_error(
        ErrorCode[info.reason],
        status.message,
        field=more.get("field", ""),
        limit=more.get("limit", ""),
        value=more.get("value", ""),
        retry_delay_ms=retry_delay_ms,
        request_id=more.get("request_id", ""),
    )
