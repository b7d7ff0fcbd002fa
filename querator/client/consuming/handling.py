"""The work of `Consumer.run`: a handler's calls, their outcomes, and their end after a stop."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NoReturn

from querator.client.checks import check_span
from querator.client.consuming.leases import LeasedItem, retrieve_exception
from querator.client.consuming.policy import Disposition, FailurePolicy
from querator.client.errors import LeaseLost, RequestError
from querator.client.logs import HANDLERS
from querator.client.outcomes import HandlerTimeout
from querator.client.results import lease_lost
from querator.client.typed import wrong_type

GRACE_DEFAULT = timedelta(seconds=25)
"""Most orchestrators kill a process 30 s after they ask it to stop."""

_LISTED_MAX: Final = 10
"""Most items that a line of the log names."""
_LIMIT_WAIT_S: Final = 1.0
_LIMIT_AGAIN_S: Final = 30.0

Handler = Callable[[LeasedItem], Awaitable[object]]
OnError = Callable[[LeasedItem, Exception], None]


async def called(
    work: Awaitable[object], most: timedelta | None, *, while_leased: LeasedItem | None = None
) -> BaseException | None:
    """Waits for the work of a handler. Returns its exception, or `HandlerTimeout` if it was
    cancelled because it did not end within `most`, or `LeaseLost` if it was cancelled because the
    lease of `while_leased` is lost. Raises CancelledError when this task is cancelled.
    """
    limit = asyncio.timeout(None if most is None else most.total_seconds())
    lease = None if while_leased is None else while_leased.batch.lease
    loop = asyncio.get_running_loop()

    def on_lost() -> None:
        limit.reschedule(loop.time())

    try:
        async with limit:
            if lease is not None:
                lease.watch(on_lost)
            try:
                await work
            finally:
                if lease is not None:
                    lease.unwatch(on_lost)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Something that the handler waited for was cancelled.
        return error
    # SystemExit would end the event loop with all other handlers.
    except (Exception, SystemExit) as error:  # noqa: BLE001  the log and the item have it
        if isinstance(error, TimeoutError) and lease is not None and lease.lost and limit.expired():
            return lease_lost(lease.id)
        if isinstance(error, TimeoutError) and most is not None and limit.expired():
            return HandlerTimeout(f"handler did not end within {most.total_seconds():g} s")
        return error
    return None


def check_handler_timeout(timeout: timedelta | None) -> None:
    """Raises ValueError unless it is above zero."""
    if timeout is not None:
        check_span("handler_timeout", timeout)
        if not timeout:
            raise ValueError("handler_timeout is 0:00:00; it must be above zero, or None")


class Handling:
    """Calls one handler with items, and settles each item by what the handler does."""

    def __init__(
        self,
        handler: Handler,
        policy: FailurePolicy,
        *,
        timeout: timedelta | None,
        on_error: OnError | None,
        on_lost: Callable[[], None],
        max_attempts: Callable[[], Awaitable[int]],
        room: Callable[[], Awaitable[None]] | None = None,
        cancel_lost: bool = False,
    ) -> None:
        """`max_attempts`: those that the queue allows, for the log; 0: no limit, or not known.
        `room` is awaited before each call; its time is not that of the handler. `cancel_lost`: a
        handler is cancelled when the lease of its item is lost.
        """
        check_handler_timeout(timeout)
        self._room = room
        self._cancel_lost = cancel_lost
        self._handler = handler
        self._policy = policy
        self._timeout = timeout
        self._on_error = on_error
        self._on_lost = on_lost
        self._max_attempts = max_attempts

    async def handle(self, item: LeasedItem) -> None:
        """Returns when the item is settled. If the handler is cancelled, releases the item."""
        try:
            error = await self._call(item)
        except asyncio.CancelledError:
            if not item.settled:
                item.release().add_done_callback(retrieve_exception)
            raise
        if isinstance(error, LeaseLost) and item.lost and not item.settled:
            self._on_lost()
            give_up(item)
            return
        if error is not None:
            settled = await self._failed(item, error)
        else:
            settled = None if item.settled else item.complete()
        if settled is not None:
            await self._wait(item, settled)

    async def _call(self, item: LeasedItem) -> BaseException | None:
        if self._room is not None:
            await self._room()
        try:
            work: object = self._handler(item)
        except Exception as error:  # noqa: BLE001  as those of its work
            return error
        if not inspect.isawaitable(work):
            self._refuse_handler(item)
        return await called(work, self._timeout, while_leased=item if self._cancel_lost else None)

    def _refuse_handler(self, item: LeasedItem) -> NoReturn:
        if not item.settled:
            item.release().add_done_callback(retrieve_exception)
        raise wrong_type(
            "handler", self._handler, "an async function (a SyncClient takes plain functions)"
        )

    async def _failed(
        self, item: LeasedItem, error: BaseException
    ) -> "asyncio.Future[None] | None":
        self._report(item, error)
        if item.settled:
            HANDLERS.error("%s failed after it was settled", _name(item), exc_info=error)
            return None
        chosen, error, settled = self._policy.settle(item, error)
        # The handler's task may be cancelled before it waits for this.
        settled.add_done_callback(retrieve_exception)
        max_attempts = 0
        try:
            if item.max_attempts is not None:
                max_attempts = item.max_attempts
            elif not chosen.rejects:
                max_attempts = await self._max_attempts()
        finally:
            # Also when the handler is cancelled meanwhile.
            _log_failure(item, error, chosen, max_attempts)
        return settled

    def _report(self, item: LeasedItem, error: BaseException) -> None:
        """Calls `on_error`, which may settle the item."""
        if self._on_error is None or not isinstance(error, Exception):
            return
        try:
            self._on_error(item, error)
        except Exception as defect:  # noqa: BLE001  it must not end the other handlers
            HANDLERS.error(
                "on_error failed for item %s of %s, attempt %d",
                item.id,
                item.queue,
                item.attempt,
                exc_info=defect,
            )

    async def _wait(self, item: LeasedItem, settled: "asyncio.Future[None]") -> None:
        try:
            await settled
        except LeaseLost:
            self._on_lost()
            HANDLERS.warning(
                "%s was not settled, as its lease is lost: another consumer may have the item",
                _name(item),
            )
        except RequestError as error:
            HANDLERS.warning("%s may not be settled: %s", _name(item), error)


def give_up(item: LeasedItem) -> None:
    """Ends the work on an item whose lease is lost."""
    HANDLERS.warning(
        "%s is given up, as its lease is lost: another consumer may have the item", _name(item)
    )
    # The server decides: if the lease lives nevertheless, the item goes back to its place.
    item.release().add_done_callback(retrieve_exception)


def _log_failure(
    item: LeasedItem, error: BaseException, chosen: Disposition, max_attempts: int
) -> None:
    effect = chosen.effect(item.attempt, max_attempts)
    if chosen.deliberate:
        HANDLERS.info("%s %s: %s", _name(item), effect, chosen.reason or "without a reason")
    else:
        HANDLERS.error("%s failed and %s", _name(item), effect, exc_info=error)


def _name(item: LeasedItem) -> str:
    return f"Item {item.id} of {item.queue}, attempt {item.attempt},"


class AttemptLimit:
    """How many attempts the queue allows, asked for when the first handler fails. Only a log needs
    it, so the wait is short, and a failed question is repeated after a pause.
    """

    def __init__(self, ask: Callable[[], Awaitable[int]]) -> None:
        self._ask = ask
        self._limit: int | None = None
        self._asking = asyncio.Lock()
        self._next_s = -math.inf

    async def get(self) -> int:
        """The limit; 0: none, or it is not known."""
        async with self._asking:
            if self._limit is None and asyncio.get_running_loop().time() >= self._next_s:
                await self._look()
        return self._limit or 0

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_LIMIT_WAIT_S):
                self._limit = await self._ask()
        except (TimeoutError, RequestError):
            self._next_s = asyncio.get_running_loop().time() + _LIMIT_AGAIN_S


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

    async def end(
        self,
        working: "list[asyncio.Task[None]]",
        handled: "Mapping[asyncio.Task[Any] | None, LeasedItem]",
        grace: timedelta | None,
    ) -> None:
        """Waits for the stop, then cancels the tasks that still work when the time is over.
        `handled`: the items that tasks handle at the moment.
        """
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
        _log_late([handled[task] for task in late if task in handled])


def _log_late(items: list[LeasedItem]) -> None:
    if not items:
        return
    listed = ", ".join(str(item.id) for item in items[:_LISTED_MAX])
    if len(items) > _LISTED_MAX:
        listed += f" and {len(items) - _LISTED_MAX} more"
    if len(items) == 1:
        words = "1 handler did not end in time: its item goes back"
    else:
        words = f"{len(items)} handlers did not end in time: their items go back"
    HANDLERS.warning("%s: %s of %s", words, listed, items[0].queue)
