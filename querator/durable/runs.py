"""Runs: `continue_as_new` ends the run of an execution, which continues with an empty journal."""

from typing import TYPE_CHECKING, Any, NoReturn

from querator.durable import context
from querator.durable.arguments import encode_arguments
from querator.durable.errors import Evicted, NextRun, RunGoesOn
from querator.durable.operations import WaitKind
from querator.durable.threads import bridge_here

if TYPE_CHECKING:
    from querator.durable.code import ExecutionCode


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:
    """Ends this run of the execution. The next one calls the same function with these arguments,
    under the same id, with an empty journal. Signals that were not received come along, in their
    order; published values stay. A program that waits for the result waits for that of the last
    run.

    It does not return: it raises through the function, as `return` would leave it. `finally` blocks
    run, and a saga undoes nothing. Call it in the function that was started, not in one that it
    calls, nor in another task. Raises `RunGoesOn` there, while a child has not ended that is not
    detached, and when the execution was cancelled; TypeError for arguments that the function does
    not take, and CodecError for values without JSON.
    """
    code = context.any_code_or_raise("continue_as_new")
    if code.is_away:
        raise Evicted
    _check_place(code)
    if code.is_cancelled:
        raise RunGoesOn("the execution was cancelled, and begins no other run")
    open_child = _open_child(code)
    if open_child:
        raise RunGoesOn(
            f"child {open_child} has not ended: await it, cancel and await it, or start it detached"
        )
    assert code.function is not None, "the main task has its function"
    raise NextRun(encode_arguments(code.function, code.codec, args, kwargs))


def _check_place(code: "ExecutionCode") -> None:
    """Raises RunGoesOn for a call from another task, or from a function that is called."""
    bridge = bridge_here()
    task = code.loop.current_task() if bridge is None else bridge.task
    if task is not code.main:
        raise RunGoesOn("continue_as_new was called in another task than that of the function")
    if code.line().scope is not None:
        raise RunGoesOn("continue_as_new was called in a durable function that another one calls")


def _open_child(code: "ExecutionCode") -> str:
    """The id of a child that is not detached, and that has not ended; empty: there is none."""
    for operation in (*code.pending.values(), *code.promises.values()):
        child = operation.child
        if child is None or child.is_detached or operation.future.done():
            continue
        if operation.waits in (WaitKind.SPAWN, WaitKind.CHILD):
            return child.id
    return ""
