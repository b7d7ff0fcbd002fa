"""Batches go into a queue exactly once while nodes are killed: three real processes."""

import asyncio
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from querator import Client
from querator.client.errors import RequestError
from tests.integration.process_cluster import ProcessCluster, process_cluster
from tests.integration.transaction_pipeline import Pipeline

pytestmark = pytest.mark.timeout(180)

PARTITIONS = 4
TASKS = 3
BATCHES = 4


def tasks_of(batch: int, items: int = 40) -> list[list[bytes]]:
    return [
        [b"%d.%d.%d" % (batch, task, number) for number in range(items)] for task in range(TASKS)
    ]


async def coordinator(cluster: ProcessCluster, asked: str) -> str:
    """The node that leads the first partition of the queue; empty: no node does at present."""
    view: dict[str, Any] = await cluster.status(asked)
    for one in view["partitions"]:
        if one["queue"] == "q" and one["partition"] == 0:
            return str(one["leader"] or "")
    return ""


async def drain(client: Client, expected: int) -> Counter[bytes]:
    """Leases and completes all items."""
    seen: Counter[bytes] = Counter()
    while sum(seen.values()) < expected:
        items = await client.lease("q", max_items=500, wait=timedelta(seconds=20))
        assert items, f"{sum(seen.values())} of {expected} items"
        seen.update(item.payload for item in items)
        await client.complete("q", *items)
    return seen


async def test_batches_while_the_coordinator_and_participants_are_killed(tmp_path: Path):
    chance = random.Random(7)
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [cluster[name].address for name in "abc"]
        async with Client(",".join(addresses), request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue(
                "q", partitions=PARTITIONS, replicas=3, max_attempts=0, dead_queue=""
            )
            pipeline = Pipeline(addresses, "pipeline", chance)
            other = Pipeline(addresses, "other pipeline", chance)
            try:
                await _write(cluster, pipeline, other, chance)
                items = sum(len(task) for batch in range(BATCHES) for task in tasks_of(batch))
                assert await pipeline.totals() == (BATCHES - 1, items)
                assert await other.totals() == (BATCHES - 1, BATCHES)
            finally:
                await pipeline.close()
                await other.close()
            expected = {
                item for batch in range(BATCHES) for task in tasks_of(batch) for item in task
            } | {b"other %d" % batch for batch in range(BATCHES)}
            seen = await drain(client, len(expected))
            assert max(seen.values()) == 1, "an item is visible once"
            assert set(seen) == expected
            total = (await client.stats("q")).total
            assert (total.produced, total.completed) == (len(expected), len(expected))
            assert (total.ready, total.leased, total.duplicates) == (0, 0, 0)
            assert not (await client.lease("q", max_items=1))
            left = await client.staged_batches("q")
            assert all(one.state.name == "STAGED" for one in left.batches)


async def _write(
    cluster: ProcessCluster, pipeline: Pipeline, other: Pipeline, chance: random.Random
) -> None:
    """Writes some batches of each pipeline. Half of the time a process dies between the stages and
    the commit, half of the time while the commit is in flight or being published.
    """

    async def kill() -> None:
        living = [name for name in "abc" if cluster[name].running]
        victim = await coordinator(cluster, living[0]) if chance.random() < 0.7 else ""
        if victim not in living:
            victim = chance.choice(living)
        await cluster[victim].kill()
        dead.append(victim)

    for batch in range(BATCHES):
        dead: list[str] = []
        async with asyncio.TaskGroup() as group:
            if batch % 2:
                writing = pipeline.write(batch, tasks_of(batch), staged=kill)
            else:
                writing = pipeline.write(batch, tasks_of(batch))
                group.create_task(kill())
            group.create_task(writing)
            group.create_task(other.write(batch, [[b"other %d" % batch]]))
        for name in dead:
            await cluster[name].start()
        # A driver that has not heard of its commit asks once more.
        assert await pipeline.commit(batch, [])
    assert pipeline.repeats >= BATCHES


async def test_what_operators_see_and_do(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [cluster[name].address for name in "abc"]
        async with Client(",".join(addresses)) as client:
            await client.create_queue("q", partitions=PARTITIONS, max_attempts=0, dead_queue="")
            pipeline = Pipeline(addresses, "pipeline", random.Random(1))
            try:
                staged = await pipeline.stage(3, 0, [b"x" * 100] * 30)
                assert staged is not None
                out, _ = await cluster.querator("txn", "list", "q", "--output", "json")
                assert '"producer":"pipeline","batch":3,"state":"staged"' in out
                assert '"items":30' in out
                out, _ = await cluster.querator("stats", "q", "--output", "json", asked="b")
                assert '"staged":30' in out
                out, _ = await cluster.querator("txn", "abort", "q", "pipeline", "3", asked="c")
                assert "Batch 3 of pipeline is dropped" in out
                assert not (await client.staged_batches("q")).batches
                assert not await pipeline.commit(3, [staged])
                await pipeline.write(3, [[b"y"]])
                assert (await client.abort_batch("q", "pipeline", 3)).committed
                assert [item.payload for item in await client.lease("q")] == [b"y"]
                with pytest.raises(RequestError) as caught:
                    await client.abort_batch("q", "", 3)
                assert caught.value.field == "producer"
            finally:
                await pipeline.close()
