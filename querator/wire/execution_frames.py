"""The frames of ExecutionStream: calls with numbers, and their answers.

The request of a call, and its answer, are the messages of the unary method; each is copied once. A
frame that cannot be read ends the stream; a call that cannot be read is refused by its number.
"""

from typing import Final, NamedTuple

from querator.model.errors import QueratorError, invalid
from querator.v1 import execution_service_pb2 as v1
from querator.wire import field_checks
from querator.wire.errors import error_message
from querator.wire.fields import (
    LEN,
    VARINT,
    MalformedError,
    next_field,
    prefix,
    read_varint,
    varint,
)

_CALLS: Final = v1.ExecutionStreamRequest.CALLS_FIELD_NUMBER
_GIVEN_UP: Final = v1.ExecutionStreamRequest.GIVEN_UP_FIELD_NUMBER
_ANSWERS: Final = v1.ExecutionStreamResponse.ANSWERS_FIELD_NUMBER
_NUMBER: Final = v1.ExecutionCall.NUMBER_FIELD_NUMBER
_TIMEOUT: Final = v1.ExecutionCall.TIMEOUT_MS_FIELD_NUMBER
_NUMBER_TAG: Final = varint(v1.ExecutionAnswer.NUMBER_FIELD_NUMBER << 3 | VARINT)

SERVED: Final = "querator-stream"
"""Key of the initial metadata, with the value 1, of a stream that the node serves."""

METHODS: Final = {
    v1.ExecutionCall.START_FIELD_NUMBER: "StartExecution",
    v1.ExecutionCall.LEASE_FIELD_NUMBER: "LeaseActivations",
    v1.ExecutionCall.RECORD_FIELD_NUMBER: "RecordProgress",
    v1.ExecutionCall.SIGNAL_FIELD_NUMBER: "SignalExecution",
    v1.ExecutionCall.RESOLVE_FIELD_NUMBER: "ResolvePromise",
    v1.ExecutionCall.GET_FIELD_NUMBER: "GetExecution",
    v1.ExecutionCall.WAIT_FIELD_NUMBER: "WaitExecutions",
    v1.ExecutionCall.JOURNAL_FIELD_NUMBER: "ReadJournal",
    v1.ExecutionCall.EXTEND_FIELD_NUMBER: "Extend",
    v1.ExecutionCall.ARRIVALS_FIELD_NUMBER: "WaitArrivals",
}
"""The unary method of each field of a call. Its answer has the same field number."""


class NumberedCall(NamedTuple):
    """A call of a frame. `field` is that of the request, 0: none; `timeout_ms` 0: not given."""

    number: int
    field: int
    request: bytes
    timeout_ms: int


def parse_frame(frame: bytes) -> tuple[list[NumberedCall], list[int]]:
    """Parses an `ExecutionStreamRequest`: its calls, and the numbers of those that are given up.
    Raises INVALID_ARGUMENT.
    """
    calls: list[NumberedCall] = []
    given_up: list[int] = []
    pos, stop = 0, len(frame)
    try:
        while pos < stop:
            number, wire_type, body, pos = next_field(frame, pos, stop)
            if number == _CALLS and wire_type == LEN:
                calls.append(_call(frame, body, pos))
            elif number == _GIVEN_UP and wire_type == VARINT:
                given_up.append(read_varint(frame, body, pos)[0])
            elif number == _GIVEN_UP and wire_type == LEN:
                while body < pos:
                    value, body = read_varint(frame, body, pos)
                    given_up.append(value)
    except MalformedError as error:
        raise field_checks.malformed(v1.ExecutionStreamRequest) from error
    return calls, given_up


def _call(frame: bytes, pos: int, stop: int) -> NumberedCall:
    number = field = timeout_ms = 0
    request = b""
    while pos < stop:
        found, wire_type, body, pos = next_field(frame, pos, stop)
        if wire_type == LEN:
            if found in METHODS:
                # The last one counts, as in every oneof.
                field, request = found, frame[body:pos]
        elif wire_type == VARINT and found == _NUMBER:
            number = read_varint(frame, body, stop)[0]
        elif wire_type == VARINT and found == _TIMEOUT:
            timeout_ms = read_varint(frame, body, stop)[0]
    return NumberedCall(number, field, request, timeout_ms)


def check_call(call: NumberedCall) -> str:
    """The method of the call. Raises INVALID_ARGUMENT."""
    method = METHODS.get(call.field)
    if method is None:
        raise invalid("call", "is missing or unknown")
    return method


def encode_answer(call: NumberedCall, answer: bytes) -> bytes:
    """An `ExecutionStreamResponse` with the answer of one call. Frames may be joined."""
    number = _NUMBER_TAG + varint(call.number)
    head = prefix(call.field, len(answer))
    size = len(number) + len(head) + len(answer)
    return b"".join((prefix(_ANSWERS, size), number, head, answer))


def encode_refusal(call: NumberedCall, error: QueratorError, *, request_id: str) -> bytes:
    """As `encode_answer`, for a call that was refused or failed."""
    answer = v1.ExecutionAnswer(
        number=call.number, error=error_message(error, request_id=request_id)
    )
    return v1.ExecutionStreamResponse(answers=[answer]).SerializeToString()
