"""A run of the demo: all flights through one queue, and the counts that prove it.

Producers and consumers are tasks of one process. The node leaves them one of two cores, and to
share an event loop costs less than a second process would gain.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice

import msgspec

from querator.cli.demo.flights import Ledger
from querator.client import Client, Consumer, Item, LeasedBatch, LeasedItem, Producer
from querator.client.errors import LeaseLost

QUEUE = "flights"
DEAD_QUEUE = "flights-dead"
PARTITIONS = 4
ATTEMPTS_MAX = 10
CONSUMERS = 3
PREFETCH_ITEMS = 4_000
BATCH_ITEMS = 256
BATCHES_IN_FLIGHT = 8
RETRY_EACH = 100
LAPSING_ITEMS = 50
LAPSE_TIMEOUT = timedelta(seconds=1)


class _Arrival(msgspec.Struct, frozen=True, gc=False):
    """The fields of a flight that the consumers read."""

    carrier: str
    arr_delay: str


_decode = msgspec.json.Decoder(_Arrival).decode


@dataclass(slots=True)
class CarrierDelays:
    """Minutes late at arrival, for one carrier."""

    flights: int = 0
    minutes: int = 0

    @property
    def mean(self) -> float:
        return self.minutes / self.flights


@dataclass(slots=True)
class FlightCounts:
    """Flights sent, flights completed, and the events in between."""

    rows: int
    sent: Ledger = field(default_factory=Ledger)
    completed: Ledger = field(default_factory=Ledger)
    retried: set[int] = field(default_factory=set)
    lapsing: int = 0
    acknowledged: int = 0
    ack_seconds: list[float] = field(default_factory=list)
    acked_at: float = 0.0
    longest_pause: float = 0.0
    """The longest time in seconds without an acknowledgement while flights waited for one."""
    a_third: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a third of the flights is acknowledged."""
    carriers: dict[str, CarrierDelays] = field(default_factory=dict)

    def acknowledge(self, flights: int, seconds: float) -> None:
        """Counts `flights` that were acknowledged `seconds` after they were sent."""
        now = time.monotonic()
        if self.acknowledged:
            self.longest_pause = max(self.longest_pause, now - self.acked_at)
        self.acked_at = now
        self.ack_seconds.append(seconds)
        self.acknowledged += flights
        if 3 * self.acknowledged >= self.rows:
            self.a_third.set()

    def slowest(self) -> tuple[str, float] | None:
        """The carrier with the highest mean delay, and that delay in minutes."""
        means = {name: delays.mean for name, delays in self.carriers.items()}
        return max(means.items(), key=lambda pair: pair[1]) if means else None


class Run:
    """One pass of `flights` through the queue."""

    def __init__(self, client: Client, dying: Client, books: FlightCounts) -> None:
        self._client = client
        self._dying = dying
        self._books = books
        self._all_done = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self, flights: Iterable[Item]) -> None:
        """Returns when every flight is completed. Raises the client's errors."""
        source = iter(flights)
        async with self._client.producer(
            QUEUE, ordered=False, batch_items=BATCH_ITEMS, max_in_flight=BATCHES_IN_FLIGHT
        ) as producer:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(BATCHES_IN_FLIGHT):
                    tasks.create_task(self._produce(producer, source))
                await self._lease_and_die()
                for _ in range(CONSUMERS):
                    tasks.create_task(self._consume())

    async def _produce(self, producer: Producer, source: Iterator[Item]) -> None:
        books = self._books
        while batch := list(islice(source, BATCH_ITEMS)):
            for item in batch:
                assert isinstance(item.payload, bytes)
                books.sent.add(int(item.reference), item.payload)
            began = time.perf_counter()
            await producer.produce_many(batch)
            books.acknowledge(len(batch), time.perf_counter() - began)

    async def _lease_and_die(self) -> None:
        """A consumer that leases items and then stops responding: its leases lapse."""
        items = await self._dying.lease(
            QUEUE,
            max_items=min(LAPSING_ITEMS, 1 + self._books.rows // 20),
            wait=timedelta(seconds=30),
            lease_timeout=LAPSE_TIMEOUT,
        )
        self._books.lapsing = len(items)

    async def _consume(self) -> None:
        async with self._client.consumer(
            QUEUE, prefetch_items=PREFETCH_ITEMS, batch_items=BATCH_ITEMS
        ) as consumer:
            async with asyncio.TaskGroup() as tasks:
                stopping = tasks.create_task(self._stop_when_done(consumer))
                async for batch in consumer.batches():
                    self._work(batch)
                stopping.cancel()
        if self._failure is not None:
            raise self._failure

    async def _stop_when_done(self, consumer: Consumer) -> None:
        await self._all_done.wait()
        consumer.stop()

    def _work(self, batch: LeasedBatch) -> None:
        """Retries each hundredth flight once, and completes the others."""
        books = self._books
        done: list[tuple[int, bytes]] = []
        for item in batch:
            row = int(item.reference)
            if row % RETRY_EACH == 0 and row not in books.retried:
                books.retried.add(row)
                self._retry(item)
            else:
                done.append((row, item.payload))
        if done:
            batch.complete().add_done_callback(partial(self._completed, done))

    def _retry(self, item: LeasedItem) -> None:
        item.retry(error="the demo retries each hundredth flight").add_done_callback(self._check)

    def _completed(self, done: list[tuple[int, bytes]], future: "asyncio.Future[None]") -> None:
        """Counts only what the node has confirmed."""
        if not self._check(future):
            return
        books = self._books
        for row, payload in done:
            books.completed.add(row, payload)
            arrival = _decode(payload)
            if arrival.arr_delay != "NA":
                delays = books.carriers.setdefault(arrival.carrier, CarrierDelays())
                delays.flights += 1
                delays.minutes += int(arrival.arr_delay)
        if books.completed.count >= books.rows:
            self._all_done.set()

    def _check(self, future: "asyncio.Future[None]") -> bool:
        """Whether the call took effect. Items of a lost lease are delivered again."""
        if future.cancelled():
            return False
        error = future.exception()
        if error is not None and not isinstance(error, LeaseLost):
            self._failure = error
            self._all_done.set()
        return error is None
