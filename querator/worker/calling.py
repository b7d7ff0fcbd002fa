"""Calls of handlers: async ones on the event loop, others on threads.

A handler that is not async gets an item whose calls wait for their effect (`SyncLeasedItem`). If
what it returns can be awaited, that is awaited on the event loop.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from querator.client import LeasedItem, SyncLeasedItem
from querator.client.sync.handler_threads import HandlerThreads

T = TypeVar("T")

AsyncHandler = Callable[[LeasedItem], Awaitable[object]]
SyncHandler = Callable[[SyncLeasedItem], object]
Handler = AsyncHandler | SyncHandler


def is_async(handler: Handler) -> bool:
    """Whether a call of the handler returns a coroutine. Sees through `functools.partial` and
    objects with an async `__call__`.
    """
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind matters, not that it is there
    )


class Caller:
    """Calls one handler from the running event loop."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.is_async = is_async(handler)
        self._threads = HandlerThreads()
        self._items = _LoopRunner(asyncio.get_running_loop())

    async def room(self) -> None:
        """Waits while too many handlers that did not end in time still run on threads."""
        await self._threads.room()

    async def call(self, item: LeasedItem) -> None:
        """Returns when the handler has returned. Raises its exception. A cancelled call of a
        handler on a thread returns at once; the handler continues.
        """
        if self.is_async:
            await cast(AsyncHandler, self._handler)(item)
            return
        handler = cast(SyncHandler, self._handler)
        leased = SyncLeasedItem(self._items, item)
        returned = await self._threads.run(handler, leased)
        if inspect.isawaitable(returned):
            await returned

    def end(self) -> None:
        """Ends the threads when their handlers have returned. Does not wait for them."""
        self._threads.end()


class _LoopRunner:
    """`Runner` of synchronous items: runs their calls on the worker's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.current_thread()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "a handler that is not async has returned a coroutine, which uses the item on the "
                "event loop: make the handler async, or settle the item in it"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def call(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)
