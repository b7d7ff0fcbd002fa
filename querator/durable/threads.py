"""Sync durable functions: each runs in a thread, which takes turns with the loop.

The thread runs only while the loop waits for it, and the loop only while the thread waits for a
durable call. So there is one thing at a time, in the same order in each replay. In the tree of
tasks the thread is the task that started it.

A thread cannot be kept while its execution is parked: the execution is put away, its calls raise
`Evicted`, and the thread ends. Later it runs again from the journal.
"""

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from querator.durable.errors import Cancelled, Evicted
from querator.model.limits import PUT_AWAY_CALLS_MAX

if TYPE_CHECKING:
    from querator.durable.code import ExecutionCode
    from querator.durable.loop import CodeTask
    from querator.durable.paths import TaskLine

_HERE: Final = threading.local()


def bridge_here() -> "Bridge | None":
    """The bridge of the sync durable function that runs in this thread."""
    return getattr(_HERE, "bridge", None)


class Bridge:
    """Runs a sync function in a thread of its own, for a task of the loop."""

    def __init__(
        self,
        code: "ExecutionCode",
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.code = code
        self._work: Callable[[], Any] = functools.partial(function, *args, **kwargs)
        self._of_loop = threading.Lock()
        self._of_thread = threading.Lock()
        self._of_loop.acquire()
        self._of_thread.acquire()
        self._asked: Callable[[], Coroutine[Any, Any, Any]] | None = None
        self._answer: tuple[Any, BaseException | None] = (None, None)
        self._is_over = False
        self._task: CodeTask[Any] | None = None

    @property
    def task(self) -> "CodeTask[Any] | None":
        """The task for which the thread runs."""
        return self._task

    @property
    def line(self) -> "TaskLine":
        """The line of the task for which the thread runs."""
        assert self._task is not None
        return self._task.line

    async def run(self) -> Any:
        """In a task of the loop: the result of the function, or its exception."""
        self._task = self.code.loop.current_task()
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._run,), name="querator-durable", daemon=True
        )
        thread.start()
        refused = 0
        while True:
            self._of_loop.acquire()
            if self._is_over:
                break
            assert self._asked is not None
            try:
                self._answer = (await self._asked(), None)
            except asyncio.CancelledError:
                self._answer = (None, Cancelled())
            except BaseException as error:  # noqa: BLE001 - whatever it is, the thread gets it.
                self._answer = (None, error)
            if self.code.is_away:
                self._answer = (None, Evicted())
                refused += 1
                if refused > PUT_AWAY_CALLS_MAX:
                    await _for_ever()
            self._of_thread.release()
        thread.join()
        value, raised = self._answer
        if isinstance(raised, Cancelled):
            raise asyncio.CancelledError from raised
        if raised is not None:
            raise raised
        return value

    def ask(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """In the thread: has the loop await the call, and waits for what it gives or raises."""
        self._asked = call
        self._of_loop.release()
        self._of_thread.acquire()
        value, error = self._answer
        if error is not None:
            raise error
        return value

    def _run(self) -> None:
        _HERE.bridge = self
        try:
            self._answer = (self._work(), None)
        except BaseException as error:  # noqa: BLE001 - the task raises it.
            self._answer = (None, error)
        self._is_over = True
        self._of_loop.release()


async def _for_ever() -> None:
    """The code of a thread does not end: its task stays, so that both are counted."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.get_running_loop().create_future()
