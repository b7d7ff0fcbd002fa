"""The door of the service room: what the transports call, and what the node tells it.

A call is refused before it is taken on (names, limits, admission), routed, proposed, and answered
when it is applied. Cancelling a call is always safe: its command lives on, and what nobody waits
for any more is given back (leases) or remembered by the partition (produces with an identity).
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from querator.model.calls import (
    BrowseCall,
    CompleteCall,
    ExtendCall,
    ExtendReply,
    LeaseCall,
    LeaseReply,
    ProduceCall,
    ProduceReply,
    RetryCall,
    Routing,
    SettleReply,
    SubscribeCall,
)
from querator.model.commands import PartitionEffects
from querator.model.errors import invalid
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.limits import (
    LEASES_WAITING_MAX,
    PRODUCE_BYTES_HELD_MAX,
    PRODUCE_BYTES_WAITING_MAX,
    PRODUCES_HELD_MAX,
    PRODUCES_WAITING_MAX,
    REPLY_BYTES_DEFAULT,
    SETTLES_WAITING_MAX,
    STOP_WAIT_MS_MAX,
)
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueState
from querator.model.transactions import ProducerTotals
from querator.model.txn_calls import (
    AbortCall,
    AbortReply,
    CommitCall,
    CommitReply,
    StageCall,
    StageReply,
    TxnList,
)
from querator.service import settle
from querator.service.admission import Held, Sending
from querator.service.departed import Departed
from querator.service.exchange.node_exchange import Neighbours
from querator.service.lease.dispatcher import LeaseDesk
from querator.service.lease.replies import PayloadCache, load
from querator.service.lease.subscriptions import Subscription
from querator.service.lease.waiter import Waiter
from querator.service.moves import Mover
from querator.service.produce.calls import Producing
from querator.service.reading.browsing import Browsing, scan_slots
from querator.service.reading.queries import Reads, check_waited, leaderless
from querator.service.reading.readers import ReaderService
from querator.service.repair.aside import AsideBlocks
from querator.service.repair.damage import Damage
from querator.service.routing.answers import QueryAnswers
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.router import Router, deadline_after
from querator.service.transactions.calls import Transactions, last_partition
from querator.service.transactions.driver import Committer
from querator.service.validate import (
    check_leases,
    check_partition,
    gone,
)

if TYPE_CHECKING:
    from querator.placement.placement import Placement
    from querator.raft.clock import Clock
    from querator.raft.host import Host
    from querator.service.routing.forwarder import Forwarder
    from querator.service.routing.views import PartitionView
    from querator.storage.environment import Environment

T = TypeVar("T")

_Named = (
    BrowseCall | ProduceCall | LeaseCall | SubscribeCall | CompleteCall | RetryCall | ExtendCall
    | StageCall | CommitCall | AbortCall
)  # fmt: skip


class QueueService:
    """Produce, lease, settle, subscribe. Made on the event loop that every method runs on.

    The owner passes on the events of the host (`on_effects`, `on_leadership`, of any group) and
    each new map (`on_map`), and calls `stop` once.
    """

    def __init__(
        self,
        *,
        host: "Host",
        placement: "Placement",
        environment: "Environment",
        clock: "Clock",
        forwarder: "Forwarder | None" = None,
        out_of_reach: Callable[[], Collection[str]] = frozenset,
        born: str = "",
        produces_max: int = PRODUCES_WAITING_MAX,
        produce_bytes_max: int = PRODUCE_BYTES_WAITING_MAX,
        settles_max: int = SETTLES_WAITING_MAX,
        leases_max: int = LEASES_WAITING_MAX,
    ) -> None:
        """`forwarder`, `out_of_reach` and `born` as of `Router`."""
        self._environment = environment
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        aside, answers = AsideBlocks(), QueryAnswers()
        self._router = Router(
            host,
            lambda: placement.map,
            forwarder,
            answers=answers,
            amend=aside.amend,
            out_of_reach=out_of_reach,
            born=born,
        )
        self._directory = QueueDirectory(lambda: placement.map, self._router)
        self.damage = Damage(
            host,
            self._router,
            aside=aside,
            environment=environment,
            on_effects=self._on_effects,
        )
        self._committer = Committer(self._router, self._directory, environment)
        self._reads = Reads(
            host=host,
            router=self._router,
            environment=environment,
            damage=self.damage,
            transactions=self._committer.answer,
            answers=answers,
        )
        self._mover = Mover(self._router, self._directory, environment, self.damage)
        self._departed = Departed(self._router, self._directory, environment)
        self._cache = PayloadCache()
        self._durable = environment.durable
        self._produces = Held(
            "produces", calls_max=PRODUCES_HELD_MAX, bytes_max=PRODUCE_BYTES_HELD_MAX
        )
        self._settles = Held("settles", calls_max=settles_max)
        self._leases = Held("lease calls and streams", calls_max=leases_max)
        self._browses = scan_slots()
        producing = Sending("produces", calls_max=produces_max, bytes_max=produce_bytes_max)
        self._settling = Sending("settles", calls_max=settles_max)
        self._readers = ReaderService(
            router=self._router, directory=self._directory, reads=self._reads, calls=self._leases
        )
        self._producing = Producing(
            self._router, self._directory, budget=producing, durable=environment.durable
        )
        self._transactions = Transactions(
            self._router, self._directory, self._producing, durable=environment.durable
        )
        self._desks: dict[QueueId, LeaseDesk] = {}
        self._subscriptions: dict[Subscription, QueueId] = {}
        self._neighbours = (
            None
            if forwarder is None
            else Neighbours(
                forwarder,
                host=host,
                router=self._router,
                environment=environment,
                cache=self._cache,
                damage=self.damage,
                aside=aside,
                answers=answers,
                desks=self._desks,
            )
        )

    @property
    def router(self) -> Router:
        return self._router

    @property
    def directory(self) -> QueueDirectory:
        return self._directory

    @property
    def mover(self) -> Mover:
        return self._mover

    @property
    def reads(self) -> Reads:
        return self._reads

    @property
    def readers(self) -> ReaderService:
        return self._readers

    @property
    def neighbours(self) -> Neighbours | None:
        """What other nodes ask of this one; None for a node that is alone."""
        return self._neighbours

    @property
    def admissions(self) -> tuple[Held, Held, Held]:
        """What has been taken on and not answered: produces, settles, lease calls and streams."""
        return self._produces, self._settles, self._leases

    async def routing(self, namespace: str, name: str) -> Routing:
        """Who is in the cluster, and who leads the partitions of the queue, if one is named."""
        leaders: tuple[str, ...] = ()
        if name:
            queue = await self._directory.find(namespace, name)
            leaders = tuple(
                self._router.name if view.local else view.leader
                for view in self._router.views(queue)[: queue.shares]
            )
        placed = self._router.map
        nodes = tuple((node.name, node.client_address) for node in placed.nodes)
        return Routing(placed.epoch, self._router.name, nodes, leaders)

    async def _queue(self, call: _Named, *, partition: int = 0) -> Queue:
        """The queue that the call names, with the partition if it has it. Raises QueratorError."""
        return await self._directory.find(call.namespace, call.queue, partition)

    # --- produce -----------------------------------------------------------------------------

    async def produce(self, call: ProduceCall) -> ProduceReply:
        """See `service.produce.split` for which partition takes what. Raises QueratorError."""
        queue = await self._queue(call)
        with self._produces.held(len(call.items)):
            return await self._producing.produce(
                queue, call, deadline=deadline_after(call.timeout_ms)
            )

    # --- transactions ------------------------------------------------------------------------

    async def stage(self, call: StageCall) -> StageReply:
        """See `service.transactions.calls`, also for the other calls. Raises QueratorError."""
        queue = await self._queue(call, partition=call.partition or 0)
        with self._produces.held(len(call.items)):
            deadline = deadline_after(call.timeout_ms)
            return await self._transactions.stage(queue, call, deadline=deadline)

    async def commit(self, call: CommitCall) -> CommitReply:
        queue = await self._queue(call, partition=last_partition(call))
        with self._settles.held():
            deadline = deadline_after(call.timeout_ms)
            return await self._transactions.commit(queue, call, deadline=deadline)

    async def abort(self, call: AbortCall) -> AbortReply:
        queue = await self._queue(call)
        with self._settles.held():
            deadline = deadline_after(call.timeout_ms)
            return await self._transactions.abort(queue, call, deadline=deadline)

    async def staged(self, namespace: str, name: str, *, timeout_ms: int = 0) -> TxnList:
        deadline = deadline_after(timeout_ms)
        queue = await self._directory.find(namespace, name)
        return await self._transactions.staged(queue, deadline=deadline)

    async def producer_totals(
        self, namespace: str, name: str, producer: str, *, timeout_ms: int = 0
    ) -> ProducerTotals:
        deadline = deadline_after(timeout_ms)
        queue = await self._directory.find(namespace, name)
        return await self._transactions.totals(queue, producer, deadline=deadline)

    # --- lease -------------------------------------------------------------------------------

    async def lease(self, call: LeaseCall) -> LeaseReply:
        """Waits up to `wait_ms` for the first ready item; empty when none came. Raises
        QueratorError: LEASE_ENDED, ITEM_TOO_LARGE, OUTCOME_UNKNOWN (naming the partition), ….
        """
        queue = await self._queue(call, partition=call.partition or 0)
        if call.partition is not None:
            check_partition(call.partition, queue)
        with self._leases.held():
            return await self._lease(queue, call)

    async def _lease(self, queue: Queue, call: LeaseCall) -> LeaseReply:
        views = self._router.views(queue)
        if not call.wait_ms and not any(view.led for view in views):
            raise leaderless(self._router, queue)
        if not call.wait_ms and self._neighbours is not None:
            await self._neighbours.look_around(queue)
        desk = self._desk(queue)
        deadline = self._loop.time() + call.wait_ms / 1000
        while True:
            done: asyncio.Future[None] = self._loop.create_future()
            waiter = Waiter(
                client_id=call.client_id,
                request_id=call.request_id or self._router.lease_name(),
                rename=None if call.request_id else self._router.lease_name,
                items_max=call.max_items,
                bytes_max=call.max_bytes or REPLY_BYTES_DEFAULT,
                lease_timeout_ms=call.lease_timeout_ms,
                answer=partial(_set, done),
                patient=call.wait_ms > 0,
                pinned=None if call.partition is None else views[call.partition],
            )
            await self._answer(desk, waiter, done, deadline)
            if waiter.error is not None and not waiter.grants:
                raise waiter.error
            grants, waiter.grants = waiter.grants, []
            if not grants:
                check_waited(self._router, queue, call, views)
                return LeaseReply((), self._durable)
            now_s = self._clock.monotonic_s()
            queue = self._router.map.get(queue.id) or queue
            try:
                loaded = load(self._environment, self._cache, queue, grants, now_s=now_s)
            except Exception:
                desk.release(grants)
                raise
            desk.release(loaded.late)
            self.damage.give_back(loaded.unread)
            batches = loaded.batches
            # A request that names itself has had its lease: only another name gets another one.
            if batches or call.request_id or self._loop.time() >= deadline:
                return LeaseReply(tuple(batches), self._durable)

    async def _answer(
        self, desk: LeaseDesk, waiter: Waiter, done: "asyncio.Future[None]", deadline: float
    ) -> None:
        desk.join(waiter)
        timer = None
        if waiter.patient and not done.done():
            timer = self._loop.call_at(deadline, desk.end_wait, waiter)
        try:
            await done
        except asyncio.CancelledError:
            desk.abandon(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _desk(self, queue: Queue) -> LeaseDesk:
        desk = self._desks.get(queue.id)
        if desk is None:
            desk = self._desks[queue.id] = LeaseDesk(
                queue.id,
                self._router.views(queue),
                router=self._router,
                clock=self._clock,
                elsewhere=self._neighbours,
            )
        return desk

    async def subscribe(self, call: SubscribeCall) -> Subscription:
        """Opens a lease stream; its owner closes it. Raises QueratorError."""
        queue = await self._queue(call)
        release = self._leases.held().leave
        subscription = Subscription(
            call,
            queue,
            service=self,
            desk=self._desk(queue),
            router=self._router,
            environment=self._environment,
            cache=self._cache,
            damage=self.damage,
            clock=self._clock,
            left=partial(self._left, release),
        )
        self._subscriptions[subscription] = queue.id
        return subscription

    def _left(self, release: Callable[[], None], subscription: Subscription) -> None:
        del self._subscriptions[subscription]
        release()

    # --- browse ------------------------------------------------------------------------------

    async def browse(self, call: BrowseCall, caller: str = "") -> Browsing:
        """Opens a scan for a connection, `caller`; its owner closes it. Raises QueratorError."""
        queue = await self._queue(call, partition=call.partition)
        check_partition(call.partition, queue)
        view = self._router.views(queue)[call.partition]
        return Browsing(call, view, router=self._router, left=self._browses.enter(caller))

    # --- settle ------------------------------------------------------------------------------

    async def complete(self, call: CompleteCall) -> SettleReply:
        """One outcome per lease, in order; see `service.settle`. Raises QueratorError."""
        return await self._settle(call)

    async def retry(self, call: RetryCall) -> SettleReply:
        """As `complete`."""
        return await self._settle(call)

    async def _settle(self, call: CompleteCall | RetryCall) -> SettleReply:
        queue = await self._queue(call)
        check_leases(call.leases)
        with self._settles.held():
            return await settle.settle(
                self._router,
                self._directory,
                queue,
                call,
                budget=self._settling,
                deadline=deadline_after(call.timeout_ms),
            )

    async def extend(self, call: ExtendCall) -> ExtendReply:
        """One outcome per lease in order, or for a client by partition and lease.

        Fails as a whole when a partition fails, for repeating it harms nothing.
        """
        queue = await self._queue(call)
        if not call.lease_ids and not call.client_id:
            raise invalid("client_id", "must not be empty without lease_ids")
        with self._settles.held():
            return await settle.extend(
                self._router,
                self._directory,
                queue,
                call,
                clock=self._clock,
                budget=self._settling,
                deadline=deadline_after(call.timeout_ms),
            )

    # --- what the node says ------------------------------------------------------------------

    def on_effects(self, group: GroupId, effects: PartitionEffects) -> None:
        """A partition's apply has left it so; what is not a partition is ignored."""
        if group != PLACEMENT_GROUP:
            self._on_effects(group, self.damage.without_aside(group, effects))

    def _on_effects(self, group: GroupId, effects: PartitionEffects) -> None:
        view = self._router.on_effects(group, effects)
        if self._neighbours is not None:
            self._neighbours.on_effects(view)
        if view.desk is not None:
            view.desk.look(view)
        if effects.outbox:
            self._mover.look(view)
        if group in self._mover.full:
            self._mover.on_items(group, effects.occupied)
        self._committer.look(view)

    def on_leadership(self, group: GroupId, leads: bool) -> None:
        if group == PLACEMENT_GROUP:
            self._router.on_leadership(group, leads)
            return
        view = self._router.on_leadership(group, leads)
        self._look(view)
        self._mover.look(view)
        self._departed.look(view)
        self._committer.look(view)

    def on_hang(self, hangs: bool) -> None:
        """The raft thread hangs, or goes on."""
        for view in self._router.on_hang(hangs):
            if view.group != PLACEMENT_GROUP:
                self._look(view)

    def on_leader(self, group: GroupId, node: NodeKey | None) -> None:
        """Who leads a group that has a replica here, as far as the raft room knows."""
        view = self._router.on_leader(group, node)
        if group != PLACEMENT_GROUP:
            self._look(view)

    def _look(self, view: "PartitionView") -> None:
        if self._neighbours is not None:
            self._neighbours.on_leadership(view)
        if view.desk is not None:
            view.desk.look(view)

    def on_map(self, map: PlacementMap) -> None:
        """Ends what waits at queues that are gone or going."""
        for queue_id, desk in list(self._desks.items()):
            queue = map.get(queue_id)
            if queue is not None and queue.state is not QueueState.DELETING:
                continue
            error = gone(queue)
            desk.end(error)
            del self._desks[queue_id]
            if self._neighbours is not None:
                self._neighbours.forget(desk)
            for subscription, subscribed in list(self._subscriptions.items()):
                if subscribed == queue_id:
                    subscription.end(error)
        self._router.on_map(map)
        for queue_id, desk in self._desks.items():
            queue = map.get(queue_id)
            assert queue is not None
            desk.follow(self._router.views(queue))
        self._producing.on_map()
        self._directory.on_map()
        self._mover.on_map()
        self._departed.on_map()
        self.damage.on_map()

    async def stop(self) -> None:
        """Takes nothing more, ends the waits of leases and streams (all this with UNAVAILABLE), and
        returns when the commands in flight are answered, or after STOP_WAIT_MS_MAX. The host must
        still run.
        """
        self._router.stop()
        self._mover.stop()
        for subscription in list(self._subscriptions):
            subscription.end(stopping_error())
        for desk in self._desks.values():
            desk.stop()
        if self._neighbours is not None:
            self._neighbours.stop()
        await self._departed.stop()
        await self._committer.stop()
        await self.damage.stop()
        await self._router.drained(STOP_WAIT_MS_MAX / 1000)
        await self._reads.close()


def _set(done: "asyncio.Future[None]", _: Waiter) -> None:
    if not done.done():
        done.set_result(None)
