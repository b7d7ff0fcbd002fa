"""Bouts of chaos on one cluster, one after the other. Each has queues of its own, which are deleted
afterwards. A stock of items is there all the time and must come out whole.

At the end of each bout nothing is wrong and only the stock remains, so the resources of the steady
node can be compared from bout to bout.
"""

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from querator import Client
from querator.cli.demo.local_nodes import free_ports
from tests.chaos.run import Queues, Run, bout
from tests.checkers.history import History, Produce, Produced
from tests.integration.faulty_cluster import FaultyCluster, faulty_cluster
from tests.integration.processes import verify
from tests.integration.wall_clocks import WallClocks, built
from tests.soak.faults import STOCK, STOCK_ITEMS, Ballast, SoakFaults, emptied, stocked
from tests.soak.meters import Latency, Meters, Sample, growth

BOUT_MINUTES = 2.0
QUOTA = str(256 << 20)
WELL_S = 90.0


@dataclass
class Soak:
    seed: int
    minutes: float
    samples: list[Sample] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    undecided: int = 0
    longest_s: float = 0.0
    """Longest time without an acknowledged produce, while one was tried."""
    wrong: list[str] = field(default_factory=list)

    def take(self, run: Run, at_s: float) -> None:
        self.faults += run.faults
        self.errors += run.errors
        self.operations += run.report.operations.total()
        self.undecided += len(run.report.undecided)
        self.longest_s = max(self.longest_s, run.unavailable[0])
        self.wrong += run.report.lines()[:-1]
        self.latencies.append(latency(run.history, at_s))

    def judge(self) -> None:
        """Adds violations for growth without a reason."""
        grown = growth(self.samples)
        if not grown:
            self.wrong.append("too few bouts to compare: make soak takes ten minutes at least")
        for name, first, last, too_much in grown:
            if too_much:
                self.wrong.append(
                    f"{name} of the steady node went from {first:,.0f} to {last:,.0f}"
                )


def latency(history: History, at_s: float) -> Latency:
    took = sorted(
        (op.end_s - op.begin_s) * 1000
        for op in history.operations
        if isinstance(op.request, Produce) and isinstance(op.outcome, Produced)
    )
    if len(took) < 2:
        return Latency(at_s, len(took), 0.0, 0.0)
    return Latency(at_s, len(took), statistics.median(took), took[int(len(took) * 0.99)])


async def soak(home: Path, *, minutes: float, seed: int, say: Callable[[str], None]) -> Soak:
    """Raises AssertionError when the nodes do not come to rest."""
    found = Soak(seed, minutes)
    async with faulty_cluster(home, "abc", "--storage-quota-bytes", QUOTA) as cluster:
        admin = {}
        for name, port in zip(cluster.names, free_ports(len(cluster.names)), strict=True):
            admin[name] = f"127.0.0.1:{port}"
            member = cluster[name]
            member.options += ["--listen-admin", admin[name]]
            member.program = "tests.integration.small_quota"
        clocks = WallClocks(cluster, built(home))
        await cluster.start()
        await _stock(cluster)
        ballast = Ballast()
        meters = Meters(cluster, admin, ballast)
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(meters.run())
            number = 0
            while meters.now_s() < minutes * 60:
                number += 1
                await _bout(
                    cluster=cluster,
                    home=home,
                    found=found,
                    meters=meters,
                    clocks=clocks,
                    ballast=ballast,
                    number=number,
                )
                say(
                    f"bout {number}, {meters.now_s() / 60:.0f} min: "
                    f"{found.operations:,} operations, {found.faults.total()} faults, "
                    f"{len(found.wrong)} wrong"
                )
                if found.wrong:
                    break
            watching.cancel()
        await _taken(cluster, found)
        await cluster.stop()
        for name in cluster.names:
            await verify(cluster[name].data_dir)
    found.samples = meters.samples
    found.judge()
    return found


async def _bout(
    cluster: FaultyCluster,
    home: Path,
    found: Soak,
    meters: Meters,
    clocks: WallClocks,
    ballast: Ballast,
    number: int,
) -> None:
    queues = Queues(f"-{number}")
    seed = found.seed + number
    run = await bout(
        cluster,
        home / "history",
        minutes=BOUT_MINUTES,
        seed=seed,
        faults=partial(SoakFaults, cluster, seed=seed, clocks=clocks, ballast=ballast),
        queues=queues,
    )
    found.take(run, meters.now_s())
    async with Client(cluster.addresses) as client:
        for name in (*queues.rules(), queues.dead):
            await emptied(client, name)
    async with asyncio.timeout(WELL_S):
        await cluster.until_well()
    await meters.look(calm=True)


async def _stock(cluster: FaultyCluster) -> None:
    async with Client(cluster.addresses) as client:
        await client.create_queue(STOCK, partitions=3, max_attempts=0, dead_queue="")
        for number in range(STOCK_ITEMS):
            await client.produce(STOCK, stocked(number))


async def _taken(cluster: FaultyCluster, found: Soak) -> None:
    """Takes the stock: it is there, whole, each item once."""
    left = Counter(stocked(number) for number in range(STOCK_ITEMS))
    async with asyncio.timeout(WELL_S), Client(cluster.addresses) as client:
        while left.total() > 0:
            for item in await client.lease(STOCK, max_items=STOCK_ITEMS):
                left[item.payload] -= 1
                await item.complete()
    strange = [payload for payload, count in left.items() if count < 0]
    found.wrong += [f"an item of the stock that nobody has produced: {one!r}" for one in strange]
