"""Dedup keys on real nodes: both clients, streams, the command line, a leader that is killed, and
other numbers of partitions.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client
from querator.client import Item, SyncClient
from querator.client.errors import InvalidArgument
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ok, run, server

pytestmark = pytest.mark.timeout(180)

WAIT = timedelta(seconds=20)
KEYS = [f"key {number}" for number in range(40)]


async def test_keys_count_until_their_items_are_done(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            info = await client.create_queue("q", dedup_until="done", max_attempts=1)
            assert info.dedup_until == "done"
            [first] = await client.produce("q", Item("one", dedup_key="k"))
            async with client.producer("q", ordered=False) as producer:
                again = await producer.produce(Item("two", dedup_key="k"))
            assert (again.duplicate, again.id) == (True, first.id)
        await asyncio.to_thread(_blocking, node.address)
        assert "count until their item is done" in await ok(node, "queue", "info", "q")
        out = await ok(node, "produce", "q", "by hand", "--dedup-key", "k", "--output", "json")
        assert msgspec.json.decode(out)["duplicates"] == 1
        await node.kill()
        await node.start()
        async with Client(node.address) as client:
            [again] = await client.produce("q", Item("three", dedup_key="k"))
            assert again.duplicate
            [leased] = await client.lease("q", wait=WAIT)
            await leased.retry(error="it fails")
            [fresh] = await client.produce("q", Item("four", dedup_key="k"))
            assert not fresh.duplicate, "a dead letter has no key"
            [letter] = [one async for one in client.dead_letters("q")]
            assert await client.redrive("q", [letter.id]) == 1
            payloads = {(await client.lease("q", wait=WAIT))[0].text() for _ in range(2)}
            assert payloads == {"four", "sync"}, "a redriven item is stored in any case"
            await client.update_queue("q", dedup_until="window")
        code, _, error = await run(
            "queue", "create", "x", "--dedup-until", "never", "--address", node.address
        )
        assert code == 2
        assert "'never' is not one of 'window', 'done'" in error


def _blocking(address: str) -> None:
    with SyncClient(address) as client:
        [item] = client.lease("q", wait=WAIT)
        item.complete()
        [fresh] = client.produce("q", Item("sync", dedup_key="k"))
        assert not fresh.duplicate
        [again] = client.produce("q", Item("sync", dedup_key="k"))
        assert (again.duplicate, again.id) == (True, fresh.id)


async def test_keys_on_three_nodes_with_a_killed_leader_and_other_numbers_of_partitions(
    tmp_path: Path,
):
    items = [Item(key, dedup_key=key) for key in KEYS]
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue("q", partitions=1, replicas=3, dedup_until="done")
            first = await client.produce("q", *items)
            await client.update_queue("q", partitions=4)
            again = await client.produce("q", *items)
            assert [one.id for one in again] == [one.id for one in first]
            assert all(one.duplicate for one in again)
            view = await cluster.until(
                lambda view: all(one["leader"] for one in view["partitions"])
            )
            victim = next(
                str(one["leader"])
                for one in view["partitions"]
                if one["queue"] == "q" and one["partition"] == 0
            )
            leased = await client.lease("q", max_items=len(KEYS), wait=WAIT)
            assert len(leased) == len(KEYS)
            done, kept = leased[::2], leased[1::2]
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(client.complete("q", *done))
                tasks.create_task(cluster[victim].kill())
            names = {item.text() for item in done}
            third = await client.produce("q", *items)
            assert {key for key, one in zip(KEYS, third, strict=True) if not one.duplicate} == names
            await client.update_queue("q", partitions=2)
            fourth = await client.produce("q", *items)
            assert [one.id for one in fourth] == [one.id for one in third]
            await client.complete("q", *kept)
            fifth = await client.produce("q", *items)
            assert {key for key, one in zip(KEYS, fifth, strict=True) if one.duplicate} == names
            await cluster[victim].start()
            total = (await client.stats("q")).total
            assert total.produced == 2 * len(KEYS)


async def test_waiting_items_are_replaced_and_bumped(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", dedup_until="done")
            [first] = await client.produce("q", Item("one", dedup_key="k"))
            [second] = await client.produce("q", Item("two", dedup_key="k", on_duplicate="replace"))
            assert (second.replaced, second.duplicate) == (first.id, False)
            async with client.producer("q", ordered=False) as producer:
                third = await producer.produce(Item("three", dedup_key="k", on_duplicate="replace"))
            assert third.replaced == second.id
            [leased] = await client.lease("q", wait=WAIT)
            assert (leased.text(), leased.item.on_duplicate) == ("three", "replace")
            await asyncio.to_thread(_bump, node.address)
            await leased.complete()
            out = await ok(
                node, "produce", "q", "again", "--dedup-key", "k", "--on-duplicate", "bump",
                "--delay", "1h", "--debounce-max", "1s", "--output", "json",
            )  # fmt: skip
            assert msgspec.json.decode(out)["replaced"] == 1
            await node.kill()
            await node.start()
            [leased] = await client.lease("q", wait=WAIT)
            assert leased.text() == "again"
            assert leased.item.debounce_max == timedelta(seconds=1)
            total = (await client.stats("q")).total
            assert (total.produced, total.replaced, total.duplicates) == (5, 3, 0)
            await client.create_queue("w")
            with pytest.raises(InvalidArgument, match="REPLACE needs a queue with dedup_until"):
                await client.produce("w", Item("x", dedup_key="k", on_duplicate="replace"))
            with pytest.raises(ValueError, match=r"item\.on_duplicate is 'drop'"):
                await client.produce("q", Item("x", on_duplicate="drop"))  # type: ignore[arg-type]
        for options, words in (
            (["--on-duplicate", "replace"], "--on-duplicate needs a dedup key"),
            (["--dedup-key", "k", "--debounce-max", "5s"], "needs --on-duplicate bump"),
            (["--dedup-key", "k", "--on-duplicate", "bump"], "bump needs --delay or --at"),
        ):
            code, _, error = await run("produce", "q", "x", *options, "--address", node.address)
            assert code == 2
            assert words in error


def _bump(address: str) -> None:
    with SyncClient(address) as client:
        later = Item(
            "later", dedup_key="k", on_duplicate="bump", delay=timedelta(hours=2),
            debounce_max=timedelta(hours=3),
        )  # fmt: skip
        [stored] = client.produce("q", later)
        assert stored.replaced is None, "a leased item does not wait"
        [item] = client.schedules.list("q")
        assert (item.id, item.item.payload) == (stored.id, b"later")


async def test_debounced_items_on_three_nodes_with_a_killed_leader(tmp_path: Path):
    """The newest payload of each key comes, once, and none of those that were replaced."""
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue("q", partitions=3, replicas=3, dedup_until="done")
            view = await cluster.until(
                lambda view: all(one["leader"] for one in view["partitions"])
            )
            victim = next(str(one["leader"]) for one in view["partitions"] if one["queue"] == "q")

            async def rounds() -> None:
                async with client.producer("q", ordered=False, batch_items=7) as producer:
                    for turn in range(10):
                        await producer.produce_many(
                            Item(
                                f"{key} {turn}", dedup_key=key, on_duplicate="bump",
                                delay=timedelta(seconds=2), debounce_max=timedelta(minutes=5),
                            )
                            for key in KEYS
                        )  # fmt: skip

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(rounds())
                tasks.create_task(cluster[victim].kill())
            texts: list[str] = []
            while len(texts) < len(KEYS):
                for item in await client.lease("q", max_items=len(KEYS), wait=WAIT):
                    texts.append(item.text())
                    await item.complete()
            total = (await client.stats("q")).total
            assert total.produced == total.completed + total.replaced
            assert total.completed == len(texts)
            assert {f"{key} 9" for key in KEYS} <= set(texts)
            await cluster[victim].start()
