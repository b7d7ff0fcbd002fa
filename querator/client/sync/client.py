"""The client for programs without an event loop.

`SyncClient` runs the async client on a loop of its own in a thread of its own, and waits for it.
There is no second implementation: every method here says the same as its namesake there. All of it
may be used from several threads.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from querator.client.client import (
    ADDRESS_DEFAULT,
    CONNECT_TIMEOUT_DEFAULT,
    REQUEST_TIMEOUT_DEFAULT,
    Client,
)
from querator.client.consuming.consumer import (
    CONCURRENCY_DEFAULT,
    RETRY_FIRST,
    RETRY_MOST,
    Consumer,
)
from querator.client.consuming.leases import LeasedBatch, LeasedItem
from querator.client.items import AnyItem
from querator.client.producing.producer import Producer
from querator.client.sync.leases import Runner, SyncLeasedBatch, SyncLeasedItem
from querator.client.transactions import Aborted, StagedBatches
from querator.client.values import (
    ExtendOutcome,
    GivenUp,
    ItemId,
    ItemState,
    LeaseRef,
    PartitionTime,
    PeekedItem,
    ProducedItem,
    ProducedItems,
    QueueInfo,
    QueueStats,
    SettleOutcome,
)
from querator.model.ids import DEFAULT_NAMESPACE
from querator.wire.tls import Tls

T = TypeVar("T")

SyncHeld = SyncLeasedItem | LeaseRef | str
SyncHandler = Callable[[SyncLeasedItem], object]


class _LoopThread:
    """An event loop in a thread of its own; `run` waits for a coroutine there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="querator-client", daemon=True
        )
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises. An interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Ends what still runs there, then the thread."""
        if self._loop.is_closed():
            return
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _iterate(runner: Runner, source: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> tuple[T, ...]:
        async for value in source:
            return (value,)
        return ()

    while found := runner.run(following()):
        yield found[0]


class SyncProducer:
    """As `Producer`; made by `SyncClient.producer`, used in a `with` block."""

    def __init__(self, runner: Runner, producer: Producer) -> None:
        self._runner = runner
        self._producer = producer

    def __enter__(self) -> Self:
        self._runner.run(self._producer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.run(self._producer.__aexit__(kind, error, trace))

    def produce(self, item: AnyItem) -> ProducedItem:
        return self._runner.run(self._producer.produce(item))

    def submit(self, item: AnyItem) -> "Future[ProducedItem]":
        """Returns when the item is on its way, with a future for when it is durable. `flush` raises
        the first failure.
        """
        done: Future[ProducedItem] = Future()

        async def submitted() -> None:
            (await self._producer.submit(item)).add_done_callback(
                lambda future: _copy(future, done)
            )

        self._runner.run(submitted())
        return done

    def produce_many(self, items: Iterable[AnyItem]) -> ProducedItems:
        """As `Producer.produce_many`; `items` is run through on the client's thread."""
        return self._runner.run(self._producer.produce_many(items))

    def flush(self) -> None:
        self._runner.run(self._producer.flush())


def _copy(source: "asyncio.Future[T]", target: "Future[T]") -> None:
    if source.cancelled():
        target.cancel()
        return
    error = source.exception()
    if error is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())


class SyncConsumer:
    """As `Consumer`; made by `SyncClient.consumer`, used in a `with` block."""

    def __init__(self, runner: Runner, consumer: Consumer) -> None:
        self._runner = runner
        self._consumer = consumer

    def __enter__(self) -> Self:
        self._runner.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.run(self._consumer.__aexit__(kind, error, trace))

    @property
    def lost(self) -> int:
        return self._consumer.lost

    def stop(self) -> None:
        self._runner.call(self._consumer.stop)

    def __iter__(self) -> Iterator[SyncLeasedItem]:
        return (
            SyncLeasedItem(self._runner, item) for item in _iterate(self._runner, self._consumer)
        )

    def batches(self) -> Iterator[SyncLeasedBatch]:
        return (
            SyncLeasedBatch(self._runner, batch)
            for batch in _iterate(self._runner, self._consumer.batches())
        )

    def run(
        self,
        handler: SyncHandler,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        retry_first: timedelta = RETRY_FIRST,
        retry_most: timedelta = RETRY_MOST,
        on_error: Callable[[SyncLeasedItem, Exception], None] | None = None,
    ) -> None:
        """As `Consumer.run`, with the handler on `concurrency` threads."""
        runner = self._runner
        with ThreadPoolExecutor(concurrency, thread_name_prefix="querator-handler") as threads:

            async def handle(item: LeasedItem) -> None:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(threads, handler, SyncLeasedItem(runner, item))

            def failed(item: LeasedItem, error: Exception) -> None:
                if on_error is not None:
                    on_error(SyncLeasedItem(runner, item), error)

            runner.run(
                self._consumer.run(
                    handle,
                    concurrency=concurrency,
                    retry_first=retry_first,
                    retry_most=retry_most,
                    on_error=failed,
                )
            )


class SyncClient:
    """`Client` for programs without an event loop, on a thread of its own.

    with querator.SyncClient("127.0.0.1:4470") as client:
        client.create_queue("mail")
        client.produce("mail", b"hello")
    """

    def __init__(
        self,
        address: str | Iterable[str] = ADDRESS_DEFAULT,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        client_id: str | None = None,
        request_timeout: timedelta = REQUEST_TIMEOUT_DEFAULT,
        connect_timeout: timedelta = CONNECT_TIMEOUT_DEFAULT,
        tls: Tls | None = None,
    ) -> None:
        self._client = Client(
            address,
            namespace=namespace,
            client_id=client_id,
            request_timeout=request_timeout,
            connect_timeout=connect_timeout,
            tls=tls,
        )
        self._runner = _LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._runner.run(self._client.close())
        finally:
            self._runner.close()

    @property
    def client_id(self) -> str:
        return self._client.client_id

    def create_queue(self, name: str, **settings: Any) -> QueueInfo:
        return self._runner.run(self._client.create_queue(name, **settings))

    def get_queue(self, name: str) -> QueueInfo:
        return self._runner.run(self._client.get_queue(name))

    def list_queues(self) -> Iterator[QueueInfo]:
        return _iterate(self._runner, self._client.list_queues())

    def update_queue(self, name: str, *, expected_version: int = 0, **changes: Any) -> QueueInfo:
        return self._runner.run(
            self._client.update_queue(name, expected_version=expected_version, **changes)
        )

    def delete_queue(self, name: str) -> None:
        self._runner.run(self._client.delete_queue(name))

    def stats(self, name: str, *, stale: bool = False) -> QueueStats:
        return self._runner.run(self._client.stats(name, stale=stale))

    def peek(
        self,
        name: str,
        *,
        state: ItemState | None = None,
        limit: int | None = None,
        stale: bool = False,
    ) -> Iterator[PeekedItem]:
        return _iterate(
            self._runner, self._client.peek(name, state=state, limit=limit, stale=stale)
        )

    def dead_letters(self, name: str, *, limit: int | None = None) -> Iterator[PeekedItem]:
        return _iterate(self._runner, self._client.dead_letters(name, limit=limit))

    def repair_time(self, name: str, *, dry_run: bool = False) -> tuple[PartitionTime, ...]:
        return self._runner.run(self._client.repair_time(name, dry_run=dry_run))

    def give_up_damaged(self, name: str, *, dry_run: bool = False) -> GivenUp:
        return self._runner.run(self._client.give_up_damaged(name, dry_run=dry_run))

    def redrive(self, name: str, item_ids: Iterable[ItemId | str] = ()) -> int:
        return self._runner.run(self._client.redrive(name, item_ids))

    def staged_batches(self, name: str) -> StagedBatches:
        return self._runner.run(self._client.staged_batches(name))

    def abort_batch(self, name: str, producer: str, batch: int) -> Aborted:
        return self._runner.run(self._client.abort_batch(name, producer, batch))

    def produce(self, queue: str, *items: AnyItem) -> ProducedItems:
        return self._runner.run(self._client.produce(queue, *items))

    def lease(
        self,
        queue: str,
        *,
        max_items: int = 1,
        wait: timedelta | None = None,
        lease_timeout: timedelta | None = None,
        max_bytes: int = 0,
    ) -> list[SyncLeasedItem]:
        items = self._runner.run(
            self._client.lease(
                queue,
                max_items=max_items,
                wait=wait,
                lease_timeout=lease_timeout,
                max_bytes=max_bytes,
            )
        )
        return [SyncLeasedItem(self._runner, item) for item in items]

    def complete(self, queue: str, *held: SyncHeld, check: bool = True) -> list[SettleOutcome]:
        return self._runner.run(self._client.complete(queue, *map(_bare, held), check=check))

    def retry(
        self,
        queue: str,
        *held: SyncHeld,
        retry_at: datetime | None = None,
        delay: timedelta | None = None,
        dead: bool = False,
        error: str = "",
        count_attempt: bool = True,
        check: bool = True,
    ) -> list[SettleOutcome]:
        return self._runner.run(
            self._client.retry(
                queue,
                *map(_bare, held),
                retry_at=retry_at,
                delay=delay,
                dead=dead,
                error=error,
                count_attempt=count_attempt,
                check=check,
            )
        )

    def extend(
        self,
        queue: str,
        *leases: SyncLeasedItem | str,
        lease_timeout: timedelta | None = None,
        client_id: str = "",
        check: bool = True,
    ) -> list[ExtendOutcome]:
        ids = [lease if isinstance(lease, str) else lease.lease_id for lease in leases]
        return self._runner.run(
            self._client.extend(
                queue, *ids, lease_timeout=lease_timeout, client_id=client_id, check=check
            )
        )

    def producer(self, queue: str, **options: Any) -> SyncProducer:
        """`options` as those of `Client.producer`."""
        return SyncProducer(self._runner, self._runner.run(self._make_producer(queue, options)))

    async def _make_producer(self, queue: str, options: dict[str, Any]) -> Producer:
        return self._client.producer(queue, **options)

    def consumer(self, queue: str, **options: Any) -> SyncConsumer:
        """`options` as those of `Client.consumer`."""
        return SyncConsumer(self._runner, self._runner.run(self._make_consumer(queue, options)))

    async def _make_consumer(self, queue: str, options: dict[str, Any]) -> Consumer:
        return self._client.consumer(queue, **options)


def _bare(held: SyncHeld) -> LeasedItem | LeaseRef | str:
    return held.leased if isinstance(held, SyncLeasedItem) else held


__all__ = [
    "LeasedBatch",
    "SyncClient",
    "SyncConsumer",
    "SyncLeasedBatch",
    "SyncLeasedItem",
    "SyncProducer",
]
