"""Purges, cancelled items and dropped letters on real nodes: both clients, the command line, a
leader that is killed, another number of partitions, and a reader.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client
from querator.client import DeadReason, Item, ItemId, SyncClient
from querator.client.errors import QueueNotFound
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ok, run, server

pytestmark = pytest.mark.timeout(180)

HOUR = timedelta(hours=1)
ITEMS = 600


async def test_a_purge_through_both_clients_and_the_command_line(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", partitions=3)
            await client.produce("q", *(str(number) for number in range(10)))
            await client.produce("q", Item("later", delay=HOUR), Item("much later", delay=HOUR))
            [leased] = await client.lease("q")
            assert (await client.purge("q", dry_run=True)).removed == 11
            kept = await client.purge("q", keep_scheduled=True)
            assert (kept.removed, kept.leased, kept.scheduled) == (9, 1, 2)
            await leased.complete()
            await client.produce("q", "new")
        await asyncio.to_thread(_blocking, node.address)
        async with Client(node.address) as client:
            await client.produce("q", "a", Item("b", delay=HOUR))
        assert await ok(node, "queue", "purge", "q", "--dry-run") == (
            "2 items would be removed from q.\n"
        )
        out = await ok(node, "queue", "purge", "q", "--yes", "--output", "json")
        assert msgspec.json.decode(out)["removed"] == 2
        code, _, error = await run("queue", "purge", "none", "--yes", "--address", node.address)
        assert code != 0
        assert "none" in error
        await node.kill()
        await node.start()
        async with Client(node.address) as client:
            total = (await client.stats("q")).total
            assert (total.ready, total.scheduled, total.cancelled) == (0, 0, 14)


def _blocking(address: str) -> None:
    with SyncClient(address) as client:
        assert client.purge("q").removed == 3
        assert client.purge("q").removed == 0


async def test_items_are_cancelled_by_their_ids(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q")
            produced = await client.produce("q", "0", "1", "2", Item("3", delay=HOUR))
            ids = [one.id for one in produced]
            [leased] = await client.lease("q")
            done = await client.cancel("q", [ids[0], ids[1], ids[3], ItemId(0, 999)])
            assert (done.cancelled, done.not_waiting) == (2, (ids[0], ItemId(0, 999)))
            assert (await client.cancel("q", [])).cancelled == 0
            await leased.complete()
            [left] = await client.lease("q")
            assert left.text() == "2"
            await left.release()
        assert await ok(node, "cancel", "q", str(ids[2])) == "1 item cancelled.\n"
        code, _, error = await run("cancel", "q", str(ids[2]), "--address", node.address)
        assert code == 1
        assert f"Not waiting, but leased or gone: {ids[2]}" in error
        code, _, error = await run("cancel", "q", "7-1", "--address", node.address)
        assert code != 0
        assert "no partition 7" in error


async def test_letters_are_dropped_and_redriven_by_reason_and_time(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", max_attempts=1)
            await client.produce("q", *(str(number) for number in range(4)))
            for n, one in enumerate(await client.lease("q", max_items=4)):
                await (one.reject("bad") if n < 2 else one.retry(error="worn"))
            while True:
                found = [one async for one in client.dead_letters("q")]
                if len(found) == 4:
                    break
            attempts = (DeadReason.ATTEMPTS,)
            assert await client.redrive("q", reasons=attempts, dry_run=True) == 2
            assert await client.redrive("q", []) == 0
            middle = max(one.dead_letter.died_at for one in found if one.dead_letter)
            assert await client.redrive("q", died_from=middle + HOUR) == 0
            assert await client.redrive("q", reasons=attempts, died_until=middle + HOUR) == 2
            assert await client.drop_dead_letters("q", all_letters=True, dry_run=True) == 2
            rejected = [
                one.id
                for one in found
                if one.dead_letter and one.dead_letter.reason is DeadReason.REJECTED
            ]
            assert await client.drop_dead_letters("q", rejected[:1]) == 1
            with pytest.raises(ValueError, match="choose the letters by one of"):
                await client.drop_dead_letters("q")
            with pytest.raises(ValueError, match="choose the letters by one of"):
                await client.redrive("q", rejected, reasons=attempts)
            with pytest.raises(ValueError, match="choose the letters by one of"):
                await client.redrive("q", rejected, all_letters=True)
            assert await client.redrive("q", all_letters=True, dry_run=True) == 1
            assert await client.drop_dead_letters("q", []) == 0
        await asyncio.to_thread(_dropping, node.address)
        assert await ok(node, "dead", "redrive", "q", "--all", "--dry-run") == (
            "0 dead letters would go back to q.\n"
        )
        out = await ok(node, "dead", "drop", "q", "--older-than", "0s", "--yes")
        assert out == "0 dead letters of q dropped.\n"


def _dropping(address: str) -> None:
    with SyncClient(address) as client:
        assert client.drop_dead_letters("q", reasons=[DeadReason.EXPIRED]) == 0
        assert client.redrive("q", reasons=[DeadReason.EXPIRED]) == 0
        assert client.drop_dead_letters("q", reasons=[DeadReason.REJECTED]) == 1


async def test_a_purge_while_a_reader_has_a_batch(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q")
        await client.produce("q", *(str(number) for number in range(5)))
        epoch = (await client.readers.open("q", "lake")).epoch
        [progress] = await client.readers.advance("q", "lake", epoch, max_items=2)
        done = await client.purge("q")
        assert (done.removed, done.reserved) == (3, 2)
        batch = progress.batch
        assert batch is not None
        await client.readers.advance("q", "lake", epoch, {0: batch.seq}, acknowledge_only=True)
        total = (await client.stats("q")).total
        assert (total.acknowledged, total.cancelled, total.reserved) == (2, 3, 0)


async def test_on_three_nodes_with_a_killed_leader_and_another_number_of_partitions(
    tmp_path: Path,
):
    """Everything that was there is gone, everything later is there, and the counts balance."""
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue("q", partitions=3, replicas=3)
            async with client.producer("q", ordered=False, batch_items=7) as producer:
                await producer.produce_many([str(number) for number in range(ITEMS)])
            view = await cluster.until(
                lambda view: all(one["leader"] for one in view["partitions"])
            )
            victim = next(
                str(one["leader"])
                for one in view["partitions"]
                if one["queue"] == "q" and one["partition"] == 0
            )
            async with asyncio.TaskGroup() as tasks:
                purging = tasks.create_task(client.purge("q"))
                tasks.create_task(cluster[victim].kill())
            # Items of a step whose answer was lost do not count.
            assert purging.result().removed <= ITEMS
            assert (await client.purge("q")).removed == 0
            await client.update_queue("q", partitions=2)
            await client.produce("q", *(f"new {number}" for number in range(50)))
            total = (await client.stats("q")).total
            assert (total.ready + total.held, total.scheduled) == (50, 0)
            assert total.cancelled <= ITEMS
            await cluster[victim].start()
            assert (await client.purge("q")).removed == 50
            with pytest.raises(QueueNotFound, match="none"):
                await client.purge("none")
