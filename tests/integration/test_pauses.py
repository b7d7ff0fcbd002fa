"""A queue is paused on three real nodes: by an operator, through the death of a leader, for
consumers that wait.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from querator import Client, FairGroup, Item, SyncClient
from querator.client.errors import QueuePaused
from tests.integration.process_cluster import process_cluster

pytestmark = pytest.mark.timeout(120)

SHORT = timedelta(milliseconds=300)


async def test_a_pause_survives_the_death_of_a_leader(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["a"].address) as client:
            await client.create_queue("mail", partitions=3, max_attempts=0, dead_queue="")
            said, _ = await cluster.querator("queue", "pause", "mail")
            assert said == "Queue mail: leases paused.\n"
            async with client.consumer("mail") as consumer, asyncio.TaskGroup() as tasks:
                first = tasks.create_task(anext(consumer))
                await client.produce("mail", *(b"%d" % n for n in range(30)))
                await cluster["c"].kill()
                await cluster["c"].start()
                await cluster.until_well()
                assert await client.lease("mail", max_items=30, wait=SHORT) == []
                assert not first.done()
                await cluster.querator("queue", "resume", "mail")
                item = await first
                await item.complete()
                got = {item.payload}
                while len(got) < 30:
                    item = await anext(consumer)
                    await item.complete()
                    got.add(item.payload)
            assert got == {b"%d" % n for n in range(30)}


async def test_paused_producers_and_groups_at_the_sync_client(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await asyncio.to_thread(_pauses, cluster["b"].address)


def _pauses(address: str) -> None:
    with SyncClient(address) as client:
        info = client.create_queue("jobs", kind="fair", produce_paused=True)
        assert (info.lease_paused, info.produce_paused) == (False, True)
        # Its partitions have leaders: an attempt without an answer would be an unknown outcome.
        assert client.stats("jobs").total.produced == 0
        with (
            SyncClient(address, request_timeout=timedelta(seconds=5)) as hasty,
            pytest.raises(QueuePaused, match="producers of queue jobs are paused") as caught,
        ):
            hasty.produce("jobs", b"1")
        assert caught.value.field == "queue"
        groups = [FairGroup("acme", paused=True)]
        info = client.update_queue("jobs", produce_paused=False, groups=groups)
        assert info.groups == (FairGroup("acme", paused=True),)
        client.produce("jobs", Item(b"1", group="acme"), Item(b"2", group="zoo"))
        assert [item.payload for item in client.lease("jobs", max_items=9)] == [b"2"]
        assert {one.path: one.paused for one in client.list_groups("jobs")} == {
            "": False, "acme": True, "zoo": False,
        }  # fmt: skip
        client.update_queue("jobs", groups=[])
        assert [item.payload for item in client.lease("jobs", max_items=9)] == [b"1"]
