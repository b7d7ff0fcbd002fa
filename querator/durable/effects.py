"""Runs effects, for drivers of a machine that have a loop of asyncio."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

from querator.durable.context import STEP
from querator.durable.operations import Effect


class StepOutcome(NamedTuple):
    """What an attempt has given: a value, or an exception."""

    value: Any = None
    error: BaseException | None = None


NOT_BEGUN: Final = StepOutcome()


def _always() -> bool:
    return True


async def carry_out(
    effect: Effect,
    *,
    executor: Executor | None = None,
    may_begin: Callable[[], bool] = _always,
) -> StepOutcome:
    """Runs one attempt: on the running loop, or in a thread (of `executor`, or the loop's) if the
    function is sync. Returns NOT_BEGUN if it may not begin at the moment when its turn comes:
    `may_begin` is asked then, in that thread.

    The attempt ends by TimeoutError after its time. CancelledError is raised if the caller is
    cancelled; one that the function raises by itself is its outcome.
    """
    token = STEP.set(effect)
    try:
        timeout = None if effect.timeout_ms is None else effect.timeout_ms / 1000
        async with asyncio.timeout(timeout):
            if effect.is_async:
                if not may_begin():
                    return NOT_BEGUN
                return StepOutcome(await effect.function(*effect.args, **effect.kwargs))
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(
                executor, _run, context, effect, may_begin
            )
    except Exception as error:  # noqa: BLE001 - whatever the step raises is its outcome.
        return StepOutcome(error=error)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return StepOutcome(error=error)
    finally:
        STEP.reset(token)


def _run(
    context: contextvars.Context, effect: Effect, may_begin: Callable[[], bool]
) -> StepOutcome:
    if not may_begin():
        return NOT_BEGUN
    return StepOutcome(context.run(effect.function, *effect.args, **effect.kwargs))
