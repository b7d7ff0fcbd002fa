"""Items that a broken stream leased and did not deliver go back when its consumer opens the next
stream.
"""

import asyncio
from typing import Any

import pytest

from querator.model.calls import LeaseReply, SubscribeCall
from querator.model.commands import Lease
from querator.model.ids import GroupId, parse_stream_request_id
from querator.model.limits import LEASE_TIMEOUT_MS_MAX, MIB
from querator.service.lease import former_streams
from querator.service.lease.subscriptions import Subscription
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import payloads, seqs, service_node


def group_of(cluster: ServiceCluster, partition: int = 0) -> GroupId:
    queue = cluster.base.placement.map.find("default", "q")
    assert queue is not None
    return queue.groups[partition]


async def subscribe(cluster: ServiceCluster, name: str, number: int, **more: Any) -> Subscription:
    fields = {"max_items": 10, "max_bytes": 3 * MIB, "consumer_id": "me", **more}
    call = SubscribeCall("default", "q", "c", stream_number=number, **fields)
    return await cluster.members[name].subscribe(call)


def ids(reply: LeaseReply) -> tuple[str, ...]:
    return tuple(batch.lease_id for batch in reply.batches)


async def test_what_was_not_delivered_goes_back_without_an_attempt():
    async with service_cluster("a", "b", "c") as cluster:
        former = await subscribe(cluster, "b", 1)
        for number in range(2):
            await cluster.produce("a", *[b"%d" % number] * 10)
        former.grant(20, 0)
        delivered = await former.next()
        await cluster.base.until(lambda: cluster.base.counts().leased == 20)
        cluster.cut("a", "b")
        following = await subscribe(cluster, "c", 2, held_lease_ids=ids(delivered))
        await cluster.base.until(lambda: cluster.base.counts().released == 10)
        following.grant(20, 0)
        again = await following.next()
        assert payloads(*again.batches) == [b"1"] * 10
        assert [batch.attempt for batch in again.batches] == [1]
        outcomes = await cluster.complete("c", *delivered.batches, *again.batches)
        assert [outcome.error for outcome in outcomes.outcomes] == [None, None]
        await following.close(polite=True)
        await former.close(polite=False)
        assert (await cluster.base.total()).completed == 20


async def test_leases_name_their_stream():
    async with service_cluster("a", "b") as cluster:
        stream = await subscribe(cluster, "b", 3)
        stream.grant(10, 0)
        await cluster.produce("a", b"x")
        await stream.next()
        [lease] = [command for _, _, command in cluster.proposed if isinstance(command, Lease)]
        [caller] = lease.callers
        assert parse_stream_request_id(caller.request_id) == ("me", 3)
        await stream.close(polite=True)


async def test_only_this_consumers_former_streams_have_ended():
    async with service_cluster("a", "b") as cluster:
        others = [
            await subscribe(cluster, "b", 1, consumer_id="you"),
            await subscribe(cluster, "b", 3),
            await subscribe(cluster, "b", 0, consumer_id=""),
        ]
        former = await subscribe(cluster, "b", 1)
        for stream in [*others, former]:
            stream.grant(1, 0)
            await cluster.produce("a", b"x")
            await stream.next()
        following = await subscribe(cluster, "a", 2)
        await cluster.base.until(lambda: cluster.base.counts().released > 0)
        total = await cluster.base.total()
        assert (total.released, total.leased) == (1, 3)
        for stream in [*others, former, following]:
            await stream.close(polite=True)


async def test_a_partition_without_a_leader_is_asked_when_it_has_one():
    async with service_cluster("a", "b", partitions=2) as cluster:
        former = await subscribe(cluster, "b", 1)
        # Credit for no more items: the stream would lease the returned items again.
        former.grant(4, 0)
        got: list[bytes] = []
        for _ in range(2):
            await cluster.produce("a", b"x")
            await cluster.produce("b", b"x")
        while len(got) < 4:
            got += payloads(*(await former.next()).batches)
        cluster.lead(group_of(cluster, 0), None)
        cluster.lead(group_of(cluster, 1), None)
        following = await subscribe(cluster, "a", 2)
        for partition in (1, 0):
            cluster.lead(group_of(cluster, partition), "a")
        await cluster.base.until(lambda: not cluster.base.counts().leased)
        assert (await cluster.base.total()).released == 4
        await former.close(polite=True)
        await following.close(polite=True)


async def test_a_lease_that_comes_late_goes_back_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(former_streams, "LATE_S", 60.0)
    loop, passed = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed)
    async with service_cluster("a", "b") as cluster:
        former = await subscribe(cluster, "b", 1)
        former.grant(10, 0)
        following = await subscribe(cluster, "a", 2, lease_timeout_ms=LEASE_TIMEOUT_MS_MAX)
        await cluster.confirming.wait()
        await cluster.produce("a", *[b"x"] * 10)
        await cluster.base.until(lambda: cluster.base.counts().leased == 10)
        assert (await cluster.base.total()).released == 0
        passed = 60.0
        await cluster.base.until(lambda: cluster.base.counts().released == 10)
        await following.close(polite=True)
        await former.close(polite=True)


async def test_many_leases_go_back_in_several_commands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(former_streams, "REQUEST_LEASES_MAX", 2)
    async with service_cluster("a", "b") as cluster:
        former = await subscribe(cluster, "b", 1, max_items=1)
        former.grant(5, 0)
        held: list[str] = []
        for _ in range(5):
            await cluster.produce("a", b"x")
            reply = await former.next()
            if seqs(reply.batches[0]) == [3]:
                held += ids(reply)
        following = await subscribe(cluster, "b", 2, held_lease_ids=tuple(held))
        await cluster.base.until(lambda: cluster.base.counts().released == 4)
        assert (await cluster.base.total()).leased == 1
        await following.close(polite=True)
        await former.close(polite=True)


async def test_a_stream_that_closes_asks_nobody_any_more():
    async with service_cluster("a", "b") as cluster:
        cluster.lead(group_of(cluster), None)
        before = asyncio.all_tasks()
        following = await subscribe(cluster, "a", 2)
        await asyncio.sleep(0)
        await following.close(polite=False)
        assert asyncio.all_tasks() <= before


async def test_a_node_that_is_alone_does_it_as_well():
    async with service_node() as node:
        await node.create()
        former = await node.subscribe(consumer_id="me", stream_number=1)
        former.grant(10, 0)
        await node.produce(b"x")
        await former.next()
        following = await node.subscribe(consumer_id="me", stream_number=2)
        await node.until(lambda: node.counts().released == 1)
        await following.close(polite=True)
        await former.close(polite=True)
