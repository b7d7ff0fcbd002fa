"""`QueratorError` to and from what travels: `google.rpc.Status` on unary calls, `Error` on streams.

A status carries three details: `ErrorInfo` (reason: the name of the code, domain `querator`, and
the rest as metadata), `RetryInfo` when there is a delay to keep, `BadRequest` when a field is at
fault. A status without our `ErrorInfo` was not made by Querator, but by gRPC or something between;
whether the request was executed is then not known, unless the status alone says that it was not.
"""

from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from querator.model.errors import ERRORS, ErrorCode, QueratorError
from querator.v1 import errors_pb2
from querator.wire import door

DOMAIN = "querator"
# A status travels in HTTP/2 headers, of which peers take 8 KiB by default.
_TEXT_CHARS_MAX = 1_000

_FOREIGN = {
    "INVALID_ARGUMENT": ErrorCode.INVALID_ARGUMENT,
    "UNIMPLEMENTED": ErrorCode.INVALID_ARGUMENT,
    "OUT_OF_RANGE": ErrorCode.INVALID_ARGUMENT,
    # gRPC itself says this of a message over the size that its receiver takes.
    "RESOURCE_EXHAUSTED": ErrorCode.LIMIT_EXCEEDED,
}


def error_message(error: QueratorError, *, request_id: str) -> errors_pb2.Error:
    message = errors_pb2.Error(
        code=errors_pb2.ErrorCode.ValueType(error.code),
        message=error.message[:_TEXT_CHARS_MAX],
        field=error.field[:_TEXT_CHARS_MAX],
        limit=error.limit[:_TEXT_CHARS_MAX],
        value=error.value[:_TEXT_CHARS_MAX],
        retriable=error.retriable,
        request_id=request_id,
    )
    if error.retry_delay_ms is not None:
        message.retry_delay.CopyFrom(door.duration(error.retry_delay_ms))
    return message


def error_of_message(message: errors_pb2.Error) -> QueratorError:
    """What a stream's `Error` says. A code that is not known here is INTERNAL."""
    delay = message.retry_delay
    return QueratorError(
        _known_code(message.code),
        message.message,
        field=message.field,
        limit=message.limit,
        value=message.value,
        retry_delay_ms=(
            delay.seconds * 1000 + delay.nanos // 1_000_000
            if message.HasField("retry_delay")
            else None
        ),
    )


def error_status(error: QueratorError, *, request_id: str) -> status_pb2.Status:
    """The status of a failed call, with its details. Its code is the one `ERRORS` has."""
    spec = ERRORS[error.code]
    status = status_pb2.Status(
        code=code_pb2.Code.Value(spec.grpc_status), message=error.message[:_TEXT_CHARS_MAX]
    )
    info = error_details_pb2.ErrorInfo(reason=error.code.name, domain=DOMAIN)
    facts = {
        "field": error.field,
        "limit": error.limit,
        "value": error.value,
        "retriable": "true" if error.retriable else "false",
        "request_id": request_id,
    }
    info.metadata.update({key: text[:_TEXT_CHARS_MAX] for key, text in facts.items() if text})
    status.details.add().Pack(info)
    if error.retry_delay_ms is not None:
        delay = door.duration(error.retry_delay_ms)
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field[:_TEXT_CHARS_MAX], description=status.message
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    return status


def error_of_status(status_name: str, text: str, details: bytes | None) -> QueratorError:
    """What a failed call says: name and text of its gRPC status, and the value of its trailer
    `grpc-status-details-bin` when there is one.
    """
    if details:
        try:
            status = status_pb2.Status.FromString(details)
        except DecodeError:
            status = status_pb2.Status()
        error = _ours(status)
        if error is not None:
            return error
    if status_name == "UNAVAILABLE" and "failed to connect" in text.lower():
        return QueratorError(ErrorCode.UNAVAILABLE, text)
    code = _FOREIGN.get(status_name, ErrorCode.OUTCOME_UNKNOWN)
    return QueratorError(code, f"{status_name}: {text}")


def _ours(status: status_pb2.Status) -> QueratorError | None:
    """The error that Querator described in the details, if it did."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    retry_delay_ms = None
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(retry.DESCRIPTOR):
            detail.Unpack(retry)
            delay = retry.retry_delay
            retry_delay_ms = delay.seconds * 1000 + delay.nanos // 1_000_000
    if info.domain != DOMAIN:
        return None
    facts = info.metadata
    return QueratorError(
        ErrorCode.__members__.get(info.reason, ErrorCode.INTERNAL),
        status.message,
        field=facts.get("field", ""),
        limit=facts.get("limit", ""),
        value=facts.get("value", ""),
        retry_delay_ms=retry_delay_ms,
    )


def _known_code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.INTERNAL
