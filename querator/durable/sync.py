"""The awaited calls, for sync durable functions: the same without `await`.

`from querator.durable import sync`, then `sync.sleep(60)`. Sync steps, and sync durable functions,
are just called. `now`, `random`, `uuid`, `promise` and `publish` are those of `querator.durable`.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar, overload

from querator.durable import functions, waits
from querator.durable.children import Child, SpawnOptions
from querator.durable.context import bridge_or_raise
from querator.durable.errors import Cancelled
from querator.durable.functions import checked_function
from querator.durable.mapping import map_with
from querator.durable.operations import site_of
from querator.durable.promises import Promise
from querator.durable.saga import Undo, undo_all
from querator.durable.threads import Bridge

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


def sleep(duration: timedelta | float) -> None:
    """See `querator.durable.sleep`."""
    bridge = bridge_or_raise("sync.sleep")
    time = waits.seconds(duration)
    bridge.ask(lambda: asyncio.sleep(time))


def sleep_until(when: datetime) -> None:
    """See `querator.durable.sleep_until`."""
    bridge = bridge_or_raise("sync.sleep_until")
    time = waits.seconds_until(when, bridge.code.loop.now_ms)
    bridge.ask(lambda: asyncio.sleep(time))


@overload
def call(
    function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
) -> T: ...


@overload
def call(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Any function as a step, and async steps and durable functions."""
    bridge = bridge_or_raise("sync.call")
    site = site_of(sys._getframe(1))
    if isinstance(function, functions.Durable):
        return bridge.ask(lambda: bridge.code.call(function, args, kwargs, site))
    step = functions.as_step(function)
    return bridge.ask(lambda: bridge.code.perform(step, args, kwargs, site))


@overload
def receive(name: str, kind: type[T], *, timeout: timedelta | float | None = None) -> T: ...


@overload
def receive(name: str, *, timeout: timedelta | float | None = None) -> Any: ...


def receive(name: str, kind: Any = Any, *, timeout: timedelta | float | None = None) -> Any:
    """See `querator.durable.receive`."""
    bridge = bridge_or_raise("sync.receive")
    waits.checked(name, "the name of a signal")
    site = site_of(sys._getframe(1))
    return bridge.ask(lambda: waits.receive_with(bridge.code, name, kind, timeout, site))


def wait(promise: Promise[T] | Child[T]) -> T:
    """The value of a promise, or the result of a child."""
    result: T = bridge_or_raise("sync.wait").ask(promise.wait)
    return result


@overload
def spawn(
    function: functions.Durable[..., Coroutine[Any, Any, T]],
    /,
    *args: Any,
    id: str | None = None,
    detached: bool = False,
    cancel: bool = True,
    **kwargs: Any,
) -> Child[T]: ...


@overload
def spawn(
    function: functions.Durable[..., T],
    /,
    *args: Any,
    id: str | None = None,
    detached: bool = False,
    cancel: bool = True,
    **kwargs: Any,
) -> Child[T]: ...


def spawn(
    function: Any,
    /,
    *args: Any,
    id: str | None = None,
    detached: bool = False,
    cancel: bool = True,
    **kwargs: Any,
) -> Child[Any]:
    """See `querator.durable.spawn`; `sync.wait(child)` gives the result."""
    bridge = bridge_or_raise("sync.spawn")
    checked_function(function)
    site = site_of(sys._getframe(1))
    options = SpawnOptions(id, detached=detached, cancel=cancel)
    child: Child[Any] = bridge.ask(lambda: bridge.code.spawn(function, args, kwargs, options, site))
    return child


def map(
    function: functions.Durable[[V], Any],
    items: Iterable[V],
    /,
    *,
    parallel: int = 100,
    return_exceptions: bool = False,
) -> list[Any]:
    """See `querator.durable.map`."""
    bridge = bridge_or_raise("sync.map")
    site = site_of(sys._getframe(1))
    call = map_with(
        bridge.code, function, items, parallel=parallel, return_exceptions=return_exceptions,
        site=site,
    )  # fmt: skip
    result: list[Any] = bridge.ask(lambda: call)
    return result


def gather(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Runs functions at the same time, each in a thread: `gather([partial(price, sku), …])`.
    Returns their results in the given order, or raises the first exception when all have ended.
    """
    bridge = bridge_or_raise("sync.gather")

    async def all_of() -> list[T]:
        code = bridge.code
        tasks = [code.loop.create_task(Bridge(code, each, (), {}).run()) for each in calls]
        if tasks:
            await asyncio.wait(tasks)
        return [task.result() for task in tasks]

    result: list[T] = bridge.ask(all_of)
    return result


@contextmanager
def saga() -> Iterator[Undo]:
    """See `querator.durable.saga`."""
    bridge = bridge_or_raise("sync.saga")
    undo = Undo()
    try:
        yield undo
    except (Exception, Cancelled):
        if not bridge.code.is_away:
            bridge.ask(lambda: undo_all(bridge.code, undo))
        raise
