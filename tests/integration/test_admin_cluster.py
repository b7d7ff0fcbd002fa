"""The admin ports of three real nodes: while they form a cluster, share its work and die."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from querator import Client
from querator.cli.demo.local_nodes import free_ports
from tests.integration.process_cluster import LOOK_S, ProcessCluster, process_cluster
from tests.unit.server.http_client import get
from tests.unit.server.observed_node import Exposition

pytestmark = pytest.mark.timeout(180)

QUEUE = {"namespace": "default", "queue": "q"}


class Ports:
    """The admin ports of a cluster's nodes, by name."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster
        ports = free_ports(len(cluster.by_name))
        self._addresses = {
            name: f"127.0.0.1:{port}" for name, port in zip(cluster.by_name, ports, strict=True)
        }

    async def launch(self, names: str) -> None:
        for name in names:
            await self._cluster[name].launch("--listen-admin", self._addresses[name])

    async def ask(self, name: str, path: str) -> tuple[int, str]:
        status, _, text = await get(self._addresses[name], path)
        return status, text

    async def scrape(self, name: str) -> Exposition:
        status, text = await self.ask(name, "/metrics")
        assert status == 200
        return Exposition(text)

    async def until(self, name: str, condition: Callable[[Exposition], bool]) -> Exposition:
        async with asyncio.timeout(60):
            while not condition(said := await self.scrape(name)):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        return said

    async def add_up(self, names: str, expected: float, metric: str, **labels: str) -> None:
        """Metrics may be some milliseconds behind the acknowledgements."""
        total = -1.0
        async with asyncio.timeout(60):
            while total != expected:
                if total >= 0:
                    await asyncio.sleep(LOOK_S)
                said = [await self.scrape(name) for name in names]
                total = sum(each.value(metric, **labels) for each in said)


async def test_a_node_that_waits_for_its_cluster_is_alive_and_says_for_whom(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        ports = Ports(cluster)
        await ports.launch("ab")
        for name in "ab":
            await cluster[name].waiting("c (")
            assert (await ports.ask(name, "/livez")) == (200, "ok\n")
            status, text = await ports.ask(name, "/readyz")
            assert status == 503
            assert "the start waits for" in text
            assert "c (" in text
            assert (await ports.scrape(name)).value("querator_node_unready_reasons") > 0
        await ports.launch("c")
        for name in "abc":
            await cluster[name].ready()
            assert (await ports.ask(name, "/readyz")) == (200, "ok\n")
        for name in "abc":
            for record in cluster[name].records[1:]:
                assert record["node"] == name


async def test_three_nodes_add_up_and_tell_of_a_death(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        ports = Ports(cluster)
        await ports.launch("abc")
        for name in "abc":
            await cluster[name].ready()
        async with Client(cluster["a"].address) as client:
            await client.create_queue("q", partitions=3, max_attempts=0, dead_queue="")
            for _ in range(10):
                await client.produce("q", b"work")

        await ports.add_up("abc", 10, "querator_queue_items", **QUEUE, state="ready")
        await ports.add_up("abc", 10, "querator_queue_produced_items_total", **QUEUE)
        for name in "abc":
            said = await ports.until(
                name, lambda said: said.value("querator_raft_groups", state="leaderless") == 0
            )
            led = said.value("querator_raft_groups", state="leader")
            followed = said.value("querator_raft_groups", state="follower")
            assert led + followed == 4
            assert said.value("querator_cluster_nodes", state="connected") == 2

        await cluster["c"].kill()
        for name in "ab":
            await ports.until(
                name,
                lambda said: (
                    said.value("querator_cluster_nodes", state="unreachable") == 1
                    and said.value("querator_raft_groups", state="leaderless") == 0
                ),
            )
            assert (await ports.ask(name, "/readyz"))[0] == 200
        async with Client(cluster["b"].address) as client:
            for _ in range(5):
                await client.produce("q", b"work")
        await ports.add_up("ab", 15, "querator_queue_items", **QUEUE, state="ready")

        await cluster["b"].kill()
        await ports.until("a", lambda said: said.value("querator_node_unready_reasons") > 0)
        status, text = await ports.ask("a", "/readyz")
        assert (status, text) == (503, "no group of this node knows a leader\n")
        assert (await ports.ask("a", "/livez"))[0] == 200
        await ports.launch("b")
        await cluster["b"].ready()
        await ports.until("a", lambda said: said.value("querator_node_unready_reasons") == 0)
        assert await cluster["b"].stop() == 0
