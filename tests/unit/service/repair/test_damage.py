"""Blocks with a damaged payload: the other items are delivered, and the blocks are mended."""

import asyncio
from typing import Any

import pytest

from querator.model.errors import ErrorCode
from querator.model.ids import GroupId
from querator.model.limits import ASIDE_BLOCKS_MAX, MEND_PAUSE_MS_MIN
from querator.partition import payloads as payloads_of
from querator.service.repair import damage as damages
from querator.service.routing.forwarder import Payload, PayloadQuery
from querator.storage import attachments
from querator.storage.environment import StorageCorrupt
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.sealed import checksum
from querator.storage.tables import ATTACHMENTS
from tests.unit.service.routing.test_router import group_of
from tests.unit.service.service_cluster import FakeForwarder, ServiceCluster, service_cluster
from tests.unit.service.service_node import LONG_MS, ServiceNode, payloads, refusal, service_node
from tests.unit.service.storage_damage import damage, damaged


def memory(environment: Any) -> MemoryEnvironment:
    assert isinstance(environment, MemoryEnvironment)
    return environment


async def three_blocks(node: ServiceNode, **settings: Any) -> GroupId:
    """Produces three items, each in its own block. Returns the group."""
    queue = await node.create(**settings)
    for number in range(3):
        await node.produce(b"%d" % number)
    return queue.groups[0]


async def test_the_other_items_of_a_lease_are_delivered():
    async with service_node() as node:
        group = await three_blocks(node)
        with damaged(memory(node.environment), group, 1):
            reply = await node.lease(wait_ms=LONG_MS)
            assert payloads(*reply.batches) == [b"0", b"2"]
            assert node.queues.damage.items(group) == (1, 1)
            await node.until(lambda: node.counts().ready == 1)
            route = node.queues.router.route(group)
            supply = node.queues._leasing._supplies.of(route)
            assert (supply.ready, route.effects.occupied) == (0, 3)


async def test_a_damaged_item_loses_no_attempt_and_is_not_leased_again(monkeypatch):
    monkeypatch.setattr(damages, "MEND_PAUSE_MS_MAX", MEND_PAUSE_MS_MIN)
    async with service_node() as node:
        group = await three_blocks(node, max_attempts=2)
        with damaged(memory(node.environment), group, 1):
            reply = await node.lease(wait_ms=LONG_MS)
            assert payloads(*reply.batches) == [b"0", b"2"]
            await node.complete(*reply.batches)
            await node.until(lambda: node.counts().ready == 1)
            before = node.index()
            for _ in range(5):
                assert not (await node.lease()).batches
            assert not (await node.lease(wait_ms=50)).batches
            # The node sends the partition no Lease command, which would grant nothing.
            assert node.index() == before
        reply = await node.lease(wait_ms=LONG_MS)
        assert payloads(*reply.batches) == [b"1"]
        assert reply.batches[0].attempt == 1
        assert node.counts().dead == 0


async def test_a_stream_gets_the_other_items_and_its_credit_back():
    async with service_node() as node:
        group = await three_blocks(node)
        with damaged(memory(node.environment), group, 1):
            stream = await node.subscribe()
            stream.grant(3, 0)
            got = payloads(*(await stream.next()).batches)
            while len(got) < 2:
                got += payloads(*(await stream.next()).batches)
            assert got == [b"0", b"2"]
            await node.produce(b"3")
            assert payloads(*(await stream.next()).batches) == [b"3"]
            await stream.close(polite=True)


async def test_another_node_gets_the_other_items():
    async with service_cluster("a", "b") as cluster:
        for number in range(3):
            await cluster.produce("a", b"%d" % number)
        with damaged(memory(cluster.base.environment), group_of(cluster), 1):
            got: list[bytes] = []
            while len(got) < 2:
                got += payloads(*(await cluster.lease("b", wait_ms=LONG_MS)).batches)
            assert sorted(got) == [b"0", b"2"]
            assert not (await cluster.lease("b")).batches
            assert not (await cluster.lease("a")).batches


async def test_whoever_reads_a_damaged_block_is_told_which_one():
    async with service_node() as node:
        group = await three_blocks(node)
        with damaged(memory(node.environment), group, 1):
            peeking = node.admin.peek_items("default", "q", 0, 10, "", timeout_ms=100)
            error = await refusal(peeking)
            assert error.code is ErrorCode.UNAVAILABLE
            assert "block 2 in partition 0 of queue q is damaged" in error.message


async def test_more_damaged_blocks_than_a_lease_can_name():
    async with service_node() as node:
        queue = await node.create()
        [group] = queue.groups
        count = ASIDE_BLOCKS_MAX + 2
        for number in range(count):
            await node.produce(b"%d" % number)
        with damaged(memory(node.environment), group, *range(count)):
            assert not (await node.lease(count)).batches
            await node.until(lambda: node.counts().ready == count)
            assert node.queues.damage.items(group) == (count, count)
            before = node.index()
            assert not (await node.lease(wait_ms=50)).batches
            assert node.index() == before


async def test_what_is_ready_cannot_be_counted_for_a_while(monkeypatch):
    """The delivery that has found the damage continues, and the items are given back."""
    monkeypatch.setattr(damages, "UNCOUNTED_S", 0.001)
    count = payloads_of.ready_items
    fails = [StorageCorrupt("not now")] * 3

    def ready_items(*args: Any) -> int:
        if fails:
            raise fails.pop()
        return count(*args)

    monkeypatch.setattr(payloads_of, "ready_items", ready_items)
    async with service_node() as node:
        group = await three_blocks(node)
        with damaged(memory(node.environment), group, 1):
            reply = await node.lease(wait_ms=LONG_MS)
            assert payloads(*reply.batches) == [b"0", b"2"]
            await node.until(lambda: node.counts().ready == 1)
        assert payloads(*(await node.lease(wait_ms=LONG_MS)).batches) == [b"1"]


async def test_only_so_many_damaged_blocks_are_remembered(monkeypatch):
    monkeypatch.setattr(damages, "ASIDE_BLOCKS_MAX", 1)
    monkeypatch.setattr(damages, "DAMAGED_BLOCKS_MAX", 2)
    monkeypatch.setattr(damages, "MEND_PAUSE_MS_MIN", 1)
    async with service_node() as node:
        group = await three_blocks(node)
        with damaged(memory(node.environment), group, 0, 1, 2):
            assert not (await node.lease()).batches
            assert node.queues.damage.stats().aside == {group: 2}
        got: list[bytes] = []
        while len(got) < 3:
            got += payloads(*(await node.lease(wait_ms=LONG_MS)).batches)
        assert sorted(got) == [b"0", b"1", b"2"]


class Whole:
    """Another replica, with an undamaged payload. Its first `lies` answers have wrong bytes."""

    def __init__(self, whole: bytes) -> None:
        self.whole = whole
        self.asked = 0
        self.lies = 0

    def payload(self, query: PayloadQuery) -> Payload:
        self.asked += 1
        key = ATTACHMENTS.key(query.group, query.index, query.part)
        if self.lies:
            self.lies -= 1
            return Payload(checksum(key, self.whole), self.whole[:-1] + b"?")
        return Payload(checksum(key, self.whole), self.whole)


async def damaged_on_a(cluster: ServiceCluster, *, lies: int = 0) -> Whole:
    """An item with a payload that is damaged on node a, the leader, and undamaged on node b.

    All nodes of the cluster share one storage, so `Whole` keeps the payload of node b.
    """
    await cluster.produce("a", b"one")
    group = group_of(cluster)
    with cluster.base.environment.snapshot() as txn:
        [(key, _)] = list(ATTACHMENTS.rows(txn, group))
        index, part = map(int, ATTACHMENTS.parts(key))
        whole = attachments.read(txn, group, index, part)
    assert whole is not None
    damage(memory(cluster.base.environment), group)
    other = Whole(whole)
    other.lies = lies
    cluster.members["b"].damage.payload = other.payload  # type: ignore[method-assign]
    return other


async def test_a_replica_that_moves_away_is_asked_too():
    """It may be the only replica with an undamaged payload."""
    async with service_cluster("a", "b", leaving="b") as cluster:
        await damaged_on_a(cluster)
        assert payloads(*(await cluster.lease("a", wait_ms=LONG_MS)).batches) == [b"one"]


@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_replica_that_has_it_whole_mends_the_block(name: str):
    async with service_cluster("a", "b") as cluster:
        other = await damaged_on_a(cluster)
        waiting = asyncio.get_running_loop().create_task(cluster.lease(name, wait_ms=LONG_MS))
        reply = await waiting
        assert payloads(*reply.batches) == [b"one"]
        assert reply.batches[0].attempt == 1
        assert other.asked == 1
        assert cluster.members["a"].damage.stats() == damages.DamageStats(1, 1, {})


async def test_what_cannot_be_sent_to_another_replica_is_mended():
    async with service_cluster("a", "b") as cluster:
        other = await damaged_on_a(cluster)
        group = group_of(cluster)
        with cluster.base.environment.snapshot() as txn:
            [(key, _)] = list(ATTACHMENTS.rows(txn, group))
        index, part = map(int, ATTACHMENTS.parts(key))
        damage_of_a = cluster.members["a"].damage
        damage_of_a.unsendable(group, index, part)
        damage_of_a.unsendable(group, index, part)
        while not damage_of_a.stats().mended:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
        assert other.asked == 1
        reply = await cluster.lease("a", wait_ms=LONG_MS)
        assert payloads(*reply.batches) == [b"one"]
        assert damage_of_a.stats() == damages.DamageStats(1, 1, {})


async def test_bytes_that_do_not_hold_are_not_taken(monkeypatch):
    monkeypatch.setattr(damages, "MEND_PAUSE_MS_MIN", 1)
    async with service_cluster("a", "b") as cluster:
        other = await damaged_on_a(cluster, lies=2)
        reply = await cluster.lease("a", wait_ms=LONG_MS)
        assert payloads(*reply.batches) == [b"one"]
        assert other.asked == 3


async def test_a_replica_that_is_behind_or_damaged_has_nothing_to_give():
    async with service_cluster("a", "b") as cluster:
        await cluster.produce("a", b"one")
        group = group_of(cluster)
        error = await refusal(_asked(cluster.forwarders["a"], PayloadQuery(group, 1_000, 0)))
        assert "not here" in error.message
        with cluster.base.environment.snapshot() as txn:
            [(key, _)] = list(ATTACHMENTS.rows(txn, group))
        index, part = map(int, ATTACHMENTS.parts(key))
        with damaged(memory(cluster.base.environment), group, 0):
            error = await refusal(_asked(cluster.forwarders["a"], PayloadQuery(group, index, part)))
            assert "damaged here, too" in error.message


async def _asked(forwarder: FakeForwarder, query: PayloadQuery) -> Any:
    return await forwarder.query("b", query)
