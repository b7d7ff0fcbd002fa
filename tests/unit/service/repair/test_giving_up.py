"""Items with a payload that is damaged on all replicas are shown and given up. Nothing waits for
them.
"""

import asyncio
from typing import Any

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.service.repair import damage as damages
from querator.service.repair.damage import NOT_WHOLE
from querator.service.routing.forwarder import Payload, PayloadQuery
from tests.unit.service.repair.test_damage import damaged_on_a, memory, three_blocks
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import (
    LONG_MS,
    ServiceNode,
    code,
    payloads,
    service_node,
    whole,
)
from tests.unit.service.storage_damage import damage
from tests.unit.service.test_moves import settled


async def give_up(node: ServiceNode, queue: str = "q", *, dry_run: bool = False) -> Any:
    return await node.admin.give_up_damaged("default", queue, dry_run=dry_run)


async def test_what_is_damaged_on_the_only_node_is_told_and_given_up():
    async with service_node() as node:
        group = await three_blocks(node)
        damage(memory(node.environment), group, nth=1)
        assert await give_up(node) == ((), 0), "nobody has read it yet"
        reply = await node.lease(wait_ms=LONG_MS)
        assert payloads(*reply.batches) == [b"0", b"2"]
        await node.until(lambda: node.counts().ready == 1)
        [told], none = await give_up(node, dry_run=True)
        assert (told.partition, told.first_seq, told.items, told.kept) == (0, 2, 1, 0)
        assert (told.lost, none) == (True, 0)
        assert "there is no other replica" in told.reason
        assert await give_up(node) == ((told,), 1)
        stats = await node.total()
        assert (stats.ready, stats.dropped, stats.given_up, stats.damaged) == (0, 1, 1, 0)
        while node.queues.damage.stats().aside:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
        assert await give_up(node) == ((), 0)
        assert await code(give_up(node, "nobody")) is ErrorCode.QUEUE_NOT_FOUND


async def test_dead_letters_behind_a_damaged_one_arrive_when_it_is_given_up():
    async with service_node() as node:
        await node.create("dead")
        [group] = (await node.create(dead_queue="dead")).groups
        for number in range(3):
            await node.produce(b"%d" % number)
        reply = await node.lease(wait_ms=LONG_MS)
        damage(memory(node.environment), group, nth=1)
        await node.retry(*map(whole, reply.batches), dead=True)
        await settled(node, "dead", ready=1)
        assert (await node.total()).moving == 2
        assert (await give_up(node))[1] == 1
        await settled(node, "dead", ready=2)
        source = await settled(node, "q", moving=0)
        assert (source.given_up, source.moved_out, source.dead) == (1, 2, 3)
        reply = await node.lease(queue="dead")
        assert payloads(*reply.batches) == [b"0", b"2"]


async def test_what_is_leased_stays():
    async with service_node() as node:
        [group] = (await node.create()).groups
        await node.produce(b"0", b"1")
        leased = (await node.lease(1)).batches
        # The cache holds the block that was read last, with the other payload.
        node.queues._leasing._cache._held.clear()
        damage(memory(node.environment), group)
        assert not (await node.lease()).batches
        await node.until(lambda: node.counts().ready == 1)
        ((told,), given_up) = await give_up(node)
        assert (told.items, told.kept, given_up) == (2, 1, 1)
        assert (await node.complete(*leased)).outcomes[0].error is None
        assert (await node.total()).completed == 1


async def found_on_a(cluster: ServiceCluster, answer: Any) -> GroupId:
    """An item with damage that its node a has found. `answer` replaces the answers of node b."""
    await damaged_on_a(cluster)
    cluster.members["b"].damage.payload = answer  # type: ignore[method-assign]
    assert not (await cluster.lease("a")).batches
    return group_of(cluster)


def made_whole(cluster: ServiceCluster) -> None:
    """Flips the damaged bit back."""
    damage(memory(cluster.base.environment), group_of(cluster))


def refuses(field: str, value: str) -> Any:
    def answer(_: PayloadQuery) -> Payload:
        raise QueratorError(ErrorCode.UNAVAILABLE, "not here", field=field, value=value)

    return answer


async def test_a_replica_that_may_have_it_whole_keeps_it():
    async with service_cluster("a", "b") as cluster:
        group = await found_on_a(cluster, refuses("", ""))
        [told] = await cluster.members["a"].reads.damage(group)
        assert (told.lost, told.node) == (False, "a")
        cluster.cut("a", "b")
        [told] = await cluster.members["a"].reads.damage(group)
        assert not told.lost
        assert "cannot be reached" in told.reason
        made_whole(cluster)


async def test_an_operator_does_not_wait_for_slow_replicas(monkeypatch):
    monkeypatch.setattr(damages, "UNMENDED_S", 0.0)
    async with service_cluster("a", "b") as cluster:
        group = await found_on_a(cluster, refuses(*NOT_WHOLE))
        [told] = await cluster.members["a"].reads.damage(group)
        assert not told.lost
        assert "were not asked" in told.reason
        made_whole(cluster)


async def test_it_is_lost_when_every_replica_says_so():
    async with service_cluster("a", "b") as cluster:
        group = await found_on_a(cluster, refuses(*NOT_WHOLE))
        [told] = await cluster.members["b"].reads.damage(group)
        assert (told.lost, told.items, told.node) == (True, 1, "a")
        made_whole(cluster)


async def test_asking_for_it_mends_what_can_be_mended():
    async with service_cluster("a", "b") as cluster:
        other = await damaged_on_a(cluster)
        payload, other.lies = other.payload, 1
        cluster.members["b"].damage.payload = payload  # type: ignore[method-assign]
        assert not (await cluster.lease("a")).batches
        group = group_of(cluster)
        while cluster.members["a"].damage.stats().aside:
            assert await cluster.members["a"].reads.damage(group) in ((), ())
        assert payloads(*(await cluster.lease("a", wait_ms=LONG_MS)).batches) == [b"one"]
