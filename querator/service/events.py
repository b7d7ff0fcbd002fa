"""Events of the node, passed on to the parts of the service that they concern.

This module defines the order in which the parts receive one event: first the route of the
partition, then offers to other nodes, then this node's callers, then moves, transactions and
recurrences.
"""

from querator.model.commands import PartitionEffects
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import STOP_WAIT_MS_MAX
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacementMap
from querator.model.queues import BreakerState
from querator.service.breakers import BreakerLog
from querator.service.departed import Departed
from querator.service.exchange.node_exchange import NodeExchange
from querator.service.execution_waits import ExecutionWaits
from querator.service.feed.waits import FeedWaits
from querator.service.lease.calls import LeaseService
from querator.service.lease.supply import Supplies
from querator.service.moves import Mover
from querator.service.produce.calls import ProduceService
from querator.service.reading.queries import Queries
from querator.service.recurring.driver import RecurrenceDriver
from querator.service.repair.damage import DamagedBlocks
from querator.service.results.waits import ResultWaits
from querator.service.routing.directory import QueueDirectory
from querator.service.routing.route import PartitionRoute
from querator.service.routing.router import Router
from querator.service.transactions.driver import TransactionDriver


class ServiceEvents:
    """Receives events on the event loop. The owner passes on the events of the host for all groups,
    and each new map, and calls `stop` once.
    """

    def __init__(
        self,
        *,
        router: Router,
        directory: QueueDirectory,
        supplies: Supplies,
        reads: Queries,
        leases: LeaseService,
        producing: ProduceService,
        damage: DamagedBlocks,
        mover: Mover,
        departed: Departed,
        committer: TransactionDriver,
        recurring: RecurrenceDriver,
        results: ResultWaits,
        followers: FeedWaits,
        executions: ExecutionWaits,
        exchange: NodeExchange | None,
    ) -> None:
        self._router = router
        self._directory = directory
        self._supplies = supplies
        self._reads = reads
        self._leases = leases
        self._producing = producing
        self._damage = damage
        self._mover = mover
        self._departed = departed
        self._committer = committer
        self._recurring = recurring
        self._results = results
        self._followers = followers
        self._executions = executions
        self._exchange = exchange
        self._breakers = BreakerLog(router)

    def on_effects(self, group: GroupId, effects: PartitionEffects) -> None:
        """An apply has changed the effects of a partition. The placement group is ignored."""
        if group != PLACEMENT_GROUP:
            self.on_counted(group, self._damage.without_aside(group, effects))

    def on_counted(self, group: GroupId, effects: PartitionEffects) -> None:
        """Handles the effects of a partition, without the blocks that leases of this node skip."""
        route = self._router.on_effects(group, effects)
        supply = self._supplies.on_effects(route, effects)
        if self._exchange is not None:
            self._exchange.on_effects(supply)
        supply.notify()
        if effects.answered:
            self._results.on_effects(group, effects)
        if effects.events:
            self._followers.on_effects(group, effects)
        if effects.notices:
            self._executions.on_effects(group, effects)
        if effects.outbox:
            self._mover.wake(route)
        if group in self._mover.full:
            self._mover.on_items(group, effects.staying)
        self._committer.wake(route)
        if effects.recurring:
            self._recurring.wake(route)
        if effects.breaker is not BreakerState.CLOSED or group in self._breakers.not_closed:
            self._breakers.on_state(route, effects.breaker)

    def on_leadership(self, group: GroupId, leads: bool) -> None:
        """This node has begun or ceased to lead the group."""
        if group == PLACEMENT_GROUP:
            self._router.on_leadership(group, leads)
            return
        route = self._router.on_leadership(group, leads)
        self._supplies.on_leadership(route)
        self._on_route(route)
        self._results.on_leadership(group)
        self._followers.on_leadership(group)
        self._executions.on_leadership(group)
        self._mover.wake(route)
        self._departed.on_leader_change(route)
        self._committer.wake(route)
        self._recurring.wake(route)

    def on_hang(self, hangs: bool) -> None:
        """The raft thread hangs, or continues."""
        for route in self._router.on_hang(hangs):
            if route.group != PLACEMENT_GROUP:
                self._on_route(route)

    def on_leader(self, group: GroupId, node: NodeKey | None) -> None:
        """The leader of a group with a replica here has changed, as far as the raft
        package knows.
        """
        route = self._router.on_leader(group, node)
        if group != PLACEMENT_GROUP:
            self._on_route(route)

    def _on_route(self, route: PartitionRoute) -> None:
        if self._exchange is not None:
            self._exchange.on_leadership(route)
        self._supplies.of(route).notify()

    def on_map(self, placed: PlacementMap) -> None:
        """There is a newer map: waits at queues that are gone or being deleted end."""
        self._leases.end_gone(placed)
        for group in self._router.on_map(placed):
            self._supplies.forget(group)
            self._breakers.not_closed.pop(group, None)
        self._leases.on_map(placed)
        self._producing.on_map()
        self._directory.on_map()
        self._mover.on_map()
        self._departed.on_map()
        self._damage.on_map()
        self._results.on_map()
        self._followers.on_map()
        self._executions.on_map()

    async def stop(self) -> None:
        """Refuses further calls, ends the waits of leases and streams (all with UNAVAILABLE), and
        returns when the commands in flight are answered, or after STOP_WAIT_MS_MAX. The host must
        still run.
        """
        self._router.stop()
        self._mover.stop()
        self._leases.stop()
        self._results.stop()
        self._followers.stop()
        self._executions.stop()
        if self._exchange is not None:
            self._exchange.stop()
        await self._departed.stop()
        await self._committer.stop()
        await self._recurring.stop()
        await self._damage.stop()
        await self._router.drained(STOP_WAIT_MS_MAX / 1000)
        await self._reads.close()
