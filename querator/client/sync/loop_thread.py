"""The event loop of a `SyncClient`, on a thread of its own."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from querator.client.errors import RequestError
from querator.client.sync.leases import Runner
from querator.client.transport import forking

T = TypeVar("T")


class LoopThread:
    """An event loop in its own thread, which starts at the first use; `run` waits for a coroutine
    there. It belongs to the process of its first use: a fork does not copy the thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    def _started(self) -> asyncio.AbstractEventLoop:
        """Returns the loop. Raises RuntimeError after `close`, and `UsedAfterFork` in a process
        other than that of the first use.
        """
        if self._loop is None:
            with forking.no_fork():
                self._start()
        else:
            forking.check_process(self._pid, "SyncClient")
        if self._closed or self._loop is None:
            raise RuntimeError("the client is closed")
        return self._loop

    def _start(self) -> None:
        """Starts the thread, unless another thread of the program has started it meanwhile."""
        if self._loop is not None or self._closed:
            return
        _check_threads()
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=loop.run_forever, name="querator-client", daemon=True
        )
        self._thread.start()
        self._pid = os.getpid()
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns or raises what the coroutine does. An interrupt of the caller cancels it."""
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            if _is_refusal(error):
                # How the call went through the client says nothing about its refusal.
                raise error.with_traceback(None)  # noqa: B904 - the same error
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        try:
            loop = self._started()
        except RuntimeError:
            coroutine.close()
            raise
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "a SyncClient is used on its own thread, where a call would wait for itself: "
                "produce_many, for example, iterates over its items there"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def call(self, function: Callable[[], None]) -> None:
        self._started().call_soon_threadsafe(function)

    @property
    def here(self) -> bool:
        """Whether the thread runs in this process."""
        return self._loop is not None and self._pid == os.getpid() and not self._closed

    def close(self) -> None:
        """Cancels the tasks that still run on the loop, then ends the thread."""
        loop, thread = self._loop, self._thread
        if self.here and loop is not None and thread is not None:
            self.run(_cancel_others())
            # On the loop's own thread: this one may have a running loop.
            self.run(loop.shutdown_asyncgens())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
        self._closed = True


def _is_refusal(error: BaseException) -> bool:
    """Whether the error is about the call: a refused request, or a wrong argument."""
    if isinstance(error, RequestError):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    innermost = None if trace is None else trace.tb_frame.f_globals.get("__name__")
    return innermost in _CHECKS


_CHECKS = ("querator.client.typed", "querator.client.checks")


def _check_threads() -> None:
    """Raises RuntimeError if threads are greenlets: the event loop of a client would hold up all
    others for ever.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    by_gevent = gevent is not None and gevent.is_module_patched("threading")
    if by_gevent or (eventlet is not None and eventlet.is_monkey_patched("thread")):
        name = "gevent" if by_gevent else "eventlet"
        raise RuntimeError(
            f"{name} has replaced the threads of this process, and a SyncClient needs a real one: "
            "use workers that are threads or processes (gunicorn -k gthread, celery -P prefork)"
        )


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def iterate(runner: Runner, source: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> tuple[T, ...]:
        async for value in source:
            return (value,)
        return ()

    while found := runner.run(following()):
        yield found[0]


def listed(runner: Runner, ask: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """As `_iterate`, for the answer to a call, which begins on the client's loop."""

    async def asked() -> AsyncIterator[T]:
        return ask()

    return iterate(runner, runner.run(asked()))
