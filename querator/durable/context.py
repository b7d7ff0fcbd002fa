"""What code in an execution, or in a step, knows of where it runs."""

import asyncio
import contextvars
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from querator.durable import threads
from querator.durable.errors import NotInExecution
from querator.durable.loop import Loop
from querator.durable.operations import Effect, site_of

if TYPE_CHECKING:
    from querator.durable.code import ExecutionCode

STEP: Final[contextvars.ContextVar[Effect]] = contextvars.ContextVar("querator.durable.step")
"""The effect that runs; set for the time of an attempt."""


_OUTSIDE: Final = "outside of an execution, or in another thread"


@dataclass(frozen=True, slots=True)
class Current:
    """Where the code runs. In a durable function, `attempt` is 0 and `step_key` is empty."""

    execution_id: str
    attempt: int = 0
    step_key: str = ""
    """The same for all attempts of a step, and no other step has it: an idempotency key."""

    @property
    def full(self) -> bool:
        """Whether the journal of the run is over half of a limit: it is time for `continue_as_new`.
        In a durable function; raises NotInExecution in a step.

        The answer is the same in each replay. Once a task, or a called function, has read True, it
        stays so for it and for what it begins.
        """
        code = any_code_or_raise("current().full")
        return code.is_full(site_of(sys._getframe(1)))


def current() -> Current:
    """Raises NotInExecution outside of durable functions and steps."""
    code = code_here()
    bridge = threads.bridge_here()
    if code is None and bridge is not None:
        code = bridge.code
    if code is not None:
        return Current(code.identity.id)
    effect = STEP.get(None)
    if effect is None:
        raise _not_here("current", _OUTSIDE)
    return Current(effect.execution_id, effect.attempt, effect.step_key)


def code_here() -> "ExecutionCode | None":
    """The code whose loop runs in this thread."""
    loop = asyncio._get_running_loop()
    if isinstance(loop, Loop):
        owner: ExecutionCode = loop.owner
        return owner
    return None


def code_or_raise(call: str) -> "ExecutionCode":
    """The code of the execution, for a call that is awaited. Raises NotInExecution."""
    code = code_here()
    if code is None:
        raise _not_here(call, _where())
    return code


def any_code_or_raise(call: str) -> "ExecutionCode":
    """The code, for a call that returns at once, in an async or in a sync durable function."""
    code = code_here()
    bridge = threads.bridge_here()
    if code is None and bridge is not None:
        code = bridge.code
    if code is None:
        raise _not_here(call, _where())
    return code


def bridge_or_raise(call: str) -> "threads.Bridge":
    """The bridge, for a call of a sync durable function. Raises NotInExecution."""
    bridge = threads.bridge_here()
    if bridge is None:
        if code_here() is not None:
            raise _not_here(call, "in an async function (it is for sync ones)")
        raise _not_here(call, _where())
    return bridge


def _not_here(call: str, where: str) -> NotInExecution:
    how = ""
    if where == _OUTSIDE:
        how = ". Run that as an execution: Harness([…]).run in a test, Local or a worker elsewhere"
    return NotInExecution(f"{call} was called {where}; it works only in a durable function{how}")


def _where() -> str:
    if threads.bridge_here() is not None:
        return "in a sync function (use querator.durable.sync)"
    if STEP.get(None) is not None:
        return "in a step"
    return _OUTSIDE


class LiveOnly(logging.Filter):
    """A filter for handlers of logging: drops what the code of an execution logs while it runs
    again from its journal, or leaves the memory.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        code = code_here()
        if code is None:
            bridge = threads.bridge_here()
            code = None if bridge is None else bridge.code
        return code is None or not code.is_quiet
