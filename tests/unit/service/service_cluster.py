"""Several nodes over one log: the test sets the leader of each partition.

Every node has its own service. All nodes share one host, one map and one environment, as if
replication took no time. `FakeHost`, the host as one node sees it, refuses calls to groups that
the node does not lead, as a replica does. The nodes reach each other through `FakeForwarder`, whose
links a test can cut.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from querator.model.calls import CompleteCall, LeasedRun, LeaseReply, ProduceReply, RetryCall
from querator.model.commands import Command, Lease
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.nodes import NodeKey, Replica, Replicas
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import QueueSettings
from querator.raft.clock import Clock
from querator.service.assembly import assemble
from querator.service.queue_service import QueueService
from querator.service.routing.forwarder import Forwarder, ForwarderEvents, Query
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.service.service_node import ServiceNode, lease_call, produce_call, ref, service_node


class FakeHost:
    """The host as one node sees it."""

    def __init__(self, cluster: "ServiceCluster", name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.node = NodeKey(f"{name}/1")

    @property
    def hangs(self) -> bool:
        return self._name in self._cluster.hanging

    def end_calls(self, which: Callable[[Any], bool]) -> None:
        self._cluster.base.host.end_calls(which)

    def leads(self, group: GroupId) -> bool:
        return self._cluster.leaders.get(group) == self._name

    async def confirm_read(self, group: GroupId) -> None:
        if not self.leads(group):
            hint = self._cluster.leaders.get(group) or ""
            raise QueratorError(ErrorCode.NOT_LEADER, "not the leader", value=hint)
        self._cluster.confirmed += 1
        self._cluster.confirming.set()
        if group == PLACEMENT_GROUP:
            self._cluster.map_confirming.set()

    async def mend(self, *damaged: Any) -> None:
        await self._cluster.base.host.mend(*damaged)

    def status(self, group: GroupId) -> object:
        if self._name in self._cluster.without_replicas:
            return None
        status = self._cluster.base.host.status(group)
        configured = self._cluster.replicas(self._cluster.bare)
        return status and msgspec.structs.replace(status, replicas=configured)

    def unreadable(self) -> Any:
        return self._cluster.base.host.unreadable()

    def leader(self, group: GroupId) -> NodeKey | None:
        name = self._cluster.leaders.get(group)
        known = name is not None and self._cluster.has_heard_of(self._name, group)
        return NodeKey(f"{name}/1") if known else None

    def propose(
        self, group: GroupId, command: Any, attachment: bytes = b""
    ) -> "asyncio.Future[Any]":
        cluster = self._cluster
        cluster.proposed.append((self._name, group, command))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._name in cluster.failed:
            future.set_exception(QueratorError(ErrorCode.STORAGE_FAILED, "the node has failed"))
            return future
        if not self.leads(group):
            hint = cluster.leaders.get(group) or ""
            future.set_exception(QueratorError(ErrorCode.NOT_LEADER, "not the leader", value=hint))
            return future
        done = cluster.base.host.propose(group, command, attachment)
        if not cluster.loses_answers:
            return done
        cluster.loses_answers -= 1

        def lost(_: object) -> None:
            future.set_exception(QueratorError(ErrorCode.OUTCOME_UNKNOWN, "deposed"))

        done.add_done_callback(lost)
        return future


class FakeForwarder:
    """`Forwarder` of one node to the others of the cluster."""

    def __init__(self, cluster: "ServiceCluster", name: str) -> None:
        self._cluster = cluster
        self.name = name
        self.events: ForwarderEvents | None = None

    def watch(self, events: ForwarderEvents) -> None:
        self.events = events

    def reaches(self, node: str) -> bool:
        return node in self._cluster.members and not self._cluster.is_cut(self.name, node)

    def propose(
        self, node: str, group: GroupId, command: Any, attachment: bytes = b""
    ) -> "asyncio.Future[Any]":
        self._cluster.forwarded[type(command).__name__] += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.reaches(node):
            future.set_exception(QueratorError(ErrorCode.UNAVAILABLE, f"no link to {node}"))
            return future
        there = self._cluster.members[node].exchange
        assert there is not None
        answer = there.propose(self.name, group, command, attachment)

        def answered(answer: "asyncio.Future[Any]") -> None:
            if self._cluster.is_cut(self.name, node) and not future.done():
                future.set_exception(QueratorError(ErrorCode.OUTCOME_UNKNOWN, "the link broke"))
            error = answer.exception()
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(there.carried(self.name, group, command, answer.result()))

        answer.add_done_callback(answered)
        return future

    def query(self, node: str, query: Query) -> "asyncio.Future[Any]":
        there = self._cluster.members[node].exchange
        assert there is not None
        return asyncio.get_running_loop().create_task(there.answer(self.name, query))

    def demand(self, node: str, queue: QueueId, *, waiters: int, items: int) -> None:
        self._cluster.demands[self.name] += 1
        if self.reaches(node):
            there = self._cluster.members[node].exchange
            assert there is not None
            there.demand(self.name, queue, waiters=waiters, items=items)


class FakePlacement:
    """The placement of one node: the base's map, with a replica of every group on every node except
    the nodes of `ServiceCluster.bare` and `ServiceCluster.leaving`.
    """

    def __init__(self, cluster: "ServiceCluster") -> None:
        self._cluster = cluster
        self._behind: PlacementMap | None = None
        self._made: tuple[PlacementMap, PlacementMap] | None = None

    def fall_behind(self, seen: PlacementMap | None = None) -> None:
        """Shows the map `seen` until `catch_up`. None: the map as it is at this call."""
        self._behind = seen or self.map

    def catch_up(self) -> None:
        self._behind = None

    @property
    def map(self) -> PlacementMap:
        if self._behind is not None:
            return self._behind
        base = self._cluster.base.placement.map
        if self._made is None or self._made[0] is not base:
            replicas = self._cluster.replicas(self._cluster.bare | self._cluster.leaving)
            groups = {
                group: PlacedGroup(replicas, replicas, 10, 1, moving=bool(self._cluster.leaving))
                for group in base.groups
            }
            self._made = base, base.evolve(base.epoch + 1, groups=groups)
        return self._made[1]


class ServiceCluster:
    def __init__(self, base: ServiceNode) -> None:
        self.base = base
        self.members: dict[str, QueueService] = {}
        self.maps: dict[str, FakePlacement] = {}
        self.forwarders: dict[str, FakeForwarder] = {}
        self.leaders: dict[GroupId, str | None] = {}
        self.proposed: list[tuple[str, GroupId, Command]] = []
        self.forwarded: Counter[str] = Counter()
        self.demands: Counter[str] = Counter()
        self.loses_answers = 0
        """Number of next commands that are executed without an answer."""
        self.failed: set[str] = set()
        """Nodes whose disk is broken."""
        self.confirmed = 0
        """Number of reads that a leader has confirmed."""
        self.confirming = asyncio.Event()
        """Set when a leader confirms a read."""
        self.map_confirming = asyncio.Event()
        """Set when the leader of the placement group confirms a read."""
        self.bare: frozenset[str] = frozenset()
        """Nodes without replicas: they are not informed of leaders."""
        self.stopped: frozenset[str] = frozenset()
        """Nodes whose replicas do not run: they are not informed of leaders."""
        self.leaving: frozenset[str] = frozenset()
        """Nodes whose replicas move away: the map does not list their replicas."""
        self.hanging: set[str] = set()
        """Nodes whose raft thread hangs."""
        self.unreached: set[str] = set()
        """Nodes to which no node's raft package has a connection."""
        self._cuts: set[frozenset[str]] = set()
        self._catching_up: asyncio.Task[None] | None = None

    def add(self, name: str, forwarder: Forwarder | None = None) -> QueueService:
        if forwarder is None:
            forwarder = self.forwarders[name] = FakeForwarder(self, name)
        maps = self.maps[name] = FakePlacement(self)
        service = self.members[name] = assemble(
            host=cast(Any, FakeHost(self, name)),
            placement=cast(Any, maps),
            environment=self.base.environment,
            clock=self.base.clock,
            forwarder=forwarder,
            out_of_reach=lambda: self.unreached,
        )
        self.base.placement.watch(service.events.on_map)
        return service

    def introduce(self) -> None:
        """Links every node to every other node."""
        for name, service in self.members.items():
            for other, forwarder in self.forwarders.items():
                if other != name:
                    assert service.exchange is not None
                    service.exchange.linked(other, self._push(name, other, forwarder))

    def _push(self, name: str, other: str, forwarder: FakeForwarder) -> Callable[..., None]:
        def push(node: str, group: GroupId, items: int) -> None:
            assert node == other
            assert forwarder.events is not None
            if not self.is_cut(name, other):
                asyncio.get_running_loop().call_soon(forwarder.events.on_offer, name, group, items)

        return push

    def lead(self, group: GroupId, name: str | None) -> None:
        """Makes a node the leader of the group. None: the group has no leader."""
        former = self.leaders.get(group)
        self.leaders[group] = name
        if former is not None:
            self.members[former].events.on_leadership(group, False)
        key = None if name is None else NodeKey(f"{name}/1")
        for member, service in self.members.items():
            if self.has_heard_of(member, group):
                service.events.on_leader(group, key)
        if name is not None:
            self.members[name].events.on_leadership(group, True)

    @property
    def without_replicas(self) -> frozenset[str]:
        """Nodes without a running replica."""
        return self.bare | self.stopped

    def replicas(self, without: Collection[str]) -> Replicas:
        return tuple(
            Replica(number, NodeKey(f"{name}/1"))
            for number, name in enumerate(self.members, start=1)
            if name not in without
        )

    def has_heard_of(self, name: str, group: GroupId) -> bool:
        """Whether the node may have a replica of the group: its map contains the group."""
        if name in self.without_replicas:
            return False
        return group == PLACEMENT_GROUP or self.maps[name].map.by_group(group) is not None

    def cut(self, one: str, other: str) -> None:
        self._cuts.add(frozenset((one, other)))
        self._tell(one, other)

    def mend(self, one: str, other: str) -> None:
        self._cuts.discard(frozenset((one, other)))
        self._tell(one, other)

    def _tell(self, one: str, other: str) -> None:
        for name, node in ((one, other), (other, one)):
            events = self.forwarders[name].events
            assert events is not None
            events.on_reach(node)

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cuts

    def leases(self) -> int:
        """Number of Lease commands that have reached a leader."""
        return sum(
            isinstance(command, Lease) and self.leaders.get(group) == name
            for name, group, command in self.proposed
        )

    # --- events of the host for all nodes ------------------------------------------------------

    def on_effects(self, group: GroupId, effects: Any) -> None:
        for name, member in self.members.items():
            if self.has_heard_of(name, group):
                member.events.on_effects(group, effects)

    # --- helpers -------------------------------------------------------------------------------

    async def grow(self, partitions: int, *, behind: str, leader: str) -> None:
        """Gives the queue more partitions, which `leader` leads. The map of `behind` does not
        contain them until `behind` has asked whether its map is current.
        """
        self.maps[behind].fall_behind()
        await self.base.admin.update_queue(
            "default", "q", QueueSettings(partitions=partitions), ("partitions",), 0
        )
        queue = self.base.placement.map.find("default", "q")
        assert queue is not None
        for group in queue.groups:
            if group not in self.leaders:
                self.lead(group, leader)
        self.lead(PLACEMENT_GROUP, leader)
        # The cluster keeps a reference to the task, which ends after that read of the map.
        self._catching_up = asyncio.get_running_loop().create_task(self._catch_up(behind))

    async def _catch_up(self, behind: str) -> None:
        await self.map_confirming.wait()
        self.hear(behind)

    def hear(self, name: str) -> None:
        """Brings the map and the known leaders of a node up to date."""
        self.maps[name].catch_up()
        member = self.members[name]
        member.events.on_map(self.maps[name].map)
        for group, leader in self.leaders.items():
            member.events.on_leader(group, None if leader is None else NodeKey(f"{leader}/1"))

    async def produce(self, name: str, *payloads: bytes, **more: Any) -> ProduceReply:
        return await self.members[name].produce(produce_call(*payloads, **more))

    async def lease(self, name: str, max_items: int = 100, **more: Any) -> LeaseReply:
        return await self.members[name].lease(lease_call(max_items, **more))

    async def complete(self, name: str, *batches: LeasedRun) -> Any:
        return await self.members[name].complete(
            CompleteCall("default", "q", tuple(map(ref, batches)))
        )

    async def retry(self, name: str, *batches: LeasedRun, **more: Any) -> Any:
        return await self.members[name].retry(
            RetryCall("default", "q", tuple(map(ref, batches)), **more)
        )


@asynccontextmanager
async def service_cluster(
    *names: str,
    clock: Clock | None = None,
    bare: str = "",
    stopped: str = "",
    leaving: str = "",
    **settings: Any,
) -> AsyncIterator[ServiceCluster]:
    """Nodes of these names with a queue `q`, whose partitions they lead in turn.

    The node `bare` has no replicas. The node `stopped` has replicas, but none of them runs. These
    two lead nothing. The replicas of the node `leaving` move away.
    """
    async with service_node(MemoryEnvironment(), clock=clock) as base:
        cluster = ServiceCluster(base)
        cluster.bare = frozenset({bare} - {""})
        cluster.stopped = frozenset({stopped} - {""})
        cluster.leaving = frozenset({leaving} - {""})
        told = base.on_effects

        def on_effects(group: GroupId, effects: Any) -> None:
            told(group, effects)
            if group != PLACEMENT_GROUP:
                cluster.on_effects(group, effects)

        base.on_effects = on_effects  # type: ignore[method-assign]
        for name in names:
            cluster.add(name)
        cluster.introduce()
        queue = await base.create(**settings)
        for number, group in enumerate(queue.groups):
            leading = [name for name in names if name not in cluster.without_replicas]
            cluster.lead(group, leading[number % len(leading)])
        yield cluster
        for member in cluster.members.values():
            await member.stop()
