"""How long the leader's own dispatcher rests, so that other nodes get as much of a backlog."""

import asyncio

import pytest

from querator.model.ids import GroupId
from querator.service.exchange.pace import OWED_MAX, REST_S_MAX, RUNNING, QueuePace
from querator.service.lease.supply import PartitionSupply
from tests.unit.service.routing.test_router import group_of, rounds, start
from tests.unit.service.service_cluster import ServiceCluster, service_cluster
from tests.unit.service.service_node import LONG_MS, payloads

LEASE_S = 0.01


def ahead(items: float = 3.0) -> QueuePace:
    """A pace whose own dispatcher is `items` ahead of node b. Node b has leased at time 0."""
    pace = QueuePace()
    pace.other("b", 0, 0.0)
    pace.own(items, LEASE_S)
    return pace


def test_the_own_desk_rests_as_long_as_its_lease_took_while_another_node_is_owed_something():
    assert QueuePace().rest_s(0.0) == 0
    assert ahead(1.0).rest_s(0.0) == 0, "somebody has to be the first"
    pace = ahead(3.0)
    assert pace.rest_s(0.0) == LEASE_S
    pace.other("b", 1.0, 0.0)
    assert pace.rest_s(0.0) == LEASE_S
    pace.other("b", 1.0, 0.0)
    assert pace.rest_s(0.0) == 0
    pace.own(1.0, 60.0)
    assert pace.rest_s(0.0) == REST_S_MAX


def test_a_node_that_comes_seldom_is_not_waited_for():
    pace = ahead()
    assert pace.rest_s(RUNNING * LEASE_S)
    assert pace.rest_s(RUNNING * LEASE_S + 0.001) == 0
    pace.other("b", 1.0, 1.0)
    assert pace.rest_s(1.0)
    pace.forget("b")
    assert pace.rest_s(1.0) == 0


@pytest.mark.parametrize("more", [-1, 1])
def test_little_is_remembered(more: int):
    pace = ahead(0)
    for _ in range(100):
        if more > 0:
            pace.own(1.0, LEASE_S)
        else:
            pace.other("b", 1.0, 0.0)
    for _ in range(int(OWED_MAX)):
        if more > 0:
            pace.other("b", 1.0, 0.0)
        else:
            pace.own(1.0, LEASE_S)
    assert pace.rest_s(0.0) == 0
    pace.own(1.5, LEASE_S)
    assert pace.rest_s(0.0)


def supply_of(cluster: ServiceCluster, group: GroupId) -> PartitionSupply:
    """The supply of the group at node a."""
    exchange = cluster.members["a"].exchange
    assert exchange is not None
    return exchange._supplies.of(cluster.members["a"].router.route(group))


async def test_who_does_not_wait_is_served_while_the_desk_rests():
    async with service_cluster("a", "b") as cluster:
        supply = supply_of(cluster, group_of(cluster, 0))
        supply.is_resting = True
        waiting = start(cluster.lease("a", 1, wait_ms=LONG_MS))
        await cluster.produce("a", b"x")
        await rounds()
        assert not waiting.done()
        supply.is_resting = False
        supply.notify()
        assert payloads(*(await waiting).batches) == [b"x"]
        supply.is_resting = True
        await cluster.produce("a", b"y")
        assert payloads(*(await cluster.lease("a", 1)).batches) == [b"y"]


async def test_the_desk_rests_no_longer_when_another_node_leads():
    async with service_cluster("a", "b") as cluster:
        group = group_of(cluster, 0)
        await cluster.produce("a", *[b"%d" % number for number in range(900)])
        supply = supply_of(cluster, group)
        while not supply.is_resting:
            await cluster.lease("b", 1, wait_ms=LONG_MS)
            await cluster.lease("a", 3, wait_ms=LONG_MS)
        cluster.lead(group, "b")
        assert not supply.is_resting
        await asyncio.sleep(REST_S_MAX)
        cluster.lead(group, "a")
        assert payloads(*(await cluster.lease("a", 1, wait_ms=LONG_MS)).batches)
