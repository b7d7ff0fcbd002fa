"""Outcomes of commands: results, errors, and which commands may be repeated."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from querator import telemetry
from querator.model.commands import (
    Done,
    ExtendResult,
    ItemsChanged,
    ItemsRemoved,
    Lease,
    LeaseResult,
    Moved,
    Produce,
    ProduceResult,
    RedriveResult,
    Refusal,
    SettleResult,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.readers import ReaderResult
from querator.model.recurrences import DeleteRecurrence, RecurrenceResult
from querator.model.transactions import StageResult, TxnResult
from querator.placement.map.commands import DeleteQueue, UpdateQueue

T = TypeVar("T")

NOT_EXECUTED = (ErrorCode.NOT_LEADER, ErrorCode.UNAVAILABLE)

_log = telemetry.logger(__name__)

_FORGETFUL = (ErrorCode.PRODUCER_EXPIRED, ErrorCode.ROUTING_CHANGED)

Accepted = (
    ProduceResult
    | LeaseResult
    | SettleResult
    | ExtendResult
    | RedriveResult
    | ItemsRemoved
    | ItemsChanged
    | RecurrenceResult
    | ReaderResult
    | StageResult
    | TxnResult
    | Moved
    | Done
)
"""Answers of a partition to a command that it did not refuse."""


def repeatable(command: Any) -> bool:
    """Whether a command with an unknown outcome may be repeated: the partition then returns its
    first answer, or nothing changes.
    """
    match command:
        case Produce():
            return bool(command.producer_id)
        case Lease():
            return all(caller.request_id for caller in command.callers)
        case UpdateQueue():
            return not command.expected_version
        case DeleteQueue() | DeleteRecurrence():
            return False
        case _:
            return True


def is_forgotten(result: Any) -> bool:
    """Whether the answer to a repeat says nothing about the first attempt."""
    return isinstance(result, Refusal) and result.code in _FORGETFUL


def deleting_error() -> QueratorError:
    return QueratorError(ErrorCode.QUEUE_DELETING, "the queue is being deleted; not executed")


def stopping_error() -> QueratorError:
    return QueratorError(ErrorCode.UNAVAILABLE, "the node is shutting down; not executed")


def as_answer(error: Exception, doing: str) -> QueratorError:
    """The outcome of a task or callback that raised `error`, as a QueratorError."""
    return error if isinstance(error, QueratorError) else defect_error(error, doing)


def defect_error(error: Exception, doing: str) -> QueratorError:
    """The error that a caller receives for a defect; the log has the details."""
    _log.error("service.defect", doing=doing, exc_info=error)
    message = f"a defect in Querator while {doing}: {type(error).__name__}; the node's log has more"
    return QueratorError(ErrorCode.INTERNAL, message)


async def each(awaitables: Sequence[Awaitable[T]]) -> list[T | QueratorError]:
    """All results in order, each with its own error. A single awaitable needs no task."""
    if len(awaitables) == 1:
        return [await _attempt(awaitables[0])]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_attempt(awaitable)) for awaitable in awaitables]
    return [task.result() for task in tasks]


async def _attempt(awaitable: Awaitable[T]) -> T | QueratorError:
    try:
        return await awaitable
    except QueratorError as error:
        return error
