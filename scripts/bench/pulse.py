"""A steady load of single items, and the records that show when it stood still.

For each partition one client writes at an even pace, with a producer that keeps its order and so
has to follow the partition's leader, and leases and completes from all partitions. Every item is
recorded when it is acknowledged, when it is first delivered and when it is completed.
"""

import asyncio
import contextlib
import itertools
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from querator import Client
from querator.client import Consumer, Producer
from querator.client.errors import RequestError
from querator.client.values import PartitionStats, ProducedItem

DRAIN_SECONDS = 60.0
"""How long the completion of all acknowledged items may take; a lease lapses after 30 s."""
PREFETCH_ITEMS = 100
PRODUCERS_TRIED = 1_000


class Beats:
    """Instants of the monotonic clock at which something happened, in their order."""

    def __init__(self) -> None:
        self._instants: list[float] = []

    def add(self, at_s: float) -> None:
        self._instants.append(at_s)

    def longest_pause(self, since_s: float, until_s: float) -> float:
        """Longest time between two neighbours, in seconds, of those pauses that reach into the
        window.
        """
        first = max(0, bisect_right(self._instants, since_s) - 1)
        last = bisect_left(self._instants, until_s)
        seen = self._instants[first : last + 1]
        if not seen or seen[0] > since_s:
            seen.insert(0, since_s)
        if seen[-1] < until_s:
            seen.append(until_s)
        return max(after - before for before, after in itertools.pairwise(seen))


class Books:
    """The fate of every item. Items are numbers."""

    def __init__(self, partitions: int) -> None:
        self.acknowledged = [Beats() for _ in range(partitions)]
        self.delivered = [Beats() for _ in range(partitions)]
        self.errors: list[str] = []
        """Errors that the program with the SDK received."""
        self._acknowledged_s: dict[int, float] = {}
        self._delivered_s: dict[int, float] = {}
        self._completed: Counter[int] = Counter()
        self._progress = asyncio.Event()

    def acknowledge(self, number: int, place: int) -> None:
        self._acknowledged_s[number] = now_s = time.monotonic()
        self.acknowledged[place].add(now_s)

    def deliver(self, number: int, place: int) -> None:
        now_s = time.monotonic()
        self.delivered[place].add(now_s)
        self._delivered_s.setdefault(number, now_s)

    def complete(self, number: int) -> None:
        self._completed[number] += 1
        self._progress.set()

    @property
    def count(self) -> int:
        return len(self._acknowledged_s)

    async def until_drained(self) -> None:
        """Returns when all acknowledged items are completed."""
        while len(self._completed) < len(self._acknowledged_s):
            self._progress.clear()
            await self._progress.wait()

    def pauses(self, since_s: float, until_s: float) -> tuple[float, float, float]:
        """Pauses within the window: the longest time in which some partition acknowledged nothing,
        and in which nothing of it was delivered; and how long an item waited that was acknowledged
        then.
        """
        waits = [
            self._delivered_s.get(number, until_s) - at_s
            for number, at_s in self._acknowledged_s.items()
            if since_s <= at_s <= until_s
        ]
        return (
            max(beats.longest_pause(since_s, until_s) for beats in self.acknowledged),
            max(beats.longest_pause(since_s, until_s) for beats in self.delivered),
            max([0.0, *waits]),
        )

    def problems(self, total: PartitionStats) -> list[str]:
        """A sentence for each count that does not balance with the server's."""
        count = self.count
        lost = len(self._acknowledged_s.keys() - self._completed.keys())
        twice = sum(1 for times in self._completed.values() if times > 1)
        strange = len(self._completed.keys() - self._acknowledged_s.keys())
        left = total.ready + total.leased + total.scheduled
        checks = (
            (not self.errors, f"the clients saw {len(self.errors)} errors"),
            (not lost, f"{lost} acknowledged items were never completed"),
            (not twice, f"{twice} items were completed twice"),
            (not strange, f"{strange} items were completed without an acknowledged produce"),
            (total.produced == count, f"the server counts {total.produced} items, not {count}"),
            (total.completed == count, f"the server counts {total.completed} completed"),
            (not left, f"{left} items are left in the queue"),
            (not total.dead, f"{total.dead} items died"),
        )
        return [sentence for holds, sentence in checks if not holds]


class _Pulse:
    def __init__(self, books: Books, queue: str, pace_s: float) -> None:
        self._books = books
        self._queue = queue
        self._pace_s = pace_s
        self._numbers = itertools.count()
        self._stopping = asyncio.Event()

    async def run(self, clients: list[Client], beating: asyncio.Event) -> None:
        """Runs until `stop`; then until all acknowledged items are completed, for DRAIN_SECONDS at
        most. `beating` is set when every partition is written to.
        """
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as consuming:
            consumers = [
                await stack.enter_async_context(
                    client.consumer(self._queue, prefetch_items=PREFETCH_ITEMS)
                )
                for client in clients
            ]
            for consumer in consumers:
                consuming.create_task(self._consume(consumer))
            async with asyncio.TaskGroup() as producing:
                for place, client in enumerate(clients):
                    producer = await self._producer(client, place, stack)
                    producing.create_task(self._produce(producer))
                beating.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._books.until_drained()
            for consumer in consumers:
                consumer.stop()

    def stop(self) -> None:
        self._stopping.set()

    async def _producer(
        self, client: Client, place: int, stack: contextlib.AsyncExitStack
    ) -> Producer:
        """A producer whose identity belongs to the partition: chance decides, so several
        are tried.
        """
        for _ in range(PRODUCERS_TRIED):
            producer = client.producer(self._queue)
            await producer.__aenter__()
            if await self._one(producer) == place:
                stack.push_async_exit(producer)
                return producer
            await producer.__aexit__(None, None, None)
        raise AssertionError(f"no producer in {PRODUCERS_TRIED} belongs to partition {place}")

    async def _one(self, producer: Producer) -> int:
        number = next(self._numbers)
        produced = await producer.produce(str(number))
        self._books.acknowledge(number, produced.partition)
        return produced.partition

    async def _produce(self, producer: Producer) -> None:
        """Produces one item each `pace_s`, whatever the answers do."""
        due_s = time.monotonic()
        while not self._stopping.is_set():
            number = next(self._numbers)
            try:
                future = await producer.submit(str(number))
            except RequestError as error:
                self._books.errors.append(f"produce: {error}")
            else:
                future.add_done_callback(partial(self._produced, number))
            due_s += self._pace_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        with contextlib.suppress(RequestError):
            # It has been recorded already.
            await producer.flush()

    def _produced(self, number: int, future: "asyncio.Future[ProducedItem]") -> None:
        if self._succeeded("produce", future):
            self._books.acknowledge(number, future.result().partition)

    async def _consume(self, consumer: Consumer) -> None:
        try:
            async for item in consumer:
                number = int(item.payload)
                self._books.deliver(number, item.id.partition)
                item.complete().add_done_callback(partial(self._completed, number))
        except RequestError as error:
            self._books.errors.append(f"consume: {error}")

    def _completed(self, number: int, future: "asyncio.Future[None]") -> None:
        if self._succeeded("complete", future):
            self._books.complete(number)

    def _succeeded(self, what: str, future: "asyncio.Future[Any]") -> bool:
        if future.cancelled():
            return False
        error = future.exception()
        if error is not None:
            self._books.errors.append(f"{what}: {error}")
        return error is None


@contextlib.asynccontextmanager
async def pulse(address: str, queue: str, *, partitions: int, rate: float) -> AsyncIterator[Books]:
    """Runs while the block runs, with `rate` items per second in all. Leaving the block waits until
    all acknowledged items are completed, for DRAIN_SECONDS at most.
    """
    books = Books(partitions)
    beat = _Pulse(books, queue, partitions / rate)
    beating = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(address)) for _ in range(partitions)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beat.run(clients, beating))
            await beating.wait()
            yield books
            beat.stop()
