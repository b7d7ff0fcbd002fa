"""`querator.Client`: all calls of a program to a cluster, on one event loop.

Longer than 500 lines: each call is a short method that hands on, below the promise that it makes.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import NoReturn, Self, Unpack

from querator.client.admin import ONE_CHOICE, Admin, letters
from querator.client.breaker_values import Breaker
from querator.client.checks import check_checkpoint
from querator.client.consuming.consumer import (
    CONCURRENCY_DEFAULT,
    PREFETCH_BYTES_DEFAULT,
    Consumer,
)
from querator.client.consuming.follow_ups import FollowUps
from querator.client.consuming.leases import LeasedItem
from querator.client.consuming.single import (
    Held,
    SingleHolder,
    extend,
    lease_filter,
    raise_lost,
    settle_held,
)
from querator.client.consuming.verbs import complete_verb, retry_verb
from querator.client.errors import OutcomeUnknown, ProducerExpired, RequestError
from querator.client.events import EventKind, EventPosition, Events, EventsStart
from querator.client.executions import ExecutionCalls
from querator.client.fair_groups import FairGroup
from querator.client.groups import GroupStats
from querator.client.items import AnyItem, encode_items, id_texts, keyed_by_content
from querator.client.keys import KeyStats
from querator.client.limit_values import RateLimit
from querator.client.live_leases import LeaseInfo
from querator.client.locks.calls import LockCalls
from querator.client.locks.election import Election
from querator.client.locks.lock import LEASE_TIMEOUT_DEFAULT, Lock, Semaphore
from querator.client.locks.rw_lock import READERS_DEFAULT, RwLock
from querator.client.locks.tokens import TokenQueue
from querator.client.names import ClientName
from querator.client.options import (
    DedupUntil,
    Fairness,
    IfExists,
    QueueKind,
    QueueOptions,
    RetryBackoff,
)
from querator.client.producing import producer as producers
from querator.client.producing.producer import Producer
from querator.client.producing.window import ProducerIdentity, produce_unknown
from querator.client.readers import Readers
from querator.client.recurrences import Recurrences
from querator.client.replies import ItemResult, asking, wait_all
from querator.client.results import lease_lost, produced_runs
from querator.client.schedules import ScheduledItems
from querator.client.transactions import Aborted, StagedBatches, Transactions
from querator.client.transport.nodes import ATTEMPT_SECONDS, Nodes
from querator.client.typed import check_like, typed
from querator.client.values import (
    Cancelled,
    DeadReason,
    ExtendOutcome,
    GivenUp,
    ItemId,
    ItemState,
    PartitionTime,
    PeekedItem,
    Prioritized,
    ProducedItems,
    Purged,
    QueueInfo,
    QueueStats,
    SettleOutcome,
    addresses_of,
)
from querator.model import limits
from querator.model.ids import DEFAULT_NAMESPACE
from querator.v1 import queue_service_pb2
from querator.v1.admin_service_pb2 import BREAKER_STATE_CLOSED, BREAKER_STATE_OPEN
from querator.wire.tls import Tls

REQUEST_TIMEOUT_DEFAULT = timedelta(seconds=30)
CONNECT_TIMEOUT_DEFAULT = timedelta(seconds=5)
CLOSE_SECONDS = 5.0
NOT_PICKLED = (
    "a client cannot be sent to another process: make one there, for example in the initializer of "
    "a ProcessPoolExecutor"
)


class Client:
    """Talks to the nodes of a cluster, on one event loop.

        async with querator.Client("127.0.0.1:4470") as client:
            await client.create_queue("mail")
            await client.produce("mail", b"hello")

    `address` is `host:port`, or several of them: separated by commas, or an iterable. One address
    that answers is enough, because the client learns the other nodes from it. Several addresses
    cover the case that one of these nodes is down. When a node fails, the client uses another one.
    None: the addresses in the environment variable `QUERATOR_ADDRESS` when the client is made, else
    `127.0.0.1:4470`.

    The client repeats a call with its identity until it has an answer or `request_timeout` (default
    30 s, at most 15 min) has passed. If no node has ever answered, the client gives up after
    `connect_timeout` (default 5 s); at once if the cause cannot pass by itself, as a certificate
    that is not trusted. `client_id` names this client as an owner of leases, for people; the
    default is made of the host name, the process id and a random part. `tls` holds the trusted
    authorities and the client's certificate (`querator.Tls`); None: no encryption. Raises
    ValueError for a malformed address.

    Calls raise the errors of `querator.client.errors`. One client must not be used from several
    threads: see `SyncClient`. It belongs to the event loop and the process of its first use: a
    client that was used before a fork raises `UsedAfterFork` in the child.
    """

    @typed
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
        most = timedelta(milliseconds=limits.REQUEST_TIMEOUT_MS_MAX)
        if not timedelta(0) < request_timeout <= most:
            raise ValueError(f"request_timeout is {request_timeout}; it must be up to {most}")
        self._addresses = addresses_of(address)
        self.address = ",".join(self._addresses)
        self.namespace = namespace
        self._name = ClientName(client_id)
        self._request_seconds = request_timeout.total_seconds()
        self._connect_seconds = connect_timeout.total_seconds()
        self._tls = tls
        self._open: Nodes | None = None
        self._holders: dict[str, SingleHolder] = {}
        self._locks: LockCalls | None = None
        self._closed = False
        self._identity: ProducerIdentity | None = None
        self._sequence = 0

    @property
    def client_id(self) -> str:
        """The name of this client as an owner of leases."""
        return self._name.here()

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_PICKLED)

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
        """Ends all calls and closes the connections. Waits at most 5 s a queue for settles of items
        from `lease`. Leave the blocks of producers and consumers before. Locks that are held are
        lost for their holders, and given back.
        """
        self._closed = True
        if self._open is None or not self._open.usable_here:
            return
        if self._locks is not None:
            await self._locks.close(patience=CLOSE_SECONDS)
        for holder in self._holders.values():
            await holder.close(patience=CLOSE_SECONDS)
        await self._open.close()

    def _nodes(self) -> Nodes:
        """Returns the connections. They are made at the first use, because they belong to the
        process and to the running event loop.
        """
        if self._open is None:
            if self._closed:
                raise RuntimeError("the client is closed")
            self._open = Nodes(
                self._addresses,
                request_timeout=self._request_seconds,
                connect_timeout=self._connect_seconds,
                tls=self._tls,
            )
        self._open.check_here()
        return self._open

    # Queues.

    def waits_for(self, seconds: float) -> RequestError | None:
        """Why a request of this client has been repeated for `seconds`, as the last refusal says:
        a partition without a leader, for example, or a full disk. None: no request has.
        """
        return None if self._open is None else self._open.waits.reason(seconds)

    @property
    def executions(self) -> ExecutionCalls:
        """The calls about executions, in bytes. Programs use `querator.durable.Executions`."""
        return ExecutionCalls(self._nodes(), self.namespace)

    def _admin(self) -> Admin:
        return Admin(self._nodes(), self.namespace)

    @typed
    async def create_queue(
        self,
        name: str,
        *,
        partitions: int | None = None,
        lease_timeout: timedelta | None = None,
        expire_timeout: timedelta | None = None,
        max_attempts: int | None = None,
        dead_queue: str | None = None,
        dedup_window: timedelta | None = None,
        partition_items_max: int | None = None,
        description: str | None = None,
        replicas: int | None = None,
        retry_delay: timedelta | None = None,
        retry_delay_max: timedelta | None = None,
        retry_backoff: RetryBackoff | None = None,
        retry_jitter: bool | None = None,
        priority_aging: timedelta | None = None,
        dedup_until: DedupUntil | None = None,
        kind: QueueKind | None = None,
        fairness: Fairness | None = None,
        group_leased_max: int | None = None,
        groups: Iterable[FairGroup] | None = None,
        key_leased_max: int | None = None,
        key_retry_blocks: bool | None = None,
        lease_paused: bool | None = None,
        produce_paused: bool | None = None,
        breaker: Breaker | None = None,
        rate_limit: RateLimit | None = None,
        lease_limit: int | None = None,
        group_rate_limit: RateLimit | None = None,
        key_rate_limit: RateLimit | None = None,
        events_retention: timedelta | None = None,
        if_exists: IfExists = "compare",
    ) -> QueueInfo:
        """Creates a queue; returns when it can be used. None means the default.

        If the queue exists, nothing is changed, and `created` is False. With `if_exists` "compare"
        this raises `QueueExists` when a setting that is given differs from the one in force;
        settings that are None are not compared. With "keep" the queue is taken as it is, so that a
        program starts although an operator has changed its settings.

        `partitions`: 1 to 1,024, default 1. `lease_timeout`: 1 s to 24 h, default 30 s.
        `expire_timeout`: at most 10 years, default never. `max_attempts`: default 20; 0 means no
        limit. `dead_queue`: the queue that gets the dead letters, default `dead`, which is created
        when it is missing; empty: dead letters are dropped and counted. `dedup_window`: at most 7
        days, default 1 h. `partition_items_max`: default and 0 mean no limit. `replicas`: 1, 3 or
        5; default and 0 mean 3, or the number of nodes while it is below 3.

        `retry_delay`: how long an item waits after its first failed attempt, which is a retry that
        says no time, or a lapsed lease: 100 ms to 30 days, default not at all. `retry_backoff`: how
        the wait grows with the attempts, default "exponential", up to `retry_delay_max`, default 1
        h. `retry_jitter`: each wait is a random part of it, which is the default.
        `priority_aging`: in which time a waiting item gains one step of priority, 1 s to 30 days;
        default: it gains none. `dedup_until`: how long the `dedup_key` of an item counts, in the
        `dedup_window` ("window", the default), or until the item is done ("done").

        `kind`: "plain" (default), "fair", "keyed" or "executions"; it cannot be changed. A queue of
        executions (`querator.durable`) has no items of producers. In a fair queue the
        groups of items (`Item.group`) share the leases: by `fairness` "in_flight" (default) the
        group with the fewest leased items for its weight comes first, by "turns" each gets items in
        proportion to its weight. `groups`: weights and limits of single groups, at most 1,000.
        `group_leased_max`: how many items of any other group are leased at most; default and 0: no
        limit. In a keyed queue the items of one key (`Item.key`) are leased one after the other, or
        up to `key_leased_max` together to one consumer. `key_retry_blocks`: whether an item that is
        retried later keeps back the later items of its key, which is the default.

        `lease_paused`: consumers and readers get no items, and wait; default: no. `produce_paused`:
        producers are refused with `QueuePaused` when they have waited for their timeout; default:
        no. Dead letters, follow-ups and items of recurrences are stored also then. `breaker`:
        partitions stop their leases by themselves while too many items fail; default: never.

        `rate_limit`: how many items are leased in a time; default: any number. `lease_limit` (not
        less than `partitions`, up to 1,000,000): how many items are leased at a time; default and
        0: any number. Consumers wait. The partitions share both. `group_rate_limit`: how many items
        of each group are leased in a time that `groups` gives no rate of its own. `key_rate_limit`:
        the same for each key of a keyed queue.

        `events_retention` (1 min to 30 d): how long events are kept for `events`, up to 256 MiB of
        them in each partition; default and 0: none are recorded.
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
            "retry_delay": retry_delay,
            "retry_delay_max": retry_delay_max,
            "retry_backoff": retry_backoff,
            "retry_jitter": retry_jitter,
            "priority_aging": priority_aging,
            "dedup_until": dedup_until,
            "kind": kind,
            "fairness": fairness,
            "group_leased_max": group_leased_max,
            "groups": groups,
            "key_leased_max": key_leased_max,
            "key_retry_blocks": key_retry_blocks,
            "lease_paused": lease_paused,
            "produce_paused": produce_paused,
            "breaker": breaker,
            "rate_limit": rate_limit,
            "lease_limit": lease_limit,
            "group_rate_limit": group_rate_limit,
            "key_rate_limit": key_rate_limit,
            "events_retention": events_retention,
        }
        return await self._admin().create(name, settings, keep=if_exists == "keep")

    @typed
    async def get_queue(self, name: str) -> QueueInfo:
        """Returns the queue with its settings. Raises `QueueNotFound`."""
        return await self._admin().get(name)

    def list_queues(self) -> AsyncIterator[QueueInfo]:
        """Yields the queues of the namespace, ordered by name."""
        return self._admin().list()

    @typed
    async def update_queue(
        self, name: str, *, expected_version: int = 0, **changes: Unpack[QueueOptions]
    ) -> QueueInfo:
        """Changes only the settings that are named (as in `create_queue`; None: the default).
        Returns when all partitions have them. Raises `VersionConflict` when the version of the
        settings is not `expected_version` (0: any), and TypeError for an unknown setting.
        """
        check_like(self.create_queue, changes)
        return await self._admin().update(name, changes, expected_version=expected_version)

    @typed
    async def open_breaker(self, name: str) -> int:
        """Opens the breakers of the queue `name` by hand: for the open time of its settings nothing
        is leased. Then they try single items, as always. A breaker that is open stays open for the
        open time from now on. Returns how many partitions were in another state. Raises
        `InvalidArgument` for a queue without a breaker.
        """
        return await self._admin().set_breaker(name, BREAKER_STATE_OPEN)

    @typed
    async def close_breaker(self, name: str) -> int:
        """Closes the breakers of the queue `name` by hand; their counts begin at zero. The rest is
        as for `open_breaker`.
        """
        return await self._admin().set_breaker(name, BREAKER_STATE_CLOSED)

    @typed
    async def delete_queue(self, name: str) -> None:
        """Deletes the queue with all its items. When the call returns, no node stores anything in
        it. Raises `OutcomeUnknown` when nodes that might still store something have not answered in
        time; the queue is being deleted all the same.
        """
        await self._admin().delete(name)

    @typed
    async def stats(self, name: str, *, stale: bool = False) -> QueueStats:
        """Returns exact counts that include every change acknowledged before the call. `stale`: the
        counts may be behind, and are available while a partition has no leader.
        """
        return await self._admin().stats(name, stale=stale)

    @typed
    def list_groups(self, name: str, *, stale: bool = False) -> AsyncIterator[GroupStats]:
        """Yields the groups of the fair queue `name` that have items, with their counts. The order
        says nothing. `stale` as in `stats`. Raises `InvalidArgument` for another kind of queue.
        """
        return self._admin().groups(name, stale=stale)

    @typed
    def list_keys(
        self,
        name: str,
        *,
        key: str = "",
        blocked: bool = False,
        head_attempts_min: int = 0,
        stale: bool = False,
    ) -> AsyncIterator[KeyStats]:
        """Yields the keys of the keyed queue `name` that have items: only `key` if it is given,
        only those whose next item waits for its retry if `blocked`, and only those whose next item
        has had `head_attempts_min` attempts or more. The order says nothing. `stale` as in `stats`.
        Raises `InvalidArgument` for another kind of queue.
        """
        return self._admin().keys(
            name, key=key, blocked=blocked, head_attempts_min=head_attempts_min, stale=stale
        )

    @typed
    async def skip_key(
        self, name: str, key: str, item_id: ItemId | str, *, dead: bool = False
    ) -> bool:
        """Takes an item out of the keyed queue `name`, if it is the next one of `key` and not
        leased: `KeyStats.head`. The later items of the key can then be leased. The item is counted
        as cancelled, and cannot be restored. `dead`: it becomes a dead letter; raises
        `InvalidArgument` if the queue has no dead queue. Returns whether this call has taken it.
        """
        return await self._admin().skip_key(name, key, item_id, dead=dead)

    @typed
    def list_leases(
        self,
        name: str,
        *,
        client_id: str = "",
        older_than: timedelta | None = None,
        stale: bool = False,
    ) -> AsyncIterator[LeaseInfo]:
        """Yields the live leases of the queue `name`, in each partition the oldest first: only
        those of `client_id` if it is given, and only those that were granted `older_than` ago or
        earlier. `stale` as in `stats`.
        """
        return self._admin().leases(name, client_id=client_id, older_than=older_than, stale=stale)

    @typed
    def events(
        self,
        name: str,
        *,
        positions: Iterable[EventPosition | str] = (),
        start: EventsStart = "first",
        kinds: Collection[EventKind] | None = None,
        follow: bool = True,
    ) -> Events:
        """What happens to the items and partitions of the queue `name`, which needs the setting
        `events_retention`:

            async with client.events("mail", positions=saved) as events:
                async for event in events:
                    ...
                    saved = events.positions

        Within a partition, events come in the order of their positions, and those of different
        partitions in any order. The follower waits for further events, over changes of leaders and
        of the number of partitions; without `follow` it ends with the last one that there is when
        the block begins. `positions`: those that an earlier follower had; partitions without one
        begin at `start`: at the first event that is kept, or behind the last one ("end"). `kinds`:
        only events of these kinds.

        The block raises `EventsGone` when events after a position are not kept any more,
        `EventsOff` when the queue records none, and `QueueNotFound` or `QueueDeleting` when it is
        deleted. While no node or leader answers, a follower waits.
        """
        return Events(
            self._nodes(),
            self.namespace,
            name,
            positions=positions,
            start=start,
            kinds=kinds,
            follow=follow,
        )

    @typed
    async def release_leases(self, name: str, *lease_ids: str, count_attempt: bool = False) -> int:
        """Ends leases of consumers that hang, by their `LeaseInfo.lease_id`. Their items return to
        their places in the queue. What these consumers send later raises `LeaseLost`. Leases that
        have ended are left out. `count_attempt`: the attempts count, so that an item may become a
        dead letter. Returns the number of items that have returned. After an error some leases may
        have ended; call again.
        """
        return await self._admin().release_leases(name, lease_ids, count_attempt=count_attempt)

    @typed
    def peek(
        self,
        name: str,
        *,
        state: ItemState | None = None,
        after: ItemId | str | None = None,
        limit: int | None = None,
        stale: bool = False,
    ) -> AsyncIterator[PeekedItem]:
        """Yields items without leasing them, ordered by partition and sequence: at most `limit`,
        only those in `state` if it is given. `after`: only items after this one, which may be gone.
        `stale` as in `stats`.
        """
        return self._admin().peek(name, state=state, after=after, limit=limit, stale=stale)

    @typed
    async def get_item(
        self, name: str, item_id: ItemId | str, *, stale: bool = False
    ) -> PeekedItem | None:
        """Returns one item in any state, without leasing it. None: it is gone, or never was.
        `stale` as in `stats`.
        """
        found = await self._admin().get_items(name, [item_id], stale=stale)
        return found[0] if found else None

    @typed
    async def get_items(
        self, name: str, item_ids: Iterable[ItemId | str], *, stale: bool = False
    ) -> Sequence[PeekedItem]:
        """Returns items by id, in any state, without leasing them, in the order of the ids. Those
        that are gone are left out. `stale` as in `stats`.
        """
        return await self._admin().get_items(name, item_ids, stale=stale)

    @typed
    def dead_letters(self, name: str, *, limit: int | None = None) -> AsyncIterator[PeekedItem]:
        """Yields the dead letters of a queue (or of all queues of a dead queue) as items of the
        dead queue, at most `limit`.
        """
        return self._admin().dead_letters(name, limit=limit)

    @typed
    async def redrive(
        self,
        name: str,
        item_ids: Iterable[ItemId | str] | None = None,
        *,
        reasons: Iterable[DeadReason] = (),
        died_from: datetime | None = None,
        died_until: datetime | None = None,
        all_letters: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Moves dead letters back to the queue `name` in which they died: those with `item_ids`
        (ids in the dead queue; at most 1,000), or those with one of `reasons` that died from
        `died_from` on and before `died_until`; all with `all_letters`, or without a choice. Returns
        how many are being moved; with `dry_run`, how many would be. Letters that are leased or
        scheduled stay. An empty list of ids moves none. Raises ValueError for several choices, and
        for ids with `dry_run`.
        """
        some = letters(
            item_ids,
            reasons=reasons,
            died_from=died_from,
            died_until=died_until,
            all_letters=all_letters,
            dry_run=dry_run,
        )
        return await self._admin().redrive(name, some)

    @typed
    async def drop_dead_letters(
        self,
        name: str,
        item_ids: Iterable[ItemId | str] | None = None,
        *,
        reasons: Iterable[DeadReason] = (),
        died_from: datetime | None = None,
        died_until: datetime | None = None,
        all_letters: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Removes dead letters of the queue `name` for ever, chosen as by `redrive`; all with
        `all_letters`. Returns how many were removed; with `dry_run`, how many would be. Letters
        that are leased or scheduled stay. Raises ValueError for none or several choices.

        Removed letters are counted (`PartitionStats.cancelled` of the dead queue).
        """
        some = letters(
            item_ids,
            reasons=reasons,
            died_from=died_from,
            died_until=died_until,
            all_letters=all_letters,
            dry_run=dry_run,
        )
        if some.item_ids is None and some.chosen is None:
            raise ValueError(ONE_CHOICE)
        return await self._admin().drop(name, some)

    @typed
    async def cancel(self, name: str, item_ids: Iterable[ItemId | str]) -> Cancelled:
        """Removes items of the queue `name` that are ready, held or scheduled: at most 1,000. They
        are counted (`PartitionStats.cancelled`), are no dead letters, and cannot be restored. Once
        the call has returned, no consumer gets them. Leased items stay: their consumer decides.

        `produce` returns the ids. References of items are not searched for: keep the ids.
        """
        return await self._admin().cancel(name, item_ids)

    @typed
    async def purge(
        self, name: str, *, keep_scheduled: bool = False, dry_run: bool = False
    ) -> Purged:
        """Removes the items of the queue `name` that wait and were there when the call began:
        ready, held and scheduled ones. `keep_scheduled`: the latter stay. `dry_run`: only counts
        them. The settings of the queue stay, and so do leased items, items in batches of readers,
        and items on their way to another queue.

        A long purge takes several requests. After an error, call again: later items stay only if
        they are produced after that call.
        """
        return await self._admin().purge(name, keep_scheduled=keep_scheduled, dry_run=dry_run)

    @typed
    async def prioritize(
        self, name: str, item_ids: Iterable[ItemId | str], priority: int
    ) -> Prioritized:
        """Gives another priority to items of the queue `name` that are ready, held or scheduled: at
        most 1,000. An item that is ready goes to the tail of its new priority. An item that is
        leased gets another priority by its retry.
        """
        return await self._admin().prioritize(name, item_ids, priority)

    @typed
    async def repair_time(self, name: str, *, dry_run: bool = False) -> tuple[PartitionTime, ...]:
        """Resets the time of a queue's partitions to the clock, where a wrong clock had moved it
        ahead. Returns these partitions; `dry_run`: changes nothing. Raises `Unavailable` while the
        clocks of a majority do not agree.
        """
        return await self._admin().repair_time(name, dry_run=dry_run)

    @typed
    async def give_up_damaged(self, name: str, *, dry_run: bool = False) -> GivenUp:
        """Drops the items of the queue `name` whose payload is damaged on all replicas, and counts
        them (`PartitionStats.given_up`). `dry_run`: changes nothing. Keeps items that are leased or
        in a reader's batch, and items that a replica which does not answer may have undamaged.
        """
        return await self._admin().give_up_damaged(name, dry_run=dry_run)

    @typed
    async def staged_batches(self, name: str) -> StagedBatches:
        """Returns the batches that transactions have staged for the queue `name`. Their items are
        not visible yet.
        """
        return await Transactions(self._nodes(), self.namespace).list(name)

    @typed
    async def abort_batch(self, name: str, producer: str, batch: int) -> Aborted:
        """Drops the staged items of a batch, unless it is committed."""
        calls = Transactions(self._nodes(), self.namespace)
        return await calls.abort(name, producer, batch)

    @property
    def readers(self) -> Readers:
        """Calls of readers: items in named batches, for programs that must be able to read the same
        items again.
        """
        return Readers(self._nodes(), self.namespace)

    @property
    def schedules(self) -> ScheduledItems:
        """Calls about scheduled items: list and count them by due time, move, run and cancel
        them.
        """
        return ScheduledItems(self._nodes(), self.namespace)

    @property
    def recurrences(self) -> Recurrences:
        """Calls about recurrences: items that a queue produces by itself, at the times of a cron
        expression or of an interval.
        """
        return Recurrences(self._nodes(), self.namespace)

    # Locks.

    def _lock_calls(self) -> LockCalls:
        if self._locks is None:
            self._locks = LockCalls(
                self._nodes(),
                self._admin(),
                namespace=self.namespace,
                client_id=self.client_id,
                produce=self.produce,
            )
        return self._locks

    @typed
    def lock(
        self,
        name: str,
        *,
        lease_timeout: timedelta = LEASE_TIMEOUT_DEFAULT,
        timeout: timedelta | None = None,
        holder: str = "",
    ) -> Lock:
        """A lock that one program holds at a time, on whichever machine; used in an `async with`
        block, which waits for it at most `timeout` (None: no limit), or by `Lock.acquire`.

        The client extends its lease of the lock while the program holds it. A program that dies, or
        reaches no node, loses the lock after `lease_timeout` (2 s to 24 h); a longer one survives
        longer failures of nodes, and the next holder waits longer for one that died. The block is
        cancelled when the lock is lost, and raises `LockLost`. `holder` is the name that others
        see; default: that of the client. Each lock is a queue `lock.` + `name` with a partition of
        its own. Raises ValueError for a malformed name and options out of range.
        """
        tokens = TokenQueue(self._lock_calls(), "lock.", name, permits=1)
        return Lock(tokens, lease_timeout=lease_timeout, holder=holder, timeout=timeout)

    @typed
    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        lease_timeout: timedelta = LEASE_TIMEOUT_DEFAULT,
        timeout: timedelta | None = None,
        holder: str = "",
    ) -> Semaphore:
        """A semaphore: each of its `permits` (1 to 1,000) is held by one program at a time. Options
        as for `lock`; the queue is `semaphore.` + `name`. Programs that give another number of
        permits get `LockMismatch`; `Semaphore.resize` changes it.
        """
        tokens = TokenQueue(self._lock_calls(), "semaphore.", name, permits=permits)
        return Semaphore(tokens, lease_timeout=lease_timeout, holder=holder, timeout=timeout)

    @typed
    def election(
        self,
        name: str,
        identity: str = "",
        *,
        lease_timeout: timedelta = LEASE_TIMEOUT_DEFAULT,
        timeout: timedelta | None = None,
    ) -> Election:
        """An election of a leader; used in an `async with` block, which leads, or by
        `Election.campaign`. `identity` is what others see of the leader, such as its address; up to
        128 characters, default: the name of the client. The other options are those of `lock`; the
        queue is `election.` + `name`.
        """
        tokens = TokenQueue(self._lock_calls(), "election.", name, permits=1)
        return Election(tokens, lease_timeout=lease_timeout, holder=identity, timeout=timeout)

    @typed
    def rw_lock(
        self,
        name: str,
        *,
        readers: int = READERS_DEFAULT,
        lease_timeout: timedelta = LEASE_TIMEOUT_DEFAULT,
        holder: str = "",
    ) -> RwLock:
        """A lock that up to `readers` programs (1 to 1,000) hold to read, or one to write. All
        programs must give the same number. A writer leases one token for each reader, so give no
        more than are needed. The other options are those of `lock`; the queues are `rwlock.` and
        `rwlock-gate.` + `name`.
        """
        calls = self._lock_calls()
        return RwLock(
            TokenQueue(calls, "rwlock-gate.", name, permits=1),
            TokenQueue(calls, "rwlock.", name, permits=readers),
            lease_timeout=lease_timeout,
            holder=holder,
        )

    # Single calls.

    @typed
    async def produce(
        self, queue: str, *items: AnyItem, dedup_by_content: bool = False
    ) -> ProducedItems:
        """Stores items with one request; returns when all are durable. The items are stored once,
        also when the request is repeated. `dedup_by_content` as in `producer`.

        Raises `OutcomeUnknown` when the items may be stored, TypeError for a value that is not an
        item. For many items use a producer.
        """
        nodes = self._nodes()
        encoded = encode_items(map(keyed_by_content, items) if dedup_by_content else items)
        now = asyncio.get_running_loop().time()
        if self._identity is None or self._identity.is_too_old(now):
            self._identity, self._sequence = ProducerIdentity.new(now), 0
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
            refusal = error.__cause__ if isinstance(error.__cause__, RequestError) else error
            if isinstance(refusal, ProducerExpired):
                self._identity = None
            if isinstance(error, OutcomeUnknown):
                raise produce_unknown(len(items), refusal) from error.__cause__
            raise
        response = queue_service_pb2.ProduceResponse.FromString(answer)
        return ProducedItems(((len(items), produced_runs(response)),), response.durable)

    @typed
    async def produce_and_wait(
        self,
        queue: str,
        item: AnyItem,
        *,
        timeout: timedelta = REQUEST_TIMEOUT_DEFAULT,  # noqa: ASYNC109
    ) -> bytes:
        """Stores an item and waits until it has ended; returns what its consumer has returned by
        `complete(result=…)`, empty if it returned nothing.

        The result is kept for the item's `keep_result` after the end (None: 10 min). Raises
        `ItemDied` with the reason and the last error when the item became a dead letter,
        `ItemRemoved` when it was cancelled, purged or replaced, and `ResultTimeout`, a TimeoutError
        with its `item_id`, when it has not ended within `timeout`, at most 15 min. The item stays
        in the queue: `result` waits on. Raises as `produce`.

        An item that is not stored because its `dedup_key` is known waits for the first one. That
        one must have asked for its result, too; else this raises `ResultNotKept`.
        """
        (found,) = await self.produce_and_wait_all(queue, item, timeout=timeout)
        return found.value()

    @typed
    async def produce_and_wait_all(
        self,
        queue: str,
        *items: AnyItem,
        timeout: timedelta = REQUEST_TIMEOUT_DEFAULT,  # noqa: ASYNC109
    ) -> list[ItemResult]:
        """As `produce_and_wait`, for up to 1,000 items. Returns their results in the order of the
        items, when all have ended or at the timeout: the `outcome` of an item that has not ended is
        "waiting". `ItemResult.value` returns what the consumer of an item has returned, or raises.
        """
        until = asyncio.get_running_loop().time() + timeout.total_seconds()
        produced = await self.produce(queue, *map(asking, items))
        left = timedelta(seconds=max(0.0, until - asyncio.get_running_loop().time()))
        return await self.results(queue, [one.id for one in produced], timeout=left)

    @typed
    async def result(
        self,
        queue: str,
        item_id: ItemId | str,
        *,
        timeout: timedelta = REQUEST_TIMEOUT_DEFAULT,  # noqa: ASYNC109
    ) -> bytes:
        """Waits until an item has ended that was produced with `keep_result`; returns and raises as
        `produce_and_wait`. With a `timeout` of 0 it does not wait.
        """
        (found,) = await self.results(queue, [item_id], timeout=timeout)
        return found.value()

    @typed
    async def results(
        self,
        queue: str,
        item_ids: Iterable[ItemId | str],
        *,
        timeout: timedelta = REQUEST_TIMEOUT_DEFAULT,  # noqa: ASYNC109
    ) -> list[ItemResult]:
        """As `result`, for up to 1,000 items; returns as `produce_and_wait_all`."""
        return await wait_all(self._nodes(), self.namespace, queue, item_ids, timeout)

    @typed
    async def lease(
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
    ) -> list[LeasedItem]:
        """Leases up to `max_items` ready items; waits up to `wait` for the first one. Returns an
        empty list when no item became ready. Only `extend` extends these leases.

        `lease_timeout`: 1 s to 24 h; None: the items' own, or the queue's. `max_bytes` limits the
        answer; 0: 3 MiB.

        `item_ids`: only these items, those of them that are ready; up to `max_items`. `kinds` and
        `attributes`: only items of one of the kinds, with all of the attributes, among the first
        1,000 ready items of each partition. Such items are leased out of turn, in plain queues
        only. Such a call does not wait.

        `complete_on_delivery`: the items are completed before they are sent, so that each is
        delivered at most once. Items that are under way when something fails are lost.
        """
        ids = [] if item_ids is None else id_texts(item_ids)
        if item_ids is not None and not ids:
            return []
        batches = await self._holder(queue).lease(
            client_id=self.client_id,
            max_items=max_items,
            max_bytes=max_bytes,
            wait=wait,
            lease_timeout=lease_timeout,
            item_ids=ids,
            chosen=lease_filter(kinds, attributes),
            completes=complete_on_delivery,
        )
        return [item for batch in batches for item in batch]

    def _holder(self, queue: str) -> SingleHolder:
        nodes = self._nodes()
        holder = self._holders.get(queue)
        if holder is None:
            holder = SingleHolder(nodes, namespace=self.namespace, queue=queue)
            self._holders[queue] = holder
        return holder

    @typed
    async def complete(
        self,
        queue: str,
        *held: Held,
        check: bool = True,
        follow_ups: FollowUps | None = None,
        result: bytes | None = None,
    ) -> list[SettleOutcome]:
        """Completes leased items. Each of `held` is a leased item or batch, a `LeaseRef`, or a
        lease id (all items of the lease). `follow_ups` and `result` as in `LeasedItem.complete`;
        `held` is then one, and with `result` it names one item.

        Returns one outcome for each of `held`. With `check`, raises `LeaseLost` when any item was
        lost; the other items are completed nevertheless.
        """
        if result is not None and follow_ups is not None:
            raise ValueError("give either result or follow_ups")
        outcomes = await settle_held(
            self._nodes(), self.namespace, queue, complete_verb(follow_ups), held, result=result
        )
        if check:
            raise_lost(outcomes)
        return outcomes

    @typed
    async def retry(
        self,
        queue: str,
        *held: Held,
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

        `count_attempt=False` without a time is a release: the items go back to their places, as if
        they had not been leased. `priority` None: they keep their priorities. `attributes` take the
        place of all attributes that the items have; None: they keep them. `clear_checkpoint`: they
        lose their checkpoints. Arguments, outcomes and errors are otherwise as in `complete`.
        """
        verb = retry_verb(
            delay=delay,
            retry_at=retry_at,
            error=error,
            dead=dead,
            count_attempt=count_attempt,
            priority=priority,
            attributes=attributes,
            follow_ups=follow_ups,
            clear_checkpoint=clear_checkpoint,
        )
        outcomes = await settle_held(self._nodes(), self.namespace, queue, verb, held)
        if check:
            raise_lost(outcomes)
        return outcomes

    @typed
    async def extend(
        self,
        queue: str,
        *leases: LeasedItem | str,
        lease_timeout: timedelta | None = None,
        client_id: str = "",
        check: bool = True,
    ) -> list[ExtendOutcome]:
        """Extends leases so that they end `lease_timeout` from now (None: the items' own, or the
        queue's), never earlier than before.

        Without `leases`, extends all leases of `client_id` (default: this client's) in the queue.
        Raises `LeaseLost` for a lost lease; with `check=False` its `remaining` is zero instead.
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

    @typed
    async def save_checkpoint(
        self,
        queue: str,
        lease_id: str,
        item: ItemId | str,
        data: bytes,
        *,
        lease_timeout: timedelta | None = None,
    ) -> ExtendOutcome:
        """Saves a checkpoint with an item of a lease, and extends the lease in the same step, for
        programs that have only their ids. See `LeasedItem.save_checkpoint`. Of two calls for one
        item, the one that is executed last wins.
        """
        check_checkpoint("data", data)
        seq = (ItemId.parse(item, field="item") if isinstance(item, str) else item).seq
        message = queue_service_pb2.ItemCheckpoint(lease_id=lease_id, seq=seq, data=data)
        (outcome,) = await extend(
            self._nodes(),
            self.namespace,
            queue,
            [lease_id],
            lease_timeout,
            checkpoints=(message,),
        )
        if not outcome.remaining or outcome.lost_checkpoints:
            raise lease_lost(lease_id)
        return outcome

    # Streams.

    @typed
    def producer(
        self,
        queue: str,
        *,
        batch_items: int = producers.BATCH_ITEMS_DEFAULT,
        batch_bytes: int = producers.BATCH_BYTES_DEFAULT,
        linger: timedelta | None = None,
        ordered: bool = True,
        max_in_flight: int = producers.IN_FLIGHT_DEFAULT,
        dedup_by_content: bool = False,
    ) -> Producer:
        """A producer for many items, one by one or in bulk; used in an `async with` block.

        `ordered`: the items keep their order and go to one partition of the queue. To load all
        partitions use `ordered=False`, or several producers. At most `max_in_flight` requests of at
        most `batch_items` and `batch_bytes` are unanswered at a time, which also bounds the memory.
        `linger`: how long a batch gathers while requests are unanswered; None: about as long as
        answers take, 2 to 10 ms. `dedup_by_content`: items without a `dedup_key` get one that is a
        hash of their kind and payload. Raises ValueError for an option out of range.
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
            dedup_by_content=dedup_by_content,
        )

    @typed
    def consumer(
        self,
        queue: str,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        prefetch_items: int | None = None,
        prefetch_bytes: int = PREFETCH_BYTES_DEFAULT,
        batch_items: int = limits.STREAM_BATCH_ITEMS_DEFAULT,
        batch_bytes: int = 0,
        lease_timeout: timedelta | None = None,
        auto_extend: bool = True,
        release_on_disconnect: bool = False,
        idle_timeout: timedelta | None = None,
    ) -> Consumer:
        """A consumer that leases items as fast as they are settled; used in an `async with` block.

        The consumer holds at most `prefetch_items` unsettled items, together at most
        `prefetch_bytes`. None: `run` holds as many as it calls handlers, and other programs 200. A
        delivery has at most `batch_items` items and `batch_bytes` bytes (0: 3 MiB). `auto_extend`:
        leases last as long as the consumer's connection lives. `release_on_disconnect`: a broken
        connection gives the items back at once. Otherwise they stay leased to this consumer, and
        lapse if it does not connect again. `idle_timeout` ends the iteration when no item came for
        that long. `concurrency` is the default of `Consumer.run`. Raises ValueError for an option
        out of range.
        """

        async def extend_leases(
            lease_ids: list[str],
            lease_timeout: timedelta | None,
            checkpoints: Sequence[queue_service_pb2.ItemCheckpoint],
        ) -> list[ExtendOutcome]:
            nodes = self._nodes()
            return await extend(
                nodes, self.namespace, queue, lease_ids, lease_timeout, checkpoints=checkpoints
            )

        async def max_attempts() -> int:
            return (await self.get_queue(queue)).max_attempts

        return Consumer(
            self._nodes(),
            namespace=self.namespace,
            queue=queue,
            client_id=self.client_id,
            extend=extend_leases,
            max_attempts=max_attempts,
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
