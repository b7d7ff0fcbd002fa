"""A cluster gets nodes and gives nodes away while it is used: real processes."""

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from querator import Client
from tests.integration.process_cluster import ProcessCluster, is_well, process_cluster
from tests.integration.sdk_load import KeyedLoad, SdkLoad, check

pytestmark = pytest.mark.timeout(180)


def replicas(view: dict[str, Any], queue: str = "q") -> Counter[str]:
    """Replicas of the queue's partitions, by node."""
    return Counter(
        name for one in view["partitions"] if one["queue"] == queue for name in one["nodes"]
    )


def leaders(view: dict[str, Any], queue: str = "q") -> Counter[str]:
    return Counter(one["leader"] for one in view["partitions"] if one["queue"] == queue)


async def test_a_cluster_grows_and_shrinks_under_load(tmp_path: Path):
    async with process_cluster(tmp_path, "abcde", "--initial-nodes", "3") as cluster:
        await cluster.start("abc")
        load = SdkLoad(",".join(cluster[name].address for name in "abc"))

        async def grow_and_shrink() -> None:
            await cluster.start("de")
            await cluster.until(lambda view: is_well(view) and len(replicas(view)) == 5, "d")
            out = ""
            while "Everything is where it should be." not in out:
                # The last steps may be under way.
                out, _ = await cluster.querator("cluster", "plan")
            view = await cluster.status("d")
            assert max(replicas(view).values()) - min(replicas(view).values()) <= 1
            for name in "de":
                await cluster.querator("node", "drain", name, asked="b")
            out, _ = await cluster.querator("cluster", "plan", asked="e")
            moved = set(replicas(await cluster.status("d"))) == set("abc")
            assert moved or "is being drained" in out or "under way" in out
            view = await cluster.until(lambda view: set(replicas(view)) == set("abc"), "d")
            for name in "de":
                await cluster.querator("node", "remove", name, "--yes")
                assert await cluster[name].end() == 7
                said = cluster[name].said()
                assert msgspec.json.decode(said.splitlines()[-1])["reason"] == (
                    f"Node {name} was removed from the cluster and ends. "
                    "Its data is not used again."
                )
                assert "Traceback" not in said
                await cluster[name].launch()
                assert f"node {name} was removed from cluster" in await cluster[name].refused(7)
            await cluster.until_well()

        await load.run(grow_and_shrink)
        await check(load)


async def test_a_queue_gets_more_partitions_and_fewer_under_load_while_nodes_die(tmp_path: Path):
    async with process_cluster(tmp_path, "abc") as cluster:
        await cluster.start()
        load = SdkLoad(",".join(cluster[name].address for name in "abc"))

        async def made(more: int) -> None:
            """Waits until `more` further items have been produced."""
            upto = load.made + more
            while load.made < upto:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        async def change() -> None:
            await made(300)
            for number, asked, victim in (
                (12, "a", ""), (6, "b", "a"), (9, "c", "b"), (2, "a", "c"), (6, "b", ""),
            ):  # fmt: skip
                update = ("queue", "update", "q", "--partitions", str(number))
                changing = tasks.create_task(cluster.querator(*update, asked=asked))
                if victim:
                    # Somewhere in the middle of the change, or before, or after.
                    await made(40)
                    await cluster[victim].kill()
                out, _ = await changing
                assert f"partitions           {number}" in out
                await made(300)
                if victim:
                    await cluster[victim].start()
                    await cluster.until_well(victim)
            async with Client(load.address) as client:
                info = await client.get_queue("q")
                assert (info.partitions, info.partitions_opening) == (6, 0)
                stats = await client.stats("q")
                taking = [part for part in stats.partitions if part.partition < 6]
                assert all(part.produced for part in taking)
                assert len(stats.partitions) == 6 + info.partitions_closing

        async with asyncio.TaskGroup() as tasks:
            await load.run(change, partitions=4)
        await check(load)


async def test_keys_keep_their_order_while_partitions_change(tmp_path: Path):
    async with process_cluster(tmp_path, "abc") as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "4")
        load = KeyedLoad(",".join(cluster[name].address for name in "abc"))

        async def change() -> None:
            load.working.set()
            await load.made(20)
            load.working.clear()
            for number in (12, 6):
                # The second number comes while items of the time before the first change still
                # wait.
                await load.made(20)
                await cluster.querator("queue", "update", "q", "--partitions", str(number))
            await load.made(20)
            view = await cluster.status("b")
            [held] = [one for one in view["problems"] if " items held until " in one]
            assert held.startswith("Queue q: ")
            out, _ = await cluster.querator("stats", "q")
            assert re.search(
                r"^q: [\d,]+ held until the items that were in partitions ", out, re.MULTILINE
            )
            load.working.set()
            await cluster.until(lambda view: held_items(view) == 0)
            await load.made(20)

        await load.run(change)
        assert load.disordered == []
        await cluster.until_well()


def held_items(view: dict[str, Any]) -> int:
    return sum(one["held"] for one in view["partitions"])


async def test_partitions_that_nobody_has_used_go_at_once(tmp_path: Path):
    async with process_cluster(tmp_path, "abc") as cluster:
        await cluster.start()
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "4")
        await cluster.querator("queue", "update", "q", "--partitions", "12")
        out, _ = await cluster.querator("queue", "update", "q", "--partitions", "6", asked="b")
        # The closing partitions may be gone before they are reported.
        assert re.search(r"partitions +6( \(6 closing\))?$", out, re.MULTILINE)
        await cluster.until(lambda view: sum(leaders(view).values()) == 6)
        out, _ = await cluster.querator("queue", "info", "q", asked="c")
        assert "closing" not in out
        await cluster.until_well()
        for wrong in ("0", "10000"):
            _, error = await cluster.querator("queue", "update", "q", "--partitions", wrong, code=2)
            assert "not a whole number from 1 to 1024" in error


async def test_one_node_becomes_three(tmp_path: Path):
    async with process_cluster(tmp_path, "abc", "--initial-nodes", "1") as cluster:
        await cluster.start("a")
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "2")
        await cluster.querator("produce", "q", "before")
        for name in "bc":
            await cluster[name].start()
            await cluster.until_well(name)
        await cluster.until(
            lambda view: (
                replicas(view) == Counter(a=2, b=2, c=2) and set(leaders(view).values()) == {1}
            )
        )
        await cluster.until_well()

        # The cluster can do without the first node, also for the map.
        await cluster["a"].kill()
        _, error = await cluster.querator("node", "drain", "a", asked="b", code=3)
        assert "add another node first" in error
        out, _ = await cluster.querator("lease", "q", asked="b")
        assert "before" in out


async def test_a_node_that_will_not_return_is_removed_and_its_replicas_made_anew(tmp_path: Path):
    async with process_cluster(tmp_path, "abcd", "--initial-nodes", "3") as cluster:
        await cluster.start("abc")
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "5")
        await cluster.querator("produce", "q", "before")
        _, error = await cluster.querator("node", "remove", "c", "--yes", code=3)
        assert "querator node drain c" in error
        await cluster["d"].start()
        await cluster.until(lambda view: is_well(view) and "d" in replicas(view))
        await cluster["c"].kill()
        await cluster.querator("node", "remove", "c", "--yes")
        view = await cluster.until_well("d")
        assert replicas(view) == Counter(a=5, b=5, d=5)
        assert [node["name"] for node in view["nodes"]] == ["a", "b", "d"]
        await cluster["c"].launch()
        assert "node c was removed from cluster" in await cluster["c"].refused(7)

        # The replacement of the replica counts.
        await cluster["a"].kill()
        out, _ = await cluster.querator("lease", "q", "--wait", "30s", asked="d")
        assert "before" in out


async def test_a_node_that_dies_while_partitions_move_to_it_is_removed(tmp_path: Path):
    """The partitions waited for the dead node for ever, and the removal with them."""
    async with process_cluster(tmp_path, "abcd", "--initial-nodes", "3") as cluster:
        await cluster.start("abc")
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "8")
        await cluster.querator("produce", "q", "before")
        await cluster["d"].launch()
        await cluster.until(lambda view: "d" in replicas(view))
        await cluster["d"].kill()
        await cluster.querator("node", "remove", "d", "--yes")
        view = await cluster.until(lambda view: is_well(view) and len(view["nodes"]) == 3)
        assert replicas(view) == Counter(a=8, b=8, c=8)
        out, _ = await cluster.querator("lease", "q", "--wait", "30s")
        assert "before" in out


async def test_a_queue_gets_more_copies_and_fewer(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start("abc")
        await cluster.querator(
            "queue", "create", "q", "--dead-queue", "", "--partitions", "3", "--replicas", "1"
        )
        await cluster.querator("produce", "q", "before")
        view = await cluster.until_well()
        assert replicas(view) == Counter(a=1, b=1, c=1)
        _, error = await cluster.querator("queue", "update", "q", "--replicas", "5", code=3)
        assert "--replicas is 5; the cluster has 3 nodes that take replicas" in error

        # The only replica of a partition is not given up.
        assert await cluster["c"].stop() == 0
        _, error = await cluster.querator("node", "remove", "c", "--yes", code=3)
        assert "the only replica of partitions of q" in error
        await cluster.start("c")

        await cluster.querator("queue", "update", "q", "--replicas", "3")
        await cluster.until(lambda view: replicas(view) == Counter(a=3, b=3, c=3))
        await cluster.until_well()
        await cluster.querator("queue", "update", "q", "--replicas", "1")
        view = await cluster.until(lambda view: sum(replicas(view).values()) == 3)
        assert set(replicas(view).values()) == {1}
        await cluster.querator("queue", "update", "q", "--replicas", "0")
        await cluster.until(lambda view: replicas(view) == Counter(a=3, b=3, c=3))
        await cluster.until_well()
        await cluster["a"].kill()
        out, _ = await cluster.querator("lease", "q", "--wait", "30s", asked="b")
        assert "before" in out


def alone(cluster: ProcessCluster, *more: str) -> list[str]:
    """Options of node a, when it is started alone."""
    cluster["a"].options = list(more)
    return cluster["a"].options


async def test_a_node_that_began_alone_is_joined_by_others_while_it_works(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        at = cluster.peers.split(",")[0].removeprefix("a=")
        options = alone(cluster, "--cluster-token-file", str(cluster.token), "--listen-peers", at)
        await cluster["a"].launch()
        assert "add --new" in await cluster["a"].refused()
        options.append("--new")
        await cluster.start("a")
        load = SdkLoad(",".join(cluster[name].address for name in "abc"))

        async def grow() -> None:
            await cluster.start("b")
            await cluster.until(lambda view: replicas(view) == Counter(a=6, b=6), "b")
            await cluster.until_well("b")
            await cluster.start("c")
            await cluster.until(lambda view: replicas(view) == Counter(a=6, b=6, c=6), "c")
            await cluster.until_well("c")
            # It comes back with its original options, and the cluster can do without it.
            assert await cluster["a"].stop() == 0
            await cluster.start("a")
            await cluster.until_well("a")
            await cluster["a"].kill()

        await load.run(grow)
        await cluster.start("a")
        await check(load)


async def test_a_lone_node_that_nobody_can_join_says_what_to_do(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        together = cluster["a"].options
        alone(cluster, "--new")
        await cluster.start("a")
        await cluster.querator("queue", "create", "q", "--dead-queue", "", "--partitions", "2")
        await cluster.querator("produce", "q", "before")
        out, _ = await cluster.querator("cluster", "status")
        assert "start it with --name a, --cluster-token-file and --listen-peers" in out
        _, error = await cluster.querator("node", "drain", "a", code=3)
        assert "--cluster-token-file and --listen-peers" in error
        await cluster["b"].launch()
        await cluster["b"].waiting("a (")
        assert await cluster["a"].stop() == 0

        cluster["a"].options = together
        await cluster.start("a")
        await cluster["b"].ready()
        await cluster.start("c")
        await cluster.until(lambda view: replicas(view) == Counter(a=2, b=2, c=2), "c")
        await cluster.until_well("c")
        await cluster["a"].kill()
        out, _ = await cluster.querator("lease", "q", "--wait", "30s", asked="b")
        assert "before" in out

        # A node of a cluster of several is not started alone again.
        alone(cluster, "--new")
        await cluster["a"].launch()
        assert "of a cluster of several nodes with b, c" in await cluster["a"].refused()
