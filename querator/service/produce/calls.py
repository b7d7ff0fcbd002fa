"""A produce call on its way to the partitions, and its repeat when the partitions have changed.

`service.produce.split` defines which partition takes which item. A request that was cut or
addressed for an outdated number of partitions is refused (ROUTING_CHANGED) and not executed. It
waits for the map with the changed partitions, and is cut again. Of a request with keys only the
refused parts are repeated.
"""

import asyncio

from querator.model.calls import (
    CompleteCall,
    ProduceCall,
    ProducedBatch,
    ProduceReply,
    RetryCall,
)
from querator.model.commands import FlowNames, ProduceResult
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId, QueueId
from querator.model.limits import LEADER_WAIT_MS_MAX, OVERLOADED_RETRY_MS
from querator.model.queues import Queue, QueueState
from querator.model.txn_calls import StageCall
from querator.service.admission import PartitionBudget
from querator.service.produce import distant_keys
from querator.service.produce import split as parts
from querator.service.produce.chooser import PartitionChooser
from querator.service.produce.flows import flows_of
from querator.service.produce.load import PartitionLoad
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.outcomes import each
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.service.validate import gone

BEHIND_S = 0.2
"""Delay before a request is repeated at a partition that is behind the map."""


class ProduceService:
    """Produce calls of this node. The owner reports each new map once the router has it. Belongs to
    one event loop.
    """

    def __init__(
        self, router: Router, directory: QueueDirectory, *, budget: PartitionBudget, durable: bool
    ) -> None:
        """`budget` limits the produces on their way to partitions."""
        self.budget = budget
        self._router = router
        self._directory = directory
        self._durable = durable
        self._loop = asyncio.get_running_loop()
        self._choosers: dict[QueueId, PartitionChooser] = {}
        self._loads: dict[GroupId, PartitionLoad] = {}
        self._moved = asyncio.Event()
        """Set and replaced by each new map."""

    def on_map(self) -> None:
        # Partitions may be gone, and others may have taken their numbers.
        self._choosers.clear()
        placed = self._router.map
        for group in [group for group, load in self._loads.items() if not load.produces]:
            if placed.by_group(group) is None:
                del self._loads[group]
        self._moved.set()
        self._moved = asyncio.Event()

    async def produce(
        self, queue: Queue, call: ProduceCall, *, deadline: float | None
    ) -> ProduceReply:
        """`deadline` is by the loop's clock; None: there is none. Raises QueratorError."""
        # The kind of a queue never changes.
        flows = flows_of(queue, call) if queue.settings.kind else None
        if call.slots:
            return await self._keyed(queue, call, flows, deadline)
        until_s = self.until_rerouted(deadline)
        while True:
            partition = self.home(queue, call)
            part = parts.whole(call, partition, routing=queue.routing, flows=flows)
            route = self._router.routes(queue)[partition]
            batch = await self._store(queue, route, part, deadline)
            if isinstance(batch, ProducedBatch):
                return ProduceReply((batch,), self._durable, self._leader_address(route))
            if not self.was_rerouted(queue, batch):
                raise batch
            queue = await self.rerouted(queue, call, until_s, batch)

    async def _keyed(
        self, queue: Queue, call: ProduceCall, flows: FlowNames | None, deadline: float | None
    ) -> ProduceReply:
        batches: list[ProducedBatch] = []
        errors: list[QueratorError] = []
        until_s = self.until_rerouted(deadline)
        left = [parts.whole(call, 0, routing=0, flows=flows)]
        while left:
            cut = [
                part
                for one in left
                for part in parts.cut(
                    one,
                    home=self.home(queue, call),
                    partitions=queue.routed_partitions,
                    routing=queue.routing,
                )
            ]
            left = []
            refusals: list[QueratorError] = []
            routes = self._router.routes(queue)
            outcomes = await each(
                [self._store(queue, routes[part.partition], part, deadline) for part in cut]
            )
            for part, outcome in zip(cut, outcomes, strict=True):
                if isinstance(outcome, ProducedBatch):
                    batches.append(outcome)
                elif self.was_rerouted(queue, outcome):
                    left.append(part)
                    refusals.append(outcome)
                else:
                    errors.append(outcome)
            if left:
                try:
                    queue = await self.rerouted(queue, call, until_s, *refusals)
                except QueratorError as error:
                    errors.append(error)
                    break
        if errors:
            raise parts.merged_error(errors, stored=bool(batches))
        return ProduceReply(tuple(batches), self._durable)

    def until_rerouted(self, deadline: float | None) -> float:
        return self._loop.time() + LEADER_WAIT_MS_MAX / 1000 if deadline is None else deadline

    def was_rerouted(self, queue: Queue, error: QueratorError) -> bool:
        """Whether the partitions have changed since; the request was not executed."""
        if error.code is ErrorCode.ROUTING_CHANGED:
            return True
        known = self._router.map.get(queue.id)
        if error.code is not ErrorCode.QUEUE_DELETING or known is None:
            return False
        return known.state is QueueState.ACTIVE and known.groups != queue.groups

    async def rerouted(
        self,
        queue: Queue,
        call: ProduceCall | StageCall | CompleteCall | RetryCall,
        until_s: float,
        *refusals: QueratorError,
    ) -> Queue:
        """Waits until the map has the queue with other partitions, and returns the queue. Raises
        UNAVAILABLE when that takes too long, or DEADLINE_EXCEEDED.

        When a queue has returned to its old number of partitions, a partition that was away
        meanwhile learns of the changes later, and the map stays as it is. After a refusal by such a
        partition the queue is returned after a pause.
        """
        behind_s = None
        if any(_is_behind(queue, refusal) for refusal in refusals):
            behind_s = min(until_s, self._loop.time() + BEHIND_S)
        while True:
            known = await self._directory.find(call.namespace, call.queue)
            if known.id != queue.id:
                raise gone(None)
            if (known.routing, known.settings.partitions, known.groups) != (
                queue.routing,
                queue.settings.partitions,
                queue.groups,
            ):
                return known
            moved = self._moved
            try:
                async with asyncio.timeout_at(until_s if behind_s is None else behind_s):
                    await moved.wait()
            except TimeoutError:
                if self._loop.time() < until_s:
                    return known
                raise QueratorError(
                    ErrorCode.DEADLINE_EXCEEDED if call.timeout_ms else ErrorCode.UNAVAILABLE,
                    f"the partitions of queue {queue.name} are being changed; not executed",
                    retry_delay_ms=OVERLOADED_RETRY_MS,
                ) from None

    def home(self, queue: Queue, call: ProduceCall) -> int:
        """The partition of a request without keys."""
        partition = parts.identified_partition(call, queue.routed_partitions)
        if partition is None:
            chooser = self._choosers.get(queue.id)
            if chooser is None or chooser.partitions != queue.producing_partitions:
                routes = self._router.routes(queue)[: queue.producing_partitions]
                loads = tuple(self._load(route.group) for route in routes)
                chooser = self._choosers[queue.id] = PartitionChooser(routes, loads)
            partition = chooser.choose(len(call.lengths) // 4, len(call.items))
        return partition

    async def _store(
        self, queue: Queue, route: PartitionRoute, part: parts.Part, deadline: float | None
    ) -> ProducedBatch | QueratorError:
        while True:
            outcome = await self._stored(route, part, deadline)
            if isinstance(outcome, ProducedBatch) or not distant_keys.is_unsure(outcome):
                return outcome
            try:
                part = await distant_keys.resolved(self._router, queue, part, outcome, deadline)
            except QueratorError as error:
                return error

    async def _stored(
        self, route: PartitionRoute, part: parts.Part, deadline: float | None
    ) -> ProducedBatch | QueratorError:
        load, size = self._load(route.group), len(part.items)
        load.produces += 1
        load.payload_bytes += size
        try:
            result = await self._router.call(
                route, part.command, part.items, deadline=deadline, budget=self.budget
            )
        except QueratorError as error:
            return error
        finally:
            load.produces -= 1
            load.payload_bytes -= size
        assert isinstance(result, ProduceResult)
        return parts.batch_of(part, result)

    def _load(self, group: GroupId) -> PartitionLoad:
        load = self._loads.get(group)
        if load is None:
            load = self._loads[group] = PartitionLoad()
        return load

    def _leader_address(self, route: PartitionRoute) -> str:
        """Client address of the other node that leads the partition; empty when this one does."""
        if route.local or not route.leader:
            return ""
        node = self._router.map.node(route.leader)
        return "" if node is None else node.client_address


def _is_behind(queue: Queue, refusal: QueratorError) -> bool:
    """Whether the partition that refused is behind this node's map."""
    if refusal.code is not ErrorCode.ROUTING_CHANGED or not refusal.value.isdigit():
        return False
    return int(refusal.value) < queue.routing
