"""What durable functions call, beside steps: time, chance, signals, promises, published values.

asyncio's own `sleep`, `timeout`, `gather`, `wait`, `TaskGroup`, locks and queues work as they are.
"""

import asyncio
import random as chance
import sys
import uuid as uuids
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar, overload

from querator.durable import context
from querator.durable.operations import Site, site_of
from querator.durable.promises import Promise
from querator.model.errors import QueratorError
from querator.model.executions import check_text
from querator.model.limits import SCHEDULE_AHEAD_MS_MAX

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def now() -> datetime:
    """The time of the last event of the execution, in UTC: the same in each replay."""
    return instant_of(context.any_code_or_raise("now").loop.now_ms)


def instant_of(at_ms: int) -> datetime:
    return _EPOCH + at_ms * _MS


def sleep(duration: timedelta | float) -> Coroutine[Any, Any, None]:
    """`await sleep(timedelta(days=365))`: as `asyncio.sleep`, for any time; a number is seconds.

    Raises ValueError for a negative time, and for one of more than 10 years.
    """
    context.code_or_raise("sleep")
    return asyncio.sleep(seconds(duration))


def sleep_until(when: datetime) -> Coroutine[Any, Any, None]:
    """Sleeps until an instant, which has a time zone; not at all if that is over."""
    code = context.code_or_raise("sleep_until")
    return asyncio.sleep(seconds_until(when, code.loop.now_ms))


def seconds(duration: timedelta | float) -> float:
    if not isinstance(duration, timedelta | int | float):
        raise TypeError(f"the duration is {duration!r}; it must be a timedelta, or seconds")
    given = duration / timedelta(seconds=1) if isinstance(duration, timedelta) else duration
    if not 0 <= given <= SCHEDULE_AHEAD_MS_MAX / 1000:
        raise ValueError(
            f"the duration is {duration}; it must not be negative, and at most 10 years"
        )
    return given


def seconds_until(when: datetime, now_ms: int) -> float:
    if when.tzinfo is None:
        raise ValueError(f"{when!r} has no time zone; for example datetime(2030, 1, 1, tzinfo=UTC)")
    return seconds(max(0.0, (when - _EPOCH) / _MS - now_ms) / 1000)


def random() -> chance.Random:
    """Random numbers that are the same in each replay, and different in each execution. Each task,
    and each call of a durable function, has its own.
    """
    code = context.any_code_or_raise("random")
    line = code.line()
    return line.random(code.seed(b"random", line.path))


def uuid() -> uuids.UUID:
    """A random UUID, the same in each replay."""
    code = context.any_code_or_raise("uuid")
    line = code.line()
    line.draws += 1
    return uuids.UUID(bytes=code.seed(b"uuid", line.path, line.draws.to_bytes(8, "big")), version=4)


@overload
def receive(
    name: str, kind: type[T], *, timeout: timedelta | float | None = None
) -> Coroutine[Any, Any, T]: ...


@overload
def receive(name: str, *, timeout: timedelta | float | None = None) -> Coroutine[Any, Any, Any]: ...


def receive(
    name: str, kind: Any = Any, *, timeout: timedelta | float | None = None
) -> Coroutine[Any, Any, Any]:
    """The next signal of this name, decoded to `kind`. Signals wait in a mailbox per name, in the
    order of their arrival; each is received once. Raises TimeoutError, and CodecError for a signal
    of another type.
    """
    code = context.code_or_raise("receive")
    checked(name, "the name of a signal")
    return receive_with(code, name, kind, timeout, site_of(sys._getframe(1)))


async def receive_with(
    code: Any, name: str, kind: Any, within: timedelta | float | None, site: Site
) -> Any:
    if within is None:
        return await code.receive(name, kind, site)
    async with asyncio.timeout(seconds(within)):
        return await code.receive(name, kind, site)


class receive_all(Generic[T]):
    """`async for order in receive_all("orders", Order)`: all signals of a name, one after the
    other. It does not end by itself.
    """

    @overload
    def __init__(self, name: str, kind: type[T]) -> None: ...

    @overload
    def __init__(self: "receive_all[Any]", name: str) -> None: ...

    def __init__(self, name: str, kind: Any = Any) -> None:
        self._code = context.code_or_raise("receive_all")
        self._name = checked(name, "the name of a signal")
        self._kind = kind
        self._site = site_of(sys._getframe(1))

    def __aiter__(self) -> "receive_all[T]":
        return self

    async def __anext__(self) -> T:
        value: T = await self._code.receive(self._name, self._kind, self._site)
        return value


@overload
def promise(kind: type[T], *, timeout: timedelta | float | None = None) -> Promise[T]: ...


@overload
def promise(*, timeout: timedelta | float | None = None) -> Promise[Any]: ...


def promise(kind: Any = Any, *, timeout: timedelta | float | None = None) -> Promise[Any]:
    """A value that comes from outside, once: for the `token` of the promise, which cannot be
    guessed. The timeout counts from here on.
    """
    code = context.any_code_or_raise("promise")
    timeout_ms = None
    if timeout is not None:
        timeout_ms = round(seconds(timeout) * 1000)
    return code.promise(kind, timeout_ms, site_of(sys._getframe(1)))


def publish(key: str, value: object) -> None:
    """Makes a value readable from outside, by its key; the newest one counts. It is written with
    the next record.
    """
    code = context.any_code_or_raise("publish")
    code.publish(checked(key, "the key"), value)


def checked(name: str, field: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{field} is {name!r}; it must be a text")
    try:
        check_text(name, field=field)
    except QueratorError as error:
        raise ValueError(str(error)) from None
    return name
