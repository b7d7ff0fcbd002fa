"""Lease calls and lease streams, from the call to the dispatcher of its queue."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from querator.model.calls import (
    CompleteCall,
    LeaseCall,
    LeasedRanges,
    LeasedRun,
    LeaseReply,
    SubscribeCall,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import QueueId
from querator.model.limits import REPLY_BYTES_DEFAULT
from querator.model.placement_map import PlacementMap
from querator.model.queues import Queue, QueueKind, QueueState
from querator.partition import masks
from querator.service.admission import ConnectionBudget
from querator.service.item_ids import by_partition, check_partitions
from querator.service.lease.chosen import ChosenLeases
from querator.service.lease.dispatcher import LeaseDispatcher, OtherNodes
from querator.service.lease.replies import PayloadCache, load
from querator.service.lease.subscriptions import Subscription
from querator.service.lease.supply import PartitionSupply, Supplies
from querator.service.lease.waiter import Grant, Waiter
from querator.service.reading.queries import check_waited, leaderless
from querator.service.repair.damage import DamagedBlocks
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.outcomes import stopping_error
from querator.service.routing.router import Router
from querator.service.settle import SettleService
from querator.service.validate import check_partition, gone, not_of_items

if TYPE_CHECKING:
    from querator.raft.clock import Clock
    from querator.storage.environment import Environment


class LeaseService:
    """Lease calls and streams of this node. Belongs to one event loop. Calls raise
    QueratorError.
    """

    def __init__(
        self,
        *,
        router: Router,
        directory: QueueDirectory,
        supplies: Supplies,
        dispatchers: dict[QueueId, LeaseDispatcher],
        other_nodes: OtherNodes | None,
        settling: SettleService,
        damage: DamagedBlocks,
        environment: "Environment",
        cache: PayloadCache,
        clock: "Clock",
        calls: ConnectionBudget,
    ) -> None:
        """`dispatchers`: by queue, of the queues that this node has leased from. This service keeps
        them; the exchange with other nodes reads them. `other_nodes` is None when there are no
        other nodes. `calls` counts unanswered calls and open streams.
        """
        self._router = router
        self._directory = directory
        self._supplies = supplies
        self._dispatchers = dispatchers
        self._other_nodes = other_nodes
        self._settling = settling
        self._damage = damage
        self._environment = environment
        self._cache = cache
        self._clock = clock
        self._calls = calls
        self._durable = environment.durable
        self._loop = asyncio.get_running_loop()
        self._subscriptions: dict[Subscription, QueueId] = {}
        self._chosen = ChosenLeases(router=router, clock=clock)

    async def lease(self, call: LeaseCall) -> LeaseReply:
        """Waits up to `wait_ms` for the first ready item; the reply is empty when none came. Raises
        QueratorError: LEASE_ENDED, ITEM_TOO_LARGE, OUTCOME_UNKNOWN (naming the partition), ….
        """
        queue = await self._directory.find(call.namespace, call.queue, call.partition or 0)
        if queue.settings.kind is QueueKind.EXECUTIONS and not call.activations:
            raise not_of_items(queue)
        if call.partition is not None:
            check_partition(call.partition, queue)
        with self._calls.held():
            if call.chosen is None:
                reply = await self._lease(queue, call)
            else:
                reply = await self._lease_chosen(queue, call)
            return await self._completed(queue, reply) if call.completes else reply

    async def _lease(self, queue: Queue, call: LeaseCall) -> LeaseReply:
        routes = self._router.routes(queue)
        if not call.wait_ms and not any(route.is_reachable for route in routes):
            raise leaderless(self._router, queue)
        if not call.wait_ms and self._other_nodes is not None:
            await self._other_nodes.look_around(queue)
        dispatcher = self._dispatcher(queue)
        pinned = None
        if call.partition is not None:
            pinned = self._supplies.of(routes[call.partition])
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
                pinned=pinned,
            )
            await self._answer(dispatcher, waiter, done, deadline)
            if waiter.error is not None and not waiter.grants:
                raise waiter.error
            grants, waiter.grants = waiter.grants, []
            if not grants:
                check_waited(self._router, queue, call, routes)
                return LeaseReply((), self._durable)
            batches = self._loaded(queue, dispatcher, grants)
            # A request id of the caller stands for one lease; only another id gets another lease.
            if batches or call.request_id or self._loop.time() >= deadline:
                return LeaseReply(tuple(batches), self._durable)

    async def _completed(self, queue: Queue, reply: LeaseReply) -> LeaseReply:
        """The items of the reply, completed; without those whose lease has ended meanwhile, and
        those that may not be completed. Raises QueratorError when such items are all that there is:
        OUTCOME_UNKNOWN when they may be completed, which are then lost.
        """
        if not reply.batches:
            return reply
        leases = tuple(
            LeasedRanges(
                batch.lease_id,
                masks.merge_ranges(
                    (batch.loaded.first_seq + ordinal, 1)
                    for ordinal in batch.loaded.ordinals or range(batch.loaded.count)
                ),
            )
            for batch in reply.batches
        )
        call = CompleteCall(queue.namespace, queue.name, leases, on_delivery=True)
        outcomes = (await self._settling.settle(call)).outcomes
        batches = tuple(
            batch
            for batch, outcome in zip(reply.batches, outcomes, strict=True)
            if outcome.error is None
        )
        for outcome in outcomes:
            if not batches and outcome.error not in (None, ErrorCode.LEASE_LOST):
                raise QueratorError(
                    outcome.error,
                    f"the items of lease {outcome.lease_id} could not be completed when they were "
                    "to be delivered",
                    field="complete_on_delivery",
                )
        return LeaseReply(batches, reply.durable)

    async def _lease_chosen(self, queue: Queue, call: LeaseCall) -> LeaseReply:
        assert call.chosen is not None
        item_ids = call.chosen.item_ids
        if item_ids:
            queue, known = await self._directory.reaching(queue, max(by_partition(item_ids)))
            check_partitions(item_ids, queue, known=known)
        dispatcher = self._dispatcher(queue)
        grants = await self._chosen.grants(queue, call, dispatcher.release)
        return LeaseReply(tuple(self._loaded(queue, dispatcher, grants)), self._durable)

    async def granted_before(self, queue: Queue, call: LeaseCall) -> LeaseReply:
        """The live leases that an earlier attempt of a call was granted: its answer was lost."""
        with self._calls.held():
            dispatcher = self._dispatcher(queue)
            grants = await self._chosen.granted_before(queue, call, dispatcher.release)
            return LeaseReply(tuple(self._loaded(queue, dispatcher, grants)), self._durable)

    def _loaded(
        self, queue: Queue, dispatcher: LeaseDispatcher, grants: list[Grant]
    ) -> list[LeasedRun]:
        """The items of the grants. Leases that are not delivered are released."""
        queue = self._router.map.get(queue.id) or queue
        now_s = self._clock.monotonic_s()
        try:
            loaded = load(self._environment, self._cache, queue, grants, now_s=now_s)
        except Exception:
            dispatcher.release(grants)
            raise
        dispatcher.release(loaded.late)
        self._damage.give_back(loaded.unread)
        return loaded.batches

    async def _answer(
        self,
        dispatcher: LeaseDispatcher,
        waiter: Waiter,
        done: "asyncio.Future[None]",
        deadline: float,
    ) -> None:
        dispatcher.join(waiter)
        timer = None
        if waiter.patient and not done.done():
            timer = self._loop.call_at(deadline, dispatcher.end_wait, waiter)
        try:
            await done
        except asyncio.CancelledError:
            dispatcher.abandon(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _dispatcher(self, queue: Queue) -> LeaseDispatcher:
        dispatcher = self._dispatchers.get(queue.id)
        if dispatcher is None:
            dispatcher = self._dispatchers[queue.id] = LeaseDispatcher(
                queue.id,
                self._supplies_of(queue),
                router=self._router,
                clock=self._clock,
                other_nodes=self._other_nodes,
            )
        return dispatcher

    def _supplies_of(self, queue: Queue) -> tuple[PartitionSupply, ...]:
        return tuple(map(self._supplies.of, self._router.routes(queue)))

    async def subscribe(self, call: SubscribeCall) -> Subscription:
        """Opens a lease stream; its owner closes it. Raises QueratorError."""
        queue = await self._directory.find(call.namespace, call.queue)
        if queue.settings.kind is QueueKind.EXECUTIONS:
            raise not_of_items(queue)
        release = self._calls.held().leave
        subscription = Subscription(
            call,
            queue,
            settling=self._settling,
            dispatcher=self._dispatcher(queue),
            router=self._router,
            environment=self._environment,
            cache=self._cache,
            damage=self._damage,
            clock=self._clock,
            left=partial(self._left, release),
        )
        self._subscriptions[subscription] = queue.id
        return subscription

    def _left(self, release: Callable[[], None], subscription: Subscription) -> None:
        del self._subscriptions[subscription]
        release()

    # --- events of queues ------------------------------------------------------------------------

    def end_gone(self, placed: PlacementMap) -> None:
        """Ends the waits at queues that are gone or being deleted."""
        for queue_id, dispatcher in list(self._dispatchers.items()):
            queue = placed.get(queue_id)
            if queue is not None and queue.state is not QueueState.DELETING:
                continue
            error = gone(queue)
            dispatcher.end(error)
            del self._dispatchers[queue_id]
            if self._other_nodes is not None:
                self._other_nodes.forget(dispatcher)
            self._end_streams(error, queue_id)

    def _end_streams(self, error: QueratorError, queue_id: QueueId) -> None:
        for subscription, subscribed in list(self._subscriptions.items()):
            if subscribed == queue_id:
                subscription.end(error)

    def on_map(self, placed: PlacementMap) -> None:
        """The router has the new map: dispatchers follow the partitions of their queues."""
        for queue_id, dispatcher in self._dispatchers.items():
            queue = placed.get(queue_id)
            assert queue is not None
            dispatcher.follow(self._supplies_of(queue))

    def stop(self) -> None:
        """Ends the waits of calls and streams with UNAVAILABLE."""
        for subscription in list(self._subscriptions):
            subscription.end(stopping_error())
        for dispatcher in self._dispatchers.values():
            dispatcher.stop()


def _set(done: "asyncio.Future[None]", _: Waiter) -> None:
    if not done.done():
        done.set_result(None)
