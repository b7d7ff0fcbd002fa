"""The reasons for which Querator refuses or fails a request, as one table.

    QueratorError            a request was refused or failed, with an ErrorCode

The table serves gRPC, the SDK and the docs (`docs/api.md` is checked against it). Codes are wire
values (`querator.v1.ErrorCode`): never renumbered.
"""

from enum import IntEnum

import msgspec


class ErrorCode(IntEnum):
    INVALID_ARGUMENT = 1
    LIMIT_EXCEEDED = 2
    QUEUE_NOT_FOUND = 3
    QUEUE_EXISTS = 4
    QUEUE_DELETING = 5
    QUEUE_IN_USE = 6
    NAMESPACE_NOT_FOUND = 7
    LEASE_LOST = 8
    LEASE_ENDED = 9
    SEQUENCE_GAP = 10
    PRODUCER_EXPIRED = 11
    TOO_MANY_PRODUCERS = 12
    QUEUE_FULL = 13
    STORAGE_FULL = 14
    STORAGE_FAILED = 15
    OVERLOADED = 16
    DEADLINE_EXCEEDED = 17
    OUTCOME_UNKNOWN = 18
    UNAVAILABLE = 19
    NOT_LEADER = 20
    ITEM_TOO_LARGE = 21
    VERSION_CONFLICT = 22
    INTERNAL = 23
    ROUTING_CHANGED = 24
    TOO_MANY_DEDUP_KEYS = 25
    QUEUE_PAUSED = 26
    READER_NOT_FOUND = 40
    READER_FENCED = 41
    ACK_MISMATCH = 42
    BATCH_RELEASED = 43
    BATCH_NOT_FOUND = 44
    TOO_MANY_READERS = 45
    RECURRENCE_NOT_FOUND = 50
    RECURRENCE_EXISTS = 51
    TOO_MANY_RECURRENCES = 52
    TRANSACTION_ABORTED = 30
    STAGE_FULL = 31
    TOO_MANY_RESULTS = 60
    EVENTS_GONE = 61
    EVENTS_OFF = 62
    QUEUE_KIND = 70
    EXECUTION_NOT_FOUND = 71
    EXECUTION_EXISTS = 72
    EXECUTION_CLOSED = 73
    JOURNAL_FULL = 74
    SIGNALS_FULL = 75
    TOKEN_INVALID = 76
    UNSEEN = 77


class ErrorSpec(msgspec.Struct, frozen=True):
    """The meaning of a code for clients."""

    grpc_status: str
    http_status: int
    retriable: bool
    refresh_map: bool
    meaning: str
    """The sentence of the code in docs/api.md. The message of an error is in the code that raises
    it.
    """


ERRORS: dict[ErrorCode, ErrorSpec] = {
    ErrorCode.INVALID_ARGUMENT: ErrorSpec(
        "INVALID_ARGUMENT", 400, False, False, "A field is malformed, missing or unknown."
    ),
    ErrorCode.LIMIT_EXCEEDED: ErrorSpec(
        "INVALID_ARGUMENT", 400, False, False, "A field is outside its limits."
    ),
    ErrorCode.QUEUE_NOT_FOUND: ErrorSpec(
        "NOT_FOUND", 404, False, True, "There is no queue of this name."
    ),
    ErrorCode.QUEUE_EXISTS: ErrorSpec(
        "ALREADY_EXISTS",
        409,
        False,
        False,
        "The queue exists with other settings than the given ones.",
    ),
    ErrorCode.QUEUE_DELETING: ErrorSpec(
        "FAILED_PRECONDITION", 409, False, True, "The queue is being deleted."
    ),
    ErrorCode.QUEUE_IN_USE: ErrorSpec(
        "FAILED_PRECONDITION", 409, False, False, "Another queue depends on this one."
    ),
    ErrorCode.NAMESPACE_NOT_FOUND: ErrorSpec(
        "NOT_FOUND", 404, False, False, "There is no namespace of this name."
    ),
    ErrorCode.LEASE_LOST: ErrorSpec(
        "FAILED_PRECONDITION", 409, False, False, "The lease has ended or does not hold the item."
    ),
    ErrorCode.LEASE_ENDED: ErrorSpec(
        "FAILED_PRECONDITION",
        409,
        False,
        False,
        "The lease of the repeated lease request has ended.",
    ),
    ErrorCode.SEQUENCE_GAP: ErrorSpec(
        "FAILED_PRECONDITION", 409, False, False, "An ordered producer skipped a sequence."
    ),
    ErrorCode.PRODUCER_EXPIRED: ErrorSpec(
        "FAILED_PRECONDITION", 409, False, False, "The producer's outcome is no longer remembered."
    ),
    ErrorCode.TOO_MANY_PRODUCERS: ErrorSpec(
        "RESOURCE_EXHAUSTED",
        429,
        False,
        False,
        "The partition has reached its limit of producers.",
    ),
    ErrorCode.QUEUE_FULL: ErrorSpec(
        "RESOURCE_EXHAUSTED", 429, True, False, "The partition is full by its queue's settings."
    ),
    ErrorCode.STORAGE_FULL: ErrorSpec(
        "RESOURCE_EXHAUSTED", 507, True, False, "The disk or the storage quota is full."
    ),
    ErrorCode.STORAGE_FAILED: ErrorSpec("INTERNAL", 500, False, False, "The storage failed."),
    ErrorCode.OVERLOADED: ErrorSpec(
        "RESOURCE_EXHAUSTED",
        429,
        True,
        False,
        "The node has reached its limit of unanswered work.",
    ),
    ErrorCode.DEADLINE_EXCEEDED: ErrorSpec(
        "DEADLINE_EXCEEDED",
        504,
        True,
        False,
        "The deadline passed before the request was accepted.",
    ),
    ErrorCode.OUTCOME_UNKNOWN: ErrorSpec(
        "ABORTED", 500, True, True, "The request was accepted; its outcome is not known."
    ),
    ErrorCode.UNAVAILABLE: ErrorSpec(
        "UNAVAILABLE", 503, True, True, "The node is starting up or shutting down; not executed."
    ),
    ErrorCode.NOT_LEADER: ErrorSpec(
        "UNAVAILABLE", 503, True, True, "The node does not lead the partition; not executed."
    ),
    ErrorCode.ITEM_TOO_LARGE: ErrorSpec(
        "FAILED_PRECONDITION", 413, False, False, "The next item is larger than the reply may be."
    ),
    ErrorCode.VERSION_CONFLICT: ErrorSpec(
        "ABORTED", 409, False, False, "The settings were changed since they were read."
    ),
    ErrorCode.INTERNAL: ErrorSpec("INTERNAL", 500, False, False, "A defect in Querator."),
    ErrorCode.ROUTING_CHANGED: ErrorSpec(
        "UNAVAILABLE", 503, True, True, "The queue's partitions have changed; not executed."
    ),
    ErrorCode.TOO_MANY_DEDUP_KEYS: ErrorSpec(
        "RESOURCE_EXHAUSTED",
        429,
        True,
        False,
        "The partition has reached its limit of dedup keys.",
    ),
    ErrorCode.QUEUE_PAUSED: ErrorSpec(
        "UNAVAILABLE", 503, True, False, "An operator has paused the producers of the queue."
    ),
    ErrorCode.READER_NOT_FOUND: ErrorSpec(
        "NOT_FOUND", 404, False, False, "The queue has no reader of this name."
    ),
    ErrorCode.READER_FENCED: ErrorSpec(
        "FAILED_PRECONDITION", 409, False, False, "A later epoch of the reader has been opened."
    ),
    ErrorCode.ACK_MISMATCH: ErrorSpec(
        "FAILED_PRECONDITION",
        409,
        False,
        False,
        "The acknowledgement is behind the last acknowledged batch, or ahead of the last batch "
        "given out.",
    ),
    ErrorCode.BATCH_RELEASED: ErrorSpec(
        "FAILED_PRECONDITION",
        409,
        False,
        False,
        "The batch's items have gone back to the queue, or became dead letters.",
    ),
    ErrorCode.BATCH_NOT_FOUND: ErrorSpec(
        "NOT_FOUND", 404, False, False, "The batch is acknowledged, or was never given out."
    ),
    ErrorCode.TOO_MANY_READERS: ErrorSpec(
        "RESOURCE_EXHAUSTED", 429, False, False, "The partition has reached its limit of readers."
    ),
    ErrorCode.RECURRENCE_NOT_FOUND: ErrorSpec(
        "NOT_FOUND", 404, False, False, "The queue has no recurrence of this name."
    ),
    ErrorCode.RECURRENCE_EXISTS: ErrorSpec(
        "ALREADY_EXISTS",
        409,
        False,
        False,
        "The recurrence exists with another specification than the given one.",
    ),
    ErrorCode.TOO_MANY_RECURRENCES: ErrorSpec(
        "RESOURCE_EXHAUSTED", 429, False, False, "The queue has reached its limit of recurrences."
    ),
    ErrorCode.TRANSACTION_ABORTED: ErrorSpec(
        "ABORTED", 409, False, False, "Nothing of the batch is visible; it must be staged again."
    ),
    ErrorCode.STAGE_FULL: ErrorSpec(
        "RESOURCE_EXHAUSTED",
        429,
        True,
        False,
        "The partition has reached its limit of staged items.",
    ),
    ErrorCode.TOO_MANY_RESULTS: ErrorSpec(
        "RESOURCE_EXHAUSTED",
        429,
        True,
        False,
        "The partition has reached its limit of results of items.",
    ),
    ErrorCode.QUEUE_KIND: ErrorSpec(
        "FAILED_PRECONDITION", 409, False, True, "Queues of this kind do not have the operation."
    ),
    ErrorCode.EXECUTION_NOT_FOUND: ErrorSpec(
        "NOT_FOUND", 404, False, False, "The queue has no execution of this id."
    ),
    ErrorCode.EXECUTION_EXISTS: ErrorSpec(
        "ALREADY_EXISTS",
        409,
        False,
        False,
        "The execution exists with another function or other arguments.",
    ),
    ErrorCode.EXECUTION_CLOSED: ErrorSpec(
        "FAILED_PRECONDITION", 409, False, False, "The execution has ended."
    ),
    ErrorCode.JOURNAL_FULL: ErrorSpec(
        "RESOURCE_EXHAUSTED", 429, False, False, "The journal has reached its limit of records."
    ),
    ErrorCode.SIGNALS_FULL: ErrorSpec(
        "RESOURCE_EXHAUSTED",
        429,
        True,
        False,
        "The execution has reached its limit of unread signals.",
    ),
    ErrorCode.TOKEN_INVALID: ErrorSpec(
        "FAILED_PRECONDITION", 403, False, False, "No execution has made this token of a promise."
    ),
    ErrorCode.UNSEEN: ErrorSpec(
        "ABORTED",
        409,
        False,
        False,
        "Something has arrived that the code of the execution has not been given.",
    ),
    ErrorCode.EVENTS_GONE: ErrorSpec(
        "OUT_OF_RANGE",
        410,
        False,
        False,
        "The events at the position are not kept any more, or their partition has left the queue.",
    ),
    ErrorCode.EVENTS_OFF: ErrorSpec(
        "FAILED_PRECONDITION", 409, False, False, "The queue records no events."
    ),
}

assert set(ERRORS) == set(ErrorCode)


class QueratorError(Exception):
    """A request was refused or failed.

    `field` is the path of the field at fault, `limit` and `value` are texts with units; each is
    empty when there is none. `message` is a sentence for people and names them too.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str = "",
        limit: str = "",
        value: str = "",
        retry_delay_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.limit = limit
        self.value = value
        self.retry_delay_ms = retry_delay_ms

    @property
    def retriable(self) -> bool:
        return ERRORS[self.code].retriable

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


def over_limit(field: str, *, value: object, limit: object, unit: str = "") -> QueratorError:
    """The error for a value above its limit; `limit` and `value` are in `unit`."""
    suffix = f" {unit}" if unit else ""
    return QueratorError(
        ErrorCode.LIMIT_EXCEEDED,
        f"{field} is {value}{suffix}; the limit is {limit}{suffix}",
        field=field,
        limit=f"{limit}{suffix}",
        value=f"{value}{suffix}",
    )


def invalid(field: str, reason: str, *, value: object = "") -> QueratorError:
    """The error for a malformed field; `reason` completes the sentence `field …`."""
    return QueratorError(
        ErrorCode.INVALID_ARGUMENT, f"{field} {reason}", field=field, value=str(value)[:128]
    )
