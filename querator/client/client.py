"""`querator.Client`: everything a program does with Querator, from one nodes."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

import uuid_utils

from querator.client.admin import Admin
from querator.client.consuming.consumer import (
    CONCURRENCY_DEFAULT,
    PREFETCH_BYTES_DEFAULT,
    PREFETCH_DEFAULT,
    Consumer,
)
from querator.client.consuming.leases import COMPLETE, LeasedItem, retry_verb
from querator.client.consuming.single import Held, SingleHolder, extend, raise_lost, settle_held
from querator.client.errors import OutcomeUnknown, ProducerExpired
from querator.client.items import AnyItem, encode_items
from querator.client.producing import producer as producers
from querator.client.producing.producer import Producer
from querator.client.producing.window import IDENTITY_SECONDS_MAX, Identity
from querator.client.readers import Readers
from querator.client.results import lease_lost, produced_runs
from querator.client.transactions import Aborted, StagedBatches, Transactions
from querator.client.transport.nodes import ATTEMPT_SECONDS, Nodes
from querator.client.values import (
    ExtendOutcome,
    GivenUp,
    ItemId,
    ItemState,
    PartitionTime,
    PeekedItem,
    ProducedItems,
    QueueInfo,
    QueueStats,
    SettleOutcome,
    split_addresses,
)
from querator.model import limits
from querator.model.ids import DEFAULT_NAMESPACE
from querator.v1 import queue_service_pb2
from querator.wire.tls import Tls

ADDRESS_DEFAULT = "127.0.0.1:4470"
REQUEST_TIMEOUT_DEFAULT = timedelta(seconds=30)
CONNECT_TIMEOUT_DEFAULT = timedelta(seconds=5)
CLOSE_SECONDS = 5.0


class Client:
    """Talks to the nodes of a cluster, on one event loop.

        async with querator.Client("127.0.0.1:4470") as client:
            await client.create_queue("mail")
            await client.produce("mail", b"hello")

    `address` is `host:port`, or several of them: separated by commas, or an iterable. One that
    answers is enough, for the client learns the other nodes from it; several are for the case that
    just this one is down. When a node fails, the client goes on with another one.

    Calls are repeated with their identity until they have an answer or `request_timeout` has
    passed. When no node has ever answered, that is given up after `connect_timeout` already.
    `client_id` names this consumer of leases, for people; by default made of host, process and
    chance. `tls`: whom to trust, and what to show the nodes (`querator.Tls`); None: in the clear.

    Errors: `querator.client.errors`. Not for use from several threads: see `SyncClient`.
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
        most = timedelta(milliseconds=limits.REQUEST_TIMEOUT_MS_MAX)
        if not timedelta(0) < request_timeout <= most:
            raise ValueError(f"request_timeout is {request_timeout}; it must be up to {most}")
        self._addresses = split_addresses(address)
        self.address = ",".join(self._addresses)
        self.namespace = namespace
        self.client_id = client_id or _own_name()
        self._request_seconds = request_timeout.total_seconds()
        self._connect_seconds = connect_timeout.total_seconds()
        self._tls = tls
        self._open: Nodes | None = None
        self._admin_calls: Admin | None = None
        self._holders: dict[str, SingleHolder] = {}
        self._closed = False
        self._identity: Identity | None = None
        self._sequence = 0

    async def __aenter__(self) -> Self:
        self._nodes()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all calls. Producers and consumers are closed before, by leaving their blocks."""
        self._closed = True
        for holder in self._holders.values():
            await holder.close(patience=CLOSE_SECONDS)
        if self._open is not None:
            await self._open.close()

    def _nodes(self) -> Nodes:
        """The connections; made at the first use, because they belong to the running event loop."""
        if self._open is None:
            if self._closed:
                raise RuntimeError("the client is closed")
            self._open = Nodes(
                self._addresses,
                request_timeout=self._request_seconds,
                connect_timeout=self._connect_seconds,
                tls=self._tls,
            )
        return self._open

    # Queues.

    def _admin(self) -> Admin:
        if self._admin_calls is None:
            self._admin_calls = Admin(self._nodes(), self.namespace)
        return self._admin_calls

    async def create_queue(
        self,
        name: str,
        *,
        partitions: int = 1,
        lease_timeout: timedelta | None = None,
        expire_timeout: timedelta | None = None,
        max_attempts: int = 0,
        dead_queue: str = "",
        dedup_window: timedelta | None = None,
        partition_items_max: int = 0,
        description: str = "",
        replicas: int = 0,
    ) -> QueueInfo:
        """Returns when the queue can be used. One with the same settings may exist already
        (`created` is False then); with others: `QueueExists`. None and 0: the defaults.
        """
        settings = {
            "partitions": partitions,
            "lease_timeout": lease_timeout,
            "expire_timeout": expire_timeout,
            "max_attempts": max_attempts,
            "dead_queue": dead_queue,
            "dedup_window": dedup_window,
            "partition_items_max": partition_items_max,
            "description": description,
            "replicas": replicas,
        }
        return await self._admin().create(name, settings)

    async def get_queue(self, name: str) -> QueueInfo:
        return await self._admin().get(name)

    def list_queues(self) -> AsyncIterator[QueueInfo]:
        """The namespace's queues, by name."""
        return self._admin().list()

    async def update_queue(
        self, name: str, *, expected_version: int = 0, **changes: Any
    ) -> QueueInfo:
        """Changes the settings named (as in `create_queue`; None: the default) and no others;
        returns when all partitions have them. Raises `VersionConflict` when the settings' version
        is not `expected_version` (0: any).
        """
        return await self._admin().update(name, changes, expected_version=expected_version)

    async def delete_queue(self, name: str) -> None:
        """Deletes the queue with all its items. When it returns no node stores anything in it any
        more. Raises `OutcomeUnknown` when nodes that might have not answered in time: it is being
        deleted all the same.
        """
        await self._admin().delete(name)

    async def stats(self, name: str, *, stale: bool = False) -> QueueStats:
        """Exact counts, of everything that was acknowledged before. `stale`: they may be behind,
        and are there also while a partition has no leader.
        """
        return await self._admin().stats(name, stale=stale)

    def peek(
        self,
        name: str,
        *,
        state: ItemState | None = None,
        limit: int | None = None,
        stale: bool = False,
    ) -> AsyncIterator[PeekedItem]:
        """Items without leasing them, by partition and sequence. `stale` as of `stats`."""
        return self._admin().peek(name, state=state, limit=limit, stale=stale)

    def dead_letters(self, name: str, *, limit: int | None = None) -> AsyncIterator[PeekedItem]:
        """The dead letters of a queue (or of all queues of a dead queue), as items of the dead
        queue.
        """
        return self._admin().dead_letters(name, limit=limit)

    async def redrive(self, name: str, item_ids: Iterable[ItemId | str] = ()) -> int:
        """Sends dead letters back to the queue `name` in which they died: those named (ids in the
        dead queue), or all. Returns how many are on their way.
        """
        return await self._admin().redrive(name, item_ids)

    async def repair_time(self, name: str, *, dry_run: bool = False) -> tuple[PartitionTime, ...]:
        """Puts time in the partitions of a queue back to the clock, where a wrong clock had moved
        it ahead; `dry_run`: only tells. Returns those partitions. Refused (Unavailable) while the
        clocks of a majority do not agree.
        """
        return await self._admin().repair_time(name, dry_run=dry_run)

    async def give_up_damaged(self, name: str, *, dry_run: bool = False) -> GivenUp:
        """Gives up the items of the queue `name` whose payload is damaged and on no replica whole;
        `dry_run`: only tells. They are dropped and counted (`PartitionStats.given_up`). Items that
        are leased or in a reader's batch stay, and what a replica may have whole that does not
        answer.
        """
        return await self._admin().give_up_damaged(name, dry_run=dry_run)

    async def staged_batches(self, name: str) -> StagedBatches:
        """What is staged for the queue `name` by transactions, and not visible yet, by batch."""
        return await Transactions(self._nodes(), self.namespace).list(name)

    async def abort_batch(self, name: str, producer: str, batch: int) -> Aborted:
        """Drops what is staged of a batch, unless it is committed."""
        calls = Transactions(self._nodes(), self.namespace)
        return await calls.abort(name, producer, batch)

    @property
    def readers(self) -> Readers:
        """Items in named batches, for those who must be able to read them again."""
        return Readers(self._nodes(), self.namespace)

    # Single calls.

    async def produce(self, queue: str, *items: AnyItem) -> ProducedItems:
        """Returns when all items are durable: one request, stored once however often it is tried.

        For many items use a producer.
        """
        nodes = self._nodes()
        encoded = encode_items(items)
        now = asyncio.get_running_loop().time()
        if self._identity is None or now - self._identity.born > IDENTITY_SECONDS_MAX:
            self._identity, self._sequence = Identity.new(now), 0
        self._sequence += 1
        head = queue_service_pb2.ProduceRequest(
            namespace=self.namespace,
            queue=queue,
            producer_id=self._identity.id,
            sequence=self._sequence,
        ).SerializeToString()
        request = b"".join((head, *encoded.pieces))
        try:
            answer = await nodes.call(
                lambda node, left: node.produce_bytes(request, timeout=left),
                patience=ATTEMPT_SECONDS,
            )
        except (ProducerExpired, OutcomeUnknown) as error:
            if isinstance(error, ProducerExpired) or isinstance(error.__cause__, ProducerExpired):
                self._identity = None
            raise
        response = queue_service_pb2.ProduceResponse.FromString(answer)
        return ProducedItems(((len(items), produced_runs(response)),), response.durable)

    async def lease(
        self,
        queue: str,
        *,
        max_items: int = 1,
        wait: timedelta | None = None,
        lease_timeout: timedelta | None = None,
        max_bytes: int = 0,
    ) -> list[LeasedItem]:
        """Leases up to `max_items` ready items; waits up to `wait` for the first. Empty when none
        became ready. Nobody extends these leases but `extend`.
        """
        batches = await self._holder(queue).lease(
            client_id=self.client_id,
            max_items=max_items,
            max_bytes=max_bytes,
            wait=wait,
            lease_timeout=lease_timeout,
        )
        return [item for batch in batches for item in batch]

    def _holder(self, queue: str) -> SingleHolder:
        holder = self._holders.get(queue)
        if holder is None:
            holder = SingleHolder(self._nodes(), namespace=self.namespace, queue=queue)
            self._holders[queue] = holder
        return holder

    async def complete(self, queue: str, *held: Held, check: bool = True) -> list[SettleOutcome]:
        """Completes leased items, named by themselves, by `LeaseRef` or by lease id.

        One outcome for each. With `check`, raises `LeaseLost` when any item was lost; what was not
        lost is completed nevertheless.
        """
        outcomes = await settle_held(self._nodes(), self.namespace, queue, COMPLETE, held)
        if check:
            raise_lost(outcomes)
        return outcomes

    async def retry(
        self,
        queue: str,
        *held: Held,
        retry_at: datetime | None = None,
        delay: timedelta | None = None,
        dead: bool = False,
        error: str = "",
        count_attempt: bool = True,
        check: bool = True,
    ) -> list[SettleOutcome]:
        """Gives leased items back: ready at once, after `delay`, at `retry_at`, or as dead letters.

        `count_attempt=False` without a time is a release: to their places, as if never leased.
        Otherwise as `complete`.
        """
        verb = retry_verb(
            delay=delay, retry_at=retry_at, error=error, dead=dead, count_attempt=count_attempt
        )
        outcomes = await settle_held(self._nodes(), self.namespace, queue, verb, held)
        if check:
            raise_lost(outcomes)
        return outcomes

    async def extend(
        self,
        queue: str,
        *leases: LeasedItem | str,
        lease_timeout: timedelta | None = None,
        client_id: str = "",
        check: bool = True,
    ) -> list[ExtendOutcome]:
        """Lets leases end `lease_timeout` from now (None: the items' own, or the queue's), never
        earlier than before.

        Without `leases`: all leases of `client_id` (default: this client's) in the queue. A lost
        lease raises `LeaseLost`, or with `check=False` has no time `remaining`.
        """
        ids = [lease if isinstance(lease, str) else lease.lease_id for lease in leases]
        outcomes = await extend(
            self._nodes(),
            self.namespace,
            queue,
            ids,
            lease_timeout,
            client_id="" if ids else client_id or self.client_id,
        )
        for outcome in outcomes:
            if check and not outcome.remaining:
                raise lease_lost(outcome.lease_id)
        return outcomes

    # Streams.

    def producer(
        self,
        queue: str,
        *,
        batch_items: int = producers.BATCH_ITEMS_DEFAULT,
        batch_bytes: int = producers.BATCH_BYTES_DEFAULT,
        linger: timedelta | None = None,
        ordered: bool = True,
        max_in_flight: int = producers.IN_FLIGHT_DEFAULT,
    ) -> Producer:
        """For many items, one by one or in bulk: `async with client.producer("mail") as producer`.

        `ordered`: the items keep their order, and go to one partition of the queue. To load all
        partitions use `ordered=False`, or several producers. `max_in_flight` requests of at most
        `batch_items` and `batch_bytes` are unanswered at a time; that bounds the memory as well.
        """
        return Producer(
            self._nodes(),
            namespace=self.namespace,
            queue=queue,
            batch_items=batch_items,
            batch_bytes=batch_bytes,
            linger=linger,
            ordered=ordered,
            max_in_flight=max_in_flight,
        )

    def consumer(
        self,
        queue: str,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        prefetch_items: int = PREFETCH_DEFAULT,
        prefetch_bytes: int = PREFETCH_BYTES_DEFAULT,
        batch_items: int = limits.STREAM_BATCH_ITEMS_DEFAULT,
        batch_bytes: int = 0,
        lease_timeout: timedelta | None = None,
        auto_extend: bool = True,
        release_on_disconnect: bool = False,
        idle_timeout: timedelta | None = None,
    ) -> Consumer:
        """Leases items as fast as they are settled: `async with client.consumer("mail") as c`.

        At most `prefetch_items`, together `prefetch_bytes`, are held and not settled, in deliveries
        of at most `batch_items` and `batch_bytes` (0: 3 MiB). `auto_extend`: leases last as long as
        the consumer lives.
        `release_on_disconnect`: a broken connection gives the items back at once; otherwise they
        stay leased here, and lapse if nobody comes back. `idle_timeout` ends the iteration when
        nothing came for that long. `concurrency` is that of `Consumer.run`.
        """

        async def extend_leases(
            lease_ids: list[str], lease_timeout: timedelta | None
        ) -> list[ExtendOutcome]:
            return await extend(self._nodes(), self.namespace, queue, lease_ids, lease_timeout)

        return Consumer(
            self._nodes(),
            namespace=self.namespace,
            queue=queue,
            client_id=self.client_id,
            extend=extend_leases,
            concurrency=concurrency,
            prefetch_items=prefetch_items,
            prefetch_bytes=prefetch_bytes,
            batch_items=batch_items,
            batch_bytes=batch_bytes,
            lease_timeout=lease_timeout,
            auto_extend=auto_extend,
            release_on_disconnect=release_on_disconnect,
            idle_timeout=idle_timeout,
        )


def _own_name() -> str:
    host = socket.gethostname()[: limits.CLIENT_ID_CHARS_MAX // 2]
    # The end of a UUIDv7 is chance; its beginning is the time.
    return f"{host}-{os.getpid()}-{uuid_utils.uuid7().hex[-12:]}"
