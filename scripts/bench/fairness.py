"""`make fairness`: whether the groups of a fair queue share its leases, on three nodes.

A fair queue by turns has six partitions and 1,000 groups with weights from 1 to 10. Their backlogs
follow the law of Zipf from 100,000 items down to 111; the last 100 groups have 1 to 100. Together
they have 740,000. Low weights are more frequent than high ones. All of this is produced first, in
runs of up to five items of a group and in random order, so that each group is spread over the
partitions. Then consumers lease 1 to 100 items at a time, through all nodes, and complete them.

Measured are:

- the share of each group in ten rounds of each partition, relative to its weight among the groups
  that have waiting items in all partitions at the end (`turns` says what a round is). Goal: within
  5 %.
- how long a single item of a quiet group waits. 100 further groups of weight 1 have one item at a
  time: when it comes, they wait for a moment and produce the next one. Goal: at most one round.

Writes fairness.json and fairness.md. The last line is a summary in JSON; the exit code is 1 if a
goal is missed or if items came twice.
"""

import argparse
import asyncio
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import get_args

import msgspec

from querator import Client, FairGroup, Item
from querator.client import LeasedItem
from querator.client.options import Fairness
from scripts.bench.cluster import until_well
from scripts.bench.due import percentile
from scripts.bench.report import keep, machine, named, versions
from scripts.bench.servers import Servers
from scripts.bench.turns import Clock, Leased, Partition, shares

NODES = 3
PARTITIONS = 6
QUEUE = "fair"
GROUPS = 1_000
SMALL_GROUPS = 100
MOST = 100_000
WEIGHT_MOST = 10
RUN = 5
"""Items of a group that are produced one after the other, at most."""
REQUEST_ITEMS = 1_000
PRODUCERS = 4
CONSUMERS = 8
LEASE_ITEMS_MOST = 100
LEASE = timedelta(seconds=30)
QUIET_GROUPS = 100
PAUSE_SECONDS = 0.2
ROUNDS = 10
START = 0.55
"""Rounds before the window: see `turns.Partition`."""
SHARE_GOAL = 0.05
WAIT_GOAL = 1.0


def weights_of(groups: int, chance: random.Random) -> dict[str, int]:
    """A weight w comes with a chance in proportion to 1/w."""
    weights = range(1, WEIGHT_MOST + 1)
    drawn = chance.choices(weights, [1 / weight for weight in weights], k=groups)
    return {f"g{number}": weight for number, weight in enumerate(drawn)}


def backlogs_of(groups: int, scale: float, chance: random.Random) -> dict[str, int]:
    """The number of items by group. `scale` 1: up to MOST."""
    small = groups * SMALL_GROUPS // GROUPS
    counts = [round(MOST * scale / rank) for rank in range(1, groups - small + 1)]
    counts += [round(100 ** (number / max(1, small - 1))) for number in range(small)]
    chance.shuffle(counts)
    return {f"g{number}": max(1, count) for number, count in enumerate(counts)}


def runs_of(backlogs: dict[str, int], chance: random.Random) -> list[tuple[str, int]]:
    """The backlogs in parts of up to RUN items, in random order."""
    runs = [
        (group, min(RUN, count - start))
        for group, count in backlogs.items()
        for start in range(0, count, RUN)
    ]
    chance.shuffle(runs)
    return runs


class Books:
    def __init__(self, weights: dict[str, int]) -> None:
        self.weights = weights
        self.stored: dict[int, Counter[str]] = {place: Counter() for place in range(PARTITIONS)}
        """What waits before the first lease, by partition and group."""
        self.leased: list[Leased] = []
        self.quiet: dict[str, asyncio.Event] = {}
        self.again = 0
        """Deliveries of items that had been delivered before."""
        self._clocks: list[Clock] = []
        self._seen: set[tuple[int, int]] = set()

    def begin(self) -> None:
        """The backlogs are produced."""
        self._clocks = [Clock(self.weights, there) for there in self.stored.values()]

    def deliver(self, item: LeasedItem) -> None:
        place = item.id.partition
        self.again += (place, item.id.seq) in self._seen
        self._seen.add((place, item.id.seq))
        leased_ms = (item.deadline - LEASE).timestamp() * 1000
        one = Leased(place, leased_ms, item.produced_at.timestamp() * 1000, item.group)
        self.leased.append(one)
        self._clocks[place].serve(item.group)
        if waiting := self.quiet.get(item.group):
            waiting.set()

    @property
    def rounds(self) -> float:
        """Of the partition that is furthest behind."""
        return min(clock.rounds for clock in self._clocks)


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    load_average: float
    """Over 15 minutes, at the end: what else ran on the machine."""
    seed: int
    fairness: str
    items: int
    groups: int
    sum_of_weights: int
    leased: int
    """Items of the backlogs and of quiet groups that consumers got."""
    leased_per_s: float
    judged: int
    """Groups with waiting items in all partitions after ten rounds."""
    share_p50: float
    share_p99: float
    share_max: float
    """Deviations from the share by weight, as numbers of at least 0."""
    beyond: int
    """Judged groups that deviate by more than the goal."""
    trials: int
    wait_p50: float
    wait_p99: float
    wait_max: float
    """In rounds."""
    released: int
    """Leases that found no caller any more: their groups have lost a turn."""
    problems: list[str]


# --- the load --------------------------------------------------------------------------------


async def fill(address: str, books: Books, runs: list[tuple[str, int]]) -> None:
    requests: list[list[str]] = [[]]
    for group, count in runs:
        if len(requests[-1]) + count > REQUEST_ITEMS:
            requests.append([])
        requests[-1] += [group] * count
    queue = iter(requests)

    async def produce() -> None:
        async with (
            Client(address) as client,
            client.producer(QUEUE, ordered=False) as producer,
        ):
            for groups in queue:
                stored = await producer.produce_many([Item(group=group) for group in groups])
                for group, at in zip(groups, stored, strict=True):
                    books.stored[at.partition][group] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(PRODUCERS):
            tasks.create_task(produce())


async def consume(address: str, books: Books, chance: random.Random, stop: asyncio.Event) -> None:
    async with Client(address) as client:
        while not stop.is_set():
            items = await client.lease(
                QUEUE,
                max_items=chance.randint(1, LEASE_ITEMS_MOST),
                wait=timedelta(seconds=20),
                lease_timeout=LEASE,
            )
            for item in items:
                books.deliver(item)
            if items:
                await client.complete(QUEUE, *{item.lease_id for item in items})


async def ask_quietly(client: Client, books: Books, group: str, stop: asyncio.Event) -> None:
    chance = random.Random(group)
    while not stop.is_set():
        books.quiet[group] = asyncio.Event()
        await client.produce(QUEUE, Item(group=group))
        await books.quiet[group].wait()
        await asyncio.sleep(chance.random() * PAUSE_SECONDS)


async def measure(arguments: argparse.Namespace) -> Results:
    chance = random.Random(arguments.seed)
    weights = weights_of(arguments.groups, chance)
    backlogs = backlogs_of(arguments.groups, arguments.scale, chance)
    with tempfile.TemporaryDirectory(prefix="querator-fairness-") as name:
        servers = Servers(Path(name), nodes=NODES, memory=False)
        try:
            await servers.start()
            async with Client(servers.address) as client:
                await client.create_queue(
                    QUEUE,
                    kind="fair",
                    fairness=arguments.fairness,
                    groups=[FairGroup(path, weight=one) for path, one in weights.items()],
                    partitions=PARTITIONS,
                    dead_queue="",
                )
                await until_well(servers.address)
                books = Books(weights)
                began_s = time.monotonic()
                await fill(servers.address, books, runs_of(backlogs, chance))
                count, took_s = sum(backlogs.values()), time.monotonic() - began_s
                print(
                    f"{count:,} items of {len(backlogs):,} groups wait: {took_s:.0f} s", flush=True
                )
                took_s = await _share(servers, client, books, chance)
                released = (await client.stats(QUEUE)).total.released
        finally:
            await servers.stop()
    return _results(arguments, books, backlogs, took_s, released)


async def _share(servers: Servers, client: Client, books: Books, chance: random.Random) -> float:
    """Leases for ROUNDS rounds of each partition. Returns the seconds that this took."""
    stop = asyncio.Event()
    addresses = itertools.cycle([server.address for server in servers])
    books.begin()
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        consuming = [
            tasks.create_task(consume(next(addresses), books, random.Random(chance.random()), stop))
            for _ in range(CONSUMERS)
        ]
        asking = [
            tasks.create_task(ask_quietly(client, books, f"quiet{number}", stop))
            for number in range(QUIET_GROUPS)
        ]
        said = 0
        while books.rounds < START + ROUNDS + 0.1 and not any(task.done() for task in consuming):
            await asyncio.sleep(0.1)
            if books.rounds >= said + 1:
                said = int(books.rounds)
                print(f"{said} rounds: {len(books.leased):,} items are leased", flush=True)
        stop.set()
        await asyncio.gather(*consuming)
        for task in asking:
            task.cancel()
    return time.monotonic() - began_s


# --- the figures -----------------------------------------------------------------------------


def _results(
    arguments: argparse.Namespace,
    books: Books,
    backlogs: dict[str, int],
    took_s: float,
    released: int,
) -> Results:
    partitions = {
        place: Partition(
            books.weights,
            there,
            (item for item in books.leased if item.partition == place),
            rounds=ROUNDS,
            start=START,
        )
        for place, there in books.stored.items()
    }
    judged = shares(books.weights, partitions.values())[0]
    deviations = [abs(share.deviation) for share in judged]
    beyond = sum(one > SHARE_GOAL for one in deviations)
    waits = [
        partitions[item.partition].wait(item) for item in books.leased if item.group in books.quiet
    ]
    checks = (
        (not beyond, f"{beyond} groups deviate by more than {SHARE_GOAL:.0%}"),
        (max(waits) <= WAIT_GOAL, f"a quiet item waited for {max(waits):.2f} rounds"),
        (not books.again, f"{books.again} items came again"),
    )
    return Results(
        machine=machine(),
        versions=versions(),
        load_average=round(os.getloadavg()[2], 1),
        seed=arguments.seed,
        fairness=arguments.fairness,
        items=sum(backlogs.values()),
        groups=len(backlogs),
        sum_of_weights=sum(books.weights.values()),
        leased=len(books.leased),
        leased_per_s=round(len(books.leased) / took_s),
        judged=len(judged),
        share_p50=round(percentile(deviations, 0.5), 4),
        share_p99=round(percentile(deviations, 0.99), 4),
        share_max=round(max(deviations), 4),
        beyond=beyond,
        trials=len(waits),
        wait_p50=round(percentile(waits, 0.5), 3),
        wait_p99=round(percentile(waits, 0.99), 3),
        wait_max=round(max(waits), 3),
        released=released,
        problems=[sentence for holds, sentence in checks if not holds],
    )


def as_markdown(results: Results) -> str:
    text = (
        f"{NODES} nodes on {results.machine}, at load {results.load_average:g}; {named()}; "
        f"{results.items:,} items of {results.groups:,} groups, by {results.fairness}; sum of the "
        f"weights {results.sum_of_weights:,}; {PARTITIONS} partitions; seed {results.seed}; "
        f"{results.leased:,} items leased, {results.leased_per_s:,.0f}/s.\n\n"
        "| what | p50, p99, max | goal |\n"
        "|---|---|---|\n"
        f"| share over {ROUNDS} rounds, deviation: {results.judged:,} groups "
        f"| {results.share_p50:.1%}, {results.share_p99:.1%}, {results.share_max:.1%} "
        f"| {SHARE_GOAL:.0%}; {results.beyond} beyond |\n"
        f"| wait of a quiet item, rounds: {results.trials:,} trials "
        f"| {results.wait_p50:.2f}, {results.wait_p99:.2f}, {results.wait_max:.2f} "
        f"| {WAIT_GOAL:g} |\n"
    )
    return text + "".join(f"\nMISSED: {problem}.\n" for problem in results.problems)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.fairness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--groups", type=int, default=GROUPS, help="groups (1,000)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the backlogs (1)")
    parser.add_argument("--fairness", choices=get_args(Fairness), default="turns")
    parser.add_argument("--seed", type=int, default=1, help="of weights, backlogs and leases (1)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = await measure(arguments)
    keep(results, as_markdown(results), arguments.output, "fairness")
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
