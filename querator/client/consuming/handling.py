"""The work of `Consumer.run`: a handler's calls, their outcomes, and their end after a stop."""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple, NoReturn

from querator.client.consuming.leases import LeasedItem, retrieve_exception
from querator.client.errors import LeaseLost, RequestError
from querator.client.logs import HANDLERS
from querator.client.outcomes import Reject, Retry
from querator.client.typed import wrong_type

RETRY_FIRST = timedelta(seconds=1)
RETRY_MOST = timedelta(minutes=5)
GRACE_DEFAULT = timedelta(seconds=25)
"""Most orchestrators kill a process 30 s after they ask it to stop."""

Handler = Callable[[LeasedItem], Awaitable[object]]
OnError = Callable[[LeasedItem, Exception], None]


class RetryDelays(NamedTuple):
    """Delays of retries: `first`, doubled with each attempt up to `most`."""

    first: timedelta
    most: timedelta

    def of(self, attempt: int) -> timedelta:
        """The delay after this attempt, minus a random part of up to half."""
        delay: timedelta = min(self.most, self.first * 2 ** min(max(attempt - 1, 0), 30))
        return delay * (1 - random.random() / 2)


class Handling:
    """Calls one handler with items, and settles each item by what the handler does."""

    def __init__(
        self,
        handler: Handler,
        delays: RetryDelays,
        on_error: OnError | None,
        on_lost: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._delays = delays
        self._on_error = on_error
        self._on_lost = on_lost

    async def handle(self, item: LeasedItem) -> None:
        """Returns when the item is settled. If the handler is cancelled, releases the item."""
        try:
            work: object = self._handler(item)
            if inspect.isawaitable(work):
                await work
        except asyncio.CancelledError:
            if not item.settled:
                item.release().add_done_callback(retrieve_exception)
            raise
        except Exception as error:  # noqa: BLE001  the log has it, and the item carries it
            settled = self._failed(item, error)
        else:
            if not inspect.isawaitable(work):
                self._refuse_handler(item)
            settled = None if item.settled else item.complete()
        if settled is not None:
            await self._wait(item, settled)

    def _refuse_handler(self, item: LeasedItem) -> NoReturn:
        if not item.settled:
            item.release().add_done_callback(retrieve_exception)
        raise wrong_type(
            "handler", self._handler, "an async function (a SyncClient takes plain functions)"
        )

    def _failed(self, item: LeasedItem, error: Exception) -> "asyncio.Future[None] | None":
        if self._on_error is not None:
            self._on_error(item, error)
        if item.settled:
            HANDLERS.error("%s failed after it was settled", _name(item), exc_info=error)
            return None
        delay = self._delays.of(item.attempt)
        if isinstance(error, Retry | Reject):
            return _as_asked(item, error, delay)
        HANDLERS.error(
            "%s failed and is retried in %.1f s",
            _name(item),
            delay.total_seconds(),
            exc_info=error,
        )
        return item.retry(delay=delay, error=f"{type(error).__name__}: {error}")

    async def _wait(self, item: LeasedItem, settled: "asyncio.Future[None]") -> None:
        try:
            await settled
        except LeaseLost:
            self._on_lost()
            HANDLERS.warning(
                "%s was not settled: its lease is lost, another consumer may have the item",
                _name(item),
            )
        except RequestError as error:
            HANDLERS.warning("%s may not be settled: %s", _name(item), error)


def _as_asked(item: LeasedItem, asked: Retry | Reject, delay: timedelta) -> "asyncio.Future[None]":
    """Settles the item as its handler asks; `delay` is for a retry without a time."""
    reason = asked.reason or "without a reason"
    if isinstance(asked, Reject):
        HANDLERS.info("%s is rejected: %s", _name(item), reason)
        return item.reject(asked.reason)
    if asked.at is None and asked.delay is not None:
        delay = asked.delay
    when = f"in {delay.total_seconds():.1f} s" if asked.at is None else f"at {asked.at}"
    HANDLERS.info("%s is retried %s: %s", _name(item), when, reason)
    return item.retry(
        delay=delay if asked.at is None else None,
        retry_at=asked.at,
        error=asked.reason,
        count_attempt=asked.count_attempt,
    )


def _name(item: LeasedItem) -> str:
    return f"Item {item.id} of {item.queue}, attempt {item.attempt},"


class GracefulStop:
    """The stop of a consumer, with the time that handlers in progress still have."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self._grace: timedelta | None = None

    def call(self, grace: timedelta | None) -> None:
        """Begins the stop, or sets another time; `grace` counts from the first call. None: that of
        each run, or the one set before.
        """
        if grace is not None:
            self._grace = grace
        self._called.set()

    async def end(self, working: "list[asyncio.Task[None]]", grace: timedelta | None) -> None:
        """Waits for the stop, then cancels the tasks that still work when the time is over."""
        await self._called.wait()
        began = asyncio.get_running_loop().time()
        while True:
            self._called.clear()
            given = grace if self._grace is None else self._grace
            until = None if given is None else began + given.total_seconds()
            try:
                async with asyncio.timeout_at(until):
                    await self._called.wait()
            except TimeoutError:
                break
        late = [task for task in working if not task.done()]
        for task in late:
            task.cancel()
        if late:
            HANDLERS.warning("%d handlers did not end in time: their items go back", len(late))
