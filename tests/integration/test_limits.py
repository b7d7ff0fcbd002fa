"""Limits of leases on three real nodes: leaders die while there are no tokens, and consumers that
wait continue when tokens and places are there.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from querator import Client, Item, RateLimit, SyncClient, SyncLeasedItem
from tests.integration.process_cluster import process_cluster

pytestmark = pytest.mark.timeout(120)

SHORT = timedelta(milliseconds=300)
LONG = timedelta(seconds=20)
DAILY = RateLimit(1, timedelta(days=1), burst=6)


async def test_limits_survive_the_death_of_leaders(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["a"].address) as client:
            await client.create_queue("calls", rate_limit=DAILY, lease_limit=4)
            await client.produce("calls", *(b"%d" % n for n in range(12)))
            once = RateLimit(1, timedelta(days=1), burst=1)
            await client.create_queue("orders", kind="fair", group_rate_limit=once)
            await client.produce("orders", *(Item(b"a", group="a") for _ in range(3)))
            await (await client.lease("orders", max_items=9))[0].complete()
            items = await client.lease("calls", max_items=9, lease_timeout=timedelta(hours=1))
            assert len(items) == 4
            async with (
                client.consumer("calls", prefetch_items=9) as consumer,
                asyncio.TaskGroup() as tasks,
            ):
                first = tasks.create_task(anext(consumer))
                for name in ("b", "c", "a"):
                    await cluster[name].kill()
                    await cluster[name].start()
                    await cluster.until_well()
                assert await client.lease("calls", max_items=9, wait=SHORT) == []
                assert not first.done()
                await client.produce("orders", Item(b"b", group="b"))
                [other] = await client.lease("orders", max_items=9, wait=LONG)
                assert other.payload == b"b"
                said, noted = await cluster.querator("lease", "calls")
                assert "Behind the limit of 4 leased items in 1 of 1 partition" in said + noted
                await items[0].complete()
                item = await first
                await item.complete()
                await (await anext(consumer)).complete()
                # The burst is used up.
                assert await client.lease("calls", max_items=9, wait=SHORT) == []
                said, _ = await cluster.querator("queue", "explain", "calls")
                assert "Behind the rate limit of 1/d in 1 of 1 partition: 6 ready items" in said
                await client.update_queue("calls", rate_limit=RateLimit(20), lease_limit=0)
                got: set[bytes] = set()
                while len(got) < 6:
                    item = await anext(consumer)
                    await item.complete()
                    got.add(item.payload)
            total = (await client.stats("calls")).total
            assert (total.ready, total.leased, total.delivered) == (0, 3, 12)


async def test_partitions_share_limits_at_the_sync_client(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await asyncio.to_thread(_shared, cluster["b"].address)
        said, _ = await cluster.querator("queue", "info", "jobs")
        assert "6 items at a time" in said


def _shared(address: str) -> None:
    with SyncClient(address) as client:
        rate = RateLimit(300, timedelta(seconds=1), burst=30)
        info = client.create_queue("jobs", partitions=3, rate_limit=rate, lease_limit=6)
        assert (info.rate_limit, info.lease_limit) == (rate, 6)
        client.produce("jobs", *(b"%d" % n for n in range(60)))
        done = 0
        held: list[SyncLeasedItem] = []
        while done < 60:
            held += client.lease("jobs", max_items=20, wait=LONG)
            stats = client.stats("jobs").partitions
            assert all(one.limits is not None and one.leased <= 2 for one in stats)
            done += len(held)
            for item in held:
                item.complete()
            held = []
        assert client.update_queue("jobs", rate_limit=None).rate_limit is None
