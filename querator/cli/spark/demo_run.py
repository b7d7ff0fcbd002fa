"""A run of `querator spark demo`: nodes, a Spark program as a process, consumers, and kills."""

import asyncio
import sys
from functools import partial
from pathlib import Path

import msgspec

from querator.cli.demo.local_nodes import LocalNodes, local_nodes
from querator.cli.demo.measure import Bars
from querator.cli.shared.output import note
from querator.cli.spark.demo_counts import DemoOutcome, PipelineCounts, canonical
from querator.cli.spark.driver import SparkDriver
from querator.client import Client, LeasedBatch
from querator.client.errors import LeaseLost
from querator.spark.flights.delays import Flights
from querator.spark.flights.settings import (
    BOARDING,
    COUNT,
    DEPARTURES,
    FLIGHTS,
    SESSION,
    DriverReport,
    Settings,
)

PARTITIONS = 4
BATCHES = 5
"""The approximate number of micro-batches of each pipeline."""
FILES_AT_ONCE = 3
CONSUMERS = 2
PREFETCH_ITEMS = 4_000
BATCH_ITEMS = 256
_STEPS = {
    SESSION: (
        f"Spark has started. It puts the flights into the queues {FLIGHTS} and {DEPARTURES}, "
        f"archives the one, and copies the other into {BOARDING}."
    ),
    COUNT: "All pipelines are done. Spark counts the archive.",
}
DOWN_SECONDS = 1.0
"""How long the killed node stays down."""


async def run_demo(
    scratch: Path, home: Path, books: PipelineCounts, nodes: int, *, kills: bool
) -> DemoOutcome:
    """Runs the demo. Raises Failure and the client's errors."""
    split = books.split
    rows = split.flights.rows
    async with (
        local_nodes(scratch, nodes) as cluster,
        Client(cluster.address, client_id="spark-demo") as client,
    ):
        for queue in (FLIGHTS, DEPARTURES, BOARDING):
            await client.create_queue(queue, partitions=PARTITIONS)
        settings = Settings(
            endpoint=cluster.address,
            parts=str(split.directory),
            fields=split.fields,
            home=str(home),
            batch_items=max(1, rows // BATCHES),
            batch_bytes=FILES_AT_ONCE * split.part_bytes,
        )
        run = DemoRun(
            cluster, client, books, settings, kills=kills, kills_leader=kills and nodes > 1
        )
        counters = {
            "ingested": lambda: books.items(f"ingest {FLIGHTS}"),
            "archived": lambda: books.items("archive"),
            "copied": lambda: books.items("copy"),
            "completed": lambda: books.completed.count,
        }
        note("Starting Spark: half a minute without figures is usual.")
        async with Bars(rows, counters):
            await run.run()
        archived = msgspec.json.decode(settings.counts.read_bytes(), type=Flights)
        told = {
            queue: (await client.stats(queue)).total for queue in (FLIGHTS, DEPARTURES, BOARDING)
        }
    return DemoOutcome(
        archived=archived,
        queues=told,
        drivers_killed=run.drivers_killed,
        workers_killed=run.workers_killed,
        nodes_killed=run.nodes_killed,
        kills_wanted=0 if not kills else 3 if nodes > 1 else 2,
    )


class DemoRun:
    """One pass of the flights, with the kills on the way."""

    def __init__(
        self,
        nodes: LocalNodes,
        client: Client,
        books: PipelineCounts,
        settings: Settings,
        *,
        kills: bool,
        kills_leader: bool,
    ) -> None:
        self.drivers_killed = 0
        self.workers_killed = 0
        self.nodes_killed = 0
        self._nodes = nodes
        self._client = client
        self._books = books
        self._kills = kills
        self._kills_leader = kills_leader
        self._fields = settings.fields
        self._a_third = asyncio.Event()
        """Set when a third of the flights is completed."""
        self._all = asyncio.Event()
        self._failure: BaseException | None = None
        command = [sys.executable, "-m", "querator.spark.flights.driver"]
        self._driver = SparkDriver(
            [*command, msgspec.json.encode(settings).decode()],
            Path(settings.home, "spark.log"),
            self._on_line,
        )

    async def run(self) -> None:
        """Returns when Spark has archived and counted all flights, and consumers have completed
        all.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._driver.run())
            if self._kills_leader:
                tasks.create_task(self._kill_a_leader())
            for _ in range(CONSUMERS):
                tasks.create_task(self._consume())

    # --- kills ---------------------------------------------------------------------------------

    def _on_line(self, line: bytes) -> None:
        said = msgspec.json.decode(line, type=DriverReport)
        if (step := _STEPS.get(said.pipeline)) is not None:
            note(step)
            return
        if said.summary is not None:
            self._books.summaries[said.pipeline] = said.summary
            note(f"{said.pipeline}: done.")
            return
        if said.pipeline not in self._books.batches:
            note(f"{said.pipeline}: the first batch is done, {said.items:,} flights.")
        self._books.batches.setdefault(said.pipeline, {})[said.batch] = said.items
        if not self._kills:
            return
        if self.drivers_killed == 0:
            if said.pipeline == "archive":
                note(f"kill -9 the driver; {self._books.items('archive'):,} flights are archived.")
                self._driver.kill()
                self.drivers_killed += 1
        elif self.workers_killed == 0 and (worker := self._driver.kill_worker()):
            note(f"kill -9 {worker}, a Python worker of Spark.")
            self.workers_killed += 1

    async def _kill_a_leader(self) -> None:
        await self._a_third.wait()
        name = await self._nodes.leader(FLIGHTS, 0)
        note(f"kill -9 {name}, which leads a partition of {FLIGHTS}.")
        await self._nodes[name].kill()
        self.nodes_killed += 1
        await asyncio.sleep(DOWN_SECONDS)
        await self._nodes.restart(name)
        note(f"{name} is back, and catches up.")

    # --- consumers -----------------------------------------------------------------------------

    async def _consume(self) -> None:
        async with self._client.consumer(
            BOARDING, prefetch_items=PREFETCH_ITEMS, batch_items=BATCH_ITEMS
        ) as consumer:
            async with asyncio.TaskGroup() as tasks:
                stopping = tasks.create_task(self._all.wait())
                stopping.add_done_callback(lambda _: consumer.stop())
                async for batch in consumer.batches():
                    self._complete(batch)
                stopping.cancel()
        if self._failure is not None:
            raise self._failure

    def _complete(self, batch: LeasedBatch) -> None:
        done = [(int(item.reference), item.payload) for item in batch]
        batch.complete().add_done_callback(partial(self._completed, done))

    def _completed(self, done: list[tuple[int, bytes]], future: "asyncio.Future[None]") -> None:
        """Counts only what the node has confirmed; items of a lost lease are delivered again."""
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            if not isinstance(error, LeaseLost):
                self._failure = error
                self._all.set()
            return
        completed, rows = self._books.completed, self._books.split.flights.rows
        for row, payload in done:
            flight = msgspec.json.decode(payload, type=dict[str, str])
            completed.add(row, canonical([flight.get(name, "") for name in self._fields]))
        if 3 * completed.count >= rows:
            self._a_third.set()
        if completed.count >= rows:
            self._all.set()
