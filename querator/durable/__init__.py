"""Durable execution: plain Python functions that continue after crashes, from their journal.

A part of the SDK; it never imports a server. What talks to one is loaded at its first use.

    activation_run  drives one machine: effects, Records, arrivals, under a lease
    arguments       the arguments of an execution as bytes
    arrival_watch   what happens to executions at work, asked for by one call
    attempts        steps that are to begin, and waits before attempts
    children        executions that the code starts
    code            what the code of an execution calls, and what it waits for
    codec           values and exceptions as bytes
    context         where code runs: `current`, and the filter of logs
    effects         runs steps, for drivers of a machine
    endings         waits for the ends of executions, by shared calls
    errors          the exceptions
    exports         executions as lines of JSON, for replays
    fitting         whether a worker can run an execution
    folds           what a called durable function has seen, and what replaces it
    functions       the decorators `step` and `durable`, and `call`
    handles         executions for programs: start, wait, signal
    kept_leases     the leases of a worker, extended
    lint            what of a function would not be the same in a replay
    lint_rules      calls and sets that lint knows
    logs            what the package logs itself
    loop            the event loop, driven event by event
    machine         an execution at work, without I/O: events in, effects and Records out
    mailboxes       signals that have arrived
    marks           records of answers to the code, which are no events
    mapping         `map`: a child for each of many items
    operations      what the code waits for
    outbox          what is on its way to the partition
    outgoing_items  items on their way to a queue
    parking         when an execution may be parked, and what wakes it
    partition_clock  the time of partitions, which workers keep
    patches         changes of code that only some executions take
    paths           the places of operations in the tree of tasks
    producing       `produce`: items that leave with the record that says so
    promises        values that come from outside, and their tokens
    publishing      values for readers outside
    replay          the message where code and journal differ
    replaying       exported executions, replayed by the code of this process
    runs            `continue_as_new`
    saga            what undoes the steps of a block that fails
    seeds           bytes that follow from the secret of an execution
    sync            the awaited calls, for sync functions
    sync_handles    executions for programs without an event loop
    threads         sync durable functions
    versions        hashes of the code of durable functions
    waits           time, chance, signals, promises, published values
    worker          leases activations, and runs them
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from querator.durable.children import Child, spawn
from querator.durable.codec import Codec
from querator.durable.context import Current, LiveOnly, current
from querator.durable.errors import (
    ArgumentsChanged,
    Cancelled,
    ChildRefused,
    CodecError,
    DurableError,
    Evicted,
    ExecutionCancelled,
    ExecutionTerminated,
    Final,
    NonDeterminism,
    NotInExecution,
    PromiseRejected,
    RemoteError,
    RunGoesOn,
    RunTooLong,
    StepInterrupted,
    TooDeep,
    TurnTooLong,
    Undecodable,
    ValueTooLarge,
)
from querator.durable.functions import Durable, Retry, Step, call, durable, step
from querator.durable.mapping import map
from querator.durable.patches import patched
from querator.durable.producing import produce
from querator.durable.promises import Promise
from querator.durable.runs import continue_as_new
from querator.durable.saga import saga
from querator.durable.waits import (
    now,
    promise,
    publish,
    random,
    receive,
    receive_all,
    sleep,
    sleep_until,
    uuid,
)

if TYPE_CHECKING:
    from querator.client.executions import ExecutionInfo
    from querator.durable.exports import ExportedExecution
    from querator.durable.handles import (
        ExecutionHandle,
        Executions,
        JournalEntry,
        PublishedValue,
    )
    from querator.durable.sync_handles import SyncExecutionHandle, SyncExecutions
    from querator.durable.worker import Worker

__all__ = [
    "ArgumentsChanged",
    "Cancelled",
    "Child",
    "ChildRefused",
    "Codec",
    "CodecError",
    "Current",
    "Durable",
    "DurableError",
    "Evicted",
    "ExecutionCancelled",
    "ExecutionHandle",
    "ExecutionInfo",
    "ExecutionTerminated",
    "Executions",
    "ExportedExecution",
    "Final",
    "JournalEntry",
    "LiveOnly",
    "NonDeterminism",
    "NotInExecution",
    "Promise",
    "PromiseRejected",
    "PublishedValue",
    "RemoteError",
    "Retry",
    "RunGoesOn",
    "RunTooLong",
    "Step",
    "StepInterrupted",
    "SyncExecutionHandle",
    "SyncExecutions",
    "TooDeep",
    "TurnTooLong",
    "Undecodable",
    "ValueTooLarge",
    "Worker",
    "call",
    "continue_as_new",
    "current",
    "durable",
    "map",
    "now",
    "patched",
    "produce",
    "promise",
    "publish",
    "random",
    "receive",
    "receive_all",
    "saga",
    "sleep",
    "sleep_until",
    "spawn",
    "step",
    "uuid",
]

_LATER = {
    "ExecutionHandle": "durable.handles",
    "ExecutionInfo": "client.executions",
    "Executions": "durable.handles",
    "ExportedExecution": "durable.exports",
    "JournalEntry": "durable.handles",
    "PublishedValue": "durable.handles",
    "SyncExecutionHandle": "durable.sync_handles",
    "SyncExecutions": "durable.sync_handles",
    "Worker": "durable.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"querator.{_LATER[name]}"), name)
    globals()[name] = value
    return value
