"""The exceptions of the SDK: one class for each `ErrorCode`, in one small tree.

    QueratorError                     querator.model.errors; catch this for "anything of Querator"
    └─ RequestError                   a request of this client was refused or failed
       ├─ InvalidArgument             a field is malformed; `field` names it
       │  └─ LimitExceeded            … or outside its limit; `limit` and `value` say by how much
       ├─ NotFound                    ├─ QueueNotFound  ├─ NamespaceNotFound
       │                              ├─ ReaderNotFound  ├─ BatchNotFound
       │                              ├─ RecurrenceNotFound  └─ ExecutionNotFound
       ├─ QueueExists, QueueDeleting, QueueInUse, VersionConflict
       ├─ RecurrenceExists, TooManyRecurrences, WrongQueueKind
       ├─ ExecutionExists, ExecutionClosed, TokenInvalid
       ├─ Unseen                      an arrival that the code of the execution must be given
       ├─ LeaseLost                   another consumer may have the item by now; drop the work
       │  └─ LeaseEnded
       ├─ ProducerFailed              ├─ SequenceGap  ├─ ProducerExpired  └─ TooManyProducers
       ├─ ReaderFailed                ├─ ReaderFenced  ├─ AckMismatch  ├─ BatchReleased
       │                              └─ TooManyReaders
       ├─ Full                        ├─ QueueFull  ├─ StageFull  ├─ StorageFull
       │                              ├─ TooManyDedupKeys  ├─ TooManyResults
       │                              ├─ JournalFull  └─ SignalsFull
       ├─ EventsGone                  events at the position are not kept any more
       ├─ EventsOff                   the queue records no events
       ├─ TransactionAborted          no item of the batch is visible; stage it again
       ├─ Unavailable                 certainly not executed
       │  ├─ ConnectionFailed         no connection to a node; `fault` says why
       │  ├─ NotLeader
       │  ├─ RoutingChanged           the queue has other partitions
       │  ├─ QueuePaused              its producers are paused
       │  ├─ Overloaded
       │  └─ DeadlineExceeded
       ├─ OutcomeUnknown              may have been executed, or may yet be
       ├─ ItemTooLarge
       └─ ServerFailed                └─ StorageFailed

`NoResult` is about a result of an item, and not about a request:

    NoResult                         the item has ended without one
    ├─ ItemDied                      it became a dead letter, or was dropped as one
    ├─ ItemRemoved                   it was cancelled, purged, replaced or given up
    └─ ResultNotKept                 it was produced without keep_result, or that is over
    ResultTimeout                    a TimeoutError: the item has not ended in time

Locks and semaphores raise:

    LockLost                         the lock is not held any more; stop what it protects
    LockTimeout                      a TimeoutError: the lock was not free in time
    LockMismatch                     a ValueError: the lock has other permits, or its queue is none

`UsedAfterFork` is a RuntimeError, as other errors of a program that uses the SDK in a wrong way.

The client repeats a request while `retriable` allows it and the request's timeout has not passed.
Then it raises the last refusal, or `OutcomeUnknown` if any attempt may have been executed.

Longer than 500 lines: programs and pages of the docs name this module for all exceptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from querator.client.faults import AddressFault, ConnectionFault
from querator.model.errors import ERRORS, ErrorCode, QueratorError

if TYPE_CHECKING:
    from querator.client.values import DeadReason, ItemId

__all__ = [
    "AckMismatch",
    "AddressFault",
    "BatchNotFound",
    "BatchReleased",
    "ConnectionFailed",
    "ConnectionFault",
    "DeadlineExceeded",
    "ErrorCode",
    "EventsGone",
    "EventsOff",
    "ExecutionClosed",
    "ExecutionExists",
    "ExecutionNotFound",
    "Full",
    "InvalidArgument",
    "ItemDied",
    "ItemRemoved",
    "ItemTooLarge",
    "JournalFull",
    "LeaseEnded",
    "LeaseLost",
    "LimitExceeded",
    "LockLost",
    "LockMismatch",
    "LockTimeout",
    "NamespaceNotFound",
    "NoResult",
    "NotFound",
    "NotLeader",
    "OutcomeUnknown",
    "Overloaded",
    "ProducerExpired",
    "ProducerFailed",
    "QueratorError",
    "QueueDeleting",
    "QueueExists",
    "QueueFull",
    "QueueInUse",
    "QueueNotFound",
    "QueuePaused",
    "ReaderFailed",
    "ReaderFenced",
    "ReaderNotFound",
    "RecurrenceExists",
    "RecurrenceNotFound",
    "RequestError",
    "ResultNotKept",
    "ResultTimeout",
    "RoutingChanged",
    "SequenceGap",
    "ServerFailed",
    "SignalsFull",
    "StageFull",
    "StorageFailed",
    "StorageFull",
    "TokenInvalid",
    "TooManyDedupKeys",
    "TooManyProducers",
    "TooManyReaders",
    "TooManyRecurrences",
    "TooManyResults",
    "TransactionAborted",
    "Unavailable",
    "Unseen",
    "UsedAfterFork",
    "VersionConflict",
    "WrongQueueKind",
    "make_error",
]


class RequestError(QueratorError):
    """A request of this client was refused or failed.

    `code`, `message`, `field`, `limit`, `value`, `retriable`: as in `QueratorError`. `request_id`
    finds the request in the node's log; empty when the node never saw it. `grpc_status` and
    `grpc_details`: the status and the text of gRPC, if the error came with the end of a call or
    stream; else empty.
    """

    grpc_status: str = ""
    grpc_details: str = ""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str = "",
        limit: str = "",
        value: str = "",
        retry_delay_ms: int | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(
            code, message, field=field, limit=limit, value=value, retry_delay_ms=retry_delay_ms
        )
        self.request_id = request_id

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (request {self.request_id})" if self.request_id else text


class NoResult(Exception):
    """The item has ended, or is gone, and its consumer has returned nothing for it."""

    def __init__(self, item_id: ItemId, message: str) -> None:
        super().__init__(message)
        self.item_id = item_id

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.args, self.__dict__)


class ItemDied(NoResult):
    """The item became a dead letter, or was dropped where a dead letter would have been one.
    `error`: the last words of a consumer; empty when there are none. `attempts`: how many times it
    had been leased.
    """

    def __init__(
        self, item_id: ItemId, *, reason: DeadReason, error: str = "", attempts: int = 0
    ) -> None:
        words = f": {error}" if error else ""
        message = f"item {item_id} died after {attempts} attempts ({reason.name.lower()}){words}"
        super().__init__(item_id, message)
        self.reason = reason
        self.error = error
        self.attempts = attempts


class ItemRemoved(NoResult):
    """The item was cancelled, purged, replaced or given up."""

    def __init__(self, item_id: ItemId) -> None:
        super().__init__(item_id, f"item {item_id} was removed before it was completed")


class ResultNotKept(NoResult):
    """There is no result to wait for: the item was produced without `keep_result`, or its result
    was kept long enough, or there is no such item.
    """

    def __init__(self, item_id: ItemId, why: str) -> None:
        super().__init__(item_id, f"there is no result of item {item_id}: {why}")


class ResultTimeout(TimeoutError):
    """The item has not ended in time. `Client.result` waits on."""

    def __init__(self, item_id: ItemId) -> None:
        super().__init__(f"item {item_id} has not ended in time; its result can be waited for")
        self.item_id = item_id

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.item_id,)


class LockLost(Exception):
    """The lock `name` was lost while it was held: another program may hold it. `token`: the fencing
    token with which it was held. `why`: the reason.
    """

    def __init__(self, name: str, token: int, why: str) -> None:
        super().__init__(f"lock {name} is lost: {why}")
        self.name = name
        self.token = token
        self.why = why

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.token, self.why)


class LockTimeout(TimeoutError):
    """The lock `name` was not free in time. Nothing is held."""

    def __init__(self, name: str) -> None:
        super().__init__(f"lock {name} was not free in time")
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name,)


class LockMismatch(ValueError):
    """The queue of the lock has settings or items that such a lock does not have, or the semaphore
    has another number of permits. The message names what differs.
    """


def _unpickled(
    kind: type[NoResult], args: tuple[object, ...], attributes: dict[str, object]
) -> NoResult:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class UsedAfterFork(RuntimeError):
    """A process that was forked uses a client of its parent, or cannot use gRPC at all. The message
    says what to do. Nothing was sent.
    """


class InvalidArgument(RequestError):
    """A field of the request is malformed, missing or unknown; `field` names it."""


class LimitExceeded(InvalidArgument):
    """A field is outside its limits; `limit` and `value` are texts with units."""


class NotFound(RequestError):
    """Base of the errors for a queue, namespace, reader, batch or recurrence that does not
    exist.
    """


class QueueNotFound(NotFound):
    """The namespace has no queue of this name."""


class NamespaceNotFound(NotFound):
    """There is no namespace of this name."""


class ReaderNotFound(NotFound):
    """The queue has no reader of this name."""


class BatchNotFound(NotFound):
    """The batch is acknowledged, or was never handed out."""


class RecurrenceNotFound(NotFound):
    """The queue has no recurrence of this name."""


class RecurrenceExists(RequestError):
    """The recurrence exists with another specification than the given one."""


class TooManyRecurrences(RequestError):
    """The queue has as many recurrences as it may."""


class QueueExists(RequestError):
    """The queue exists with other settings than the given ones."""


class QueueDeleting(RequestError):
    """The queue is being deleted."""


class QueueInUse(RequestError):
    """Another queue depends on this one."""


class VersionConflict(RequestError):
    """The settings, or the recurrence, were changed since they were read."""


class LeaseLost(RequestError):
    """The lease has ended or does not hold the items; another consumer may have them. `items` are
    the lost items; empty when they are not known.
    """

    items: tuple[ItemId, ...] = ()
    lease_id: str = ""


class LeaseEnded(LeaseLost):
    """The lease that the repeated lease request had made has ended."""


class ProducerFailed(RequestError):
    """Base of the errors about a producer's identity and sequence."""


class SequenceGap(ProducerFailed):
    """An ordered producer skipped a sequence."""


class ProducerExpired(ProducerFailed):
    """The partition no longer remembers the outcome of the producer's request."""


class TooManyProducers(ProducerFailed):
    """The partition remembers as many producers as it may."""


class ReaderFailed(RequestError):
    """Base of the errors about a reader's run and batches."""


class ReaderFenced(ReaderFailed):
    """A later epoch of the reader has been opened."""


class AckMismatch(ReaderFailed):
    """The acknowledgement is behind what is acknowledged, or ahead of what was handed out."""


class BatchReleased(ReaderFailed):
    """The items of the batch have gone back to the queue, or became dead letters."""


class TooManyReaders(ReaderFailed):
    """The partition knows as many readers as it may."""


class Full(RequestError):
    """Base of the errors for a limit of space or number that is reached; retriable."""


class QueueFull(Full):
    """The partition is full by its queue's settings."""


class TooManyDedupKeys(Full):
    """The partition remembers as many dedup keys as it may. It remembers each one for the queue's
    dedup window, or until its item is done.
    """


class StageFull(Full):
    """The partition holds as much staged data as it may."""


class TooManyResults(Full):
    """The partition keeps as many results of items as it may, or has promised to."""


class EventsGone(RequestError):
    """The events at the position are not kept any more: `limit` is the first position that is
    (`field` is "position"). Or their partition has left the queue ("partition"), or was created
    again ("feed"). What came in between is lost for this follower.
    """


class EventsOff(RequestError):
    """The queue records no events: it has no `events_retention`."""


class StorageFull(Full):
    """The disk or the storage quota is full."""


class WrongQueueKind(RequestError):
    """Queues of this kind do not have the operation."""


class ExecutionNotFound(NotFound):
    """The queue has no execution of this id."""


class ExecutionExists(RequestError):
    """The execution exists with another function or other arguments."""


class ExecutionClosed(RequestError):
    """The execution has ended."""


class JournalFull(Full):
    """The journal of the execution has as many records or bytes as it may."""


class SignalsFull(Full):
    """The execution has as many unread signals as it may."""


class TokenInvalid(RequestError):
    """No execution has made the promise that the token names."""


class Unseen(RequestError):
    """Something has arrived that the code of the execution has not been given."""


class TransactionAborted(RequestError):
    """No item of the batch is or will be visible; its tasks must be staged again."""


class Unavailable(RequestError):
    """The request was certainly not executed; it may be sent again."""


class ConnectionFailed(Unavailable):
    """No connection to a node was made; nothing was sent. `faults` has the cause for each address;
    the message names all of them.
    """

    faults: tuple[AddressFault, ...] = ()

    @property
    def fault(self) -> ConnectionFault:
        """The cause, if it is the same for all addresses; else UNKNOWN."""
        kinds = {one.kind for one in self.faults}
        return kinds.pop() if len(kinds) == 1 else ConnectionFault.UNKNOWN


class NotLeader(Unavailable):
    """The node does not lead the partition; not executed."""


class RoutingChanged(Unavailable):
    """The queue's partitions have changed; not executed."""


class QueuePaused(Unavailable):
    """An operator has paused the producers of the queue; not executed."""


class Overloaded(Unavailable):
    """The node has as much unanswered work as it may take; not executed."""


class DeadlineExceeded(Unavailable):
    """The deadline passed before a node accepted the request; not executed."""


class OutcomeUnknown(RequestError):
    """The request may have been executed, or may still be executed."""


class ItemTooLarge(RequestError):
    """The next item is larger than the reply may be."""


class ServerFailed(RequestError):
    """A defect in Querator or a failure of its storage; the node's log has the request."""


class StorageFailed(ServerFailed):
    """The storage of a node failed."""


_CLASSES: dict[ErrorCode, type[RequestError]] = {
    ErrorCode.INVALID_ARGUMENT: InvalidArgument,
    ErrorCode.LIMIT_EXCEEDED: LimitExceeded,
    ErrorCode.QUEUE_NOT_FOUND: QueueNotFound,
    ErrorCode.QUEUE_EXISTS: QueueExists,
    ErrorCode.QUEUE_DELETING: QueueDeleting,
    ErrorCode.QUEUE_IN_USE: QueueInUse,
    ErrorCode.NAMESPACE_NOT_FOUND: NamespaceNotFound,
    ErrorCode.LEASE_LOST: LeaseLost,
    ErrorCode.LEASE_ENDED: LeaseEnded,
    ErrorCode.SEQUENCE_GAP: SequenceGap,
    ErrorCode.PRODUCER_EXPIRED: ProducerExpired,
    ErrorCode.TOO_MANY_PRODUCERS: TooManyProducers,
    ErrorCode.QUEUE_FULL: QueueFull,
    ErrorCode.STORAGE_FULL: StorageFull,
    ErrorCode.STORAGE_FAILED: StorageFailed,
    ErrorCode.OVERLOADED: Overloaded,
    ErrorCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    ErrorCode.OUTCOME_UNKNOWN: OutcomeUnknown,
    ErrorCode.UNAVAILABLE: Unavailable,
    ErrorCode.NOT_LEADER: NotLeader,
    ErrorCode.ITEM_TOO_LARGE: ItemTooLarge,
    ErrorCode.VERSION_CONFLICT: VersionConflict,
    ErrorCode.INTERNAL: ServerFailed,
    ErrorCode.ROUTING_CHANGED: RoutingChanged,
    ErrorCode.QUEUE_PAUSED: QueuePaused,
    ErrorCode.TOO_MANY_DEDUP_KEYS: TooManyDedupKeys,
    ErrorCode.TOO_MANY_RESULTS: TooManyResults,
    ErrorCode.EVENTS_GONE: EventsGone,
    ErrorCode.EVENTS_OFF: EventsOff,
    ErrorCode.READER_NOT_FOUND: ReaderNotFound,
    ErrorCode.READER_FENCED: ReaderFenced,
    ErrorCode.ACK_MISMATCH: AckMismatch,
    ErrorCode.BATCH_RELEASED: BatchReleased,
    ErrorCode.BATCH_NOT_FOUND: BatchNotFound,
    ErrorCode.TOO_MANY_READERS: TooManyReaders,
    ErrorCode.RECURRENCE_NOT_FOUND: RecurrenceNotFound,
    ErrorCode.RECURRENCE_EXISTS: RecurrenceExists,
    ErrorCode.TOO_MANY_RECURRENCES: TooManyRecurrences,
    ErrorCode.TRANSACTION_ABORTED: TransactionAborted,
    ErrorCode.STAGE_FULL: StageFull,
    ErrorCode.QUEUE_KIND: WrongQueueKind,
    ErrorCode.EXECUTION_NOT_FOUND: ExecutionNotFound,
    ErrorCode.EXECUTION_EXISTS: ExecutionExists,
    ErrorCode.EXECUTION_CLOSED: ExecutionClosed,
    ErrorCode.JOURNAL_FULL: JournalFull,
    ErrorCode.SIGNALS_FULL: SignalsFull,
    ErrorCode.TOKEN_INVALID: TokenInvalid,
    ErrorCode.UNSEEN: Unseen,
}

assert set(_CLASSES) == set(ERRORS)


def make_error(
    code: ErrorCode,
    message: str,
    *,
    field: str = "",
    limit: str = "",
    value: str = "",
    retry_delay_ms: int | None = None,
    request_id: str = "",
) -> RequestError:
    """Returns the exception for `code`, an instance of its class."""
    return _CLASSES[code](
        code,
        message,
        field=field,
        limit=limit,
        value=value,
        retry_delay_ms=retry_delay_ms,
        request_id=request_id,
    )


def copy_error(error: RequestError) -> RequestError:
    """Returns the same error as another object. One refusal fails many calls, and an exception that
    is raised in several places would collect the tracebacks of all of them.
    """
    other = make_error(
        error.code,
        error.message,
        field=error.field,
        limit=error.limit,
        value=error.value,
        retry_delay_ms=error.retry_delay_ms,
        request_id=error.request_id,
    )
    other.__class__ = error.__class__
    if isinstance(error, ConnectionFailed) and isinstance(other, ConnectionFailed):
        other.faults = error.faults
    other.grpc_status, other.grpc_details = error.grpc_status, error.grpc_details
    if isinstance(error, LeaseLost) and isinstance(other, LeaseLost):
        other.items, other.lease_id = error.items, error.lease_id
    return other
