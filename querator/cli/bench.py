"""`querator bench`: load on any server, with counts that must balance."""

import asyncio
import os
import secrets
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import click
import msgspec

from querator.cli.demo.measure import Bars, Latency, latency
from querator.cli.shared.connection import CommandTarget, output_option, server_options
from querator.cli.shared.failures import ExitCode
from querator.cli.shared.output import note, write_details, write_json
from querator.cli.shared.parameters import ABOVE_ZERO, WholeNumber
from querator.client import Client, Consumer, LeasedBatch, Producer
from querator.client.errors import LeaseLost
from querator.model import limits

IN_FLIGHT = 8
IN_FLIGHT_MAX = limits.STREAM_UNANSWERED_MAX
_HEAD = struct.Struct(">Qd")
"""Number of the item, and the instant at which the producer got it (this process's clock)."""


class BenchView(msgspec.Struct, frozen=True):
    """`ack`: from the due time of a batch to its acknowledgement. `delivery`: from the due time of
    an item to its lease. `problems` is empty when the counts balance.
    """

    items: int
    batch_items: int
    delivery_items: int
    payload_bytes: int
    producers: int
    consumers: int
    durable: bool
    seconds: float
    produced_per_second: float
    completed_per_second: float | None
    ack: Latency
    delivery: Latency | None
    client_cpu_seconds: float
    problems: list[str]


@dataclass(frozen=True, slots=True)
class _Load:
    queue: str
    items: int
    batch_items: int
    delivery_items: int
    payload_bytes: int
    producers: int
    consumers: int
    in_flight: int
    rate: float | None


@dataclass(slots=True)
class _Books:
    acknowledged: int = 0
    completed: int = 0
    seen: bytearray = field(default_factory=bytearray)
    repeated: int = 0
    ack_seconds: list[float] = field(default_factory=list)
    delivery_seconds: list[float] = field(default_factory=list)
    produced_at: float = 0.0
    completed_at: float = 0.0
    durable: bool = True


@click.command()
@click.option(
    "--items",
    type=WholeNumber(1, 10_000_000),
    default=100_000,
    show_default=True,
    metavar="N",
    help="Number of items.",
)
@click.option(
    "--batch",
    type=WholeNumber(1, limits.REQUEST_ITEMS_MAX),
    default=100,
    show_default=True,
    metavar="N",
    help="Items in a produce request.",
)
@click.option(
    "--delivery",
    type=WholeNumber(1, limits.REQUEST_ITEMS_MAX),
    default=limits.STREAM_BATCH_ITEMS_DEFAULT,
    show_default=True,
    metavar="N",
    help="Most items in a delivery.",
)
@click.option(
    "--size",
    type=WholeNumber(_HEAD.size, limits.PAYLOAD_BYTES_MAX),
    default=1024,
    show_default=True,
    metavar="BYTES",
    help="Payload of an item.",
)
@click.option(
    "--producers",
    type=WholeNumber(1, 100),
    default=2,
    show_default=True,
    metavar="N",
    help="Produce streams.",
)
@click.option(
    "--consumers",
    type=WholeNumber(0, 100),
    default=2,
    show_default=True,
    metavar="N",
    help="Lease streams; 0: produce only.",
)
@click.option(
    "--in-flight",
    type=WholeNumber(1, limits.STREAM_UNANSWERED_MAX),
    metavar="N",
    help=f"Unanswered requests of each producer; {IN_FLIGHT} unless given, {IN_FLIGHT_MAX} with "
    "--rate.",
)
@click.option(
    "--rate",
    type=ABOVE_ZERO,
    metavar="N",
    help=(
        "Offer this many items per second, even if the server does not keep up; default: no limit."
    ),
)
@click.option(
    "--partitions",
    type=WholeNumber(1, 1024),
    default=4,
    show_default=True,
    metavar="N",
    help="Partitions of the queue that the command creates.",
)
@click.option(
    "--queue",
    metavar="NAME",
    help="An empty queue; default: the command creates one and deletes it.",
)
@server_options
@output_option
def bench(
    items: int,
    batch: int,
    delivery: int,
    size: int,
    producers: int,
    consumers: int,
    in_flight: int | None,
    rate: float | None,
    partitions: int,
    queue: str | None,
    target: CommandTarget,
    as_json: bool,
) -> None:
    """Measure a server: produce items and, at the same time, lease and complete them.

    All clients are in this process, on one core. When `client cpu` is close to the time taken, the
    client limits the result. With --rate, latencies count from the time at which an item was due,
    so a server that falls behind shows it. The exit code is 1 unless every item was seen exactly
    once.

    \b
    Examples:
      querator bench
      querator bench --consumers 0 --items 1000000 --size 100
      querator bench --rate 1000 --batch 1 --items 20000
    """

    async def main(client: Client) -> BenchView:
        async with _bench_queue(client, queue, partitions) as name:
            load = _Load(
                queue=name,
                items=items,
                batch_items=batch,
                delivery_items=delivery,
                payload_bytes=size,
                producers=producers,
                consumers=consumers,
                in_flight=in_flight or (IN_FLIGHT if rate is None else IN_FLIGHT_MAX),
                rate=rate,
            )
            return await _Bench(client, load).run()

    view = target.run(main)
    if as_json:
        write_json(view)
    else:
        write_report(view)
    for problem in view.problems:
        note(f"WRONG: {problem}")
    if view.problems:
        raise click.exceptions.Exit(ExitCode.WRONG)


@asynccontextmanager
async def _bench_queue(client: Client, queue: str | None, partitions: int) -> AsyncIterator[str]:
    if queue is not None:
        total = (await client.stats(queue)).total
        if total.ready + total.leased + total.scheduled + total.moving:
            raise click.UsageError(f"Queue {queue} is not empty.")
        yield queue
        return
    name = f"bench-{secrets.token_hex(4)}"
    await client.create_queue(
        name,
        partitions=partitions,
        max_attempts=0,
        dead_queue="",
        description="Created by querator bench.",
    )
    try:
        yield name
    finally:
        await client.delete_queue(name)


class _Bench:
    def __init__(self, client: Client, load: _Load) -> None:
        self._client = client
        self._load = load
        self._books = _Books(seen=bytearray(load.items))
        self._next = 0
        self._began = 0.0
        self._filling = os.urandom(load.payload_bytes - _HEAD.size)
        self._all_done = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> BenchView:
        load, books = self._load, self._books
        before = (await self._client.stats(load.queue)).total
        counters = {"produced": lambda: books.acknowledged}
        if load.consumers:
            counters["completed"] = lambda: books.completed
        cpu_began = time.process_time()
        self._began = time.monotonic()
        async with Bars(load.items, counters):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(load.consumers):
                    tasks.create_task(self._consume())
                for _ in range(load.producers):
                    tasks.create_task(self._produce())
        cpu = time.process_time() - cpu_began
        stats = await self._client.stats(load.queue)
        books.durable = stats.durable
        problems = self._problems(
            stats.total.produced - before.produced, stats.total.completed - before.completed
        )
        ended_at = max(books.completed_at, books.produced_at)
        return BenchView(
            items=load.items,
            batch_items=load.batch_items,
            delivery_items=load.delivery_items,
            payload_bytes=load.payload_bytes,
            producers=load.producers,
            consumers=load.consumers,
            durable=books.durable,
            seconds=round(ended_at - self._began, 3),
            produced_per_second=self._rate(load.items, books.produced_at),
            completed_per_second=(
                self._rate(load.items, books.completed_at) if load.consumers else None
            ),
            ack=latency(books.ack_seconds),
            delivery=latency(books.delivery_seconds) if load.consumers else None,
            client_cpu_seconds=round(cpu, 3),
            problems=problems,
        )

    def _rate(self, items: int, ended_at: float) -> float:
        return round(items / max(ended_at - self._began, 1e-9), 1)

    def _problems(self, produced: int, completed: int) -> list[str]:
        load, books = self._load, self._books
        checks = [
            (books.acknowledged, load.items, "acknowledged"),
            (produced, load.items, "counted as produced by the server"),
        ]
        if load.consumers:
            checks += [
                (books.seen.count(1), load.items, "completed here"),
                (completed, load.items, "counted as completed by the server"),
                (books.repeated, 0, "completed more than once"),
            ]
        return [
            f"{found:,} items were {what}; it should be {wanted:,}"
            for found, wanted, what in checks
            if found != wanted
        ]

    async def _produce(self) -> None:
        load = self._load
        async with self._client.producer(
            load.queue, ordered=False, batch_items=load.batch_items, max_in_flight=load.in_flight
        ) as producer:
            async with asyncio.TaskGroup() as tasks:
                if load.rate is None:
                    for _ in range(load.in_flight):
                        tasks.create_task(self._produce_at_will(producer))
                else:
                    await self._produce_on_time(producer, tasks, load.rate)

    def _next_numbers(self) -> range:
        """The numbers of the next batch; empty at the end."""
        first = self._next
        self._next = min(first + self._load.batch_items, self._load.items)
        return range(first, self._next)

    async def _produce_at_will(self, producer: Producer) -> None:
        while numbers := self._next_numbers():
            await self._produce_batch(producer, numbers, time.monotonic())

    async def _produce_on_time(
        self, producer: Producer, tasks: asyncio.TaskGroup, rate: float
    ) -> None:
        """All producers share one timetable. A batch waits only for its due time."""
        while numbers := self._next_numbers():
            due = self._began + numbers.start / rate
            if (ahead := due - time.monotonic()) > 0:
                await asyncio.sleep(ahead)
            tasks.create_task(self._produce_batch(producer, numbers, due))

    async def _produce_batch(self, producer: Producer, numbers: range, due: float) -> None:
        filling = self._filling
        await producer.produce_many([_HEAD.pack(number, due) + filling for number in numbers])
        books = self._books
        books.produced_at = time.monotonic()
        books.ack_seconds.append(books.produced_at - due)
        books.acknowledged += len(numbers)

    async def _consume(self) -> None:
        load = self._load
        async with self._client.consumer(
            load.queue,
            prefetch_items=max(1_000, 20 * load.delivery_items),
            batch_items=load.delivery_items,
        ) as consumer:
            async with asyncio.TaskGroup() as tasks:
                stopping = tasks.create_task(self._stop_when_done(consumer))
                async for batch in consumer.batches():
                    self._complete(batch)
                stopping.cancel()
        if self._failure is not None:
            raise self._failure

    async def _stop_when_done(self, consumer: Consumer) -> None:
        await self._all_done.wait()
        consumer.stop()

    def _complete(self, batch: LeasedBatch) -> None:
        now = time.monotonic()
        heads = [_HEAD.unpack_from(payload) for payload in batch.payloads()]
        self._books.delivery_seconds.extend(now - due for _, due in heads)
        numbers = [number for number, _ in heads]
        batch.complete().add_done_callback(partial(self._completed, numbers))

    def _completed(self, numbers: list[int], future: "asyncio.Future[None]") -> None:
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, LeaseLost):
            return  # They are delivered again.
        if error is not None:
            self._failure = error
            self._all_done.set()
            return
        books = self._books
        for number in numbers:
            books.repeated += books.seen[number]
            books.seen[number] = 1
        books.completed += len(numbers)
        books.completed_at = time.monotonic()
        if books.completed >= self._load.items:
            self._all_done.set()


def write_report(view: BenchView) -> None:
    pairs: list[tuple[str, object]] = [
        ("items", f"{view.items:,} of {view.payload_bytes:,} bytes, {view.batch_items:,} a batch"),
        ("time", f"{view.seconds:.2f} s, client cpu {view.client_cpu_seconds:.2f} s"),
        ("produced", f"{view.produced_per_second:,.0f} per second"),
    ]
    if view.completed_per_second is not None:
        pairs.append(("completed", f"{view.completed_per_second:,.0f} per second"))
    pairs.append(("ack", _latency_words(view.ack)))
    if view.delivery is not None:
        pairs.append(("delivery", _latency_words(view.delivery)))
    pairs.append(("durable", view.durable))
    write_details(pairs)


def _latency_words(one: Latency) -> str:
    return f"p50 {one.p50_ms:,.2f} ms, p99 {one.p99_ms:,.2f} ms, max {one.max_ms:,.2f} ms"
