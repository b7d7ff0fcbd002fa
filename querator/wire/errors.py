"""Encoding of a `QueratorError`: as `google.rpc.Status` on unary calls, as `Error` on streams.

A status carries up to three details: `ErrorInfo` (reason: the name of the code, domain `querator`,
the other facts as metadata), `RetryInfo` if the error has a retry delay, and `BadRequest` if it
names a field. A status without this `ErrorInfo` was made by gRPC or a proxy, not by Querator.
"""

from google.rpc import code_pb2, error_details_pb2, status_pb2

from querator.model.errors import ERRORS, QueratorError
from querator.v1 import errors_pb2
from querator.wire import field_checks

DOMAIN = "querator"
# A status is sent in HTTP/2 headers, of which peers accept 8 KiB by default.
_TEXT_CHARS_MAX = 500


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
        message.retry_delay.CopyFrom(field_checks.duration(error.retry_delay_ms))
    return message


def error_status(error: QueratorError, *, request_id: str) -> status_pb2.Status:
    """The status of a failed call, with its details. Its code is that of `ERRORS`."""
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
        delay = field_checks.duration(error.retry_delay_ms)
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field[:_TEXT_CHARS_MAX], description=status.message
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    return status
