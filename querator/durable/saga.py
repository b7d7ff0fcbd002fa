"""Sagas: what undoes the steps of a block, if the block fails."""

import asyncio
import inspect
import sys
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self

from querator.durable import context
from querator.durable.functions import WITHOUT_END, Step, as_step
from querator.durable.operations import Site, site_of

if TYPE_CHECKING:
    from querator.durable.code import ExecutionCode

P = ParamSpec("P")

_MS: Final = timedelta(milliseconds=1)


class saga:
    """`async with saga() as undo: undo.add(release, order)`.

    If the block raises an exception, or is cancelled, what was added is called in reverse order,
    and the exception is raised behind that. Each is a step that is retried without end, and a
    cancellation does not stop it. One that cannot succeed (it raises `Final`, or what its Retry has
    in `unless`) leaves the execution stuck, for a person.

    Add what undoes a step before the step: it may have happened, also if it failed.
    """

    def __init__(self) -> None:
        self._code: ExecutionCode = context.code_or_raise("saga")
        self._undo = Undo()

    async def __aenter__(self) -> "Undo":
        return self._undo

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception | asyncio.CancelledError) and not self._code.is_away:
            await undo_all(self._code, self._undo)


class Undo:
    """What undoes the steps of a block."""

    def __init__(self) -> None:
        self._added: list[tuple[Step[..., Any], tuple[Any, ...], dict[str, Any], Site]] = []

    def add(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Self:
        """A step, or a function that becomes one."""
        if inspect.iscoroutine(function):
            raise TypeError(
                f"function is a call of {function.__name__}, which would be made now; write: "
                "undo.add(function, argument)"
            )
        self._added.append((_endless(as_step(function)), args, kwargs, site_of(sys._getframe(1))))
        return self

    async def run(self, code: "ExecutionCode") -> None:
        while self._added:
            step, args, kwargs, site = self._added.pop()
            await code.perform(step, args, kwargs, site, is_undo=True)


async def undo_all(code: "ExecutionCode", undo: Undo) -> None:
    """Raises CancelledError at the end, if the task was cancelled meanwhile."""
    task = code.loop.create_task(undo.run(code), name="saga")
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if code.is_away:
                raise
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def _endless(step: Step[..., Any]) -> Step[..., Any]:
    if step.at_most_once:
        raise ValueError(
            f"{step.name} runs at most once, but what undoes is retried until it has succeeded"
        )
    retry = WITHOUT_END
    if step.retry.attempts != 1:
        given = step.retry
        retry = type(given)(
            attempts=None, first=given.first, factor=given.factor, most=given.most,
            jitter=given.jitter, unless=given.unless,
        )  # fmt: skip
    timeout = None if step.timeout_ms is None else step.timeout_ms * _MS
    return Step(step.function, name=step.name, retry=retry, timeout=timeout)
