"""StartExecution: an id has one execution, and a request begins one run.

    there is                              ATTACH      FAIL        RESTART_CLOSED
    -----------------------------------   ---------   ---------   -------------------------------
    none with this id                     it begins   it begins   it begins
    one with the same function and        attached    refused     attached; if it has ended, its
    arguments                                                     next run begins
    one with others                       refused     refused     refused; if it has ended, its
                                                                  next run begins with them

A request that has begun a run is remembered by the execution: a repeat, after a lost answer, begins
no other one, whatever has happened since. The last START_REQUESTS_MAX are.
"""

from collections.abc import Sequence

from querator.model.commands import Refusal
from querator.model.errors import ErrorCode
from querator.model.execution_commands import Started, StartExecution
from querator.model.executions import ExecutionState, KeyPolicy
from querator.model.limits import EXECUTIONS_MAX, START_REQUEST_BYTES, START_REQUESTS_MAX
from querator.partition.apply_context import ApplyContext, producers_paused
from querator.partition.execution_rows import ExecutionRow
from querator.partition.execution_runs import restart
from querator.partition.executions import (
    Part,
    counts_of,
    create,
    drop_parts,
    find_execution,
    stored,
)

_REQUESTS_BYTES_MAX = START_REQUESTS_MAX * START_REQUEST_BYTES


def start(
    context: ApplyContext, command: StartExecution, parts: Sequence[Part]
) -> Started | Refusal:
    """Makes an execution, begins the next run of one that has ended, or attaches to one."""
    found = find_execution(context, command.id)
    answer = None if found is None else _attach(command, *found)
    if answer is None:
        answer = _not_now(context) or (_no_room(context) if found is None else None)
    if answer is not None:
        drop_parts(context, parts)
        return answer
    begun = ExecutionRow(
        id=command.id,
        function=command.function,
        version=command.version,
        secret=command.secret,
        arguments=command.arguments,
        created_ms=context.now_ms,
        priority=command.priority,
        deadline_ms=command.deadline_ms,
        requests=command.request,
    )
    content = stored(context, command.place, parts, command.payload)
    if found is None:
        number, row = create(context, begun, content, due_ms=command.start_at_ms), begun
    else:
        number, row = found
        begun.requests = remember(row.requests, command.request)
        row = restart(context, number, row, begun, content, due_ms=command.start_at_ms)
    return Started(number, row.run, ExecutionState.RUNNABLE)


def _attach(command: StartExecution, number: int, row: ExecutionRow) -> Started | Refusal | None:
    """The answer if the execution that is there stays as it is. None: its next run begins."""
    if has_begun(row, command.request):
        return Started(number, row.run, ExecutionState(row.state))
    if command.policy == KeyPolicy.RESTART_CLOSED and row.closed:
        return None
    same = (row.function, row.arguments) == (command.function, command.arguments)
    if command.policy == KeyPolicy.FAIL or not same:
        why = "it is there" if same else f"it is one of {row.function}, or has other arguments"
        return Refusal(
            ErrorCode.EXECUTION_EXISTS,
            f"execution {command.id} was not started: {why}",
            field="id",
            value=command.id,
        )
    return Started(number, row.run, ExecutionState(row.state), attached=True)


def has_begun(row: ExecutionRow, request: bytes) -> bool:
    """Whether a request has begun one of the runs."""
    size = START_REQUEST_BYTES
    known = (row.requests[at : at + size] for at in range(0, len(row.requests), size))
    return any(one == request for one in known)


def remember(requests: bytes, request: bytes) -> bytes:
    """The last requests, with another one."""
    return (requests + request)[-_REQUESTS_BYTES_MAX:]


def _not_now(context: ApplyContext) -> Refusal | None:
    if context.queue.produce_paused:
        return producers_paused(context.queue)
    if context.share.closing:
        message = "the partition is closing; it takes no executions"
        return Refusal(ErrorCode.ROUTING_CHANGED, message, value=str(context.share.routing))
    return None


def _no_room(context: ApplyContext) -> Refusal | None:
    held = counts_of(context).executions
    if held < EXECUTIONS_MAX:
        return None
    return Refusal(
        ErrorCode.QUEUE_FULL,
        f"the partition holds {held} executions, and may hold {EXECUTIONS_MAX}",
        field="executions",
        limit=str(EXECUTIONS_MAX),
        value=str(held + 1),
    )
