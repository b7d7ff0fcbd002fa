"""Copies of a node's data that lack what it has acknowledged since: put back while the others are
down, taken while it ran, and run beside it. Real processes.
"""

import shutil
from pathlib import Path

import pytest

from querator import Client
from querator.cli.demo.local_nodes import free_ports
from tests.integration.process_cluster import ClusterProcess, ProcessCluster, process_cluster
from tests.integration.processes import run

pytestmark = pytest.mark.timeout(180)

ITEMS = 200
OLD_COPY = "the data of node b is an old copy"


async def begin(cluster: ProcessCluster) -> None:
    await cluster.start()
    await cluster.querator("queue", "create", "q", "--dead-queue", "")
    await cluster.until_well("c")


async def produced(cluster: ProcessCluster, asked: str) -> set[bytes]:
    """Produces items that are acknowledged; returns their payloads."""
    payloads = {b"%d" % number for number in range(ITEMS)}
    async with Client(cluster[asked].address) as client:
        await client.produce("q", *sorted(payloads))
    return payloads


async def found(cluster: ProcessCluster, asked: str) -> set[bytes | str]:
    async with Client(cluster[asked].address) as client:
        return {peeked.item.payload async for peeked in client.peek("q", limit=2 * ITEMS)}


def copy_of(member: ClusterProcess, home: Path) -> Path:
    copy = home / "copy"
    shutil.copytree(member.data_dir, copy)
    return copy


def put_back(copy: Path, member: ClusterProcess) -> None:
    member.lose()
    copy.rename(member.data_dir)


async def ends_as_old_copy(member: ClusterProcess) -> None:
    """The node ends by itself: before it is ready, or when it meets a node that knows."""
    assert await member.end() in (1, 6)
    assert OLD_COPY in member.said().splitlines()[-1]


async def start_without_a(cluster: ProcessCluster) -> None:
    """Starts b, whose data is an old copy, and c. Neither can ask the other when it starts."""
    await cluster["b"].launch()
    await cluster["b"].says("peers.unreachable", "c")
    await cluster["c"].launch()


async def test_a_copy_from_before_the_last_start_is_refused_when_all_start(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await begin(cluster)
        assert await cluster["b"].stop() == 0
        copy = copy_of(cluster["b"], tmp_path)
        await cluster["b"].start()
        await cluster.until_well("c")
        await cluster["c"].kill()
        acknowledged = await produced(cluster, "a")
        await cluster["a"].kill()
        await cluster["b"].kill()
        put_back(copy, cluster["b"])

        await start_without_a(cluster)
        await ends_as_old_copy(cluster["b"])
        await cluster["a"].start()
        assert await found(cluster, "c") == acknowledged

        # It is not accepted later either, however often it starts.
        for _ in range(3):
            await cluster["b"].launch()
            assert OLD_COPY in await cluster["b"].refused()


async def test_a_refused_copy_comes_back_as_a_new_copy_of_the_node(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await begin(cluster)
        assert await cluster["b"].stop() == 0
        copy = copy_of(cluster["b"], tmp_path)
        await cluster["b"].start()
        await cluster.until_well("c")
        acknowledged = await produced(cluster, "a")
        await cluster["b"].kill()
        put_back(copy, cluster["b"])
        await cluster["b"].launch()
        assert OLD_COPY in await cluster["b"].refused()
        view = await cluster.status()
        assert any(OLD_COPY in problem for problem in view["problems"])

        directory = str(cluster["b"].data_dir)
        code, _, error = await run("node", "restore-from-copy", "--data-dir", directory)
        assert code == 0, error
        assert "querator node replace b" in error
        await cluster["b"].launch()
        await cluster["b"].waiting("querator node replace b")
        await cluster.querator("node", "replace", "b", "--yes")
        await cluster["b"].ready()
        await cluster.until_well("b")
        await cluster["a"].kill()
        assert await found(cluster, "b") == acknowledged


async def test_a_copy_of_a_running_node_is_refused_when_others_have_met_it_since(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await begin(cluster)
        cluster["b"].freeze()
        copy = copy_of(cluster["b"], tmp_path)
        cluster["b"].thaw()
        await cluster["c"].kill()
        await cluster["c"].start()
        # b connects again after up to PEER_RETRY_MS_MAX; c is well as soon as a has found it.
        await cluster["c"].says("peers.connected", "'peer': 'b/")
        await cluster.until_well("c")
        # c logs the connection before its disk has b's start. A majority of b and c has it.
        cluster["a"].freeze()
        await produced(cluster, "b")
        cluster["a"].thaw()
        await cluster["c"].kill()
        acknowledged = await produced(cluster, "a")
        await cluster["a"].kill()
        await cluster["b"].kill()
        put_back(copy, cluster["b"])

        await start_without_a(cluster)
        await ends_as_old_copy(cluster["b"])
        await cluster["a"].start()
        assert await found(cluster, "c") == acknowledged


async def test_a_copy_and_the_original_do_not_both_run(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await begin(cluster)
        assert await cluster["b"].stop() == 0
        home = tmp_path / "elsewhere"
        home.mkdir()
        peer_port, client_port = free_ports(2)
        options = [*cluster["b"].options, "--listen-peers", f"127.0.0.1:{peer_port}"]
        twin = ClusterProcess("b", home, client_port=client_port, options=options)
        shutil.copytree(cluster["b"].data_dir, twin.data_dir)
        try:
            # It reaches c alone: a connects to the original's address.
            await twin.start()
            await cluster["b"].launch()
            assert OLD_COPY in await cluster["b"].refused()
            acknowledged = await produced(cluster, "c")
            assert twin.running
            await twin.kill()
            assert await found(cluster, "a") == acknowledged
        finally:
            if twin.running:
                await twin.kill()
