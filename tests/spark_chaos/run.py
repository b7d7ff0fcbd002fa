"""One run: load and kills, then calm, a drain, and the counts.

The phases:

    load      numbered items go into two queues at `rate`, LAKE and WELL; a driver of Spark
              archives the first to Parquet and copies the second to a third queue
    kills     drivers, workers and nodes, until the time is up
    calm      the load ends, all nodes run, and nothing is wrong with the cluster
    drain     both queries take the remaining items, and end by themselves; a consumer takes all
              copies
    books     each produced item is archived once and copied once; the nodes' counts are the same;
              the nodes end, and `querator verify` passes
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from querator import Client
from querator.client import Item, Producer
from querator.client.errors import RequestError
from querator.client.values import PartitionStats
from tests.integration.process_cluster import ProcessCluster, process_cluster
from tests.integration.processes import verify
from tests.spark_chaos.books import Produced, Tally, payload, tally
from tests.spark_chaos.driver import COPY, LAKE, QUERIES, WELL, Settings, checkpoint
from tests.spark_chaos.kills import DRAIN_S, Driver, Kills, last

PARTITIONS = {LAKE: 2, WELL: 2, COPY: 2}
BATCH_ITEMS = 500
KEYS = 97
CALM_S = 120.0


class Scale(msgspec.Struct, frozen=True):
    """`minutes` of kills; 0: each kind comes once. `rate`: items per second, into each of the two
    queues, one produce of all that is due in `pace_s`; `items`: largest size of a micro-batch;
    `pauses_s` as of `Kills`.
    """

    minutes: float
    rate: float = 300.0
    pace_s: float = 0.05
    items: int = 2_000
    pauses_s: tuple[float, float] = (0.5, 6.0)


SHORT = Scale(minutes=0, rate=100, pace_s=0.5, pauses_s=(0.2, 1.5))


class Outcome(msgspec.Struct, frozen=True):
    seed: int
    scale: Scale
    archived: Tally
    copied: Tally
    kills: dict[str, int]
    inside: int
    """Micro-batches that were planned and not committed when their driver was killed."""
    batches: int
    """Micro-batches of both queries."""
    failed: int
    """How often a query failed, and was started again."""
    errors: list[str]
    """Errors that producers received."""
    seconds: float
    problems: list[str]

    def summary(self) -> str:
        verdict = "WRONG" if self.problems else "balances"
        kills = ", ".join(f"{name} {times}" for name, times in sorted(self.kills.items()))
        return (
            f"spark-chaos: {verdict}: seed {self.seed}, {self.scale.minutes:g} min; archive: "
            f"{self.archived}; copy: {self.copied}; kills: {kills}, {self.inside} micro-batches "
            f"were under way in killed drivers; {self.batches:,} micro-batches, queries failed "
            f"{self.failed} times; errors of producers {len(self.errors)}; {self.seconds:.0f} s "
            "in all"
        )


class Load:
    """Produces the same numbers into both queues."""

    def __init__(self, rate: float, pace_s: float) -> None:
        self.produced = {LAKE: Produced(), WELL: Produced()}
        self.errors: list[str] = []
        self._rate = rate
        self._pace_s = pace_s
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def produce(self, queue: str, producer: Producer) -> None:
        """Produces until `stop`. Catches up on delays."""
        began_s, next_number = time.monotonic(), 0
        while not self._stopping.is_set():
            await asyncio.sleep(self._pace_s)
            due = int((time.monotonic() - began_s) * self._rate)
            while next_number < due:
                upto = min(due, next_number + BATCH_ITEMS)
                await self._send(queue, producer, range(next_number, upto))
                next_number = upto

    async def _send(self, queue: str, producer: Producer, numbers: range) -> None:
        of = self.produced[queue]
        items = [Item(payload(number), key=f"{number % KEYS}") for number in numbers]
        try:
            await producer.produce_many(items)
        except RequestError as error:
            self.errors.append(f"{queue}: {error!r}")
            of.doubtful.update(numbers)
        else:
            of.acknowledged.update(numbers)


async def chaos(home: Path, scale: Scale, seed: int, say: Callable[[str], None]) -> Outcome:
    """Raises AssertionError and TimeoutError when a phase does not come to its end."""
    began_s = time.monotonic()

    def timed(line: str) -> None:
        say(f"{time.monotonic() - began_s:6.1f} s  {line}")

    async with process_cluster(home) as cluster:
        await cluster.start()
        address = ",".join(member.address for member in cluster.by_name.values())
        driver = Driver(Settings(str(home), address, scale.items))
        chance = random.Random(seed)
        kills = Kills(driver, cluster, chance, pauses_s=scale.pauses_s, say=timed)
        load = Load(scale.rate, scale.pace_s)
        try:
            async with Client(address) as client:
                for queue, partitions in PARTITIONS.items():
                    await client.create_queue(queue, partitions=partitions)
                await _under_load(
                    client=client, load=load, kills=kills, driver=driver, scale=scale, say=timed
                )
                timed("the load ends")
                async with asyncio.timeout(CALM_S):
                    await cluster.until_well()
                timed("all is well: drain")
                await driver.drain()
                timed("drained")
                totals = {queue: (await client.stats(queue)).total for queue in PARTITIONS}
                copied = tally(load.produced[WELL], await _consumed(client, totals[COPY].ready))
        finally:
            if driver.running:
                await driver.kill()
        archived = tally(load.produced[LAKE], _archived(home))
        await _end(cluster)
    return Outcome(
        seed=seed,
        scale=scale,
        archived=archived,
        copied=copied,
        kills=dict(kills.done),
        inside=kills.inside,
        batches=sum(last(checkpoint(home, query) / "commits") + 1 for query in QUERIES),
        failed=driver.failed.total(),
        errors=load.errors,
        seconds=time.monotonic() - began_s,
        problems=[*problems(archived, copied, totals), *driver.broken],
    )


async def _under_load(
    client: Client,
    load: Load,
    kills: Kills,
    driver: Driver,
    scale: Scale,
    say: Callable[[str], None],
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        producers = {
            queue: await stack.enter_async_context(client.producer(queue, ordered=False))
            for queue in load.produced
        }
        async with asyncio.TaskGroup() as tasks:
            for queue, producer in producers.items():
                tasks.create_task(load.produce(queue, producer))
            await driver.start()
            say("two queries run: kills begin")
            await kills.run(asyncio.get_running_loop().time() + scale.minutes * 60)
            load.stop()


async def _consumed(client: Client, count: int) -> list[tuple[str, bytes]]:
    """`count` items, leased and completed; fewer if no more come in time."""
    found: list[tuple[str, bytes]] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S), client.consumer(COPY) as consumer:
            async for batch in consumer.batches():
                found += [(str(item.id), item.payload) for item in batch]
                await batch.complete()
                if len(found) >= count:
                    consumer.stop()
    return found


def _archived(home: Path) -> Iterator[tuple[str, bytes]]:
    import pyarrow as pa

    with pa.OSFile(str(home / "archived")) as file:
        table = pa.ipc.open_file(file).read_all()
    yield from zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True)


async def _end(cluster: ProcessCluster) -> None:
    await cluster.stop()
    for member in cluster.by_name.values():
        await verify(member.data_dir)


def problems(archived: Tally, copied: Tally, totals: dict[str, PartitionStats]) -> list[str]:
    """A sentence for each deviation."""
    checks = [
        (archived.balances, f"the archive does not balance: {archived}"),
        (copied.balances, f"the copy does not balance: {copied}"),
        (archived.rows > 0 and copied.rows > 0, "nothing was produced"),
        (
            totals[COPY].produced == copied.rows,
            f"the nodes count {totals[COPY].produced} copies, not {copied.rows}",
        ),
    ]
    for queue, outcome in ((LAKE, archived), (WELL, copied)):
        total = totals[queue]
        left = total.ready + total.leased + total.scheduled + total.moving + total.held
        left += total.reserved
        given_back = total.dead + total.released
        checks += [
            (
                total.produced == total.acknowledged == outcome.produced,
                f"of {queue} the nodes count {total.produced} items and {total.acknowledged} "
                f"acknowledged, not {outcome.produced}",
            ),
            (not left, f"{left} items are left in {queue}"),
            (not given_back, f"{given_back} items of {queue} died or were given back"),
        ]
    return [sentence for holds, sentence in checks if not holds]
