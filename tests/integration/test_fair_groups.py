"""Fair queues on real nodes: shares of groups, limits, restarts, a leader that is killed, other
numbers of partitions, and the command line.
"""

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client, FairGroup, Item, SyncClient, errors
from querator.client import LeasedItem
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ok, run, server

pytestmark = pytest.mark.timeout(180)

WAIT = timedelta(seconds=30)


def backlog(group: str, number: int) -> list[Item]:
    return [Item(f"{group} {n}", group=group, reference=f"{group} {n}") for n in range(number)]


def groups(items: list[LeasedItem]) -> Counter[str]:
    return Counter(item.item.group for item in items)


async def test_shares_outlive_a_kill_and_changed_weights_count_at_once(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            info = await client.create_queue(
                "q", kind="fair", fairness="turns", groups=[FairGroup("b", weight=3)]
            )
            assert (info.kind, info.fairness, info.groups) == (
                "fair", "turns", (FairGroup("b", weight=3),),
            )  # fmt: skip
            for group in ("a", "b", "c.x", "c.y"):
                await client.produce("q", *backlog(group, 300))
        await node.kill()
        await node.start()
        async with Client(node.address) as client:
            leased: list[LeasedItem] = []
            for size in (1, 10, 2, 37, 50):
                leased += await client.lease("q", max_items=size)
            got = groups(leased)
            assert abs(got["b"] - 60) <= 1
            assert abs(got["a"] - 20) <= 1
            assert abs(got["c.x"] - 10) <= 1
            assert abs(got["c.y"] - 10) <= 1
            await client.produce("q", Item("alone", group="z"))
            assert "alone" in [item.text() for item in await client.lease("q", max_items=7)]
            await client.update_queue("q", groups=[FairGroup("c", weight=8)])
            got = groups(await client.lease("q", max_items=100))
            assert 78 <= got["c.x"] + got["c.y"] <= 82
            async with client.consumer("q", idle_timeout=timedelta(seconds=1)) as consumer:
                streamed: Counter[str] = Counter()
                async for one in consumer:
                    streamed[one.item.group] += 1
                    one.complete()
            assert sum(streamed.values()) + 207 == 1_201
            stats = (await client.stats("q")).total
            assert (stats.ready, stats.completed) == (0, 994)


async def test_a_noisy_neighbour_gives_way_and_limits_hold(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q", kind="fair", group_leased_max=40)
        await client.produce("q", *backlog("noisy", 500))
        held = await client.lease("q", max_items=100)
        assert groups(held) == {"noisy": 40}
        await client.produce("q", *backlog("quiet", 30))
        assert groups(await client.lease("q", max_items=30)) == {"quiet": 30}
        waits = asyncio.get_running_loop().create_task(client.lease("q", max_items=10, wait=WAIT))
        await client.complete("q", *held[:5])
        assert groups(await waits) == {"noisy": 5}
        waits = asyncio.get_running_loop().create_task(client.lease("q", max_items=10, wait=WAIT))
        await client.update_queue("q", groups=[FairGroup("noisy", leased_max=47)])
        assert groups(await waits) == {"noisy": 7}
        found = {one.path: one async for one in client.list_groups("q")}
        assert {path: (one.items, one.ready, one.leased) for path, one in found.items()} == {
            "": (525, 448, 77), "noisy": (495, 448, 47), "quiet": (30, 0, 30),
        }  # fmt: skip
        assert found["noisy"].leased_max == 47
        assert found["noisy"].oldest_ready_at is not None
        assert found["quiet"].oldest_ready_at is None
        await asyncio.to_thread(_blocking, node.address)


def _blocking(address: str) -> None:
    with SyncClient(address) as client:
        assert {one.path for one in client.list_groups("q")} == {"", "noisy", "quiet"}
        info = client.create_queue("other", kind="fair", groups=[FairGroup("a", 2, 3)])
        assert client.get_queue("other").groups == info.groups == (FairGroup("a", 2, 3),)


async def test_what_is_wrong_is_refused_by_name(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q", kind="fair")
        with pytest.raises(errors.InvalidArgument) as refused:
            await client.produce("q", Item("x", group="a"), Item("y", group="a..b"))
        assert (refused.value.field, refused.value.value) == ("items[1].group", "a..b")
        with pytest.raises(errors.LimitExceeded) as exceeded:
            await client.produce("q", Item("x", group=".".join("a" * 200)))
        assert (exceeded.value.field, exceeded.value.limit, exceeded.value.value) == (
            "items[0].group", "8 levels", "200 levels",
        )  # fmt: skip
        async with client.producer("q") as producer:
            with pytest.raises(errors.InvalidArgument):
                await producer.produce(Item("x", group="a."))
        with pytest.raises(errors.InvalidArgument) as fixed:
            await client.update_queue("q", kind="plain")
        assert fixed.value.field == "settings.kind"
        with pytest.raises(errors.QueueExists, match="kind is fair, not keyed"):
            await client.create_queue("q", kind="keyed")
        with pytest.raises(ValueError, match=r"groups\[0\].weight is 0; it must be from 1 to 1000"):
            await client.update_queue("q", groups=[FairGroup("a", weight=0)])
        with pytest.raises(
            ValueError, match="kind is 'fare'; it must be one of plain, fair, keyed"
        ):
            await client.create_queue("r", kind="fare")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument) as none:
            _ = [one async for one in client.list_groups("dead")]
        assert none.value.field == "queue"
        assert (await client.stats("q")).total.produced == 0
        await client.produce("q", Item("x", group="a"))
        assert groups(await client.lease("q")) == {"a": 1}


async def test_the_command_line(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        made = await ok(
            node, "queue", "create", "q", "--kind", "fair", "--group-weight", "eu=3",
            "--group-max", "eu=5", "--group-max", "50",
        )  # fmt: skip
        assert "eu (weight 3, at most 5 leased)" in made
        assert await ok(node, "group", "list", "q") == ""
        for group in ("eu.de", "eu.de", "us", "a\x1b[31m"):
            await ok(node, "produce", "q", "x", "--group", group)
        await ok(node, "lease", "q", "--max-items", "1")
        shown = await ok(node, "group", "list", "q")
        assert "a\\x1b[31m" in shown
        assert "\x1b" not in shown
        lines = (await ok(node, "group", "list", "q", "--output", "json")).splitlines()
        views = {one["group"]: one for one in map(msgspec.json.decode, lines)}
        assert set(views) == {"", "eu", "eu.de", "us", "a\x1b[31m"}
        assert (views["eu"]["items"], views["eu"]["weight"], views["eu"]["leased_max"]) == (2, 3, 5)
        assert sum(one["leased_share"] for path, one in views.items() if path == "") == 1
        changed = await ok(
            node, "queue", "update", "q", "--group-weight", "us=2", "--group-max", "eu=0",
            "--fairness", "turns",
        )  # fmt: skip
        assert "eu (weight 3), us (weight 2)" in changed
        assert "groups take turns by weight" in changed
        code, _, error = await run(
            "produce", "q", "x", "--group", "a..b", "--address", node.address
        )
        assert code == 3
        assert "--group has an empty part" in error


async def test_on_three_nodes_with_a_killed_leader_and_another_number_of_partitions(
    tmp_path: Path,
):
    """Each item comes once, and groups share what consumers on all nodes take."""
    names = ("a", "b", "c.x")
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue(
                "q", kind="fair", fairness="turns", partitions=3, replicas=3,
                groups=[FairGroup("b", weight=2)],
            )  # fmt: skip
            async with client.producer("q", ordered=False, batch_items=20) as producer:
                for name in names:
                    await producer.produce_many(backlog(name, 200))
            first = await taken(client, 120)
            got = groups(first)
            # In each of three partitions, at most one item of each.
            assert abs(got["b"] - 60) <= 9
            assert abs(got["a"] - 30) <= 9
            await client.complete("q", *first)
            view = await cluster.until(
                lambda view: all(one["leader"] for one in view["partitions"])
            )
            victim = next(
                str(one["leader"])
                for one in view["partitions"]
                if one["queue"] == "q" and one["partition"] == 0
            )
            async with asyncio.TaskGroup() as tasks:
                taking = tasks.create_task(taken(client, 60))
                tasks.create_task(cluster[victim].kill())
            await client.complete("q", *taking.result())
            await client.update_queue("q", partitions=2)
            await client.update_queue("q", group_leased_max=20)
            seen = Counter(item.text() for item in (*first, *taking.result()))
            while sum(seen.values()) < 600:
                leased = await client.lease("q", max_items=50, wait=WAIT)
                assert leased, f"{sum(seen.values())} of 600 items"
                seen.update(item.text() for item in leased)
                await client.complete("q", *leased)
            assert seen == Counter(item.reference for name in names for item in backlog(name, 200))
            await cluster[victim].start()
            total = (await client.stats("q")).total
            assert (total.ready, total.leased) == (0, 0)


async def taken(client: Client, number: int) -> list[LeasedItem]:
    items: list[LeasedItem] = []
    while len(items) < number:
        batch = await client.lease("q", max_items=min(17, number - len(items)), wait=WAIT)
        assert batch, f"{len(items)} of {number} items"
        items += batch
    return items
