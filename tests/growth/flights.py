"""Flights that go round through a queue, at an even pace: programs that use the SDK, and know only
some addresses of the cluster.
"""

import asyncio
import contextlib
import time
import zlib
from bisect import bisect
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from operator import itemgetter

import msgspec

from querator import Client
from querator.client import Consumer, Item, LeasedBatch, Producer
from querator.client.errors import RequestError
from tests.growth.books import Books, Round

QUEUE = "flights"
PRODUCERS = 6
"""Each has its own aircraft, and produces when its last flight is acknowledged."""
CONSUMERS = 3
PREFETCH_ITEMS = 500
PACE_S = 0.1
BATCH_ITEMS = 256
BEHIND_S = 5.0
"""Largest delay that is caught up: later rounds then begin earlier."""

Sent = tuple[int, Item]
"""Number of the row, and the flight."""


class Flights:
    """`rate`: flights per second. `stop` makes the current round the last."""

    def __init__(self, books: Books, flights: Sequence[Item], rate: float) -> None:
        self._books = books
        self._rate = rate
        self._shares: list[list[Sent]] = [[] for _ in range(PRODUCERS)]
        for row, flight in enumerate(flights):
            self._shares[zlib.crc32(flight.key.encode()) % PRODUCERS].append((row, flight))
        self._stopping = asyncio.Event()
        self._working = asyncio.Event()
        self._working.set()
        self._progress = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    @contextlib.contextmanager
    def backlog(self) -> Iterator[None]:
        """Consumers rest while the block runs."""
        self._working.clear()
        yield
        self._working.set()

    async def produce(self, producers: Sequence[Producer]) -> None:
        """Produces round after round, until `stop`."""
        due_s = time.monotonic()
        while not self._stopping.is_set():
            of = self._books.begin()
            async with asyncio.TaskGroup() as tasks:
                for producer, share in zip(producers, self._shares, strict=True):
                    tasks.create_task(self._produce(producer, of, share, due_s))
            due_s = max(due_s + self._books.rows / self._rate, time.monotonic() - BEHIND_S)

    async def _produce(
        self, producer: Producer, of: Round, share: Sequence[Sent], from_s: float
    ) -> None:
        """Produces a share of a round. The first row of the round is due at `from_s`."""
        first = 0
        while first < len(share):
            due = (time.monotonic() - from_s) * self._rate
            last = bisect(share, due, first, key=itemgetter(0))
            part = share[first : min(last, first + BATCH_ITEMS)]
            if part:
                await self._send(producer, of, part)
                first += len(part)
            if first == last:
                await asyncio.sleep(PACE_S)

    async def _send(self, producer: Producer, of: Round, part: Sequence[Sent]) -> None:
        items = []
        for row, flight in part:
            assert isinstance(flight.payload, bytes)
            self._books.sent(of, row, flight.payload)
            items.append(msgspec.structs.replace(flight, reference=f"{of.number}-{row}"))
        began_s, partitions = time.monotonic(), self._books.partitions
        try:
            produced = await producer.produce_many(items)
        except RequestError as error:
            self._books.failed("produce", error)
            return
        stored = [
            (flight.key, at.partition, at.seq)
            for (_, flight), at in zip(part, produced, strict=True)
        ]
        self._books.acknowledged(
            of, stored, partitions=partitions, seconds=time.monotonic() - began_s
        )

    async def consume(self, name: str, consumer: Consumer) -> None:
        try:
            async for batch in consumer.batches():
                await self._working.wait()
                self._take(name, batch)
        except RequestError as error:
            self._books.failed("lease", error)

    def _take(self, name: str, batch: LeasedBatch) -> None:
        flights = []
        for item in batch:
            number, _, row = item.reference.partition("-")
            self._books.delivered(name, int(number), int(row), item.key, item.id.partition)
            flights.append((int(number), int(row), item.payload))
        batch.complete().add_done_callback(partial(self._completed, flights))

    def _completed(
        self, flights: list[tuple[int, int, bytes]], future: "asyncio.Future[None]"
    ) -> None:
        if not future.cancelled():
            error = future.exception()
            if error is not None:
                self._books.failed("complete", error)
            else:
                for number, row, payload in flights:
                    self._books.completed(number, row, payload)
        self._progress.set()

    async def until_done(self) -> None:
        """Returns when every acknowledged flight is completed."""
        while self._books.done < self._books.count:
            self._progress.clear()
            await self._progress.wait()


@contextlib.asynccontextmanager
async def going_round(
    address: str, books: Books, flights: Sequence[Item], *, rate: float, end_seconds: float
) -> AsyncIterator[Flights]:
    """Runs while the block runs. Leaving the block lets the round end, and waits until all flights
    are completed, for `end_seconds` at most; the remaining flights do not balance then.
    """
    going = Flights(books, flights, rate)
    async with contextlib.AsyncExitStack() as stack:

        async def client() -> Client:
            return await stack.enter_async_context(Client(address))

        producers = [
            await stack.enter_async_context((await client()).producer(QUEUE, ordered=False))
            for _ in range(PRODUCERS)
        ]
        consumers = [
            await stack.enter_async_context(
                (await client()).consumer(QUEUE, prefetch_items=PREFETCH_ITEMS)
            )
            for _ in range(CONSUMERS)
        ]
        async with asyncio.TaskGroup() as tasks:
            for number, consumer in enumerate(consumers):
                tasks.create_task(going.consume(f"consumer {number}", consumer))
            producing = tasks.create_task(going.produce(producers))
            yield going
            going.stop()
            await producing
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(end_seconds):
                    await going.until_done()
            for consumer in consumers:
                consumer.stop()
