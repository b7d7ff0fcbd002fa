"""A consumer: leases items over a stream, hands them out, settles them.

The consumer grants the server credit for as many items as it is ready to hold (`prefetch_items`).
An item counts until it is settled. So the number of held items is bounded, and a slow consumer
takes no more than that from other consumers. By default `run` holds as many items as it calls
handlers: an item that waits here is leased, so no other consumer gets it. A program that iterates
may collect items before it settles them, so it gets more.

When the stream breaks, the leases live on. Items that were handed out or wait here can be settled
over the next stream, and unanswered settles are repeated there. The server extends leases only
while the stream lives on which they were made, so the consumer itself extends the leases of earlier
streams.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from querator.client.checks import check, check_span
from querator.client.consuming.handling import (
    GRACE_DEFAULT,
    AttemptLimit,
    GracefulStop,
    Handler,
    Handling,
    OnError,
)
from querator.client.consuming.lease_stream import Extend, LeaseTalker
from querator.client.consuming.leases import LeasedBatch, LeasedItem
from querator.client.consuming.policy import (
    RETRY_FIRST,
    RETRY_MOST,
    FailurePolicy,
    OnUndecodable,
)
from querator.client.consuming.stop_signals import STOP_SIGNALS, stopping_at
from querator.client.items import duration
from querator.client.logs import HANDLERS
from querator.client.transport.nodes import Nodes
from querator.client.typed import typed
from querator.model import limits

CONCURRENCY_DEFAULT = 8
PREFETCH_DEFAULT = 200
"""Items that a consumer holds by default if the program iterates over items or batches."""
PREFETCH_BYTES_DEFAULT = 16 * limits.MIB
CLOSE_SECONDS = 5.0


class Consumer:
    """Leases items of one queue. Made by `Client.consumer`; used in an `async with` block.

        async with client.consumer("mail") as consumer:
            async for item in consumer:
                ...
                await item.complete()

    Several tasks may iterate over one consumer; each item goes to one of them, also when one
    delivery brings many. Iteration ends after `stop`, or when no item came to any of the tasks for
    `idle_timeout` (None: never). It raises `RequestError` when the subscription is refused, or when
    no node has answered within the client's `connect_timeout`. Leaving the block waits at most 5 s
    for the answers to settles; items that are not settled go back to their places.
    """

    def __init__(
        self,
        nodes: Nodes,
        *,
        namespace: str,
        queue: str,
        client_id: str,
        extend: Extend,
        max_attempts: Callable[[], Awaitable[int]],
        concurrency: int = CONCURRENCY_DEFAULT,
        prefetch_items: int | None = None,
        prefetch_bytes: int = PREFETCH_BYTES_DEFAULT,
        batch_items: int = limits.STREAM_BATCH_ITEMS_DEFAULT,
        batch_bytes: int = 0,
        lease_timeout: timedelta | None = None,
        auto_extend: bool = True,
        release_on_disconnect: bool = False,
        idle_timeout: timedelta | None = None,
    ) -> None:
        check("concurrency", concurrency, 1, 100_000)
        check("prefetch_bytes", prefetch_bytes, batch_bytes or limits.REPLY_BYTES_DEFAULT, 2**40)
        self._chosen = prefetch_items is not None
        """Whether it is decided how many items are held. If not, the first use decides."""
        if prefetch_items is not None:
            check("prefetch_items", prefetch_items, 1, limits.STREAM_CREDIT_ITEMS_MAX)
            batch_items = min(batch_items, prefetch_items)
        check("batch_items", batch_items, 1, limits.REQUEST_ITEMS_MAX)
        check("batch_bytes", batch_bytes, 0, limits.REPLY_BYTES_MAX)
        self._nodes = nodes
        self._concurrency = concurrency
        self._batch_items = batch_items
        self._idle_seconds = None if idle_timeout is None else idle_timeout.total_seconds()
        self.queue = queue
        self._stop = GracefulStop()
        self._talker = LeaseTalker(
            nodes,
            namespace=namespace,
            queue=queue,
            client_id=client_id,
            extend=extend,
            prefetch_items=prefetch_items or 0,
            prefetch_bytes=prefetch_bytes,
            batch_items=batch_items,
            batch_bytes=batch_bytes,
            lease_timeout=None
            if lease_timeout is None
            else duration(lease_timeout, "lease_timeout"),
            auto_extend=auto_extend,
            release_on_disconnect=release_on_disconnect,
        )
        self._attempts = AttemptLimit(max_attempts)
        self.lost = 0
        """Number of settles by `run` that were refused with LEASE_LOST."""

    async def __aenter__(self) -> Self:
        self._nodes.check_open()
        self._talker.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for the answers to settles, gives the other items back, and ends the stream."""
        await self._talker.close(patience=CLOSE_SECONDS)

    @typed
    def stop(self, *, grace: timedelta | None = None) -> None:
        """Stops leasing, and ends all iterations and `run` after their current items. Items that
        are not handed out go back to their places at once.

        `grace`: how long the handlers of `run` may still take, counted from the first call of
        `stop`; None: as `run` says. A further call may set another time.
        """
        self._talker.stop()
        self._talker.give_back_waiting()
        self._stop.call(grace)

    @property
    def held(self) -> int:
        """Number of items that are leased here and not settled."""
        return self._talker.held

    async def flush(self) -> None:
        """Returns when all settles so far are answered. Each future has its own outcome."""
        await self._talker.flush(patience=None)

    def __aiter__(self) -> AsyncIterator[LeasedItem]:
        return self

    async def __anext__(self) -> LeasedItem:
        self._hold(PREFETCH_DEFAULT)
        item = await self._talker.next_item(self._idle_seconds)
        if item is None:
            raise StopAsyncIteration
        return item

    async def batches(self) -> AsyncIterator[LeasedBatch]:
        """Yields whole runs of items, as they were produced together: the cheapest way to consume.

        Raises RuntimeError when a run is being handed out item by item.
        """
        self._hold(PREFETCH_DEFAULT)
        if self._talker.parts:
            raise RuntimeError("a batch is being handed out item by item: use another consumer")
        while not self._talker.stopping:
            batch = await self._talker.next_batch(self._idle_seconds)
            if batch is None:
                return
            yield batch

    def _hold(self, items: int) -> None:
        """Holds up to `items` items, unless it is decided how many are held."""
        if not self._chosen:
            self._chosen = True
            self._talker.hold(items, self._batch_items)

    @typed
    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int | None = None,
        handler_timeout: timedelta | None = None,
        retry_on: Collection[type[Exception]] = (),
        reject_on: Collection[type[Exception]] = (),
        on_undecodable: OnUndecodable = "retry",
        retry_first: timedelta | None = RETRY_FIRST,
        retry_most: timedelta = RETRY_MOST,
        on_error: OnError | None = None,
        grace: timedelta | None = GRACE_DEFAULT,
        stop_signals: Collection[signal.Signals] = STOP_SIGNALS,
        cancel_lost: bool = False,
    ) -> None:
        """Calls `handler` with each item, `concurrency` at a time, until iteration ends.

        When the handler returns, the item is completed, unless the handler has settled it. When the
        handler raises, the exception is logged with its traceback (`querator.client.handlers`), and
        the item is retried after `retry_first`, doubled with each attempt up to `retry_most`, minus
        a random part of up to half (`retry_first` None: when the queue's retry policy says). The
        exception is the retry's error text, which `peek` shows.
        `on_error` is called with it before, and may settle the item in another way. A handler may
        raise `Retry` or `Reject` to say what becomes of the item. A lost lease is
        counted in `lost`: another consumer may have the item. When the handler is cancelled, its
        item goes back to its place.

        `reject_on`: these exceptions make the item a dead letter. `retry_on`: only these exceptions
        retry it, and all others reject it. The nearest class counts. `on_undecodable` "reject":
        `UndecodablePayload` rejects the item.

        `handler_timeout`: a handler that takes longer is cancelled, and its item is retried with
        the error `handler did not end within …` (None: no limit). The cancellation arrives where
        the handler awaits; a handler that blocks the event loop, or suppresses the cancellation, is
        not ended.

        `cancel_lost`: a handler is cancelled as soon as the lease of its item is known to be lost,
        in the same way. The item is counted in `lost`. Without it, a handler can ask `item.lost`,
        or wait for `item.until_lost()` beside its work.

        The first of `stop_signals` (SIGTERM, and SIGINT of Ctrl-C) calls `stop`, and a second one
        `stop` without time for the handlers; `run` then returns. In threads other than the main
        thread, and for signals for which the program has a handler, signals keep their effect.

        After a stop the handlers in progress have `grace` (default 25 s; None: no limit) to end.
        Then they are cancelled. Raises TypeError and ValueError for wrong options.
        """
        handling = Handling(
            handler,
            FailurePolicy(
                retry_on=retry_on,
                reject_on=reject_on,
                on_undecodable=on_undecodable,
                retry_first=retry_first,
                retry_most=retry_most,
            ),
            timeout=handler_timeout,
            on_error=on_error,
            on_lost=self.count_lost,
            max_attempts=self.max_attempts,
            cancel_lost=cancel_lost,
        )
        await self.run_handling(
            handling, concurrency=concurrency, grace=grace, stop_signals=stop_signals
        )

    async def run_handling(
        self,
        handling: Handling,
        *,
        concurrency: int | None,
        grace: timedelta | None,
        stop_signals: Collection[signal.Signals],
    ) -> None:
        """As `run`, with a handling that is made already."""
        workers = self._concurrency if concurrency is None else concurrency
        check("concurrency", workers, 1, 100_000)
        self._hold(min(workers, limits.STREAM_CREDIT_ITEMS_MAX))
        if grace is not None:
            check_span("grace", grace)
        loop = asyncio.get_running_loop()
        handled: dict[asyncio.Task[Any] | None, LeasedItem] = {}

        async def work() -> None:
            task = asyncio.current_task()
            async for item in self:
                handled[task] = item
                try:
                    await handling.handle(item)
                finally:
                    del handled[task]

        try:
            with stopping_at(
                stop_signals, lambda given: loop.call_soon_threadsafe(self.stop_by_signal, given)
            ):
                async with asyncio.TaskGroup() as tasks:
                    working = [tasks.create_task(work()) for _ in range(workers)]
                    ending = tasks.create_task(self._stop.end(working, handled, grace))
                    await asyncio.wait(working)
                    ending.cancel()
        except BaseExceptionGroup as failed:
            # The same end of the stream fails all workers; one of the errors is enough.
            raise failed.exceptions[0] from None

    async def max_attempts(self) -> int:
        """Attempts that the queue allowed at the first failure here; 0: no limit, or not known."""
        return await self._attempts.get()

    def count_lost(self) -> None:
        self.lost += 1

    def stop_by_signal(self, grace: timedelta | None) -> None:
        """`stop`, with a line in the log."""
        HANDLERS.info(
            "The consumer of %s stops by a signal; a second signal ends the handlers at once",
            self.queue,
        )
        self.stop(grace=grace)
