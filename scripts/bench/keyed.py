"""`make keyed`: whether each key of a keyed queue stays in order, one item at a time, under faults.

Three nodes. First the rates without faults: a plain and a keyed queue of four partitions get the
same items with the same keys, in turn, and the same consumers take and complete them.

Then the run with faults: 10,000 keys with 100 items each, in a keyed queue of four partitions.
Producers write the items of a key one after the other, each when the one before it is acknowledged,
and keep a bounded backlog. Four consumers take them over streams; some batches are held for a
while. One item in 20 is retried, half of these after a delay. Of the first two consumers, whose
leases the server does not extend, one item in 50 is left until its lease ends; half of these are
completed too late. Meanwhile leaders are killed (kill -9) and started again a second later, and the
four partitions become twelve, with a kill during the change.

`key_history` says what must hold of the times that the consumers saw. By the counts of the nodes,
all items must be completed, and none may be left or dead. The producers must see no error.
Writes keyed.json and keyed.md. The last line is a summary in JSON; the exit code is 1 if a rule is
broken.
"""

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec

from querator import Client, Item
from querator.client import Consumer, LeasedBatch, LeasedItem
from querator.client.errors import LeaseLost, OutcomeUnknown, RequestError
from querator.client.options import QueueKind
from scripts.bench.cluster import admin_of, until_well
from scripts.bench.key_history import Books, Delivery, End
from scripts.bench.report import keep, machine, named, versions
from scripts.bench.servers import Servers

NODES = 3
PARTITIONS, PARTITIONS_LATER = 4, 12
QUEUE = "keyed"
PRODUCERS = 4
CONSUMERS = 4
LAPSING = 2
"""Consumers that leave some leases to end."""
PREFETCH_ITEMS = 250
BACKLOG = 200_000
"""Producers wait while this many items are not completed."""
LEASE = timedelta(seconds=10)
RETRIES = 0.05
RETRY_DELAY = timedelta(milliseconds=200)
LAPSES = 0.02
LATE_SECONDS = 0.5
"""How long after the deadline of a lease its item is completed too late."""
HOLDS = 0.2
HOLD_SECONDS = 0.2
DOWN_SECONDS = 1.0
KILLS_AT = (0.08, 0.4, 0.6, 0.8)
"""Parts of the items that are completed when a leader is killed."""
CHANGE_AT = 0.2
CHANGE_KILL_SECONDS = 0.3
IDLE_SECONDS = 90.0
"""Without a delivery for this long, the remaining items do not come."""
IN_TURN: tuple[QueueKind, ...] = ("plain", "keyed", "keyed", "plain")
RATE_PART = 10
"""A queue whose rate is measured has one tenth of the items."""

Pair = tuple[LeasedItem, Delivery]


class Users:
    """Producers and consumers of one queue. `faulty`: consumers retry, hold and leave items."""

    def __init__(self, address: str, queue: str, books: Books, *, faulty: bool, seed: int) -> None:
        self._address = address
        self._queue = queue
        self._books = books
        self._faulty = faulty
        self._random = random.Random(seed)
        self._later: set[asyncio.Task[None]] = set()

    # --- producers ---------------------------------------------------------------------------

    async def produce(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for place in range(PRODUCERS):
                keys = range(place, len(self._books.histories), PRODUCERS)
                tasks.create_task(self._produce(keys))

    async def _produce(self, keys: Iterable[int]) -> None:
        books = self._books
        async with (
            Client(self._address) as client,
            client.producer(self._queue, ordered=False) as producer,
        ):
            for number in range(books.per_key):
                while self._faulty and books.produced - books.done > BACKLOG:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                items = [Item(payload=books.payload(key, number), key=f"k{key}") for key in keys]
                try:
                    stored = await producer.produce_many(items)
                except RequestError as error:
                    books.failed("produce", error)
                    return
                books.produced += len(stored)

    # --- consumers ---------------------------------------------------------------------------

    async def consume(self) -> None:
        """Returns when all items are completed, or when none comes any more."""
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            consumers = []
            for place in range(CONSUMERS):
                client = await stack.enter_async_context(Client(self._address))
                lapsing = self._faulty and place < LAPSING
                consumers.append(
                    await stack.enter_async_context(
                        client.consumer(
                            self._queue,
                            prefetch_items=PREFETCH_ITEMS,
                            lease_timeout=LEASE,
                            auto_extend=not lapsing,
                        )
                    )
                )
                tasks.create_task(self._consume(consumers[-1], lapsing=lapsing))
            await self._until_done()
            await asyncio.gather(*self._later)
            for consumer in consumers:
                await consumer.flush()
                consumer.stop()

    async def _until_done(self) -> None:
        books = self._books
        books.came_s = time.time()
        while books.done < books.count and time.time() - books.came_s < IDLE_SECONDS:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _consume(self, consumer: Consumer, *, lapsing: bool) -> None:
        try:
            async for batch in consumer.batches():
                self._take(batch, lapsing=lapsing)
        except RequestError as error:
            self._books.failed("consume", error)

    def _take(self, batch: LeasedBatch, *, lapsing: bool) -> None:
        got_s, deadline_s = time.time(), batch.deadline.timestamp()
        pairs = [(item, self._books.deliver(item, got_s, deadline_s)) for item in batch]
        if not self._faulty:
            self._complete(batch, pairs)
            return
        chance = self._random.random
        kept, retried = [], []
        for item, one in pairs:
            if lapsing and chance() < LAPSES:
                if chance() < 0.5:
                    self._soon(self._complete_late(item, one))
            elif chance() < RETRIES:
                retried.append((item, one))
            else:
                kept.append((item, one))
        if chance() < HOLDS:
            asyncio.get_running_loop().call_later(
                chance() * HOLD_SECONDS, self._settle, batch, kept, retried
            )
        else:
            self._settle(batch, kept, retried)

    def _settle(self, batch: LeasedBatch, kept: list[Pair], retried: list[Pair]) -> None:
        for item, one in retried:
            one.sent_s = time.time()
            delay = RETRY_DELAY if self._random.random() < 0.5 else None
            item.retry(delay=delay).add_done_callback(
                partial(self._ended, [(item, one)], End.RETRIED, End.UNKNOWN_RETRY)
            )
        self._complete(batch, kept)

    def _complete(self, batch: LeasedBatch, pairs: list[Pair]) -> None:
        now_s = time.time()
        for _, one in pairs:
            one.sent_s = now_s
        if len(pairs) == len(batch):
            batch.complete().add_done_callback(
                partial(self._ended, pairs, End.COMPLETED, End.UNKNOWN_COMPLETE)
            )
            return
        for item, one in pairs:
            item.complete().add_done_callback(
                partial(self._ended, [(item, one)], End.COMPLETED, End.UNKNOWN_COMPLETE)
            )

    async def _complete_late(self, item: LeasedItem, one: Delivery) -> None:
        await asyncio.sleep(one.deadline_s + LATE_SECONDS - time.time())
        self._complete(item.batch, [(item, one)])

    def _ended(
        self, pairs: list[Pair], done: End, unknown: End, future: "asyncio.Future[None]"
    ) -> None:
        error = None if future.cancelled() else future.exception()
        lost = set(error.items) if isinstance(error, LeaseLost) else set()
        for item, one in pairs:
            if future.cancelled() or (error is not None and not isinstance(error, LeaseLost)):
                self._books.ended(one, unknown)
            elif error is not None and (not lost or item.id in lost):
                self._books.ended(one, End.REFUSED)
            else:
                self._books.ended(one, done)
        if error is not None and not isinstance(error, LeaseLost):
            self._books.unknown.append(str(error))

    def _soon(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    load_average: float
    """Over 15 minutes, at the end: what else ran on the machine."""
    keys: int
    items: int
    seed: int
    plain_per_s: list[float]
    keyed_per_s: list[float]
    """Items per second that consumers completed of a backlog, without faults."""
    plain_produced_per_s: list[float]
    keyed_produced_per_s: list[float]
    faulty_s: float
    faulty_per_s: float
    deliveries: int
    retried: int
    left: int
    """Deliveries whose leases were left to end."""
    refused: int
    """Completes and retries that came after their leases had ended."""
    unknown: int
    """Completes and retries without a known outcome."""
    kills: int
    change_s: float
    """How long the change of the number of partitions took, with a kill."""
    partitions: int
    problems: list[str]

    @property
    def ratio(self) -> float:
        return statistics.median(self.keyed_per_s) / statistics.median(self.plain_per_s)


# --- without faults --------------------------------------------------------------------------


async def rates(address: str, kind: QueueKind, number: int, books: Books) -> tuple[float, float]:
    """Items per second: produced into a new queue of the kind, and completed of this backlog."""
    queue = f"rate-{number}"
    users = Users(address, queue, books, faulty=False, seed=number)
    async with Client(address) as client:
        await client.create_queue(
            queue, kind=kind, partitions=PARTITIONS, max_attempts=0, dead_queue=""
        )
        await until_well(address)
        began_s = time.monotonic()
        await users.produce()
        produced_s = time.monotonic() - began_s
        began_s = time.monotonic()
        await users.consume()
        completed_s = time.monotonic() - began_s
        if books.done != books.count or books.errors:
            raise RuntimeError(f"{books.done} of {books.count} completed; {books.errors[:3]}")
        await client.delete_queue(queue)
    return books.count / produced_s, books.count / completed_s


# --- with faults -----------------------------------------------------------------------------


class Faults:
    """Kills leaders and changes the number of partitions, by how much is completed."""

    def __init__(self, servers: Servers, client: Client, books: Books, *, seed: int) -> None:
        self._servers = servers
        self._client = client
        self._books = books
        self._random = random.Random(seed)
        self.kills = 0
        self.change_s = 0.0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in sorted((*KILLS_AT, CHANGE_AT)):
                while self._books.done < part * self._books.count:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                if part == CHANGE_AT:
                    tasks.create_task(self._change())
                    await asyncio.sleep(CHANGE_KILL_SECONDS)
                await self._kill()

    def missing(self) -> list[str]:
        """A sentence if not all of this has happened."""
        planned = len(KILLS_AT) + 1
        return [] if self.kills == planned else [f"{self.kills} of {planned} kills happened"]

    async def _change(self) -> None:
        """Returns when the number has changed. On a busy machine this takes longer than a call."""
        began_s = time.monotonic()
        try:
            await self._client.update_queue(QUEUE, partitions=PARTITIONS_LATER)
        except OutcomeUnknown as error:
            say(f"the change continues: {error.message}")
            await until_well(self._servers.address)
        self.change_s = time.monotonic() - began_s
        say(f"{PARTITIONS} partitions have become {PARTITIONS_LATER} in {self.change_s:.1f} s")

    async def _kill(self) -> None:
        partition = self._random.randrange(PARTITIONS)
        async with admin_of(self._servers.address) as admin:
            picture = await admin.picture()
        node = next(
            group.leader
            for group in picture.groups
            if (group.queue, group.partition) == (QUEUE, partition)
        )
        say(f"{self._books.done:,} are completed; {node}, which leads {partition}, is killed")
        await self._servers[node].stop(kill=True)
        self.kills += 1
        await asyncio.sleep(DOWN_SECONDS)
        await self._servers[node].start()


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


async def measure(arguments: argparse.Namespace) -> Results:
    keys: int = arguments.keys
    with tempfile.TemporaryDirectory(prefix="querator-keyed-") as name:
        servers = Servers(Path(name), nodes=NODES, memory=False)
        try:
            await servers.start()
            found: dict[QueueKind, list[tuple[float, float]]] = {"plain": [], "keyed": []}
            for number, kind in enumerate(IN_TURN):
                books = Books(keys, max(1, arguments.per_key // RATE_PART))
                found[kind].append(await rates(servers.address, kind, number, books))
                say(
                    "a {} queue: {:,.0f} produced/s, {:,.0f} completed/s".format(
                        kind, *found[kind][-1]
                    )
                )
            return await _run(arguments, servers, found)
        finally:
            await servers.stop()


async def _run(
    arguments: argparse.Namespace,
    servers: Servers,
    found: dict[QueueKind, list[tuple[float, float]]],
) -> Results:
    books = Books(arguments.keys, arguments.per_key)
    users = Users(servers.address, QUEUE, books, faulty=True, seed=arguments.seed)
    async with Client(servers.address) as client:
        await client.create_queue(
            QUEUE, kind="keyed", partitions=PARTITIONS, max_attempts=0, dead_queue=""
        )
        await until_well(servers.address)
        faults = Faults(servers, client, books, seed=arguments.seed)
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(users.produce())]
            if not arguments.no_faults:
                others.append(tasks.create_task(faults.run()))
            await users.consume()
            faulty_s = time.monotonic() - began_s
            if books.done < books.count:
                # What waits for further items would wait for ever.
                for task in others:
                    task.cancel()
        stats = await client.stats(QUEUE)
    ends = books.ends
    return Results(
        machine=machine(),
        versions=versions(),
        load_average=round(os.getloadavg()[2], 1),
        keys=arguments.keys,
        items=books.count,
        seed=arguments.seed,
        plain_per_s=[round(done) for _, done in found["plain"]],
        keyed_per_s=[round(done) for _, done in found["keyed"]],
        plain_produced_per_s=[round(produced) for produced, _ in found["plain"]],
        keyed_produced_per_s=[round(produced) for produced, _ in found["keyed"]],
        faulty_s=round(faulty_s, 1),
        faulty_per_s=round(books.count / faulty_s),
        deliveries=sum(map(len, books.histories)),
        retried=ends[End.RETRIED],
        left=books.left,
        refused=ends[End.REFUSED],
        unknown=ends[End.UNKNOWN_COMPLETE] + ends[End.UNKNOWN_RETRY],
        kills=faults.kills,
        change_s=round(faults.change_s, 1),
        partitions=len(stats.partitions),
        problems=books.problems(stats.total) + ([] if arguments.no_faults else faults.missing()),
    )


def as_markdown(results: Results) -> str:
    def rate(values: list[float]) -> str:
        return f"{statistics.median(values):,.0f}/s"

    text = (
        f"{NODES} nodes on {results.machine}, at load {results.load_average:g}; {named()}; "
        f"{results.keys:,} keys, {results.items:,} items; seed {results.seed}.\n\n"
        "| completed of a backlog: plain, keyed | ratio | produced: plain, keyed "
        "| with faults: completed, duration |\n"
        "|---|---|---|---|\n"
        f"| {rate(results.plain_per_s)}, {rate(results.keyed_per_s)} | {results.ratio:.2f} "
        f"| {rate(results.plain_produced_per_s)}, {rate(results.keyed_produced_per_s)} "
        f"| {results.faulty_per_s:,.0f}/s, {results.faulty_s:,.0f} s |\n\n"
        "| deliveries | retried | left to lapse | refused | unknown | kills | rules broken |\n"
        "|---|---|---|---|---|---|---|\n"
        f"| {results.deliveries:,} | {results.retried:,} | {results.left:,} "
        f"| {results.refused:,} | {results.unknown:,} | {results.kills} "
        f"| {'**some**' if results.problems else 'none'} |\n"
    )
    return text + "".join(f"\nWRONG: {problem}.\n" for problem in results.problems)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.keyed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keys", type=int, default=10_000, help="keys (10,000)")
    parser.add_argument("--per-key", type=int, default=100, help="items of each key (100)")
    parser.add_argument("--seed", type=int, default=1, help="of what consumers do (1)")
    parser.add_argument("--no-faults", action="store_true", help="no kills, no further partitions")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = await measure(arguments)
    keep(results, as_markdown(results), arguments.output, "keyed")
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
