"""Scheduled items on real nodes: order over partitions, changes, and nodes that are killed."""

import asyncio
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Unpack

import msgspec
import pytest

from querator import Client
from querator.client import Item, ItemId
from querator.client.options import ListOptions
from tests.integration.process_cluster import ProcessCluster, process_cluster
from tests.integration.processes import ServerProcess, run, server

pytestmark = pytest.mark.timeout(180)

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
ITEMS = 60


def later() -> datetime:
    """An instant that no run of a test reaches."""
    return datetime.now(UTC).replace(microsecond=0) + DAY


def _item(number: int, due: datetime) -> Item:
    kind = "odd" if number % 2 else "even"
    return Item(str(number), kind=kind, reference=str(number), enqueue_at=due)


async def schedule(client: Client, queue: str, start: datetime) -> None:
    """Schedules items `0`, `1`, … a minute after each other, produced in another order."""
    items = [_item(number, start + number * MINUTE) for number in range(ITEMS)]
    random.Random(15).shuffle(items)
    async with client.producer(queue, ordered=False, batch_items=4) as producer:
        await producer.produce_many(items)


async def listed(client: Client, **options: Unpack[ListOptions]) -> dict[str, ItemId]:
    """Names of the scheduled items in the order of the list, with their ids."""
    found = client.schedules.list("q", **options)
    return {peeked.item.reference: peeked.id async for peeked in found}


async def drain(client: Client, number: int) -> set[str]:
    """Leases and completes a number of items, and checks that no other one is ready."""
    seen: list[str] = []
    while len(seen) < number:
        items = await client.lease("q", max_items=100, wait=timedelta(seconds=30))
        assert items, f"{len(seen)} of {number} items"
        seen += [item.text() for item in items]
        await client.complete("q", *items)
    assert await client.lease("q", max_items=100) == []
    assert len(seen) == len(set(seen)) == number
    return set(seen)


def names(numbers: Iterable[int]) -> list[str]:
    return list(map(str, numbers))


async def leader_of_first_partition(cluster: ProcessCluster) -> str:
    view = await cluster.until(
        lambda view: any(
            part["queue"] == "q" and part["partition"] == 0 and part["leader"]
            for part in view["partitions"]
        )
    )
    [leader] = [
        str(part["leader"])
        for part in view["partitions"]
        if part["queue"] == "q" and part["partition"] == 0
    ]
    return leader


async def test_changes_survive_a_kill_of_a_single_node(tmp_path: Path):
    start = later()
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", partitions=3)
            await schedule(client, "q", start)
            ids = await listed(client)
            assert list(ids) == names(range(ITEMS))
            counts = await client.schedules.count(
                "q", due_from=start + MINUTE, interval=10 * MINUTE
            )
            assert [bucket.items for bucket in counts.buckets] == [10] * 5 + [9]
            assert (counts.before, counts.total, counts.after) == (1, 59, 0)
            moved = await client.schedules.move("q", [ids["0"], ids["5"]], to=start + DAY)
            assert (moved.changed, moved.not_scheduled) == (2, ())
            again = await client.schedules.move("q", [ids["0"], ids["5"]], to=start + DAY)
            assert (again.changed, again.not_scheduled) == (0, ())
            await client.schedules.run_now("q", [ids["7"]])
            cancelled = await client.schedules.cancel(
                "q", due_from=start + 10 * MINUTE, due_until=start + DAY, kind="even"
            )
            assert cancelled.changed == 25
            ready = await client.schedules.cancel("q", [ids["7"], ids["10"], ids["8"]])
            assert (ready.changed, set(ready.not_scheduled)) == (1, {ids["7"], ids["10"]})
        await node.kill()
        await node.start()
        async with Client(node.address) as client:
            left = names([1, 2, 3, 4, 6, *range(9, ITEMS, 2)])
            *before, one, other = await listed(client)
            assert (before, {one, other}) == (left, {"0", "5"})
            assert await drain(client, 1) == {"7"}
            total = (await client.stats("q")).total
            assert (total.cancelled, total.scheduled, total.completed) == (26, 33, 1)
            assert (await client.schedules.run_now("q", all_items=True)).changed == 33
            assert await drain(client, 33) == {*left, "0", "5"}
            total = (await client.stats("q")).total
            assert total.produced == total.completed + total.cancelled == ITEMS
        assert await node.terminate() == 0


async def test_items_are_moved_by_a_time(tmp_path: Path):
    start = later()
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q", partitions=2)
        await schedule(client, "q", start)
        half = start + ITEMS // 2 * MINUTE
        done = await client.schedules.move("q", by=DAY, due_until=half)
        assert (done.changed, done.not_scheduled) == (ITEMS // 2, ())
        found = await listed(client)
        assert list(found) == names([*range(ITEMS // 2, ITEMS), *range(ITEMS // 2)])
        back = await client.schedules.move("q", [found["0"], ItemId(0, 999)], by=-DAY)
        assert (back.changed, back.not_scheduled) == (1, (ItemId(0, 999),))
        assert next(iter(await listed(client))) == "0"
        dry = await client.schedules.move("q", by=MINUTE, all_items=True, dry_run=True)
        assert dry.changed == ITEMS
        with pytest.raises(ValueError, match="by one of: to; by"):
            await client.schedules.move("q", all_items=True)
        with pytest.raises(ValueError, match="by one of: to; by"):
            await client.schedules.move("q", all_items=True, to=start, by=DAY)


async def test_the_command_line_against_a_node(tmp_path: Path):
    start = later()
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", partitions=2)
            await schedule(client, "q", start)
            first = (await listed(client))["0"]
        until = (start + 3 * MINUTE).isoformat()
        lines = (await ok(node, "list", "q", "--until", until, "--output", "json")).splitlines()
        payloads = [msgspec.json.decode(line)["item"]["payload"] for line in lines]
        assert payloads == ["0", "1", "2"]
        picture = (await ok(node, "count", "q")).splitlines()
        assert picture[-1] == "60 items in rows of 5m. Due before: 0. Due after: 0."
        assert len(picture) <= 2 + 13 + 1
        moved = await ok(node, "move", "q", str(first), "--to", "+30d")
        assert moved.startswith("1 item moved to ")
        assert await ok(node, "run", "q", "--until", until, "--yes") == "2 items made ready.\n"
        even = ("cancel", "q", "--kind", "even")
        assert await ok(node, *even, "--dry-run") == "29 items would be cancelled.\n"
        code, _, error = await run("schedule", *even, "--address", node.address)
        assert (code, "give --yes" in error) == (2, True)
        assert await ok(node, *even, "--yes") == "29 items cancelled.\n"
        code, out, error = await run(
            "schedule", "run", "q", str(first), "0-999", "--address", node.address
        )
        assert (code, out) == (1, "")
        assert f"{first}, 0-999" in error
        code, _, error = await run(
            "schedule", "move", "q", "0-1", "--to", "+3660d", "--address", node.address
        )
        assert code == 3
        assert error.startswith("Error: --to is 3660d")
        assert "at most 10 years" in error
        code, out, _ = await run("stats", "q", "--output", "json", "--address", node.address)
        total = msgspec.json.decode(out)["total"]
        assert (code, total["cancelled"], total["ready"], total["scheduled"]) == (0, 29, 2, 29)


async def ok(node: ServerProcess, *command: str) -> str:
    code, out, error = await run("schedule", *command, "--address", node.address)
    assert code == 0, error
    return out


async def test_schedules_through_every_node_while_a_leader_is_killed(tmp_path: Path):
    start = later()
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=MINUTE) as client:
            await client.create_queue("q", partitions=6, replicas=3)
            await schedule(client, "q", start)
            ids = await listed(client)
            for address in addresses:
                async with Client(address) as near:
                    assert await listed(near) == ids
                    odd = await listed(near, kind="odd", due_from=start + 20 * MINUTE)
                    assert list(odd) == names(range(21, ITEMS, 2))
                    counts = await near.schedules.count("q", due_from=start, interval=20 * MINUTE)
                    assert [bucket.items for bucket in counts.buckets] == [20, 20, 20]
            assert list(ids) == names(range(ITEMS))
            assert len({item.partition for item in ids.values()}) > 1
            late = [ids[name] for name in names(range(1, 20, 4))]
            assert (await client.schedules.move("q", late, to=start + DAY)).changed == len(late)
            now = [ids[name] for name in names(range(3, 20, 4))]
            assert (await client.schedules.run_now("q", now)).changed == len(now)
            dry = await client.schedules.cancel("q", kind="even", dry_run=True)
            assert dry.changed == ITEMS // 2
            victim = await leader_of_first_partition(cluster)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(client.schedules.cancel("q", kind="even"))
                tasks.create_task(cluster[victim].kill())
            kept = names(range(21, ITEMS, 2))
            found = await listed(client)
            assert list(found)[: len(kept)] == kept
            assert set(found) == {*kept, *names(range(1, 20, 4))}
            assert await drain(client, len(now)) == set(names(range(3, 20, 4)))
            total = (await client.stats("q")).total
            assert (total.cancelled, total.scheduled) == (ITEMS // 2, len(found))
            await client.schedules.run_now("q", all_items=True)
            assert await drain(client, len(found)) == set(found)
            await cluster[victim].start()
            total = (await client.stats("q")).total
            assert total.produced == total.completed + total.cancelled == ITEMS
            assert await listed(client) == {}
