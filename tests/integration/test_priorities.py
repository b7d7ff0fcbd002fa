"""Priorities on real nodes: unary calls and streams, the command line, restarts, a leader that is
killed, and partitions that come and go.
"""

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client
from querator.client import Item, ItemId, LeasedItem, SyncClient
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ok, run, server

pytestmark = pytest.mark.timeout(180)

WAIT = timedelta(seconds=30)
ITEMS = 300


def mixed(seed: int) -> list[Item]:
    """Items with references `0`, `1`, …, and five priorities in random order."""
    chance = random.Random(seed)
    priorities = [chance.choice((-(2**31), -1, 0, 1, 2**31 - 1)) for _ in range(ITEMS)]
    return [
        Item(str(number), reference=str(number), priority=priority)
        for number, priority in enumerate(priorities)
    ]


def in_order(items: list[Item]) -> list[str]:
    return [item.reference for item in sorted(items, key=lambda item: item.priority)]


async def taken(client: Client, number: int) -> list[LeasedItem]:
    """Leases items by unary calls, some at a time."""
    items: list[LeasedItem] = []
    while len(items) < number:
        batch = await client.lease("q", max_items=min(37, number - len(items)), wait=WAIT)
        assert batch, f"{len(items)} of {number} items"
        items += batch
    return items


def references(items: list[LeasedItem]) -> list[str]:
    return [item.reference for item in items]


async def test_the_order_of_unary_calls_and_of_streams_outlives_a_kill(tmp_path: Path):
    items = mixed(1)
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", partitions=1)
            await client.produce("q", *items)
        await node.kill()
        await node.start()
        async with Client(node.address) as client:
            leased = await taken(client, ITEMS // 2)
            assert references(leased) == in_order(items)[: ITEMS // 2]
            assert all(one.priority == one.item.priority for one in leased)
            await client.complete("q", *leased)
            async with client.consumer("q", idle_timeout=timedelta(seconds=1)) as consumer:
                streamed = []
                async for one in consumer:
                    streamed.append(one.reference)
                    one.complete()
            assert streamed == in_order(items)[ITEMS // 2 :]
            async with client.producer("q") as producer:
                await producer.produce_many(items)
            assert references(await taken(client, ITEMS)) == in_order(items)


async def test_changes_through_both_clients_and_the_command_line(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", partitions=1)
            produced = await client.produce("q", *(str(number) for number in range(5)))
            ids = [one.id for one in produced]
            done = await client.prioritize("q", [ids[3], ids[4]], -1)
            assert (done.changed, done.not_waiting) == (2, ())
            assert (await client.prioritize("q", [ids[3]], -1)).changed == 0
            [first] = await client.lease("q")
            assert (first.text(), first.priority, first.item.priority) == ("3", -1, 0)
            missing = await client.prioritize("q", [ids[3], ItemId(0, 999)], 7)
            assert (missing.changed, missing.not_waiting) == (0, (ids[3], ItemId(0, 999)))
            await first.retry(priority=9)
            with pytest.raises(ValueError, match="priority is 2147483648; it must be from -2147"):
                await client.prioritize("q", [ids[0]], 2**31)
            shown = [(str(one.id), one.priority) async for one in client.peek("q")]
            assert shown == [(str(ids[n]), (0, 0, 0, 9, -1)[n]) for n in range(5)]
        await asyncio.to_thread(_blocking, node.address, ids[1])
        assert await ok(node, "prioritize", "q", str(ids[2]), "--priority", "-7") == (
            "1 item changed to priority -7, within its partition.\n"
        )
        code, out, error = await run(
            "prioritize", "q", "0-999", "--priority", "1", "--address", node.address
        )
        assert (code, out) == (1, "0 items changed to priority 1, within their partitions.\n")
        assert "Not waiting, but leased or gone: 0-999" in error
        code, _, error = await run(
            "prioritize", "q", "0-1", "--priority", "3000000000", "--address", node.address
        )
        assert code == 2
        assert "'3000000000' is not a whole number from -2147483648 to 2147483647" in error
        await ok(node, "produce", "q", "last", "--priority", "11")
        lines = await ok(node, "lease", "q", "--max-items", "9", "--output", "json")
        leased = [msgspec.json.decode(line) for line in lines.splitlines()]
        assert [(one["item"]["payload"], one["priority"]) for one in leased] == [
            ("2", -7), ("4", -1), ("0", 0), ("1", 5), ("3", 9), ("last", 11),
        ]  # fmt: skip
        first_lease, last_id = leased[0]["lease_id"], leased[-1]["id"]
        await ok(node, "retry", "q", first_lease, last_id, "--priority", "-9")
        [again] = (await ok(node, "lease", "q", "--output", "json")).splitlines()
        assert msgspec.json.decode(again)["priority"] == -9


async def test_waiting_items_gain_priority(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        assert await ok(node, "queue", "create", "q", "--priority-aging", "1s") != ""
        assert (await client.get_queue("q")).priority_aging == timedelta(seconds=1)
        shown = await ok(node, "queue", "info", "q")
        assert "a waiting item gains one step every 1s" in shown
        await client.produce("q", Item("low", priority=3))
        urgent = 0
        while (await client.stats("q")).total.ready:
            # A stream of urgent items, of which one is always ready.
            await client.produce("q", Item("urgent"), Item("urgent"))
            [item] = await client.lease("q")
            await item.complete()
            if item.text() == "low":
                break
            urgent += 1
        else:
            raise AssertionError("one of two items is always left")
        assert urgent > 0
        await client.update_queue("q", priority_aging=timedelta(0))
        code, _, error = await run(
            "queue", "update", "q", "--priority-aging", "100ms", "--address", node.address
        )
        assert code != 0
        assert "settings.priority_aging" in error or "--priority-aging" in error


def _blocking(address: str, item: ItemId) -> None:
    with SyncClient(address) as client:
        assert client.prioritize("q", [item], 5).changed == 1
        [found] = [one for one in client.peek("q") if one.id == item]
        assert found.priority == 5


async def test_on_three_nodes_with_a_killed_leader_and_another_number_of_partitions(
    tmp_path: Path,
):
    """In each partition the order holds; over all of them every item comes once."""
    items = mixed(2)
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue("q", partitions=3, replicas=3)
            async with client.producer("q", ordered=False, batch_items=20) as producer:
                await producer.produce_many(items)
            waiting = [one async for one in client.peek("q", limit=ITEMS)]
            bumped = [one.id for one in waiting if int(one.item.reference) % 10 == 0]
            view = await cluster.until(
                lambda view: all(one["leader"] for one in view["partitions"])
            )
            victim = next(
                str(one["leader"])
                for one in view["partitions"]
                if one["queue"] == "q" and one["partition"] == 0
            )
            async with asyncio.TaskGroup() as tasks:
                changing = tasks.create_task(client.prioritize("q", bumped, -2))
                tasks.create_task(cluster[victim].kill())
            assert changing.result().not_waiting == ()
            await client.update_queue("q", partitions=2)
            leased = await taken(client, ITEMS)
            assert sorted(references(leased), key=int) == [str(number) for number in range(ITEMS)]
            expected = {
                item.reference: -2 if int(item.reference) % 10 == 0 else item.priority
                for item in items
            }
            assert {one.reference: one.priority for one in leased} == expected
            for partition in range(3):
                order = [one.priority for one in leased if one.id.partition == partition]
                assert order == sorted(order)
            await client.complete("q", *leased)
            await cluster[victim].start()
            assert (await client.stats("q")).total.completed == ITEMS
