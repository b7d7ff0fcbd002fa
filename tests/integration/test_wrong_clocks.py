"""Nodes that start with a wall clock that is days ahead: time in the partitions stays right."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from querator import Client
from querator.cli.demo.local_nodes import free_ports
from querator.client import Item
from querator.client.values import PartitionStats
from querator.model.limits import DAY_MS
from tests.integration.process_cluster import (
    LOOK_S,
    START_S,
    ClusterProcess,
    ProcessCluster,
    process_cluster,
)
from tests.integration.processes import run
from tests.integration.wall_clocks import WallClocks, built, environment, step

pytestmark = pytest.mark.timeout(240)

QUEUE = "work"
PARTITIONS = 3


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return built(tmp_path)


async def fill(addresses: str) -> None:
    """Produces an item for each partition that would expire, and one that would become due."""
    due = datetime.now(UTC) + timedelta(hours=12)
    async with Client(addresses, request_timeout=timedelta(seconds=30)) as client:
        for _ in range(PARTITIONS * 4):
            await client.produce(QUEUE, Item(payload=b"x", expire_timeout=timedelta(hours=1)))
            await client.produce(QUEUE, Item(payload=b"later", enqueue_at=due))


async def counted(addresses: str) -> PartitionStats:
    async with Client(addresses, request_timeout=timedelta(seconds=30)) as client:
        return (await client.stats(QUEUE)).total


def says(view: dict[str, Any], words: str) -> bool:
    return any(words in problem for problem in view["problems"])


async def end(cluster: ProcessCluster, names: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            if cluster[name].running:
                tasks.create_task(cluster[name].kill())


@pytest.mark.parametrize("up", ["ab", "abc"])
async def test_a_node_that_starts_a_day_ahead_moves_no_time(tmp_path: Path, library: Path, up: str):
    async with process_cluster(tmp_path) as cluster:
        clocks = WallClocks(cluster, library)
        await cluster.start()
        addresses = cluster["b"].address
        async with Client(addresses) as client:
            await client.create_queue(QUEUE, partitions=PARTITIONS, max_attempts=0, dead_queue="")
        await cluster.until_well("b")
        await fill(addresses)
        before = await counted(addresses)
        clocks.step("a", DAY_MS)
        for round_ in range(1, 3):
            await end(cluster, "abc")
            await cluster.start(up)
            await fill(addresses)
            after = await counted(addresses)
            assert (after.expired, after.dead, after.dropped) == (0, 0, 0)
            assert after.ready == (1 + round_) * before.ready
            assert after.scheduled == (1 + round_) * before.scheduled
        told = (
            "The clock of node a is " if "c" in up else "The clocks of nodes a and b differ by 86,"
        )
        await cluster.until(lambda view: says(view, told), "b")
        clocks.step("a", 0)
        if "c" not in up:
            await cluster["c"].start()
        await cluster.until_well("b")
        await fill(addresses)
        assert (await counted(addresses)).expired == 0
        async with Client(addresses) as client:
            newest = [item.produced_at async for item in client.peek(QUEUE)]
        assert max(newest) < datetime.now(UTC) + timedelta(seconds=1)


async def test_a_lone_node_whose_clock_is_a_month_ahead_waits_until_it_is_set(
    tmp_path: Path, library: Path
):
    offset = tmp_path / "clock"
    step(offset, 0)
    node = ClusterProcess("one", tmp_path, client_port=free_ports(1)[0], options=["--new"])
    node.environment = environment(library, offset)
    try:
        await node.start()
        async with Client(node.address) as client:
            await client.create_queue(QUEUE, max_attempts=0, dead_queue="")
            await client.produce(QUEUE, Item(payload=b"x", expire_timeout=timedelta(hours=1)))
        await node.kill()
        step(offset, 30 * DAY_MS)
        await node.launch()
        await node.says("clock.rejected", "--trust-clock")
        step(offset, 0)
        await node.ready()
        assert (await counted(node.address)).ready == 1
        assert await node.stop() == 0

        step(offset, 30 * DAY_MS)
        await node.launch("--trust-clock")
        await node.ready()
        async with asyncio.timeout(START_S):
            while not (await counted(node.address)).expired:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        step(offset, 0)
        command = ("cluster", "status", "--address", node.address)
        code, out, _ = await run(*command)
        assert code == 1
        assert "is ahead of the clock" in out.replace("\n", " ")
        code, out, _ = await run(
            "cluster", "repair-time", QUEUE, "--yes", "--address", node.address
        )
        assert (code, "Time is right in 1 partition" in out) == (0, True)
        code, out, _ = await run(*command)
        assert (code, "All is well" in out) == (0, True)
        assert await node.stop() == 0
    finally:
        if node.running:
            await node.kill()
