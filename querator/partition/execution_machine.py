"""How the commands of an entry are carried out in a queue of executions.

Its items are activations. So commands that make, change or remove items of producers are refused
(QUEUE_KIND), and so are those of executions in every other queue.
"""

from collections.abc import Sequence
from typing import Final

from querator.model.commands import (
    Activate,
    Command,
    Expire,
    Extend,
    ForgetGroups,
    HalfOpen,
    Lease,
    MoveDone,
    MoveElsewhere,
    MoveReturn,
    Refill,
    Refusal,
    Result,
    ResumeMoves,
    Retry,
    SetBreaker,
)
from querator.model.errors import ErrorCode
from querator.model.execution_commands import (
    Arrive,
    FireTimers,
    LeasePinned,
    PinnedLease,
    RecordProgress,
    RewindExecution,
    StartExecution,
)
from querator.model.recurrences import Remind
from querator.partition.apply_context import ApplyContext, unconfigured
from querator.partition.execution_arrivals import take
from querator.partition.execution_rewinds import rewind
from querator.partition.execution_starts import start
from querator.partition.execution_time import fire_timers
from querator.partition.executions import drop_parts, parts_of, place_activations
from querator.partition.pinned_leases import lease_pinned
from querator.partition.recording import record

_ALLOWED: Final = frozenset(
    (
        Lease, Extend, Retry, Expire, Activate, HalfOpen, Refill, SetBreaker, Remind, FireTimers,
        LeasePinned,
        MoveDone, MoveReturn, MoveElsewhere, ResumeMoves, ForgetGroups, RewindExecution,
    )
)  # fmt: skip
"""Commands that a queue of executions carries out as every other one does."""


def wrong_kind(context: ApplyContext, command: Command) -> Refusal:
    """A command that queues of this kind do not have."""
    queue = context.queue
    kind = "items" if queue.executions is None else "executions"
    return Refusal(
        ErrorCode.QUEUE_KIND,
        f"queue {queue.queue} has {kind}; {type(command).__name__} is not for such a queue",
        field="queue",
        value=queue.queue,
    )


def of_kind(context: ApplyContext, command: Command) -> Refusal | None:
    """Prepares a queue of executions for a command without attachments. Returns its refusal if it
    is not for such a queue.
    """
    place_activations(context)
    refused = type(command) not in _ALLOWED
    if isinstance(command, Retry):
        refused = command.dead or command.attributes is not None or command.priority is not None
    return wrong_kind(context, command) if refused else None


def taking(context: ApplyContext, command: Command, parts: Sequence[tuple[int, int]]) -> Result:
    """A command with attachments: one of executions, or one in a queue of executions."""
    if context.activations is None or not isinstance(
        command, StartExecution | RecordProgress | Arrive
    ):
        drop_parts(context, parts)
        return unconfigured() if context.row is None else wrong_kind(context, command)
    count = len(command.lengths) >> 2
    mine = parts_of(command.lengths, parts[:count])
    match command:
        case StartExecution():
            return start(context, command, mine)
        case RecordProgress():
            return record(context, command, mine, parts[count:])
        case Arrive():
            return take(context, command, mine)


def without_attachment(context: ApplyContext, command: FireTimers | RewindExecution) -> Result:
    if context.activations is None:
        return wrong_kind(context, command)
    if isinstance(command, RewindExecution):
        return rewind(context, command)
    return fire_timers(context)


def leasing(context: ApplyContext, command: LeasePinned) -> PinnedLease | Refusal:
    if context.activations is None:
        return wrong_kind(context, command)
    return lease_pinned(context, command)
