"""`make events`: whether followers of a queue see each event once, and what events cost.

1. Three nodes, three partitions. 1,000,000 operations: items are produced, leased and completed. A
   follower in a process of its own writes each event to a file as a line that ends with the next
   position, and continues after its last whole line. It is killed (kill -9) again and again, and so
   is a leader once. In the end the lines must have each position of each partition once and in
   order, and each item must be produced and completed once.
2. One node. Items are produced, leased and completed in hundreds: in a queue without events, in one
   with events, and in one with events and a follower. The CPU time of the node for each item is
   compared, in rounds that take turns.

Writes events.json and events.md. The last line is a summary in JSON; the exit code is 1 if an event
is missing, comes twice or is out of order.
"""

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec

from querator import Client
from scripts.bench.bulk import kill_leader, take_all
from scripts.bench.report import keep, machine, named, versions
from scripts.bench.servers import Servers

NODES = 3
PARTITIONS = 3
QUEUE = "followed"
ITEMS = 333_334
OPERATIONS = 3
"""Of each item."""
KILL_SECONDS = 5.0
COST_ITEMS = 40_000
ROUNDS = 5
BATCH = 100
RETENTION = timedelta(hours=24)

Line = tuple[int, int, str, tuple[tuple[int, int], ...]]
"""Partition, position, kind, runs of items."""


class Cost(msgspec.Struct, frozen=True):
    """CPU time of the node for an item's life, in microseconds: the median of the rounds."""

    without: float
    recorded: float
    followed: float


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    operations: int
    events: int
    follower_kills: int
    cost: Cost
    problems: list[str]


# --- the follower ------------------------------------------------------------------------------


async def follow(address: str, path: Path, *, to_the_end: bool) -> None:
    """The process that is killed. A line is an event, and has where to continue after it."""
    positions = {line[0]: line[1] for line in map(_words, _whole_lines(path))}
    async with (
        Client(address) as client,
        client.events(QUEUE, positions=list(positions.values()), follow=not to_the_end) as events,
    ):
        with path.open("ab", buffering=0) as out:
            async for event in events:
                runs = ",".join(f"{first}+{count}" for first, count in event.ranges)
                line = f"{event.partition} {event.next} {event.position} {event.kind} {runs}\n"
                out.write(line.encode())


def _words(line: str) -> tuple[int, str]:
    partition, after, *_ = line.split(" ")
    return int(partition), after


def _whole_lines(path: Path) -> list[str]:
    """Cuts off what a killed process has left of its last line."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        path.write_bytes(whole)
    return whole.decode().splitlines()


async def _start_follower(servers: Servers, path: Path, *more: str) -> asyncio.subprocess.Process:
    return await servers.checkout.run(
        "scripts.bench.events", "--follow", str(path), "--address", servers.address, *more
    )


# --- what must be right ------------------------------------------------------------------------


def parsed(lines: Iterable[str]) -> list[Line]:
    found: list[Line] = []
    for line in lines:
        partition, _, position, kind, text = line.split(" ")
        runs = [run.split("+") for run in text.split(",") if run]
        ranges = tuple((int(first), int(count)) for first, count in runs)
        found.append((int(partition), int(position), kind, ranges))
    return found


def found_problems(
    lines: Sequence[Line], ends: dict[int, int], produced: dict[int, int]
) -> list[str]:
    """`ends`: the position after the last event of each partition. `produced`: the number of items
    that each partition has stored. All of them are completed.
    """
    problems: list[str] = []
    for partition, end in sorted(ends.items()):
        mine = [line for line in lines if line[0] == partition]
        positions = [line[1] for line in mine]
        if positions != sorted(positions):
            problems.append(f"partition {partition}: events are out of order")
        counts = Counter(positions)
        if twice := sum(times > 1 for times in counts.values()):
            problems.append(f"partition {partition}: {twice:,} events came twice")
        if missing := len(set(range(1, end)) - counts.keys()):
            problems.append(f"partition {partition}: {missing:,} events are missing")
        for kind in ("produced", "completed"):
            items = Counter(
                itertools.chain.from_iterable(
                    range(first, first + count)
                    for _, _, what, ranges in mine
                    if what == kind
                    for first, count in ranges
                )
            )
            if len(items) != produced[partition] or any(times > 1 for times in items.values()):
                problems.append(
                    f"partition {partition}: {len(items):,} items were {kind}, "
                    f"{items.total() - len(items):,} of them again; {produced[partition]:,} exist"
                )
    return problems


async def check(directory: Path, items: int) -> tuple[int, int, list[str]]:
    """Events, kills of the follower, and what is wrong."""
    servers = Servers(directory, nodes=NODES, memory=False)
    path = directory / "lines"
    kills = 0
    try:
        await servers.start()
        async with Client(servers.address) as client:
            await client.create_queue(QUEUE, partitions=PARTITIONS, events_retention=RETENTION)
            follower = await _start_follower(servers, path)
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(_work(client, items))
                tasks.create_task(kill_leader(servers, QUEUE, 2 * KILL_SECONDS))
                while not working.done():
                    await asyncio.wait((working,), timeout=KILL_SECONDS)
                    follower.kill()
                    await follower.wait()
                    kills += 1
                    follower = await _start_follower(servers, path)
            follower.kill()
            await follower.wait()
            last = await _start_follower(servers, path, "--to-the-end")
            problems = [] if await last.wait() == 0 else ["the last follower has failed"]
            stats = await client.stats(QUEUE)
            async with client.events(QUEUE, start="end") as end:
                ends = {one.partition: one.position for one in end.positions}
    finally:
        await servers.stop()
    lines = parsed(_whole_lines(path))
    produced = {number: one.produced for number, one in enumerate(stats.partitions)}
    return len(lines), kills, problems + found_problems(lines, ends, produced)


async def _work(client: Client, items: int) -> None:
    async with client.producer(QUEUE, ordered=False) as producer:
        for number in range(items):
            await producer.submit(b"%d" % number)
    await take_all(client, QUEUE)


# --- what it costs -----------------------------------------------------------------------------


async def cost(directory: Path, items: int, rounds: int) -> Cost:
    servers = Servers(directory, nodes=1, memory=False)
    spent: dict[str, list[float]] = {"without": [], "recorded": [], "followed": []}
    try:
        await servers.start()
        async with Client(servers.address) as client:
            for name in spent:
                retention = None if name == "without" else RETENTION
                await client.create_queue(name, partitions=1, events_retention=retention)
            for name in spent:
                await _lives(client, name, items // 10)
            for _ in range(rounds):
                for name, found in spent.items():
                    found.append(await _spent(servers, client, name, items))
    finally:
        await servers.stop()
    medians = {name: round(statistics.median(found), 2) for name, found in spent.items()}
    return Cost(**medians)


async def _spent(servers: Servers, client: Client, queue: str, items: int) -> float:
    """Microseconds of the node for each item."""
    if queue != "followed":
        before = servers.cpu_seconds()
        await _lives(client, queue, items)
        return (servers.cpu_seconds() - before) * 1e6 / items
    async with client.events(queue, start="end") as events:

        async def read() -> None:
            completed = 0
            async for event in events:
                completed += event.count if event.kind == "completed" else 0
                if completed >= items:
                    return

        before = servers.cpu_seconds()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            await _lives(client, queue, items)
        return (servers.cpu_seconds() - before) * 1e6 / items


async def _lives(client: Client, queue: str, items: int) -> None:
    for _ in range(items // BATCH):
        await client.produce(queue, *[b"x" * 100] * BATCH)
        leased = await client.lease(queue, max_items=BATCH, wait=timedelta(seconds=10))
        await client.complete(queue, *leased)


# --- the measurement ---------------------------------------------------------------------------


async def measure(arguments: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory(prefix="querator-events-") as name:
        directories = Path(name) / "check", Path(name) / "cost"
        for directory in directories:
            directory.mkdir()
        events, kills, problems = await check(directories[0], arguments.items)
        costs = await cost(directories[1], arguments.cost_items, arguments.rounds)
    return Results(
        machine=machine(),
        versions=versions(),
        operations=OPERATIONS * arguments.items,
        events=events,
        follower_kills=kills,
        cost=costs,
        problems=problems,
    )


def as_markdown(results: Results) -> str:
    costs = results.cost
    text = (
        f"{NODES} nodes on {results.machine}; {named()}.\n\n"
        f"{results.operations:,} operations left {results.events:,} events. The follower was "
        f"killed {results.follower_kills} times, and a leader once.\n\n"
        "CPU time of one node for the life of an item, in hundreds: "
        f"{costs.without:g} µs without events, {costs.recorded:g} µs with them, "
        f"{costs.followed:g} µs with a follower.\n"
    )
    return text + "".join(f"\nWRONG: {problem}.\n" for problem in results.problems)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.events",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--items", type=int, default=ITEMS, help="items to follow (333,334)")
    parser.add_argument("--cost-items", type=int, default=COST_ITEMS, help="of a round (40,000)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the costs (5)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    parser.add_argument("--follow", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--to-the-end", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.follow is not None:
        await follow(arguments.address, arguments.follow, to_the_end=arguments.to_the_end)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = await measure(arguments)
    keep(results, as_markdown(results), arguments.output, "events")
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
