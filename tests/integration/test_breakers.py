"""The breaker of a queue on three real nodes: a leader dies while it is open, and consumers that
wait continue when single items succeed.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from querator import Breaker, Client, SyncClient, SyncLeasedItem
from tests.integration.process_cluster import process_cluster

pytestmark = pytest.mark.timeout(120)

SHORT = timedelta(milliseconds=300)
LONG = Breaker(outcomes_min=2, open_time=timedelta(hours=1), probes=2)


async def test_an_open_breaker_survives_the_death_of_a_leader(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        async with Client(cluster["a"].address) as client:
            await client.create_queue("mail", max_attempts=0, dead_queue="", breaker=LONG)
            await client.produce("mail", *(b"%d" % n for n in range(10)))
            for item in await client.lease("mail", max_items=2):
                await item.retry(error="mailbox busy")
            opened = (await client.stats("mail")).partitions[0].breaker
            assert opened is not None
            assert (opened.state, opened.outcomes, opened.failures) == ("open", 2, 2)
            async with (
                client.consumer("mail", prefetch_items=5) as consumer,
                asyncio.TaskGroup() as tasks,
            ):
                first = tasks.create_task(anext(consumer))
                for name in ("b", "c", "a"):
                    await cluster[name].kill()
                    await cluster[name].start()
                    await cluster.until_well()
                assert await client.lease("mail", max_items=9, wait=SHORT) == []
                assert not first.done()
                assert (await client.stats("mail")).partitions[0].breaker == opened
                said, noted = await cluster.querator("lease", "mail")
                assert "the breaker is open in 1 of 1 partition" in said + noted
                # The open time is over at once.
                await client.update_queue(
                    "mail",
                    breaker=Breaker(outcomes_min=2, open_time=timedelta(seconds=1), probes=2),
                )
                item = await first
                await item.complete()
                got = {item.payload}
                while len(got) < 10:
                    item = await anext(consumer)
                    await item.complete()
                    got.add(item.payload)
            assert got == {b"%d" % n for n in range(10)}
            closed = (await client.stats("mail")).partitions[0].breaker
            assert closed is not None
            assert closed.state == "closed"


async def test_a_breaker_is_set_by_hand_at_the_sync_client(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        await asyncio.to_thread(_by_hand, cluster["b"].address)
        said, _ = await cluster.querator("queue", "breaker", "open", "jobs")
        assert said == "The breaker of jobs is open; 3 partitions changed.\n"
        said, _ = await cluster.querator("queue", "info", "jobs")
        assert said.count("  open  ") == 3


def _by_hand(address: str) -> None:
    with SyncClient(address) as client:
        info = client.create_queue("jobs", partitions=3, breaker=LONG)
        assert info.breaker == LONG
        client.produce("jobs", *(b"%d" % n for n in range(9)))
        assert client.open_breaker("jobs") == 3
        assert client.lease("jobs", max_items=9, wait=SHORT) == []
        assert client.close_breaker("jobs") == 3
        got: list[SyncLeasedItem] = []
        while len(got) < 9:
            got += client.lease("jobs", max_items=9, wait=timedelta(seconds=20))
        assert client.update_queue("jobs", breaker=None).breaker is None
        assert client.update_queue("jobs", breaker=Breaker()).breaker == Breaker()
