"""A worker: one queue, one handler, one event loop.

It is `Consumer.run` with a policy for exceptions, handlers of both kinds, counts and a log. The
consumer extends the leases while handlers run, and gives back what is left at the end.
"""

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from querator.client import Client, Consumer, LeasedItem, QueueInfo
from querator.client.checks import check, check_span
from querator.client.consuming.consumer import CONCURRENCY_DEFAULT
from querator.client.consuming.handling import called, check_handler_timeout, give_up
from querator.client.consuming.policy import (
    RETRY_FIRST,
    RETRY_MOST,
    FailurePolicy,
    OnUndecodable,
)
from querator.client.consuming.stop_signals import STOP_SIGNALS, stopping_at
from querator.client.errors import LeaseLost, NotFound, RequestError
from querator.client.typed import wrong_type
from querator.model import limits
from querator.worker.calling import Caller, Handler
from querator.worker.loading import check_handler
from querator.worker.log import LOG
from querator.worker.outcomes import ItemOutcome

if TYPE_CHECKING:
    from querator.worker.metrics import WorkerMetrics

GRACE_DEFAULT: Final = timedelta(seconds=30)
LONG_S: Final = 60.0
"""A handler that runs for this long is logged, and again when it has run twice as long."""
_LONG_CHECK_S: Final = 5.0
_LISTED_MAX: Final = 10
"""Long handlers that are named at once."""
_EMPTY_S: Final = 0.1
"""After this time without an item, `until_empty` asks for the exact counts of the queue."""


class WorkerResult(msgspec.Struct, frozen=True):
    """Number of items by outcome. `died`: their attempts, as the queue allowed them when the worker
    began, are used up; `settled`: by the handler itself; `released`: given back by the stop;
    `lost`: their leases had ended; `unknown`: their settles got no answer. Each item that a handler
    began has one outcome. The counts of a queue differ: its `retried` has the `rejected` and `died`
    as well, and its `released` the items that were leased ahead and that no handler began.
    """

    completed: int = 0
    retried: int = 0
    rejected: int = 0
    died: int = 0
    settled: int = 0
    released: int = 0
    lost: int = 0
    unknown: int = 0

    def __str__(self) -> str:
        parts = [f"{self.completed:,} completed", f"{self.retried:,} retried"]
        parts += [f"{self.rejected:,} rejected"]
        parts += [f"{getattr(self, name):,} {name}" for name in _RARE if getattr(self, name)]
        return ", ".join(parts)


_RARE: Final = ("died", "settled", "released", "lost", "unknown")


class Worker:
    """Calls `handler` with each item of `queue`, at most `concurrency` at a time.

    An async handler gets a `LeasedItem`, on the event loop. Another handler gets a
    `SyncLeasedItem`, on a thread. When the handler returns, the item is completed, unless the
    handler has settled it. When it raises, the item is retried after a growing delay, or rejected:
    `retry_on`, `reject_on`, `on_undecodable`, `retry_first` and `retry_most` are those of
    `FailurePolicy`, and a handler may raise `querator.Retry` or `querator.Reject`. The lease is
    extended while the handler runs.

    `handler_timeout`: an async handler that takes longer is cancelled, and its item is retried with
    the error `handler did not end within …` (None: no limit). A handler on a thread cannot be
    ended: its item is retried, the handler continues, and another thread takes its place. So the
    item may be handled twice at the same time. While 100 such handlers run, no further item is
    begun.

    `prefetch_items` (default: `concurrency`) limits the items that are leased here; raise it for
    quick handlers. `lease_timeout` None: the items' own, or the queue's. `grace`: how long handlers
    may take after a stop; then they are cancelled, or left alone on their threads, and their items
    go back to their places. `create`: makes the queue with default settings if it does not exist.
    `idle_timeout`: ends when no item came for that long. `cancel_lost`: an async handler is
    cancelled as soon as the lease of its item is known to be lost; one on a thread is left alone.
    `name` is for the log. A worker logs to `querator.worker`.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        handler: Handler,
        *,
        name: str = "",
        concurrency: int = CONCURRENCY_DEFAULT,
        prefetch_items: int | None = None,
        handler_timeout: timedelta | None = None,
        retry_on: Collection[type[Exception]] = (),
        reject_on: Collection[type[Exception]] = (),
        on_undecodable: OnUndecodable = "retry",
        retry_first: timedelta | None = RETRY_FIRST,
        retry_most: timedelta = RETRY_MOST,
        lease_timeout: timedelta | None = None,
        grace: timedelta = GRACE_DEFAULT,
        idle_timeout: timedelta | None = None,
        create: bool = False,
        cancel_lost: bool = False,
        metrics: "WorkerMetrics | None" = None,
    ) -> None:
        """Raises LoadError (`querator.worker.loading`) for a handler that cannot be called with an
        item, TypeError and ValueError for options.
        """
        check_handler(handler, getattr(handler, "__qualname__", repr(handler)))
        check("concurrency", concurrency, 1, 100_000)
        prefetch = concurrency if prefetch_items is None else prefetch_items
        check("prefetch_items", prefetch, concurrency, limits.STREAM_CREDIT_ITEMS_MAX)
        for option, text in (("queue", queue), ("name", name)):
            if not isinstance(text, str):
                raise wrong_type(option, text, "a text")
        check_span("grace", grace)
        if idle_timeout is not None:
            check_span("idle_timeout", idle_timeout)
        if lease_timeout is not None:
            check_span("lease_timeout", lease_timeout)
        check_handler_timeout(handler_timeout)
        self._client = client
        self._queue = queue
        self._handler = handler
        self._name = name
        self._concurrency = concurrency
        self._policy = FailurePolicy(
            retry_on=retry_on,
            reject_on=reject_on,
            on_undecodable=on_undecodable,
            retry_first=retry_first,
            retry_most=retry_most,
        )
        self._handler_timeout = handler_timeout
        self._grace = grace
        self._idle_timeout = idle_timeout
        self._begun = self._running = 0
        """Number of items whose handling has begun, and of those whose handling has not ended."""
        self._called_s: dict[LeasedItem, float] = {}
        """When the handler of an item was called, by the loop's clock."""
        self._long_s: dict[LeasedItem, float] = {}
        """How long a handler may run before it is logged again."""
        self._create = create
        self._cancel_lost = cancel_lost
        self._metrics = metrics
        self._consumer_options: dict[str, Any] = {
            "prefetch_items": prefetch,
            # Without further prefetch, each item has a lease of its own.
            "batch_items": max(1, min(limits.REQUEST_ITEMS_MAX, prefetch // concurrency)),
            "lease_timeout": lease_timeout,
        }
        self._max_attempts = 0
        """The queue's, when the worker began; 0: no limit."""
        self._counts: Counter[ItemOutcome] = Counter()
        self._consumer: Consumer | None = None
        self._caller: Caller | None = None
        self._opening: asyncio.Task[Any] | None = None
        """The task of `run` until the queue is found."""
        self.stopping = False
        """Whether a stop was asked for."""
        self.cut_short = False
        """Whether a stop without time for the handlers was asked for."""

    @property
    def result(self) -> WorkerResult:
        """The counts so far."""
        return WorkerResult(**{outcome.value: n for outcome, n in self._counts.items()})

    def stop(self, *, grace: timedelta | None = None) -> None:
        """Ends `run`: no further item is begun, and handlers in progress have `grace` (None: that
        of the worker) from the first call of `stop`. On the event loop of `run`.
        """
        self.stopping = True
        grace = self._grace if grace is None else grace
        self.cut_short = not grace
        opening, self._opening = self._opening, None
        if opening is not None:
            # Once: a further stop must not look like a cancellation of `run`.
            opening.cancel()
        if self._consumer is not None:
            self._consumer.stop(grace=grace)

    async def run(
        self,
        *,
        until_empty: bool = False,
        stop_on_signals: bool = False,
        on_begin: Callable[[], None] | None = None,
    ) -> WorkerResult:
        """Handles items until `stop`, or, with `until_empty`, until no item is ready. Returns the
        counts. A worker runs once at a time.

        `stop_on_signals`: SIGTERM and Ctrl-C call `stop`; a second signal calls it without time for
        the handlers. `on_begin` is called when the queue is found. Raises QueueNotFound, or
        NamespaceNotFound, when the queue does not exist, and the other errors of `Consumer`.
        """
        if self._consumer is not None or self._caller is not None:
            raise RuntimeError("the worker runs already")
        self._caller = Caller(self._handler)
        try:
            with self._stopping_at(STOP_SIGNALS if stop_on_signals else ()):
                await self._open_queue()
                if self.stopping:
                    return self.result
                if on_begin is not None:
                    on_begin()
                try:
                    await self._consume_until(until_empty)
                finally:
                    LOG.info("%s ended: %s", self, self.result)
        finally:
            self._caller.end()
            self._caller = None
        return self.result

    def __str__(self) -> str:
        return f"Worker {self._name} of {self._queue}" if self._name else f"Worker of {self._queue}"

    @contextlib.contextmanager
    def _stopping_at(self, signals: Collection[signal.Signals]) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def signalled(grace: timedelta | None) -> None:
            loop.call_soon_threadsafe(self.stop_by_signal, grace)

        with stopping_at(signals, signalled):
            yield

    def stop_by_signal(self, grace: timedelta | None) -> None:
        """`stop`, with a line in the log."""
        if grace is None:
            LOG.info(
                "%s stops by a signal: handlers have %g s; a second signal ends them at once",
                self,
                self._grace.total_seconds(),
            )
        else:
            LOG.info("%s ends its handlers", self)
        self.stop(grace=grace)

    async def _open_queue(self) -> None:
        """Finds or makes the queue. Returns early after `stop`."""
        if self.stopping:
            return
        task = self._opening = asyncio.current_task()
        assert task is not None
        try:
            info = await self._found_queue()
        except asyncio.CancelledError:
            if not self.stopping or task.uncancel():
                raise
            return
        finally:
            self._opening = None
        if self._metrics is not None:
            self._metrics.begin(self._queue)
        self._max_attempts = info.max_attempts
        self._warn_of_drops(info)
        self._log_begin()

    async def _found_queue(self) -> QueueInfo:
        LOG.debug("%s looks for queue %s at %s", self, self._queue, self._client.address)
        try:
            return await self._client.get_queue(self._queue)
        except NotFound:
            if not self._create:
                raise
        info = await self._client.create_queue(self._queue)
        LOG.info("Queue %s is created", self._queue)
        return info

    def _warn_of_drops(self, info: QueueInfo) -> None:
        if self._policy.may_reject and not info.dead_queue:
            LOG.warning(
                "Queue %s has no dead queue: it drops rejected items. Give it one with: querator "
                "queue update %s --dead-queue NAME",
                self._queue,
                self._queue,
            )

    def _log_begin(self) -> None:
        assert self._caller is not None
        LOG.info(
            "%s begins: %s handler, concurrency %d, at %s",
            self,
            "async" if self._caller.is_async else "threaded",
            self._concurrency,
            self._client.address,
        )

    async def _consume_until(self, until_empty: bool) -> None:
        watching = asyncio.get_running_loop().create_task(self._watch_handlers())
        try:
            while not self.stopping:
                await self._consume(until_empty)
                if not until_empty or not await self._has_ready():
                    return
        finally:
            watching.cancel()
            await asyncio.wait((watching,))

    async def _consume(self, until_empty: bool) -> None:
        consumer = self._client.consumer(
            self._queue,
            concurrency=self._concurrency,
            idle_timeout=None if until_empty else self._idle_timeout,
            **self._consumer_options,
        )
        self._consumer = consumer
        try:
            async with consumer:
                if until_empty:
                    await self._run_until_empty(consumer)
                else:
                    await consumer.run(self._handle, grace=self._grace, stop_signals=())
        finally:
            self._consumer = None

    async def _run_until_empty(self, consumer: Consumer) -> None:
        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled():
                # Raised below, unless the consumer has failed as well.
                task.exception()
                consumer.stop()

        watching = asyncio.get_running_loop().create_task(self._empty())
        watching.add_done_callback(ended)
        try:
            await consumer.run(self._handle, grace=self._grace, stop_signals=())
            if watching.done():
                watching.result()
        finally:
            watching.cancel()

    async def _empty(self) -> None:
        """Returns when no item is ready, no handler runs, and no item has come meanwhile. The
        consumer stays open until then: a delivery may take longer than any fixed time.
        """
        while True:
            begun = self._begun
            await asyncio.sleep(_EMPTY_S)
            if self._is_idle_since(begun) and not await self._has_ready():
                if self._is_idle_since(begun):
                    return

    def _is_idle_since(self, begun: int) -> bool:
        return self._running == 0 and self._begun == begun

    async def _has_ready(self) -> bool:
        """Whether items are ready. A worker that is stopped does not ask."""
        return not self.stopping and (await self._client.stats(self._queue)).total.ready > 0

    # One item.

    async def _handle(self, item: LeasedItem) -> None:
        self._begun += 1
        self._running += 1
        try:
            outcome = await self._process(item)
        except asyncio.CancelledError:
            # The consumer gives the item back.
            self._count(ItemOutcome.SETTLED if item.settled else ItemOutcome.RELEASED)
            raise
        finally:
            self._running -= 1
        self._count(outcome)

    def _count(self, outcome: ItemOutcome) -> None:
        self._counts[outcome] += 1
        if self._metrics is not None:
            self._metrics.settled(self._queue, outcome)

    async def _process(self, item: LeasedItem) -> ItemOutcome:
        assert self._caller is not None
        await self._caller.room()
        error = await self._call(item)
        if item.settled:
            if error is not None:
                LOG.error(
                    "%s failed after it was settled", _name(item), exc_info=_of_handler(error)
                )
            return ItemOutcome.SETTLED
        if isinstance(error, LeaseLost) and item.lost:
            give_up(item)
            return ItemOutcome.LOST
        if error is None:
            return await _settled(item, item.complete(), ItemOutcome.COMPLETED)
        return await self._failed(item, error)

    async def _call(self, item: LeasedItem) -> BaseException | None:
        """Calls the handler; returns its exception. Raises CancelledError when the worker is
        stopped meanwhile.
        """
        assert self._caller is not None
        if self._metrics is not None:
            self._metrics.started(self._queue)
        began = time.perf_counter()
        self._called_s[item] = asyncio.get_running_loop().time()
        try:
            return await called(
                self._caller.call(item),
                self._handler_timeout,
                while_leased=item if self._cancel_lost else None,
            )
        finally:
            del self._called_s[item]
            self._long_s.pop(item, None)
            if self._metrics is not None:
                self._metrics.ended(self._queue, time.perf_counter() - began)

    async def _watch_handlers(self) -> None:
        """Logs handlers that run long: their items stay leased, and no other consumer gets them."""
        while True:
            await asyncio.sleep(min(_LONG_CHECK_S, LONG_S))
            self._log_long(asyncio.get_running_loop().time())

    def _log_long(self, now_s: float) -> None:
        long = [
            (now_s - called_s, item)
            for item, called_s in self._called_s.items()
            if now_s - called_s >= self._long_s.get(item, LONG_S)
        ]
        for ran_s, item in long[:_LISTED_MAX]:
            self._long_s[item] = 2 * ran_s
            LOG.warning("%s has been handled for %.0f s; its lease is extended", _name(item), ran_s)

    async def _failed(self, item: LeasedItem, error: BaseException) -> ItemOutcome:
        chosen, error, settled = self._policy.settle(item, error)
        max_attempts = self._max_attempts if item.max_attempts is None else item.max_attempts
        effect = chosen.effect(item.attempt, max_attempts)
        if chosen.deliberate:
            LOG.info("%s %s: %s", _name(item), effect, chosen.reason or "without a reason")
        else:
            LOG.error(
                "%s failed (%s) and %s",
                _name(item),
                type(error).__name__,
                effect,
                exc_info=_of_handler(error),
            )
        if chosen.rejects:
            return await _settled(item, settled, ItemOutcome.REJECTED)
        dies = chosen.dies(item.attempt, max_attempts)
        return await _settled(item, settled, ItemOutcome.DIED if dies else ItemOutcome.RETRIED)


async def _settled(
    item: LeasedItem, settling: "asyncio.Future[None]", outcome: ItemOutcome
) -> ItemOutcome:
    """Waits for the answer to a settle; returns `outcome`, or why there was none."""
    try:
        await settling
    except LeaseLost:
        LOG.warning(
            "%s lost its lease: another consumer may have the item (it was %s here)",
            _name(item),
            outcome.value,
        )
        return ItemOutcome.LOST
    except RequestError as error:
        LOG.warning("%s may not be %s: %s", _name(item), outcome.value, error)
        return ItemOutcome.UNKNOWN
    return outcome


def _of_handler(
    error: BaseException,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """The exception with a traceback that begins in the handler."""
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("asyncio", "concurrent", "querator"):
            break
        trace = trace.tb_next
    return type(error), error, trace or error.__traceback__


def _name(item: LeasedItem) -> str:
    return f"Item {item.id} of {item.queue}, attempt {item.attempt},"
