"""However producers, partitions and consumers are spread over the nodes: every item arrives, those
of a partition in their order, and consumers share evenly. Real processes.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean

import pytest

from querator import Client
from querator.client import Consumer, LeasedItem
from tests.integration.process_cluster import ProcessCluster, process_cluster

pytestmark = pytest.mark.timeout(120)

QUEUE = "q"
UNEVEN_MAX = 1.5
"""Limit for the ratio of the most items of a consumer to the fewest, at one node."""
NODES_UNEVEN_MAX = 2.0
"""The same for the means of the nodes. A node that stands still for a second on a busy machine is
rightly passed over: what trickles in goes to consumers that can take it.
"""


class Arrivals:
    """The items that came to each consumer, and their order."""

    def __init__(self, items: int, consumers: Sequence[str]) -> None:
        self._items = items
        self._consumers = consumers
        self._last: dict[tuple[int, int], int] = {}
        self._disordered: list[str] = []
        self._payloads: Counter[bytes] = Counter()
        self.counts: Counter[int] = Counter()
        """Number of items, by consumer."""
        self._completed = 0
        self.all = asyncio.Event()
        """Set when all items are completed."""

    def add(self, consumer: int, item: LeasedItem) -> None:
        partition, seq = item.id
        if seq <= self._last.get((consumer, partition), -1):
            self._disordered.append(f"{item.id} came to consumer {consumer} behind a later one")
        self._last[consumer, partition] = seq
        self.counts[consumer] += 1
        self._payloads[item.payload] += 1

    def complete(self, _: "asyncio.Future[None]") -> None:
        self._completed += 1
        if self._completed >= self._items:
            self.all.set()

    def check(self) -> None:
        assert not self._disordered
        assert set(self._payloads) == {b"%d" % number for number in range(self._items)}
        assert set(self._payloads.values()) == {1}
        by_node: dict[str, list[int]] = {}
        for number, name in enumerate(self._consumers):
            by_node.setdefault(name, []).append(self.counts[number])
        assert all(min(counts) for counts in by_node.values()), by_node
        for counts in by_node.values():
            assert max(counts) / min(counts) < UNEVEN_MAX, by_node
        means = [fmean(counts) for counts in by_node.values()]
        assert max(means) / min(means) < NODES_UNEVEN_MAX, by_node


async def consume(consumer: Consumer, number: int, arrivals: Arrivals, work_s: float) -> None:
    async for item in consumer:
        arrivals.add(number, item)
        if work_s:
            await asyncio.sleep(work_s)
        item.complete().add_done_callback(arrivals.complete)


async def produce(address: str, items: int, *, rate: float) -> None:
    """Produces to all partitions in turn; `rate` 0: as fast as possible."""
    loop = asyncio.get_running_loop()
    async with Client(address) as client, client.producer(QUEUE) as producer:
        due_s = loop.time()
        for number in range(items):
            await producer.submit(b"%d" % number)
            if rate:
                due_s += 1 / rate
                await asyncio.sleep(max(0.0, due_s - loop.time()))


async def shared(
    cluster: ProcessCluster,
    *,
    partitions: int,
    consumers: Sequence[str],
    producer: str,
    items: int,
    rate: float = 0.0,
    work_s: float = 0.0,
    prefetch_items: int = 10,
) -> Arrivals:
    """Items that come to the consumers, one at each of the named nodes. Returns when all
    have come.
    """
    arrivals = Arrivals(items, consumers)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as consuming:
        at = {
            name: await stack.enter_async_context(Client(cluster[name].address))
            for name in {*consumers, producer}
        }
        await at[producer].create_queue(QUEUE, partitions=partitions, max_attempts=0, dead_queue="")
        opened = []
        for number, name in enumerate(consumers):
            consumer = await stack.enter_async_context(
                at[name].consumer(QUEUE, prefetch_items=prefetch_items)
            )
            consuming.create_task(consume(consumer, number, arrivals, work_s))
            opened.append(consumer)
        await produce(cluster[producer].address, items, rate=rate)
        await arrivals.all.wait()
        for consumer in opened:
            consumer.stop()
        total = (await at[producer].stats(QUEUE)).total
        assert (total.completed, total.lapsed) == (items, 0)
    return arrivals


async def test_one_consumer_gets_all_of_a_hundred_partitions(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        arrivals = await shared(
            cluster, partitions=100, consumers="c", producer="b", items=5_000, prefetch_items=200
        )
        arrivals.check()


@pytest.mark.parametrize(
    "pace",
    [
        # Each holds two items at most, and works on them: consumers are scarce.
        {"work_s": 0.02},
        # A consumer has long finished one item when it gets the next: items are scarce.
        {"rate": 500},
    ],
    ids=["of what waits", "of what trickles in"],
)
async def test_a_hundred_consumers_share_one_partition(tmp_path: Path, pace: dict[str, float]):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        arrivals = await shared(
            cluster, partitions=1, consumers=("abc" * 34)[:100], producer="b", items=3_000,
            prefetch_items=2, **pace,
        )  # fmt: skip
        arrivals.check()


async def test_consumers_share_on_a_node_that_nobody_produces_to(tmp_path: Path):
    async with process_cluster(tmp_path, "abcde") as cluster:
        await cluster.start()
        arrivals = await shared(
            cluster, partitions=10, consumers="a" * 20, producer="e", items=3_000,
            work_s=0.02, prefetch_items=2,
        )  # fmt: skip
        arrivals.check()
