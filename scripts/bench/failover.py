"""`make failover`: how long clients stand still when a node that leads dies, or gives its
leaderships away.

Three nodes, and a steady load of single items on a queue with one partition per node
(`scripts/bench/pulse.py`). Again and again the leader of one of the partitions

    killed       is killed (kill -9), and started again a second later
    handed off   hands its leaderships over (`querator node handoff`)
    restarted    is then stopped politely and started again

and once all leaderships are home it is the next partition's turn. Pauses count from the event on,
in the partition that had the longest one: time without an acknowledgement, and without a delivery.
The table also shows what the disk itself took for a small synced write, because all nodes share it.
Nothing may be lost or completed twice, and no client may see an error. Writes failover.json and
failover.md; the exit code is 1 if the counts do not balance.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from querator import Client
from querator.client.values import PartitionStats
from scripts.bench.cluster import admin_of, until_well
from scripts.bench.disk import Disk, probing
from scripts.bench.pulse import Books, pulse
from scripts.bench.report import machine, named, versions
from scripts.bench.servers import Servers

NODES = 3
QUEUE = "pulse"
BREATH_SECONDS = 1.0
"""After a window nothing happens to the nodes: the pause that follows it must not reach into it."""
GOALS_MS = {"killed": 2_000, "handed off": 200}


class Event(msgspec.Struct, frozen=True):
    """An event of a node, with its instants on the monotonic clock."""

    kind: str
    node: str
    partition: int
    since_s: float
    until_s: float


class Pauses(msgspec.Struct, frozen=True):
    """The longest pauses in the window of an event. `item_ms`: how long an item that was
    acknowledged in it waited for its delivery; `disk_ms`: a synced write.
    """

    kind: str
    node: str
    partition: int
    produce_ms: float
    delivery_ms: float
    item_ms: float
    disk_ms: float


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    rate: float
    events: list[Pauses]
    otherwise: Pauses
    total: PartitionStats
    errors: list[str]
    problems: list[str]


class Trial:
    """Events on a cluster under load, one after the other."""

    def __init__(self, servers: Servers, arguments: argparse.Namespace) -> None:
        self._servers = servers
        self._down: float = arguments.down
        self._window: float = arguments.window
        self.events: list[Event] = []

    async def run(self, kills: int, transfers: int) -> None:
        await self._until_well()
        for number in range(kills):
            await self._kill(number % NODES)
        for number in range(transfers):
            await self._transfer(number % NODES)

    async def _kill(self, partition: int) -> None:
        node = await self._leader(partition)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._measured("killed", node, partition, self._killed))
            await asyncio.sleep(self._down)
            await self._servers[node].start()
        await self._until_well()

    async def _killed(self, node: str) -> None:
        await self._servers[node].stop(kill=True)

    async def _transfer(self, partition: int) -> None:
        node = await self._leader(partition)
        await self._measured("handed off", node, partition, self._handed_off)
        await self._measured("restarted", node, partition, self._restarted)
        await self._until_well()

    async def _handed_off(self, node: str) -> None:
        async with admin_of(self._servers[node].address) as admin:
            handed = await admin.hand_off(node)
        assert not handed.left, f"{node} keeps {handed.left}"

    async def _restarted(self, node: str) -> None:
        await self._servers[node].stop()
        await self._servers[node].start()

    async def _measured(
        self, kind: str, node: str, partition: int, happen: Callable[[str], Awaitable[None]]
    ) -> None:
        since_s = time.monotonic()
        await happen(node)
        await asyncio.sleep(max(0.0, since_s + self._window - time.monotonic()))
        event = Event(kind, node, partition, since_s, since_s + self._window)
        self.events.append(event)
        print(f"{len(self.events)}: {node}, which led partition {partition}, {kind}", flush=True)
        await asyncio.sleep(BREATH_SECONDS)

    async def _leader(self, partition: int) -> str:
        async with admin_of(self._servers.address) as admin:
            picture = await admin.picture()
        return next(
            group.leader
            for group in picture.groups
            if (group.queue, group.partition) == (QUEUE, partition)
        )

    async def _until_well(self) -> None:
        """Waits until all is well, and a moment more, at no fixed distance to any timer."""
        await until_well(self._servers.address)
        await asyncio.sleep(random.uniform(0.5, 1.5))


async def measure(arguments: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory(prefix="querator-failover-") as name:
        servers = Servers(Path(name), nodes=NODES, memory=False)
        trial = Trial(servers, arguments)
        try:
            await servers.start()
            async with Client(servers.address) as client:
                await client.create_queue(QUEUE, partitions=NODES)
                await until_well(servers.address)
                async with (
                    probing(Path(name)) as disk,
                    pulse(servers.address, QUEUE, partitions=NODES, rate=arguments.rate) as books,
                ):
                    began_s = time.monotonic()
                    await trial.run(arguments.kills, arguments.transfers)
                    ended_s = time.monotonic()
                total = (await client.stats(QUEUE)).total
        finally:
            await servers.stop()
    return Results(
        machine=machine(),
        versions=versions(),
        rate=arguments.rate,
        events=[_pauses(books, disk, event) for event in trial.events],
        otherwise=_otherwise(books, disk, trial.events, began_s, ended_s),
        total=total,
        errors=books.errors,
        problems=books.problems(total),
    )


def _pauses(books: Books, disk: Disk, event: Event) -> Pauses:
    produce_s, delivery_s, item_s = books.pauses(event.since_s, event.until_s)
    disk_s = disk.longest(event.since_s, event.until_s)
    return Pauses(
        kind=event.kind,
        node=event.node,
        partition=event.partition,
        produce_ms=_ms(produce_s),
        delivery_ms=_ms(delivery_s),
        item_ms=_ms(item_s),
        disk_ms=_ms(disk_s),
    )


def _otherwise(
    books: Books, disk: Disk, events: list[Event], began_s: float, ended_s: float
) -> Pauses:
    """The longest pauses between the windows: while nodes and leaderships come back."""
    starts = [began_s, *(event.until_s for event in events)]
    ends = [*(event.since_s for event in events), ended_s]
    between = [
        _pauses(books, disk, Event("", "", 0, since_s, until_s))
        for since_s, until_s in zip(starts, ends, strict=True)
        if since_s < until_s
    ]
    return Pauses(
        kind="between", node="", partition=0,
        produce_ms=max(pauses.produce_ms for pauses in between),
        delivery_ms=max(pauses.delivery_ms for pauses in between),
        item_ms=max(pauses.item_ms for pauses in between),
        disk_ms=max(pauses.disk_ms for pauses in between),
    )  # fmt: skip


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


HEAD = """\
| the leader of a partition is | times | no acknowledgement, ms: median, max | \
no delivery, ms: median, max | longest wait of an item, ms: median, max | \
slowest write of the disk, ms: median, max | goal |
|---|---|---|---|---|---|---|
"""


def as_markdown(results: Results) -> str:
    total = results.total
    text = (
        f"{NODES} nodes on {results.machine}; {named()}; {results.rate:g} items/s, one by one, "
        f"on {NODES} partitions.\n\n{HEAD}"
    )
    for kind in dict.fromkeys(event.kind for event in results.events):
        text += _row(kind, [event for event in results.events if event.kind == kind])
    text += _row("(between, when leaderships come home)", [results.otherwise])
    text += (
        f"\n{total.produced:,} items were acknowledged and {total.completed:,} completed; "
        f"{total.lapsed:,} lapsed on the way. Errors that the clients saw: {len(results.errors)}.\n"
    )
    text += "".join(f"\nWRONG: {problem}.\n" for problem in results.problems)
    return text + "".join(f"- {error}\n" for error in results.errors[:20])


def _row(kind: str, events: list[Pauses]) -> str:
    def cell(values: list[float]) -> str:
        return f"{statistics.median(values):,.0f}, {max(values):,.0f}"

    produce = [event.produce_ms for event in events]
    delivery = [event.delivery_ms for event in events]
    goal = "–"
    if kind in GOALS_MS:
        met = max(*produce, *delivery) < GOALS_MS[kind]
        goal = f"< {GOALS_MS[kind]:,}: {'met' if met else '**missed**'}"
    waits = cell([event.item_ms for event in events])
    disk = cell([event.disk_ms for event in events])
    return (
        f"| {kind} | {len(events)} | {cell(produce)} | {cell(delivery)} | {waits} | {disk} "
        f"| {goal} |\n"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.failover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=20, help="kill -9 of a leader (20)")
    parser.add_argument("--transfers", type=int, default=20, help="planned transfers (20)")
    parser.add_argument("--rate", type=float, default=200, help="items per second (200)")
    parser.add_argument("--down", type=float, default=1, help="seconds until it restarts (1)")
    parser.add_argument("--window", type=float, default=4, help="seconds looked at (4)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = await measure(arguments)
    text = as_markdown(results)
    (arguments.output / "failover.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(results))
    )
    (arguments.output / "failover.md").write_text(text)
    print(text)
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
