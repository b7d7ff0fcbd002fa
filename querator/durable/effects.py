"""Runs effects, for drivers of a machine that have a loop of asyncio."""

import asyncio
import contextvars
from typing import Any, NamedTuple

from querator.durable.context import STEP
from querator.durable.operations import Effect


class StepOutcome(NamedTuple):
    """What an attempt has given: a value, or an exception."""

    value: Any = None
    error: BaseException | None = None


async def carry_out(effect: Effect) -> StepOutcome:
    """Runs one attempt: on the running loop, or in a thread if the function is sync.

    The attempt ends by TimeoutError after its time. CancelledError is raised if the caller is
    cancelled; one that the function raises by itself is its outcome.
    """
    token = STEP.set(effect)
    try:
        timeout = None if effect.timeout_ms is None else effect.timeout_ms / 1000
        async with asyncio.timeout(timeout):
            if effect.is_async:
                return StepOutcome(await effect.function(*effect.args, **effect.kwargs))
            return StepOutcome(await asyncio.to_thread(_run, contextvars.copy_context(), effect))
    except Exception as error:  # noqa: BLE001 - whatever the step raises is its outcome.
        return StepOutcome(error=error)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return StepOutcome(error=error)
    finally:
        STEP.reset(token)


def _run(context: contextvars.Context, effect: Effect) -> Any:
    return context.run(effect.function, *effect.args, **effect.kwargs)
