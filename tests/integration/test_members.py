"""Nodes that form a cluster, come back, are mistaken for others, lose their data and are replaced:
real processes.
"""

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from querator import Client
from querator.cli.demo.local_nodes import free_ports
from tests.integration.process_cluster import ClusterProcess, ProcessCluster, process_cluster
from tests.integration.processes import run, verify

pytestmark = pytest.mark.timeout(180)

LATE = [("abc", "c"), ("cab", "b"), ("bca", "a")]


def leaders(view: dict[str, Any], queue: str) -> set[str]:
    return {one["leader"] for one in view["partitions"] if one["queue"] == queue}


def state(view: dict[str, Any], name: str) -> str:
    return str(next(node["state"] for node in view["nodes"] if node["name"] == name))


def down(name: str) -> Callable[[dict[str, Any]], bool]:
    """Whether the status reports the node as down, which the other nodes notice a moment later."""

    def is_down(view: dict[str, Any]) -> bool:
        says = any(f"Node {name} is down" in problem for problem in view["problems"])
        return says and state(view, name) == "down"

    return is_down


async def produced(cluster: ProcessCluster, asked: str, payload: str) -> None:
    await cluster.querator("produce", "q", payload, asked=asked)


async def payloads(cluster: ProcessCluster, asked: str) -> set[bytes | str]:
    """All items of the queue, as the node shows it."""
    async with Client(cluster[asked].address) as client:
        return {peeked.item.payload async for peeked in client.peek("q")}


@pytest.mark.parametrize(("order", "late"), LATE, ids=[f"{late} late" for _, late in LATE])
async def test_a_cluster_forms_when_the_last_node_comes(tmp_path: Path, order: str, late: str):
    async with process_cluster(tmp_path) as cluster:
        early = [name for name in order if name != late]
        for name in early:
            await cluster[name].launch()
        for name in early:
            await cluster[name].waiting(f"{late} (")
        await cluster[late].launch()
        for name in order:
            await cluster[name].ready()
        view = await cluster.until_well(late)
        assert [node["name"] for node in view["nodes"]] == ["a", "b", "c"]
        assert {node["starts"] for node in view["nodes"]} == {1}


async def test_any_node_makes_queues_and_all_lead_some(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        for name in "abc":
            await cluster.querator(
                "queue", "create", f"q-{name}", "--dead-queue", "", "--partitions", "3", asked=name
            )
        view = await cluster.until(
            lambda view: all(leaders(view, f"q-{name}") == {"a", "b", "c"} for name in "abc")
        )
        assert not view["problems"]
        assert {node["replicas"] for node in view["nodes"]} == {10}
        out, _ = await cluster.querator("cluster", "status", asked="b")
        assert "3 nodes, 3 queues, 9 partitions. All is well." in out
        assert "a 1, b 1, c 1" in out

        await cluster.querator("queue", "delete", "q-b", "--yes", asked="c")
        view = await cluster.until(lambda view: not leaders(view, "q-b"), "b")
        assert {node["replicas"] for node in view["nodes"]} == {7}


async def test_restarts_of_one_and_of_all(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "3")
        await produced(cluster, "a", "one")
        for name in "abc":
            assert await cluster[name].stop() == 0
            other = "b" if name == "a" else "a"
            await cluster.until(down(name), other)
            await produced(cluster, other, f"without {name}")
            await cluster[name].start()
        await cluster.until_well()
        await cluster.stop()
        await cluster.start()
        await cluster.until_well("c")
        # The leader of the map records the starts a moment later.
        await cluster.until(lambda view: {node["starts"] for node in view["nodes"]} == {3}, "c")
        found = await payloads(cluster, "b")
        assert found == {b"one", b"without a", b"without b", b"without c"}
        await cluster.stop()
        for name in "abc":
            await verify(cluster[name].data_dir)


async def test_a_killed_node_is_missed_and_comes_back(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "3")
        await cluster["b"].kill()
        await produced(cluster, "a", "without b")
        await cluster.until(down("b"), "c")
        await cluster["b"].start()
        await cluster.until_well("b")
        assert await payloads(cluster, "b") == {b"without b"}


async def test_a_node_that_hangs_is_not_said_to_be_down(tmp_path: Path):
    """The advice was to start it again."""
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        cluster["b"].freeze()
        try:
            view = await cluster.until(lambda view: state(view, "b") == "hangs", "c")
            [problem] = [one for one in view["problems"] if one.startswith("Node b ")]
            assert problem.startswith(
                f"Node b hangs: {cluster['b'].address} accepts connections and does not answer."
            )
            assert "Start" not in problem
        finally:
            cluster["b"].thaw()
        await cluster.until_well("c")


async def test_a_stranger_with_a_wrong_token_is_shown_while_it_tries(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        wrong = tmp_path / "wrong"
        wrong.write_text("another secret of 16 bytes")
        home = tmp_path / "elsewhere"
        home.mkdir()
        peer_port, client_port = free_ports(2)
        options = [*cluster["a"].options, "--listen-peers", f"127.0.0.1:{peer_port}"]
        options[options.index("--cluster-token-file") + 1] = str(wrong)
        options[options.index("--peers") + 1] += f",Z=127.0.0.1:{peer_port}"
        stranger = ClusterProcess("Z", home, client_port=client_port, options=options)
        await stranger.launch()
        try:
            await cluster.until(
                lambda view: any(
                    one.startswith("A process at 127.0.0.1 asks node ")
                    and "it has another cluster token than this node" in one
                    for one in view["problems"]
                )
            )
        finally:
            await stranger.kill()
        await cluster.until_well()


async def test_clients_say_at_once_why_they_wait(tmp_path: Path):
    waiting = "Waiting: partition 0 of queue q has no leader (b, c unreachable)"
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "")
        for name in "bc":
            await cluster[name].kill()
        await cluster["a"].says("condition.began", "no_majority")
        for command in (("produce", "q", "x"), ("consume", "q")):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "querator", *command, "--address", cluster["a"].address,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stderr is not None
            said = await process.stderr.readline()
            assert waiting in said.decode()
            process.terminate()
            await process.communicate()


async def test_handing_a_node_off(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "6")
        _, error = await cluster.querator("node", "handoff", "a", asked="b", code=3)
        assert "this is node b" in error
        assert await healthy(cluster["b"].address)
        _, said = await cluster.querator("node", "handoff", "b", asked="b")
        assert "Node b has handed off" in said
        assert not await healthy(cluster["b"].address)
        assert await healthy(cluster["a"].address)
        view = await cluster.until(lambda view: leaders(view, "q") == {"a", "c"})
        assert state(view, "b") == "handed off"
        assert any("Node b has handed off" in problem for problem in view["problems"])
        await produced(cluster, "b", "still taken")
        assert await cluster["b"].stop() == 0
        await cluster["b"].start()
        view = await cluster.until(lambda view: "b" in leaders(view, "q"))
        assert state(view, "b") == "up"
        assert await healthy(cluster["b"].address)


async def test_handing_a_node_off_without_a_majority(tmp_path: Path):
    """The node was not ready for ever, and the status said that all was well."""
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster["b"].kill()
        await cluster["c"].kill()
        # It may still lead what it led before; that makes the exit code 1.
        _, _, said = await run("node", "handoff", "a", "--address", cluster["a"].address)
        assert "It leads nothing until it starts again." in said
        await cluster["b"].start()
        await cluster["c"].start()
        await cluster.until(
            lambda view: any("Node a has handed off" in one for one in view["problems"])
        )
        await cluster["a"].stop()
        await cluster["a"].start()
        await cluster.until_well()


async def healthy(address: str) -> bool:
    """The health check of a load balancer."""
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_lost_data_waits_is_replaced_and_rebuilt(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "3")
        await produced(cluster, "a", "before")
        _, error = await cluster.querator("node", "replace", "b", "--yes", code=3)
        assert "is up with its data" in error
        await cluster["b"].kill()
        _, error = await cluster.querator("node", "replace", "b", "--yes", code=3)
        assert "start it with an empty directory" in error
        cluster["b"].lose()
        await cluster["b"].launch()
        await cluster["b"].waiting("querator node replace b")
        await produced(cluster, "a", "meanwhile")
        view = await cluster.until(
            lambda view: any("without its former data" in one for one in view["problems"])
        )
        assert state(view, "b") == "down"
        assert not any("Node b is down" in problem for problem in view["problems"])

        # It remembers what it waits for.
        assert await cluster["b"].stop() == 0
        await cluster["b"].launch()
        await cluster["b"].waiting("querator node replace b")

        await cluster.querator("node", "replace", "b", "--yes", asked="c")
        await cluster["b"].ready()
        view = await cluster.until_well("b")
        assert all(sorted(one["nodes"]) == ["a", "b", "c"] for one in view["partitions"])

        # The rebuilt replicas count: the cluster can do without the other nodes, one by one.
        for name in "ac":
            await cluster[name].kill()
            await produced(cluster, "b", f"without {name}")
            await cluster[name].start()
            await cluster.until_well("b")
        found = await payloads(cluster, "b")
        assert found == {b"before", b"meanwhile", b"without a", b"without c"}


async def test_all_nodes_are_replaced_one_after_the_other(tmp_path: Path):
    """A new node learns the map from its beginning, when it has named other data than there is."""
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "3")
        await produced(cluster, "a", "before")
        for name in "abcab":
            await cluster[name].kill()
            cluster[name].lose()
            await cluster[name].launch()
            await cluster[name].waiting(f"querator node replace {name}")
            other = "a" if name != "a" else "b"
            await cluster.querator("node", "replace", name, "--yes", asked=other)
            await cluster[name].ready()
            await cluster.until_well(name)
        assert await payloads(cluster, "a") == {b"before"}

        # A node that comes back knows no node that it has met before.
        await cluster.stop()
        await cluster.start()
        await cluster.until_well("c")


async def test_a_node_that_was_replaced_does_not_come_back(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        assert await cluster["c"].stop() == 0
        kept = tmp_path / "kept"
        cluster["c"].data_dir.rename(kept)
        await cluster["c"].launch()
        await cluster["c"].waiting("querator node replace c")
        await cluster.querator("node", "replace", "c", "--yes")
        await cluster["c"].ready()
        await cluster.until_well()
        assert await cluster["c"].stop() == 0
        cluster["c"].lose()
        kept.rename(cluster["c"].data_dir)
        await cluster["c"].launch()
        assert "node c has been replaced" in await cluster["c"].refused()


async def test_an_old_copy_of_the_data_is_refused(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        assert await cluster["c"].stop() == 0
        copy = tmp_path / "copy"
        shutil.copytree(cluster["c"].data_dir, copy)
        await cluster["c"].start()
        await cluster.until(lambda view: view["nodes"][2]["starts"] == 2)
        await cluster["c"].kill()
        cluster["c"].lose()
        copy.rename(cluster["c"].data_dir)
        await cluster["c"].launch()
        assert "the data of node c is an old copy" in await cluster["c"].refused()


async def test_a_wrong_token(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        wrong = tmp_path / "wrong"
        wrong.write_text("another secret of 16 bytes")
        cluster["c"].options[-1] = str(wrong)
        for name in "abc":
            await cluster[name].launch()
        await cluster["c"].waiting("token")
        await cluster["a"].waiting("c (")
        await cluster["a"].says("peers.refused", "token")
        assert await cluster["c"].stop() == 0
        cluster["c"].options[-1] = str(cluster.token)
        await cluster["c"].start()
        await cluster["a"].ready()
        await cluster["b"].ready()
        await cluster.until_well()


async def test_a_member_that_starts_with_a_wrong_token(tmp_path: Path):
    """The status advised to start it again, and said that its disk or network was slow."""
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        wrong = tmp_path / "wrong"
        wrong.write_text("another secret of 16 bytes")
        assert await cluster["c"].stop() == 0
        cluster["c"].options[-1] = str(wrong)
        await cluster["c"].launch()
        refused = "Node c is refused by other nodes: it has another cluster token."
        for asked in "ac":
            view = await cluster.until(
                lambda view: any(one.startswith(refused) for one in view["problems"]), asked
            )
            assert state(view, "c") == "up"
        assert await cluster["c"].stop() == 0
        cluster["c"].options[-1] = str(cluster.token)
        await cluster["c"].start()
        await cluster.until_well()


async def test_a_node_that_cannot_listen_does_not_join(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        for name in "ab":
            await cluster[name].launch()
        right = cluster["c"].address
        # An address for documentation, which no machine has.
        cluster["c"].address = "192.0.2.1:4470"
        await cluster["c"].launch("--insecure")
        reason = await cluster["c"].refused()
        assert "listen: cannot listen on 192.0.2.1:4470: 192.0.2.1 is not an address of" in reason
        assert not cluster["c"].data_dir.exists()
        await cluster["a"].waiting("c (")
        cluster["c"].address = right
        await cluster["c"].start()
        await cluster.until_well()


async def test_two_nodes_of_one_name(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        peer_port, client_port = free_ports(2)
        home = tmp_path / "elsewhere"
        home.mkdir()
        options = [*cluster["b"].options, "--listen-peers", f"127.0.0.1:{peer_port}"]
        second = ClusterProcess("b", home, client_port=client_port, options=options)
        try:
            await second.launch()
            await second.waiting("node b is known with other data")
            _, error = await cluster.querator("node", "replace", "b", "--yes", code=3)
            assert "is up with its data" in error
            await cluster.until_well()
            assert await second.stop() == 0
        finally:
            if second.running:
                await second.kill()


async def test_data_of_another_cluster_and_of_another_node(tmp_path: Path):
    for home in ("x", "y"):
        (tmp_path / home).mkdir()
    async with process_cluster(tmp_path / "x") as ours, process_cluster(tmp_path / "y") as other:
        await ours.start()
        await other.start()
        assert await ours["c"].stop() == 0
        await other.stop()
        shutil.rmtree(ours["c"].data_dir)
        shutil.copytree(other["c"].data_dir, ours["c"].data_dir)
        await ours["c"].launch()
        line = await ours["c"].refused()
        assert "the data is of node c of cluster" in line
        assert "--peers" in line
        shutil.rmtree(ours["c"].data_dir)
        shutil.copytree(other["b"].data_dir, ours["c"].data_dir)
        await ours["c"].launch()
        assert "the data is of node b, not of c" in await ours["c"].refused()


async def test_a_member_is_not_started_alone(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.stop()
        cluster["a"].options = []
        await cluster["a"].launch()
        line = await cluster["a"].refused()
        assert "of a cluster of several nodes with b, c" in line
        assert "--peers" in line


async def test_settings_that_differ_form_nothing(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        cluster["c"].options += ["--initial-nodes", "2"]
        for name in "abc":
            await cluster[name].launch()
        for name in "ab":
            await cluster[name].waiting("would found a cluster of a, b: make them the same")
        await cluster["c"].waiting("founded by a, b")
        for name in "abc":
            assert await cluster[name].stop() == 0


async def test_one_node_with_peers_is_a_cluster_of_one(tmp_path: Path):
    async with process_cluster(tmp_path, "a") as cluster:
        await cluster["a"].start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "2")
        view = await cluster.until_well()
        assert leaders(view, "q") == {"a"}
        assert await cluster["a"].stop() == 0
        await cluster["a"].start()
        assert leaders(await cluster.until_well(), "q") == {"a"}


REFUSED = (
    ("node drain c", 3, "Without node c there are 2 nodes that take replicas, and partitions have"),
    ("node remove c --yes", 3, "querator node drain c"),
    ("node remove nobody --yes", 3, "its nodes are: a, b, c"),
    ("node drain nobody", 3, "the nodes of the cluster are: a, b, c"),
    ("node replace c --yes", 3, "is up with its data"),
    ("node replace a --yes", 3, "answers you: its data is there"),
    ("node replace nobody --yes", 3, "the nodes of the cluster are: a, b, c"),
    ("node readmit c", 3, "not among the nodes that were removed"),
    ("queue create r --replicas 5", 3, "the cluster has 3 nodes that take replicas: add nodes"),
    ("queue update q --replicas 5", 3, "the cluster has 3 nodes that take replicas: add nodes"),
    ("queue create r --partitions 0", 2, "not a whole number from 1 to 1024"),
    ("queue create r --partitions 10000", 2, "not a whole number from 1 to 1024"),
)


async def test_what_a_cluster_of_three_refuses_says_what_to_do(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "3")
        await cluster.until(lambda view: leaders(view, "q") == {"a", "b", "c"})
        for command, code, words in REFUSED:
            _, error = await cluster.querator(*command.split(), code=code)
            assert words in error, command
        await cluster.until_well()
