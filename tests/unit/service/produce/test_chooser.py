"""Partitions without a leader yet, deadlines before a command is accepted, taking turns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from querator.model.errors import ErrorCode
from querator.model.ids import GroupId
from querator.model.placement_map import PlacementMap
from querator.raft.clock import RealClock
from querator.service.produce.chooser import PartitionChooser
from querator.service.produce.load import PartitionLoad
from querator.service.routing.route import PartitionRoute
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.running_host import CommitGate
from tests.unit.service.service_node import ServiceNode, code, payloads, service_node


@asynccontextmanager
async def starting(environment: MemoryEnvironment) -> AsyncIterator[tuple[ServiceNode, CommitGate]]:
    """A node that knows its queues. Its partitions have no leader until the gate opens."""
    node = ServiceNode(environment, RealClock())
    gate = CommitGate(environment)
    known = asyncio.Event()

    def hold(_: PlacementMap) -> None:
        gate.close()
        known.set()

    unwatch = node.placement.watch(hold)
    await node.host.start()
    start = asyncio.get_running_loop().create_task(node.placement.start())
    await known.wait()
    unwatch()
    try:
        yield node, gate
    finally:
        gate.open()
        await start
        await node.queues.stop()
        await node.placement.stop()
        await node.host.stop()


async def with_a_queue() -> MemoryEnvironment:
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        await node.create()
    return environment.crash()


async def test_calls_wait_for_a_leader():
    async with starting(await with_a_queue()) as (node, gate):
        produced: Any = asyncio.get_running_loop().create_task(node.produce(b"x"))
        leased: Any = asyncio.get_running_loop().create_task(node.lease(wait_ms=60_000))
        await asyncio.sleep(0)
        gate.open()
        await produced
        assert payloads(*(await leased).batches) == [b"x"]


async def test_a_deadline_before_taking_on_is_certainly_not_executed():
    async with starting(await with_a_queue()) as (node, gate):
        assert await code(node.produce(b"x", timeout_ms=10)) is ErrorCode.DEADLINE_EXCEEDED
        assert await code(node.lease()) is ErrorCode.NOT_LEADER
        gate.open()
        await node.produce(b"y")
        assert (await node.total()).produced == 1


async def test_stopping_ends_the_wait_for_a_leader():
    async with starting(await with_a_queue()) as (node, _):
        produced: Any = asyncio.get_running_loop().create_task(node.produce(b"x"))
        await asyncio.sleep(0)
        await node.queues.stop()
        assert await code(produced) is ErrorCode.UNAVAILABLE


def partitions(count: int) -> tuple[tuple[PartitionRoute, ...], tuple[PartitionLoad, ...]]:
    routes = tuple(PartitionRoute(GroupId(number + 1), local=True) for number in range(count))
    return routes, tuple(PartitionLoad() for _ in routes)


def test_partitions_without_a_leader_are_passed_over():
    routes, loads = partitions(4)
    routes[1].is_reachable = False
    spread = PartitionChooser(routes, loads)
    assert [spread.choose(1, 100) for _ in range(6)] == [0, 2, 3, 0, 2, 3]
    for route in routes:
        route.is_reachable = False
    assert 0 <= spread.choose(1, 100) < 4


def test_a_busy_partition_is_passed_over():
    routes, loads = partitions(3)
    loads[1].produces = 1
    loads[1].payload_bytes = 1_000_000
    spread = PartitionChooser(routes, loads)
    assert [spread.choose(1, 100) for _ in range(4)] == [0, 2, 0, 2]
