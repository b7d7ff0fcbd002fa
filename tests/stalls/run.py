"""One run: a steady load on one queue, and one leader after the other that hangs or is cut off.

    paused            its process is stopped (SIGSTOP), and continues after PAUSE_S
    hung disk         its syncs wait; everything else of it continues
    cut off           no other node hears it, and it hears none; clients still reach it
    isolated          as cut off, and clients do not reach it either
    not heard         no other node hears it; it hears them
    deaf              it hears no other node; they hear it
    slow links        what it sends to the other nodes and hears from them takes SLOW_S each way
    flapping          its connections to the other nodes break again and again

There are three nodes with a partition each, and the proxies of `FaultyCluster` between them. The
partitions take turns: each fault hits the leader of one partition, and is undone at the end of its
window. Pauses are those of the partition that acknowledged nothing for longest.
"""

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from querator import Client
from scripts.bench.cluster import until_well
from scripts.bench.disk import Disk, probing
from scripts.bench.pulse import Books, pulse
from tests import preload
from tests.integration.faulty_cluster import FaultyCluster, faulty_cluster

QUEUE = "pulse"
NODES = 3
PAUSE_S = 20.0
WINDOW_S = 8.0
SLOW_S = 0.4
FLAP_S = 0.7
BREATH_S = 2.0
GOALS_S = dict.fromkeys(("paused", "hung disk", "cut off", "isolated", "not heard", "deaf"), 1.5)
"""Goals for the median of the longest time without an acknowledged produce."""


class Stall(msgspec.Struct, frozen=True):
    """Times in seconds. `produce_s`: the longest time in which some partition acknowledged nothing;
    `delivery_s`: in which nothing of it was delivered; `disk_s`: the slowest write of a probe.
    """

    kind: str
    node: str
    partition: int
    produce_s: float
    delivery_s: float
    disk_s: float
    terms: int
    """Number of leader changes of a partition."""


class Result(msgspec.Struct):
    stalls: list[Stall]
    errors: list[str]
    problems: list[str]


class Run:
    def __init__(self, cluster: FaultyCluster, flags: dict[str, Path], say: Callable[[str], None]):
        self._cluster = cluster
        self._flags = flags
        self._say = say

    async def leaders(self) -> dict[int, tuple[str, int]]:
        """Node and term by partition, when all is well and leaderships are at home."""
        picture = await until_well(self._cluster.addresses)
        return {
            group.partition: (group.leader, group.term)
            for group in picture.groups
            if group.queue == QUEUE
        }

    @asynccontextmanager
    async def wrong(self, kind: str, name: str) -> AsyncIterator[float]:
        """Applies the fault while the block runs; yields its duration in seconds."""
        cluster = self._cluster
        others = [other for other in cluster.names if other != name]
        proxy = cluster.clients[name]
        out = [way for other in others for way in cluster.ways(name, other)]
        back = [way for other in others for way in cluster.ways(other, name)]
        match kind:
            case "paused":
                cluster[name].freeze()
                yield PAUSE_S
                cluster[name].thaw()
            case "hung disk":
                self._hang(name, True)
                yield WINDOW_S
                self._hang(name, False)
            case "slow links":
                for way in (*out, *back):
                    way.delay_s = SLOW_S
                yield WINDOW_S
            case "flapping":
                async with asyncio.TaskGroup() as tasks:
                    task = tasks.create_task(self._flap(name, others))
                    yield WINDOW_S
                    task.cancel()
            case _:
                ways = {
                    "cut off": (*out, *back),
                    "isolated": (*out, *back, proxy.forth, proxy.back),
                    "not heard": tuple(out),
                    "deaf": tuple(back),
                }[kind]
                for way in ways:
                    way.block()
                yield WINDOW_S
        cluster.heal()

    def _hang(self, name: str, hangs: bool) -> None:
        # Without truncating it: the node has mapped it.
        with self._flags[name].open("r+b") as flag:
            flag.write(bytes([hangs]))

    async def _flap(self, name: str, others: list[str]) -> None:
        while True:
            for other in others:
                self._cluster.reset(name, other)
            await asyncio.sleep(FLAP_S)

    async def one(self, kind: str, partition: int, books: Books, disk: Disk) -> Stall:
        leaders = await self.leaders()
        await asyncio.sleep(random.uniform(0.5, 1.5))
        name, _ = leaders[partition]
        since_s = time.monotonic()
        async with self.wrong(kind, name) as lasts_s:
            await asyncio.sleep(lasts_s)
        until_s = time.monotonic()
        after = await self.leaders()
        produce_s, delivery_s, _ = books.pauses(since_s, until_s)
        terms = sum(after[number][1] - leaders[number][1] for number in leaders)
        stall = Stall(
            kind=kind,
            node=name,
            partition=partition,
            produce_s=produce_s,
            delivery_s=delivery_s,
            disk_s=disk.longest(since_s, until_s),
            terms=terms,
        )
        self._say(f"{kind}: {name}: {produce_s:.2f} s without a produce, {terms} terms")
        await asyncio.sleep(BREATH_S)
        return stall


async def stalls(
    home: Path, kinds: list[str], times: int, rate: float, say: Callable[[str], None]
) -> Result:
    """Applies each kind `times` times."""
    library = preload.build(Path(__file__).with_name("hang.c"), home)
    async with faulty_cluster(home) as cluster:
        flags = {}
        for name in cluster.names:
            flags[name] = home / f"hangs-{name}"
            flags[name].write_bytes(b"\0")
            cluster[name].environment |= {
                "LD_PRELOAD": str(library),
                "DISK_HANGS": str(flags[name]),
            }
        await cluster.start()
        run = Run(cluster, flags, say)
        async with Client(cluster.addresses) as client:
            await client.create_queue(QUEUE, partitions=NODES, max_attempts=0, dead_queue="")
            await run.leaders()
            async with (
                probing(home) as disk,
                pulse(cluster.addresses, QUEUE, partitions=NODES, rate=rate) as books,
            ):
                found = [
                    await run.one(kind, number % NODES, books, disk)
                    for kind in kinds
                    for number in range(times)
                ]
            total = (await client.stats(QUEUE)).total
    return Result(found, books.errors, books.problems(total))


def as_markdown(result: Result) -> str:
    text = (
        "| the leader of a partition is | times | no acknowledged produce, s: median, max | "
        "no delivery, s: median, max | changes of leaders: median | goal |\n"
        "|---|---|---|---|---|---|\n"
    )
    for kind in dict.fromkeys(stall.kind for stall in result.stalls):
        some = [stall for stall in result.stalls if stall.kind == kind]
        produce = [stall.produce_s for stall in some]
        delivery = [stall.delivery_s for stall in some]
        goal = "–"
        if kind in GOALS_S:
            met = statistics.median(produce) < GOALS_S[kind]
            goal = f"< {GOALS_S[kind]:g}: {'met' if met else '**missed**'}"
        text += (
            f"| {kind} | {len(some)} | {statistics.median(produce):.2f}, {max(produce):.2f} "
            f"| {statistics.median(delivery):.2f}, {max(delivery):.2f} "
            f"| {statistics.median(stall.terms for stall in some):g} | {goal} |\n"
        )
    return text
