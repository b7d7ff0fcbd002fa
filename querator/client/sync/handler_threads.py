"""Threads for the handlers of `SyncConsumer.run` and of workers.

They are daemons: an interpreter that ends does not wait for them. A handler on a thread cannot be
cancelled, and `ThreadPoolExecutor` would keep the process alive until it returns.

A handler that does not end within its `handler_timeout` is left behind: its item is retried, and
its thread is not used again before it returns. While HANDLERS_LEFT_MAX of them still run, no
further handler is called.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from querator.client.logs import HANDLERS
from querator.model.limits import HANDLERS_LEFT_MAX

A = TypeVar("A")
R = TypeVar("R")


class HandlerThreads:
    """Threads that are started as they are needed. The caller limits the number of calls at a time,
    and thereby the number of threads.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0
        self._left: set[Future[Any]] = set()
        """Calls whose callers do not wait for them any more."""

    async def room(self) -> None:
        """Waits while too many calls are left behind."""
        logged = False
        while self._are_too_many_left():
            if not logged:
                HANDLERS.error(
                    "%d handlers that did not end in time still run on threads: no further handler "
                    "is called until one of them ends",
                    len(self._left),
                )
                logged = True
            ends = [asyncio.wrap_future(call) for call in self._left]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)

    def _are_too_many_left(self) -> bool:
        if len(self._left) >= HANDLERS_LEFT_MAX:
            self._left = {call for call in self._left if not call.done()}
        return len(self._left) >= HANDLERS_LEFT_MAX

    async def run(self, function: Callable[[A], R], argument: A) -> R:
        """Returns or raises what the function does. A call that is cancelled leaves the function
        behind on its thread.
        """
        call = self.call(function, argument)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if not call.done():
                self._left.add(call)
            raise

    def call(self, function: Callable[[A], R], argument: A) -> "Future[R]":
        """Calls the function on a thread; the future has its outcome. Only one thread may use this
        method.
        """
        outcome: Future[R] = Future()

        def job() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                outcome.set_result(function(argument))
            except BaseException as error:  # noqa: BLE001  the caller gets it
                outcome.set_exception(_carried(error))

        self._jobs.put(job)
        if not self._idle.acquire(blocking=False):
            self._count += 1
            threading.Thread(
                target=self._work, name=f"querator-handler-{self._count}", daemon=True
            ).start()
        return outcome

    def end(self) -> None:
        """Ends each thread when its call has ended. Does not wait for them."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            self._idle.release()


def _carried(error: BaseException) -> Exception:
    """The error as a future of asyncio can have it: that takes no StopIteration, and others than
    `Exception` would end the client's event loop.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failed = RuntimeError(f"the handler raised {error!r}")
    failed.__cause__ = error
    return failed
