"""Users of the SDK that continue during changes of their cluster, and what they saw."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

from querator import Client
from querator.client import Item
from querator.client.errors import LeaseLost

LEASE = timedelta(seconds=3)
BATCH = 20


class SdkLoad:
    """Producers and consumers of the SDK, and what they saw."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.made = 0
        self.stop = asyncio.Event()
        self.completed: Counter[bytes] = Counter()
        self.lost = 0

    async def produce(self, *, ordered: bool) -> None:
        async with (
            Client(self.address) as client,
            client.producer("q", ordered=ordered) as producer,
        ):
            while not self.stop.is_set():
                first, self.made = self.made, self.made + BATCH
                await producer.produce_many([b"%d" % n for n in range(first, first + BATCH)])
                await asyncio.sleep(0.02)

    async def single(self) -> None:
        async with Client(self.address) as client:
            while not self.stop.is_set():
                number, self.made = self.made, self.made + 1
                await client.produce("q", b"%d" % number)

    async def consume(self) -> None:
        async with (
            Client(self.address) as client,
            client.consumer("q", lease_timeout=LEASE, prefetch_items=100) as consumer,
            asyncio.TaskGroup() as settling,
        ):
            async for batch in consumer.batches():
                settling.create_task(self._settle(batch.complete(), batch.payloads()))
                if self.stop.is_set() and len(self.completed) == self.made:
                    return

    async def _settle(self, settled: "asyncio.Future[None]", payloads: list[bytes]) -> None:
        try:
            await settled
        except LeaseLost:
            # Its stream was cut with the node, and the lease lapsed: another consumer completes it.
            self.lost += 1
        else:
            self.completed.update(payloads)

    async def run(self, disturb: Callable[[], Awaitable[None]], *, partitions: int = 6) -> None:
        async with Client(self.address) as client, asyncio.TaskGroup() as users:
            await client.create_queue("q", partitions=partitions, max_attempts=0, dead_queue="")
            producing = [
                users.create_task(self.produce(ordered=True)),
                users.create_task(self.produce(ordered=False)),
                users.create_task(self.single()),
            ]
            consuming = [users.create_task(self.consume()) for _ in range(3)]
            await disturb()
            self.stop.set()
            await asyncio.wait(producing)
            while (await client.stats("q")).total.completed < self.made:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            for task in consuming:
                task.cancel()
        # Any exception of a user ends the group; none was raised.


async def check(load: SdkLoad) -> None:
    """Each item was stored once and completed once."""
    async with Client(load.address) as client:
        total = (await client.stats("q")).total
    assert (total.produced, total.completed) == (load.made, load.made)
    assert set(load.completed.values()) <= {1}


class KeyedLoad:
    """Rounds of one item of each key, one after the other, and one consumer that must get the items
    of each key in their order, whatever partitions they are in.
    """

    KEYS = tuple(f"k{number}" for number in range(30))

    def __init__(self, address: str) -> None:
        self.address = address
        self.rounds = 0
        self.working = asyncio.Event()
        """Cleared while the consumer rests."""
        self.disordered: list[str] = []
        self._delivered: Counter[str] = Counter()
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()

    async def made(self, more: int) -> None:
        """Waits until `more` further rounds are acknowledged."""
        upto = self.rounds + more
        await self._until(lambda: self.rounds >= upto)

    async def run(self, disturb: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as users:
            producing = users.create_task(self._produce())
            consuming = users.create_task(self._consume())
            await disturb()
            self._stop.set()
            await producing
            await self._until(lambda: self._delivered.total() == self.rounds * len(self.KEYS))
            consuming.cancel()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _produce(self) -> None:
        async with Client(self.address) as client, client.producer("q") as producer:
            while not self._stop.is_set():
                number = b"%d" % self.rounds
                await producer.produce_many([Item(number, key=key) for key in self.KEYS])
                self.rounds += 1
                self._changed.set()
                # Slower than the consumer: a backlog grows while it rests, and shrinks after that.
                await asyncio.sleep(0.05)

    async def _consume(self) -> None:
        async with (
            Client(self.address) as client,
            client.consumer("q", prefetch_items=50) as consumer,
        ):
            async for item in consumer:
                await self.working.wait()
                self._take(item.key, int(item.payload))
                item.complete()

    def _take(self, key: str, number: int) -> None:
        if number != self._delivered[key]:
            self.disordered.append(f"{key}: {number} instead of {self._delivered[key]}")
        self._delivered[key] += 1
        self._changed.set()
