"""The client for programs without an event loop.

`SyncClient` runs the async client on an event loop in its own thread, and waits for it. There is no
second implementation: every method has the meaning and the errors of the method of the same name in
the async client. All objects may be used from several threads.

Longer than 500 lines: each method is a line that waits for the one of the async client.
"""

import asyncio
import inspect
import signal
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, Unpack

from querator.client.admin import LetterOptions
from querator.client.client import (
    CONNECT_TIMEOUT_DEFAULT,
    NOT_PICKLED,
    REQUEST_TIMEOUT_DEFAULT,
    Client,
)
from querator.client.consuming.consumer import CONCURRENCY_DEFAULT, Consumer
from querator.client.consuming.follow_ups import FollowUps
from querator.client.consuming.handling import GRACE_DEFAULT, Handling
from querator.client.consuming.leases import LeasedBatch, LeasedItem
from querator.client.consuming.policy import (
    RETRY_FIRST,
    RETRY_MOST,
    FailurePolicy,
    OnUndecodable,
)
from querator.client.consuming.stop_signals import STOP_SIGNALS, stopping_at
from querator.client.events import EventKind, EventPosition, Events, EventsStart
from querator.client.groups import GroupStats
from querator.client.items import AnyItem
from querator.client.keys import KeyStats
from querator.client.live_leases import LeaseInfo
from querator.client.locks.election import Election
from querator.client.locks.lock import LEASE_TIMEOUT_DEFAULT, Lock, Semaphore
from querator.client.locks.rw_lock import READERS_DEFAULT, RwLock
from querator.client.options import (
    ConsumerOptions,
    IfExists,
    ProducerOptions,
    QueueOptions,
)
from querator.client.producing.producer import Producer
from querator.client.replies import ItemResult
from querator.client.sync.events import SyncEvents
from querator.client.sync.handler_threads import HandlerThreads
from querator.client.sync.leases import Runner, SyncLeasedBatch, SyncLeasedItem
from querator.client.sync.locks import SyncElection, SyncLock, SyncRwLock, SyncSemaphore
from querator.client.sync.loop_thread import LoopThread, iterate, listed
from querator.client.sync.recurrences import SyncRecurrences
from querator.client.sync.schedules import SyncScheduledItems
from querator.client.transactions import Aborted, StagedBatches
from querator.client.typed import wrong_type
from querator.client.values import (
    Cancelled,
    ExtendOutcome,
    GivenUp,
    ItemId,
    ItemState,
    LeaseRef,
    PartitionTime,
    PeekedItem,
    Prioritized,
    ProducedItem,
    ProducedItems,
    Purged,
    QueueInfo,
    QueueStats,
    SettleOutcome,
)
from querator.model.ids import DEFAULT_NAMESPACE
from querator.wire.tls import Tls

T = TypeVar("T")

SyncHeld = SyncLeasedItem | LeaseRef | str
SyncHandler = Callable[[SyncLeasedItem], object]


class SyncProducer:
    """Puts items into one queue, as `Producer`. Made by `SyncClient.producer`; used in a `with`
    block, which waits at its end until all items are answered.
    """

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
        """Stores one item; returns when it is durable. Raises as `Producer.produce`."""
        return self._runner.run(self._producer.produce(item))

    def submit(self, item: AnyItem) -> "Future[ProducedItem]":
        """Returns when the item is in a batch, with a future that is done when it is durable.
        `flush` raises the first failure.
        """
        done: Future[ProducedItem] = Future()

        async def submitted() -> None:
            (await self._producer.submit(item)).add_done_callback(
                lambda future: _copy(future, done)
            )

        self._runner.run(submitted())
        return done

    def produce_many(self, items: Iterable[AnyItem]) -> ProducedItems:
        """Stores items; returns when all are durable. See `Producer.produce_many`. `items` is
        iterated on the client's thread.
        """
        return self._runner.run(self._producer.produce_many(items))

    def flush(self) -> None:
        """Returns when all items given so far are answered. Raises the first failure of a `submit`
        since the last flush.
        """
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
    """Leases items of one queue, as `Consumer`. Made by `SyncClient.consumer`; used in a `with`
    block, at whose end items that are not settled go back to their places.
    """

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
        """Number of settles by `run` that were refused with LEASE_LOST."""
        return self._consumer.lost

    def stop(self, *, grace: timedelta | None = None) -> None:
        """Stops leasing, and ends all iterations and `run` after their current items. Does not wait
        for them. `grace` as in `Consumer.stop`. May be called from a signal handler.
        """
        self._runner.call(partial(self._consumer.stop, grace=grace))

    def __iter__(self) -> Iterator[SyncLeasedItem]:
        return (
            SyncLeasedItem(self._runner, item) for item in iterate(self._runner, self._consumer)
        )

    def batches(self) -> Iterator[SyncLeasedBatch]:
        """Yields whole runs of items: the cheapest way to consume. See `Consumer.batches`."""
        return (
            SyncLeasedBatch(self._runner, batch)
            for batch in iterate(self._runner, self._consumer.batches())
        )

    def run(
        self,
        handler: SyncHandler,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        handler_timeout: timedelta | None = None,
        retry_on: Collection[type[Exception]] = (),
        reject_on: Collection[type[Exception]] = (),
        on_undecodable: OnUndecodable = "retry",
        retry_first: timedelta | None = RETRY_FIRST,
        retry_most: timedelta = RETRY_MOST,
        on_error: Callable[[SyncLeasedItem, Exception], None] | None = None,
        grace: timedelta | None = GRACE_DEFAULT,
        stop_signals: Collection[signal.Signals] = STOP_SIGNALS,
    ) -> None:
        """Calls `handler` with each item on `concurrency` threads until iteration ends. Completes,
        retries, logs and stops as `Consumer.run`.

        A handler that still runs when its `grace` is over cannot be ended: its item goes back to
        its place, `run` returns, and the handler's thread ends with the process at the latest.

        A handler that does not end within `handler_timeout` cannot be ended either. Its item is
        retried, the handler continues on its thread, and another thread takes its place: the item
        may be handled twice at the same time. While 100 such handlers run, no further item is
        begun.
        """
        if inspect.iscoroutinefunction(handler):
            raise wrong_type(
                "handler", handler, "a plain function (a Client takes async functions)"
            )
        runner, consumer = self._runner, self._consumer
        threads = HandlerThreads()

        async def handle(item: LeasedItem) -> None:
            await threads.run(handler, SyncLeasedItem(runner, item))

        def failed(item: LeasedItem, error: Exception) -> None:
            if on_error is not None:
                on_error(SyncLeasedItem(runner, item), error)

        def stop(given: timedelta | None) -> None:
            runner.call(partial(consumer.stop_by_signal, given))

        handling = Handling(
            handle,
            FailurePolicy(
                retry_on=retry_on,
                reject_on=reject_on,
                on_undecodable=on_undecodable,
                retry_first=retry_first,
                retry_most=retry_most,
            ),
            timeout=handler_timeout,
            on_error=failed,
            on_lost=consumer.count_lost,
            max_attempts=consumer.max_attempts,
            room=threads.room,
        )
        try:
            with stopping_at(stop_signals, stop):
                runner.run(
                    consumer.run_handling(
                        handling, concurrency=concurrency, grace=grace, stop_signals=()
                    )
                )
        finally:
            threads.end()


class SyncClient:
    """`Client` for programs without an event loop. It may be used from several threads.

        with querator.SyncClient("127.0.0.1:4470") as client:
            client.create_queue("mail")
            client.produce("mail", b"hello")

    Options, meanings and errors are those of `Client`. The calls wait for their outcome.

    A client belongs to the process of its first use. A client that was made before a fork, and not
    used, may be used in the child. One that was used raises `UsedAfterFork` there.
    """

    def __init__(
        self,
        address: str | Iterable[str] | None = None,
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
        self._runner = LoopThread()

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
        """Ends all calls, closes the connections and ends the client's thread. Has no effect in a
        process that was forked after the first use.
        """
        try:
            if self._runner.here:
                self._runner.run(self._client.close())
        finally:
            self._runner.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_PICKLED)

    def run(self, call: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Calls `call` with the async client, on the client's thread, and returns its outcome: for
        what this client has no method for.
        """

        async def called() -> T:
            return await call(self._client)

        return self._runner.run(called())

    def iterate(self, call: Callable[[Client], AsyncIterator[T]]) -> Iterator[T]:
        """As `run`, for what is yielded."""
        return listed(self._runner, lambda: call(self._client))

    @property
    def address(self) -> str:
        """The addresses that the client was given, separated by commas."""
        return self._client.address

    @property
    def namespace(self) -> str:
        return self._client.namespace

    @property
    def client_id(self) -> str:
        """The name of this client as an owner of leases."""
        return self._client.client_id

    def create_queue(
        self, name: str, *, if_exists: IfExists = "compare", **settings: Unpack[QueueOptions]
    ) -> QueueInfo:
        """Creates a queue; returns when it can be used. The options are those of
        `Client.create_queue`.
        """
        return self._runner.run(self._client.create_queue(name, if_exists=if_exists, **settings))

    def get_queue(self, name: str) -> QueueInfo:
        """Returns the queue with its settings. Raises `QueueNotFound`."""
        return self._runner.run(self._client.get_queue(name))

    def list_queues(self) -> Iterator[QueueInfo]:
        """Yields the queues of the namespace, ordered by name."""
        return listed(self._runner, self._client.list_queues)

    def update_queue(
        self, name: str, *, expected_version: int = 0, **changes: Unpack[QueueOptions]
    ) -> QueueInfo:
        """Changes only the settings that are named. See `Client.update_queue`."""
        return self._runner.run(
            self._client.update_queue(name, expected_version=expected_version, **changes)
        )

    def open_breaker(self, name: str) -> int:
        """Opens the breakers of the queue `name` by hand. See `Client.open_breaker`."""
        return self._runner.run(self._client.open_breaker(name))

    def close_breaker(self, name: str) -> int:
        """Closes the breakers of the queue `name` by hand. See `Client.close_breaker`."""
        return self._runner.run(self._client.close_breaker(name))

    def delete_queue(self, name: str) -> None:
        """Deletes the queue with all its items. See `Client.delete_queue`."""
        self._runner.run(self._client.delete_queue(name))

    def stats(self, name: str, *, stale: bool = False) -> QueueStats:
        """Returns exact counts; with `stale` they may be behind. See `Client.stats`."""
        return self._runner.run(self._client.stats(name, stale=stale))

    def list_groups(self, name: str, *, stale: bool = False) -> Iterator[GroupStats]:
        """Yields the groups of a fair queue with their counts. See `Client.list_groups`."""
        return listed(self._runner, lambda: self._client.list_groups(name, stale=stale))

    def list_keys(
        self,
        name: str,
        *,
        key: str = "",
        blocked: bool = False,
        head_attempts_min: int = 0,
        stale: bool = False,
    ) -> Iterator[KeyStats]:
        """Yields the keys of a keyed queue with their counts. See `Client.list_keys`."""
        return listed(
            self._runner,
            lambda: self._client.list_keys(
                name, key=key, blocked=blocked, head_attempts_min=head_attempts_min, stale=stale
            ),
        )

    def skip_key(self, name: str, key: str, item_id: ItemId | str, *, dead: bool = False) -> bool:
        """Takes the next item of a key out of a keyed queue. See `Client.skip_key`."""
        return self._runner.run(self._client.skip_key(name, key, item_id, dead=dead))

    def list_leases(
        self,
        name: str,
        *,
        client_id: str = "",
        older_than: timedelta | None = None,
        stale: bool = False,
    ) -> Iterator[LeaseInfo]:
        """Yields the live leases of a queue. See `Client.list_leases`."""
        return listed(
            self._runner,
            lambda: self._client.list_leases(
                name, client_id=client_id, older_than=older_than, stale=stale
            ),
        )

    def events(
        self,
        name: str,
        *,
        positions: Iterable[EventPosition | str] = (),
        start: EventsStart = "first",
        kinds: Collection[EventKind] | None = None,
        follow: bool = True,
    ) -> SyncEvents:
        """What happens to the items and partitions of a queue. See `Client.events`."""

        async def make() -> Events:
            return self._client.events(
                name, positions=positions, start=start, kinds=kinds, follow=follow
            )

        return SyncEvents(self._runner, self._runner.run(make()))

    def release_leases(self, name: str, *lease_ids: str, count_attempt: bool = False) -> int:
        """Ends leases of consumers that hang. See `Client.release_leases`."""
        return self._runner.run(
            self._client.release_leases(name, *lease_ids, count_attempt=count_attempt)
        )

    def peek(
        self,
        name: str,
        *,
        state: ItemState | None = None,
        after: ItemId | str | None = None,
        limit: int | None = None,
        stale: bool = False,
    ) -> Iterator[PeekedItem]:
        """Yields items without leasing them, by partition and sequence. See `Client.peek`."""
        return listed(
            self._runner,
            lambda: self._client.peek(name, state=state, after=after, limit=limit, stale=stale),
        )

    def get_item(
        self, name: str, item_id: ItemId | str, *, stale: bool = False
    ) -> PeekedItem | None:
        """Returns one item in any state; None: it is gone. See `Client.get_item`."""
        return self._runner.run(self._client.get_item(name, item_id, stale=stale))

    def get_items(
        self, name: str, item_ids: Iterable[ItemId | str], *, stale: bool = False
    ) -> Sequence[PeekedItem]:
        """Returns items by id, in any state. See `Client.get_items`."""
        return self._runner.run(self._client.get_items(name, item_ids, stale=stale))

    def dead_letters(self, name: str, *, limit: int | None = None) -> Iterator[PeekedItem]:
        """Yields the dead letters of a queue, at most `limit`. See `Client.dead_letters`."""
        return listed(self._runner, lambda: self._client.dead_letters(name, limit=limit))

    def repair_time(self, name: str, *, dry_run: bool = False) -> tuple[PartitionTime, ...]:
        """Resets the time of a queue's partitions to the clock. See `Client.repair_time`."""
        return self._runner.run(self._client.repair_time(name, dry_run=dry_run))

    def give_up_damaged(self, name: str, *, dry_run: bool = False) -> GivenUp:
        """Drops the items that are damaged on all replicas. See `Client.give_up_damaged`."""
        return self._runner.run(self._client.give_up_damaged(name, dry_run=dry_run))

    def redrive(
        self,
        name: str,
        item_ids: Iterable[ItemId | str] | None = None,
        **options: Unpack[LetterOptions],
    ) -> int:
        """Moves dead letters back to the queue `name`; returns how many. See `Client.redrive`."""
        return self._runner.run(self._client.redrive(name, item_ids, **options))

    def drop_dead_letters(
        self,
        name: str,
        item_ids: Iterable[ItemId | str] | None = None,
        **options: Unpack[LetterOptions],
    ) -> int:
        """Removes dead letters of the queue `name`. See `Client.drop_dead_letters`."""
        return self._runner.run(self._client.drop_dead_letters(name, item_ids, **options))

    def cancel(self, name: str, item_ids: Iterable[ItemId | str]) -> Cancelled:
        """Removes waiting items of the queue `name`. See `Client.cancel`."""
        return self._runner.run(self._client.cancel(name, item_ids))

    def purge(self, name: str, *, keep_scheduled: bool = False, dry_run: bool = False) -> Purged:
        """Removes the waiting items of the queue `name`. See `Client.purge`."""
        return self._runner.run(
            self._client.purge(name, keep_scheduled=keep_scheduled, dry_run=dry_run)
        )

    def prioritize(self, name: str, item_ids: Iterable[ItemId | str], priority: int) -> Prioritized:
        """Gives another priority to waiting items of the queue `name`. See `Client.prioritize`."""
        return self._runner.run(self._client.prioritize(name, item_ids, priority))

    def staged_batches(self, name: str) -> StagedBatches:
        """Returns the batches that transactions have staged for the queue `name`."""
        return self._runner.run(self._client.staged_batches(name))

    def abort_batch(self, name: str, producer: str, batch: int) -> Aborted:
        """Drops the staged items of a batch, unless it is committed."""
        return self._runner.run(self._client.abort_batch(name, producer, batch))

    @property
    def schedules(self) -> SyncScheduledItems:
        """Calls about scheduled items. See `Client.schedules`."""
        return SyncScheduledItems(self._runner, self._client)

    @property
    def recurrences(self) -> SyncRecurrences:
        """Calls about recurrences. See `Client.recurrences`."""
        return SyncRecurrences(self._runner, self._client)

    def lock(
        self,
        name: str,
        *,
        lease_timeout: timedelta = LEASE_TIMEOUT_DEFAULT,
        timeout: timedelta | None = None,
        holder: str = "",
    ) -> SyncLock:
        """A lock that one program holds at a time; used in a `with` block. See `Client.lock`."""

        async def make() -> Lock:
            return self._client.lock(
                name, lease_timeout=lease_timeout, timeout=timeout, holder=holder
            )

        return SyncLock(self._runner, self._runner.run(make()))

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        lease_timeout: timedelta = LEASE_TIMEOUT_DEFAULT,
        timeout: timedelta | None = None,
        holder: str = "",
    ) -> SyncSemaphore:
        """A semaphore; used in a `with` block. See `Client.semaphore`."""

        async def make() -> Semaphore:
            return self._client.semaphore(
                name, permits, lease_timeout=lease_timeout, timeout=timeout, holder=holder
            )

        return SyncSemaphore(self._runner, self._runner.run(make()))

    def election(
        self,
        name: str,
        identity: str = "",
        *,
        lease_timeout: timedelta = LEASE_TIMEOUT_DEFAULT,
        timeout: timedelta | None = None,
    ) -> SyncElection:
        """An election of a leader; used in a `with` block. See `Client.election`."""

        async def make() -> Election:
            return self._client.election(
                name, identity, lease_timeout=lease_timeout, timeout=timeout
            )

        return SyncElection(self._runner, self._runner.run(make()))

    def rw_lock(
        self,
        name: str,
        *,
        readers: int = READERS_DEFAULT,
        lease_timeout: timedelta = LEASE_TIMEOUT_DEFAULT,
        holder: str = "",
    ) -> SyncRwLock:
        """A lock for readers or one writer. See `Client.rw_lock`."""

        async def make() -> RwLock:
            return self._client.rw_lock(
                name, readers=readers, lease_timeout=lease_timeout, holder=holder
            )

        return SyncRwLock(self._runner, self._runner.run(make()))

    def produce(self, queue: str, *items: AnyItem, dedup_by_content: bool = False) -> ProducedItems:
        """Stores items with one request; returns when all are durable. See `Client.produce`."""
        return self._runner.run(
            self._client.produce(queue, *items, dedup_by_content=dedup_by_content)
        )

    def produce_and_wait(
        self, queue: str, item: AnyItem, *, timeout: timedelta = REQUEST_TIMEOUT_DEFAULT
    ) -> bytes:
        """Stores an item and waits for its result. See `Client.produce_and_wait`."""
        return self._runner.run(self._client.produce_and_wait(queue, item, timeout=timeout))

    def produce_and_wait_all(
        self, queue: str, *items: AnyItem, timeout: timedelta = REQUEST_TIMEOUT_DEFAULT
    ) -> list[ItemResult]:
        """Stores items and waits for their results. See `Client.produce_and_wait_all`."""
        return self._runner.run(self._client.produce_and_wait_all(queue, *items, timeout=timeout))

    def result(
        self, queue: str, item_id: ItemId | str, *, timeout: timedelta = REQUEST_TIMEOUT_DEFAULT
    ) -> bytes:
        """Waits for the result of an item. See `Client.result`."""
        return self._runner.run(self._client.result(queue, item_id, timeout=timeout))

    def results(
        self,
        queue: str,
        item_ids: Iterable[ItemId | str],
        *,
        timeout: timedelta = REQUEST_TIMEOUT_DEFAULT,
    ) -> list[ItemResult]:
        """Waits for the results of items. See `Client.results`."""
        return self._runner.run(self._client.results(queue, item_ids, timeout=timeout))

    def lease(
        self,
        queue: str,
        *,
        max_items: int = 1,
        wait: timedelta | None = None,
        lease_timeout: timedelta | None = None,
        max_bytes: int = 0,
        item_ids: Iterable[ItemId | str] | None = None,
        kinds: Iterable[str] | None = None,
        attributes: Mapping[str, str] | None = None,
        complete_on_delivery: bool = False,
    ) -> list[SyncLeasedItem]:
        """Leases up to `max_items` ready items; waits up to `wait` for the first one. See
        `Client.lease`.
        """
        items = self._runner.run(
            self._client.lease(
                queue,
                max_items=max_items,
                wait=wait,
                lease_timeout=lease_timeout,
                max_bytes=max_bytes,
                item_ids=item_ids,
                kinds=kinds,
                attributes=attributes,
                complete_on_delivery=complete_on_delivery,
            )
        )
        return [SyncLeasedItem(self._runner, item) for item in items]

    def complete(
        self,
        queue: str,
        *held: SyncHeld,
        check: bool = True,
        follow_ups: FollowUps | None = None,
        result: bytes | None = None,
    ) -> list[SettleOutcome]:
        """Completes leased items. Raises `LeaseLost` unless `check` is False; see
        `Client.complete`.
        """
        return self._runner.run(
            self._client.complete(
                queue, *map(_bare, held), check=check, follow_ups=follow_ups, result=result
            )
        )

    def retry(
        self,
        queue: str,
        *held: SyncHeld,
        retry_at: datetime | None = None,
        delay: timedelta | None = None,
        dead: bool = False,
        error: str = "",
        count_attempt: bool = True,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        check: bool = True,
        follow_ups: FollowUps | None = None,
        clear_checkpoint: bool = False,
    ) -> list[SettleOutcome]:
        """Gives leased items back: ready at once, after `delay`, at `retry_at`, or as dead letters.
        See `Client.retry`.
        """
        return self._runner.run(
            self._client.retry(
                queue,
                *map(_bare, held),
                retry_at=retry_at,
                delay=delay,
                dead=dead,
                error=error,
                count_attempt=count_attempt,
                priority=priority,
                attributes=attributes,
                check=check,
                follow_ups=follow_ups,
                clear_checkpoint=clear_checkpoint,
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
        """Extends leases so that they end `lease_timeout` from now. See `Client.extend`."""
        ids = [lease if isinstance(lease, str) else lease.lease_id for lease in leases]
        return self._runner.run(
            self._client.extend(
                queue, *ids, lease_timeout=lease_timeout, client_id=client_id, check=check
            )
        )

    def save_checkpoint(
        self,
        queue: str,
        lease_id: str,
        item: ItemId | str,
        data: bytes,
        *,
        lease_timeout: timedelta | None = None,
    ) -> ExtendOutcome:
        """Saves a checkpoint with an item of a lease. See `Client.save_checkpoint`."""
        return self._runner.run(
            self._client.save_checkpoint(queue, lease_id, item, data, lease_timeout=lease_timeout)
        )

    def producer(self, queue: str, **options: Unpack[ProducerOptions]) -> SyncProducer:
        """A producer for many items. `options` are those of `Client.producer`."""
        return SyncProducer(self._runner, self._runner.run(self._make_producer(queue, options)))

    async def _make_producer(self, queue: str, options: ProducerOptions) -> Producer:
        return self._client.producer(queue, **options)

    def consumer(self, queue: str, **options: Unpack[ConsumerOptions]) -> SyncConsumer:
        """A consumer that leases items over a stream. `options` are those of `Client.consumer`."""
        return SyncConsumer(self._runner, self._runner.run(self._make_consumer(queue, options)))

    async def _make_consumer(self, queue: str, options: ConsumerOptions) -> Consumer:
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
