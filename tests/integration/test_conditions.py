"""`cluster status` of real nodes reports conditions that make items late or replicas doubtful,
while they last.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from querator import Client
from querator.client.errors import QueueFull
from tests import preload, stalls
from tests.integration.process_cluster import process_cluster

HANG = Path(stalls.__file__).with_name("hang.c")

pytestmark = pytest.mark.timeout(180)


def says(view: dict[str, Any], *words: str) -> bool:
    return any(all(word in problem for word in words) for problem in view["problems"])


async def test_a_disk_that_hangs_and_the_copies_on_it(tmp_path: Path):
    hangs = tmp_path / "hangs"
    hangs.write_bytes(b"\0")

    def hang(now: bool) -> None:
        # Without truncating it: the node has mapped it.
        with hangs.open("r+b") as flag:
            flag.write(bytes([now]))

    async with process_cluster(tmp_path) as cluster:
        library = preload.build(HANG, tmp_path)
        cluster["c"].environment |= {"LD_PRELOAD": str(library), "DISK_HANGS": str(hangs)}
        await cluster.start()
        async with Client(cluster["a"].address) as client:
            await client.create_queue("q", partitions=3, max_attempts=0, dead_queue="")
            await cluster.until_well()
            hang(True)
            try:
                await client.produce("q", *[b"x"] * 100)
                await cluster.until(
                    lambda view: (
                        says(view, "The raft thread of node c has made no progress for")
                        and says(view, "Node c has been behind for", "log entries")
                    )
                )
            finally:
                hang(False)
        await cluster.until(lambda view: not says(view, "Node c has been behind"))
        await cluster.until(lambda view: not says(view, "The raft thread of node c"))


async def test_moves_that_wait_and_a_queue_that_refuses(tmp_path: Path):
    async with process_cluster(tmp_path, "a") as cluster:
        await cluster.start()
        await cluster.querator(
            "queue", "create", "dead", "--dead-queue", "", "--partition-items-max", "1"
        )
        await cluster.querator("queue", "create", "q", "--dead-queue", "dead")
        patience = timedelta(seconds=3)
        async with Client(cluster["a"].address, request_timeout=patience) as client:
            await client.produce("q", b"1", b"2", b"3")
            await client.retry("q", *await client.lease("q", max_items=3), dead=True)
            await cluster.until(lambda view: says(view, "Items of q/0 have waited", "queue dead"))
            with pytest.raises(QueueFull):
                await client.produce("dead", b"4")
            await cluster.until(lambda view: says(view, "dead/0:", "refused", "QUEUE_FULL"))
            for _ in range(3):
                dead = await client.lease("dead", wait=timedelta(seconds=10))
                await client.complete("dead", *dead)
            await cluster.until(lambda view: not says(view, "have waited"))
            assert (await client.stats("dead")).total.completed == 3
