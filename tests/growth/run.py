"""Changes of the cluster and of the queue while flights go round. One step follows the other, and
each ends when everything is where it should be.

    three nodes  ─►  five  ─►  three again (drained, removed)  ─►  one is killed, its data is lost,
    and it is replaced  ─►  the queue's partitions become twelve  ─►  and six, each time with a
    backlog, for which consumers rest

Then the load ends, and everything is checked: these counts, those of the nodes, and the nodes'
directories (`querator verify`).
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from querator import Client
from querator.cli.demo.flights import find_flights, read_flights
from querator.client import Item
from querator.client.values import PartitionStats
from scripts.bench.disk import Disk, probing
from tests.growth.books import Books
from tests.growth.flights import QUEUE, Flights, going_round
from tests.integration.process_cluster import ProcessCluster, process_cluster
from tests.integration.processes import verify

FIRST, MORE = "abc", "de"
KILLED = "b"
PARTITIONS = 4
CHANGES = (12, 6)
"""Numbers of partitions."""
BACKLOG_S = 0.5
"""How long consumers rest before the number changes, and again after it."""
END_SECONDS = 60.0
"""How long the completion of every acknowledged flight may take in the end."""


class Scale(msgspec.Struct, frozen=True):
    """`calm_s`: how long nothing happens after each step; `limit_s`: how long the run may take,
    with the start of the nodes and the checks at the end.
    """

    rate: float
    rows: int
    calm_s: float
    limit_s: float


FULL = Scale(rate=3_000, rows=30_000, calm_s=10, limit_s=480)
SHORT = Scale(rate=1_000, rows=3_000, calm_s=1, limit_s=300)


class Step(msgspec.Struct, frozen=True):
    """`produce_s`: the longest call; then the longest time without any acknowledgement, and without
    any delivery; `disk_s`: the longest time that the disk itself took for a small synced write.
    """

    what: str
    seconds: float
    produce_s: float
    unacknowledged_s: float
    undelivered_s: float
    disk_s: float


class Outcome(msgspec.Struct, frozen=True):
    scale: Scale
    seconds: float
    """Duration of the whole run."""
    load_s: float
    """Duration of the load, from the first flight to the last acknowledgement."""
    books: Books
    steps: list[Step]
    total: PartitionStats
    problems: list[str]

    def summary(self) -> str:
        books, total = self.books, self.total
        verdict = "WRONG" if self.problems else "balances"
        return (
            f"grow: {verdict}: {len(books.rounds)} rounds, {books.count:,} flights at "
            f"{books.count / self.load_s:,.0f}/s; lost {books.lost}, duplicated "
            f"{books.duplicated}, stray {books.strays}, misplaced {books.misplaced}, "
            f"crossed {books.crossed}, "
            f"errors {len(books.errors)}; "
            f"delivered again {books.again}, given back {total.released}, lapsed {total.lapsed}, "
            f"late {books.late.total()}; longest produce "
            f"{max(step.produce_s for step in self.steps):.2f} s, without any delivery "
            f"{max(step.undelivered_s for step in self.steps):.2f} s, write of the disk "
            f"{max(step.disk_s for step in self.steps):.2f} s; {self.seconds:.0f} s in all"
        )


class Script:
    def __init__(
        self,
        cluster: ProcessCluster,
        client: Client,
        books: Books,
        flights: Flights,
        scale: Scale,
        *,
        disk: Disk,
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._books = books
        self._flights = flights
        self._scale = scale
        self._disk = disk
        self._say = say
        self.steps: list[Step] = []
        self.unused: list[str] = []
        """Sentences about partitions that took no flights."""

    async def run(self) -> None:
        async with asyncio.timeout(self._scale.limit_s):
            await self._calm()
            await self._grow()
            await self._shrink()
            await self._replace()
            for partitions in CHANGES:
                await self._share_out(partitions)

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        books = self._books
        self._say(f"{what} …")
        books.acknowledging.restart()
        books.delivering.restart()
        books.produce_s = 0.0
        began_s = time.monotonic()
        yield
        ended_s = time.monotonic()
        step = Step(
            what=what,
            seconds=ended_s - began_s,
            produce_s=books.produce_s,
            unacknowledged_s=books.acknowledging.restart(),
            undelivered_s=books.delivering.restart(),
            disk_s=self._disk.longest(began_s, ended_s),
        )
        self.steps.append(step)
        self._say(
            f"    done after {step.seconds:.1f} s: {books.count:,} flights acknowledged, "
            f"{books.done:,} completed; longest produce {step.produce_s:.2f} s, without an "
            f"acknowledgement {step.unacknowledged_s:.2f} s, without a delivery "
            f"{step.undelivered_s:.2f} s; slowest write of the disk {step.disk_s:.2f} s"
        )

    async def _calm(self) -> None:
        with self._step("nothing happens"):
            await asyncio.sleep(self._scale.calm_s)

    async def _grow(self) -> None:
        with self._step(f"{' and '.join(MORE)} join, and get their share"):
            await self._cluster.start(MORE)
            await self._until(lambda view: holders(view) == {*FIRST, *MORE})
        await self._calm()

    async def _shrink(self) -> None:
        with self._step(f"{' and '.join(MORE)} are drained and removed"):
            for name in MORE:
                await self._cluster.querator("node", "drain", name)
            await self._until(lambda view: holders(view) == {*FIRST}, well=False)
            for name in MORE:
                await self._cluster.querator("node", "remove", name, "--yes")
                await self._cluster[name].end()
            await self._until(lambda view: len(view["nodes"]) == len(FIRST))
        await self._calm()

    async def _replace(self) -> None:
        node = self._cluster[KILLED]
        with self._step(f"{KILLED} is killed (kill -9), its data is lost, and it is replaced"):
            await node.kill()
            node.lose()
            await node.launch()
            await node.waiting(f"querator node replace {KILLED}")
            await self._cluster.querator("node", "replace", KILLED, "--yes")
            await node.ready()
            await self._until(lambda view: holders(view) == {*FIRST})
        await self._calm()

    async def _share_out(self, partitions: int) -> None:
        books = self._books
        with self._step(f"{books.partitions} partitions become {partitions}"):
            with self._flights.backlog():
                await asyncio.sleep(BACKLOG_S)
                books.partitions = 0
                await self._client.update_queue(QUEUE, partitions=partitions)
                books.partitions = partitions
                books.used.clear()
                await asyncio.sleep(BACKLOG_S)
            await self._until(lambda view: holders(view) == {*FIRST})
        await self._calm()
        unused = sorted(set(range(partitions)) - books.used)
        if unused:
            self.unused.append(f"of {partitions} partitions {unused} took no flights")

    async def _until(
        self, condition: Callable[[dict[str, Any]], bool], *, well: bool = True
    ) -> None:
        """Waits until the condition holds, and the cluster has no problem unless `well` is
        False.
        """
        await self._cluster.until(
            lambda view: condition(view) and not (well and view["problems"]),
            seconds=self._scale.limit_s,
        )


def holders(view: dict[str, Any]) -> set[str]:
    """The nodes that have replicas of the queue's partitions."""
    return {name for one in view["partitions"] if one["queue"] == QUEUE for name in one["nodes"]}


async def grow(home: Path, scale: Scale, say: Callable[[str], None]) -> Outcome:
    """Raises the error with which a step fails: AssertionError, TimeoutError."""
    began_s = time.monotonic()

    def timed(line: str) -> None:
        say(f"{time.monotonic() - began_s:6.1f} s  {line}")

    flights = await asyncio.to_thread(_read, scale.rows)
    async with process_cluster(home, FIRST + MORE, "--initial-nodes", str(len(FIRST))) as cluster:
        await cluster.start(FIRST)
        address = ",".join(cluster[name].address for name in FIRST)
        async with Client(address) as client:
            await client.create_queue(QUEUE, partitions=PARTITIONS, max_attempts=0, dead_queue="")
            await cluster.until_well()
            timed(f"three nodes, {PARTITIONS} partitions: {scale.rate:,.0f} flights a second begin")
            books = Books(scale.rows)
            books.partitions = PARTITIONS
            load_began_s = time.monotonic()
            async with (
                probing(home) as disk,
                going_round(
                    address, books, flights, rate=scale.rate, end_seconds=END_SECONDS
                ) as going,
            ):
                script = Script(cluster, client, books, going, scale, disk=disk, say=timed)
                await script.run()
                timed("the round that has begun is the last one")
            load_s = time.monotonic() - load_began_s
            total = (await client.stats(QUEUE)).total
        await cluster.stop()
        for name in FIRST:
            await verify(cluster[name].data_dir)
    return Outcome(
        scale=scale,
        seconds=time.monotonic() - began_s,
        load_s=load_s,
        books=books,
        steps=script.steps,
        total=total,
        problems=books.problems(total) + script.unused,
    )


def _read(rows: int) -> list[Item]:
    return list(read_flights(find_flights(), rows))
