"""Three real nodes on a network that fails: clients notice nothing, or only a wait."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from querator import Client
from tests.integration.faulty_cluster import FaultyCluster, faulty_cluster
from tests.integration.process_cluster import is_well

pytestmark = pytest.mark.timeout(180)

QUEUE = "q"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FaultyCluster]:
    async with faulty_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster.addresses) as client:
            await client.create_queue(QUEUE, partitions=3, max_attempts=0, dead_queue="")
        await cluster.until(_each_leads_one)
        yield cluster


def _each_leads_one(view: dict[str, Any]) -> bool:
    return _leaders(view) == {"a", "b", "c"} and is_well(view)


def _leaders(view: dict[str, Any]) -> set[str]:
    return {one["leader"] for one in view["partitions"] if one["queue"] == QUEUE}


async def _fill(cluster: FaultyCluster, text: str) -> None:
    """Produces items into all partitions, in requests of one item."""
    async with Client(cluster.addresses) as client:
        for number in range(12):
            await client.produce(QUEUE, f"{text} {number}")


async def _found(cluster: FaultyCluster) -> set[bytes | str]:
    async with Client(cluster.addresses) as client:
        return {peeked.item.payload async for peeked in client.peek(QUEUE)}


def _all_of(*texts: str) -> set[bytes]:
    return {f"{text} {number}".encode() for text in texts for number in range(12)}


def cut_off(cluster: FaultyCluster) -> None:
    for way in cluster.around("b"):
        way.block()


def deaf(cluster: FaultyCluster) -> None:
    """Node b is heard, and hears nothing."""
    for other in "ac":
        for way in cluster.ways(other, "b"):
            way.block()


def mute(cluster: FaultyCluster) -> None:
    for other in "ac":
        for way in cluster.ways("b", other):
            way.block()


def no_link_to_one(cluster: FaultyCluster) -> None:
    for way in cluster.between("b", "c"):
        way.block()


def slow(cluster: FaultyCluster) -> None:
    for way in cluster.around("b"):
        way.delay_s = 0.2
        way.bytes_per_s = 200_000


def frozen(cluster: FaultyCluster) -> None:
    cluster["b"].freeze()


def resets(cluster: FaultyCluster) -> None:
    for one, other in ("ab", "bc", "ca"):
        cluster.reset(one, other)


FAULTS = [cut_off, deaf, mute, no_link_to_one, slow, frozen, resets]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_produce_goes_on_and_nothing_is_lost(
    cluster: FaultyCluster, fault: Callable[[FaultyCluster], None]
) -> None:
    await _fill(cluster, "before")
    fault(cluster)
    await _fill(cluster, "meanwhile")
    cluster.heal()
    if fault is frozen:
        cluster["b"].thaw()
    await _fill(cluster, "after")
    await cluster.until(_each_leads_one)
    assert await _found(cluster) == _all_of("before", "meanwhile", "after")


async def test_nothing_is_acknowledged_without_a_majority(cluster: FaultyCluster) -> None:
    """No node hears another one: a produce waits, and is stored when the network is whole."""
    for one, other in ("ab", "bc", "ca"):
        for way in cluster.between(one, other):
            way.block()
    async with asyncio.TaskGroup() as tasks:
        produced = tasks.create_task(_fill(cluster, "alone"))
        done, _ = await asyncio.wait([produced], timeout=5)
        assert not done
        cluster.heal()
    assert await _found(cluster) == _all_of("alone")
