"""What can go wrong, as exceptions: one class for each `ErrorCode`, in one small tree.

    QueratorError                     querator.model.errors; catch this for "anything of Querator"
    └─ RequestError                   a request of this client was refused or failed
       ├─ InvalidArgument             a field is malformed; `field` names it
       │  └─ LimitExceeded            … or outside its limit; `limit` and `value` say by how much
       ├─ NotFound                    ├─ QueueNotFound  ├─ NamespaceNotFound
       │                              ├─ ReaderNotFound  └─ BatchNotFound
       ├─ QueueExists, QueueDeleting, QueueInUse, VersionConflict
       ├─ LeaseLost                   somebody else may have the item by now; drop the work
       │  └─ LeaseEnded
       ├─ ProducerFailed              ├─ SequenceGap  ├─ ProducerExpired  └─ TooManyProducers
       ├─ ReaderFailed                ├─ ReaderFenced  ├─ AckMismatch  ├─ BatchReleased
       │                              └─ TooManyReaders
       ├─ Full                        ├─ QueueFull  ├─ StageFull  ├─ StorageFull
       │                              └─ TooManyDedupKeys
       ├─ TransactionAborted          nothing of the batch is visible; stage it again
       ├─ Unavailable                 certainly not executed
       │  ├─ ConnectionFailed         nobody answers at the address
       │  ├─ NotLeader
       │  ├─ RoutingChanged           the queue has other partitions
       │  ├─ Overloaded
       │  └─ DeadlineExceeded
       ├─ OutcomeUnknown              may have been executed, or may yet be
       ├─ ItemTooLarge
       └─ ServerFailed                └─ StorageFailed

The client repeats what `retriable` allows until the request's timeout has passed; what it raises
then is the last refusal, or `OutcomeUnknown` if any attempt may have been executed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from querator.model.errors import ERRORS, ErrorCode, QueratorError

if TYPE_CHECKING:
    from querator.client.values import ItemId

__all__ = [
    "AckMismatch",
    "BatchNotFound",
    "BatchReleased",
    "ConnectionFailed",
    "DeadlineExceeded",
    "ErrorCode",
    "Full",
    "InvalidArgument",
    "ItemTooLarge",
    "LeaseEnded",
    "LeaseLost",
    "LimitExceeded",
    "NamespaceNotFound",
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
    "ReaderFailed",
    "ReaderFenced",
    "ReaderNotFound",
    "RequestError",
    "RoutingChanged",
    "SequenceGap",
    "ServerFailed",
    "StageFull",
    "StorageFailed",
    "StorageFull",
    "TooManyDedupKeys",
    "TooManyProducers",
    "TooManyReaders",
    "TransactionAborted",
    "Unavailable",
    "VersionConflict",
    "make_error",
]


class RequestError(QueratorError):
    """A request of this client was refused or failed.

    `code`, `message`, `field`, `limit`, `value`, `retriable`: as in `QueratorError`.
    `request_id` finds the request in the node's log; empty when the node never saw it.
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
        request_id: str = "",
    ) -> None:
        super().__init__(
            code, message, field=field, limit=limit, value=value, retry_delay_ms=retry_delay_ms
        )
        self.request_id = request_id

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (request {self.request_id})" if self.request_id else text


class InvalidArgument(RequestError):
    pass


class LimitExceeded(InvalidArgument):
    pass


class NotFound(RequestError):
    pass


class QueueNotFound(NotFound):
    pass


class NamespaceNotFound(NotFound):
    pass


class ReaderNotFound(NotFound):
    pass


class BatchNotFound(NotFound):
    """The batch is acknowledged, or was never given out."""


class QueueExists(RequestError):
    pass


class QueueDeleting(RequestError):
    pass


class QueueInUse(RequestError):
    pass


class VersionConflict(RequestError):
    pass


class LeaseLost(RequestError):
    """The lease has ended or does not hold the items: `items` are those that were lost."""

    items: tuple[ItemId, ...] = ()
    lease_id: str = ""


class LeaseEnded(LeaseLost):
    pass


class ProducerFailed(RequestError):
    pass


class SequenceGap(ProducerFailed):
    pass


class ProducerExpired(ProducerFailed):
    pass


class TooManyProducers(ProducerFailed):
    pass


class ReaderFailed(RequestError):
    pass


class ReaderFenced(ReaderFailed):
    """A later epoch of the reader was opened."""


class AckMismatch(ReaderFailed):
    """The reader's memory of what it has read is not the queue's."""


class BatchReleased(ReaderFailed):
    """The items of the batch have gone back to the queue."""


class TooManyReaders(ReaderFailed):
    pass


class Full(RequestError):
    pass


class QueueFull(Full):
    pass


class TooManyDedupKeys(Full):
    """The partition remembers as many dedup keys as it may: each for the queue's dedup window."""


class StageFull(Full):
    pass


class StorageFull(Full):
    pass


class TransactionAborted(RequestError):
    """Nothing of the batch is visible, and nothing will be; its tasks are to be staged again."""


class Unavailable(RequestError):
    """Certainly not executed."""


class ConnectionFailed(Unavailable):
    """Nobody answers at the address; nothing was sent."""


class NotLeader(Unavailable):
    pass


class RoutingChanged(Unavailable):
    pass


class Overloaded(Unavailable):
    pass


class DeadlineExceeded(Unavailable):
    pass


class OutcomeUnknown(RequestError):
    """The request may have been executed, or may yet be."""


class ItemTooLarge(RequestError):
    pass


class ServerFailed(RequestError):
    pass


class StorageFailed(ServerFailed):
    pass


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
    ErrorCode.TOO_MANY_DEDUP_KEYS: TooManyDedupKeys,
    ErrorCode.READER_NOT_FOUND: ReaderNotFound,
    ErrorCode.READER_FENCED: ReaderFenced,
    ErrorCode.ACK_MISMATCH: AckMismatch,
    ErrorCode.BATCH_RELEASED: BatchReleased,
    ErrorCode.BATCH_NOT_FOUND: BatchNotFound,
    ErrorCode.TOO_MANY_READERS: TooManyReaders,
    ErrorCode.TRANSACTION_ABORTED: TransactionAborted,
    ErrorCode.STAGE_FULL: StageFull,
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
    """The exception for `code`, of its own class."""
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
    """The same error as another object: one refusal fails many calls, and an exception that is
    raised in several places would collect the tracebacks of all of them.
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
    if isinstance(error, LeaseLost) and isinstance(other, LeaseLost):
        other.items, other.lease_id = error.items, error.lease_id
    return other
