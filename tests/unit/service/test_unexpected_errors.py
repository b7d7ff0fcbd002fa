"""Unexpected errors are answered: no caller, partition, grant or move stays stuck."""

import asyncio
from typing import Any

import msgspec
import pytest

from querator.model.commands import Lease
from querator.model.errors import ErrorCode
from querator.model.ids import GroupId
from querator.model.transactions import Prepare
from querator.service import moves
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import OVERLAYS
from tests.unit.service.service_cluster import FakeHost, ServiceCluster, service_cluster
from tests.unit.service.service_node import (
    LONG_MS,
    ServiceNode,
    code,
    payloads,
    service_node,
    whole,
)
from tests.unit.service.storage_damage import damage, garbage
from tests.unit.service.test_moves import settled
from tests.unit.service.transactions.test_transactions import commit_call, fill, nodes


def memory(environment: Any) -> MemoryEnvironment:
    assert isinstance(environment, MemoryEnvironment)
    return environment


async def one_with_an_error(node: ServiceNode) -> GroupId:
    """Produces an item and retries it once. A separate row keeps the error of the retry."""
    queue = await node.create()
    await node.produce(b"one")
    reply = await node.lease()
    await node.retry(*map(whole, reply.batches), error="once")
    return queue.groups[0]


async def test_a_lease_that_cannot_be_loaded_goes_back():
    async with service_node() as node:
        group = await one_with_an_error(node)
        with (
            garbage(memory(node.environment), OVERLAYS, group),
            pytest.raises(msgspec.DecodeError),
        ):
            await node.lease()
        reply = await node.lease(wait_ms=LONG_MS)
        assert payloads(*reply.batches) == [b"one"]
        assert reply.batches[0].attempt == 2


async def test_a_delivery_that_cannot_be_loaded_goes_back():
    async with service_node() as node:
        group = await one_with_an_error(node)
        stream = await node.subscribe()
        with garbage(memory(node.environment), OVERLAYS, group):
            stream.grant(10, 0)
            with pytest.raises(msgspec.DecodeError):
                await stream.next()
        reply = await stream.next()
        assert payloads(*reply.batches) == [b"one"]
        await stream.close(polite=True)


class Failing(FakeHost):
    """A host with a defect: the first `times` commands of a kind raise an unexpected error."""

    def __init__(self, cluster: ServiceCluster, name: str, kind: type, times: int = 1) -> None:
        super().__init__(cluster, name)
        self._kind = kind
        self.times = times
        self.failed = asyncio.Event()

    def propose(
        self, group: GroupId, command: Any, attachment: bytes = b""
    ) -> "asyncio.Future[Any]":
        if not isinstance(command, self._kind) or not self.times:
            return super().propose(group, command, attachment)
        self.times -= 1
        self.failed.set()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(RuntimeError("nobody expects this"))
        return future


async def test_a_lease_that_fails_as_none_should_is_answered():
    async with service_cluster("a", "b") as cluster:
        cluster.members["a"].router._host = Failing(cluster, "a", Lease)  # type: ignore[assignment]
        await cluster.produce("a", b"one")
        assert await code(cluster.lease("a", wait_ms=LONG_MS)) is ErrorCode.INTERNAL
        reply = await cluster.lease("a", wait_ms=LONG_MS)
        assert payloads(*reply.batches) == [b"one"]


async def test_a_transaction_goes_on_after_a_step_that_fails_as_none_should():
    async with nodes("a", "b") as cluster:
        seat = Failing(cluster, "a", Prepare)
        cluster.members["a"].router._host = seat  # type: ignore[assignment]
        attempts = await fill(cluster.members["a"], (b"one",))
        await cluster.members["a"].commit(commit_call(attempts))
        assert seat.failed.is_set()
        assert payloads(*(await cluster.lease("a", wait_ms=LONG_MS)).batches) == [b"one"]


async def test_moves_go_on_when_what_is_to_be_moved_can_be_read_again():
    async with service_node() as node:
        await node.create("dead")
        queue = await node.create(dead_queue="dead")
        await node.produce(b"one")
        reply = await node.lease(wait_ms=LONG_MS)
        environment = memory(node.environment)
        key = damage(environment, queue.groups[0])
        await node.retry(*map(whole, reply.batches), dead=True)
        await settled(node, "q", moving=1)
        # The mover has tried to read the item, and tries again.
        await asyncio.sleep(3 * moves.PAUSE_S_MIN)
        assert damage(environment, queue.groups[0]) == key
        assert (await settled(node, "dead", ready=1)).moved_in == 1
