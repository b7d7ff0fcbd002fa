"""`make bench-durable`: what durable execution costs, from start to result.

Nodes on disk, one worker and this client, all on one machine, for each number of nodes:

- whole lives: executions of three steps with effects, and of three that only read, 64 starts at a
  time, until the last result is there;
- steps: long executions at work together; and one alone, step after step;
- latency at a rate: executions of three steps are started at fixed times, however long they take;
- a signal for a parked execution, until its next step has begun;
- a child without steps, from its spawn to its result in the parent.

Steps do nothing, so the figures are those of Querator. Writes durable.json and durable.md. The last
line is JSON.
"""

import argparse
import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from querator import Client
from querator.durable import Durable, Executions, Worker, durable, receive, spawn, step
from scripts.bench.cluster import until_well
from scripts.bench.due import percentile
from scripts.bench.report import keep, machine, named, versions
from scripts.bench.servers import Servers

QUEUE: Final = "bench"
PARTITIONS: Final = 4
WAIT: Final = timedelta(minutes=5)
STARTS_AT_A_TIME: Final = 64
CONCURRENCY: Final = 500
ALONE_STEPS: Final = 200
SIGNALS: Final = 100
CHILDREN: Final = 100


class Settings(msgspec.Struct, frozen=True):
    lives: int
    """Executions of each kind."""
    long_lives: int
    long_steps: int
    """Steps of each of the long executions."""
    rate: int
    """Executions per second, started at fixed times."""
    seconds: int


class Latency(msgspec.Struct, frozen=True):
    """In milliseconds."""

    p50: float
    p99: float
    most: float


class Results(msgspec.Struct, frozen=True):
    nodes: int
    effects_per_second: float
    """Executions of three steps with effects, from the first start to the last result."""
    reads_per_second: float
    steps_per_second: float
    step: Latency
    life_at_rate: Latency
    signal: Latency
    child: Latency
    nodes_cpu_us: float
    """Processor time of the nodes for an execution of three steps with effects."""


class Report(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    settings: Settings
    results: list[Results]


# --- the functions ---------------------------------------------------------------------------


@step
async def effect() -> float:
    """When it began, by the clock that all processes of the machine share."""
    return time.monotonic()


@step(effects=False)
async def look() -> float:
    return time.monotonic()


@durable
async def effects(steps: int) -> list[float]:
    return [await effect() for _ in range(steps)]


@durable
async def reads() -> list[float]:
    return [await look() for _ in range(3)]


@durable
async def signalled(signals: int) -> list[float]:
    """How long each signal took until the next step had begun."""
    took = []
    for _ in range(signals):
        sent = await receive("go", float)
        took.append(await effect() - sent)
    return took


@durable
async def child() -> None:
    pass


@durable
async def parent(children: int) -> list[float]:
    """How long each child took from its spawn to its result."""
    took = []
    for _ in range(children):
        began = await look()
        await (await spawn(child))
        took.append(await look() - began)
    return took


FUNCTIONS: Final[list[Durable[..., Any]]] = [effects, reads, signalled, child, parent]


async def work(address: str) -> None:
    async with Client(address) as client:
        await Worker(client, QUEUE, FUNCTIONS, concurrency=CONCURRENCY).run()


# --- the measurement -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def working(servers: Servers) -> AsyncIterator[None]:
    """A worker process."""
    process = await servers.checkout.run("scripts.bench.durable", "--work", servers.address)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def cluster(nodes: int) -> AsyncIterator[tuple[Servers, Executions]]:
    with tempfile.TemporaryDirectory(prefix="querator-durable-") as name:
        servers = Servers(Path(name), nodes=nodes, memory=False)
        try:
            await servers.start()
            async with Client(servers.address) as client:
                await client.create_queue(QUEUE, kind="executions", partitions=PARTITIONS)
                await until_well(servers.address)
                yield servers, Executions(client, QUEUE)
        finally:
            await servers.stop()


async def lives(shop: Executions, number: int, function: Durable[..., Any], *args: Any) -> float:
    """Executions per second."""
    left = iter(range(number))

    async def some() -> None:
        for _ in left:
            handle = await shop.start(function, *args)
            ends.append(group.create_task(handle.result(timeout=WAIT)))

    ends: list[asyncio.Task[Any]] = []
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(STARTS_AT_A_TIME):
            group.create_task(some())
    return number / (time.monotonic() - began)


async def long_lives(shop: Executions, number: int, steps: int) -> float:
    """Steps per second, without the first tenth and the last one, when not all are at work."""
    handles = [await shop.start(effects, steps) for _ in range(number)]
    times = [await handle.result(timeout=WAIT) for handle in handles]
    begun = sorted(moment for one in times for moment in one)
    tenth = len(begun) // 10
    within = begun[tenth : len(begun) - tenth]
    return len(within) / (within[-1] - within[0])


async def one_after_the_other(shop: Executions) -> Latency:
    """From the begin of a step to that of the next one."""
    handle = await shop.start(effects, ALONE_STEPS)
    times = await handle.result(timeout=WAIT)
    return latency([after - before for before, after in itertools.pairwise(times)])


async def at_a_rate(shop: Executions, rate: int, seconds: int) -> Latency:
    """From when each was due to its result."""
    took: list[float] = []

    async def one(due: float) -> None:
        handle = await shop.start(effects, 3)
        await handle.result(timeout=WAIT)
        took.append(time.monotonic() - due)

    begin = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(rate * seconds):
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(one(due))
    return latency(took)


async def signals(shop: Executions) -> Latency:
    handle = await shop.start(signalled, SIGNALS)
    for _ in range(SIGNALS):
        while (await handle.get()).state != "parked":  # noqa: ASYNC110 - it is the server's.
            await asyncio.sleep(0.01)
        await handle.signal("go", time.monotonic())
    return latency(await handle.result(timeout=WAIT))


async def children(shop: Executions) -> Latency:
    handle = await shop.start(parent, CHILDREN)
    return latency(await handle.result(timeout=WAIT))


def latency(seconds: list[float]) -> Latency:
    ms = [each * 1000 for each in seconds]
    return Latency(round(percentile(ms, 0.5), 2), round(percentile(ms, 0.99), 2), round(max(ms), 1))


async def measure(nodes: int, settings: Settings) -> Results:
    async with cluster(nodes) as (servers, shop), working(servers):
        await lives(shop, STARTS_AT_A_TIME, effects, 3)  # The worker has started.
        cpu_seconds = servers.cpu_seconds()
        effects_rate = await lives(shop, settings.lives, effects, 3)
        cpu_seconds = servers.cpu_seconds() - cpu_seconds
        return Results(
            nodes=nodes,
            effects_per_second=round(effects_rate),
            reads_per_second=round(await lives(shop, settings.lives, reads)),
            steps_per_second=round(
                await long_lives(shop, settings.long_lives, settings.long_steps)
            ),
            step=await one_after_the_other(shop),
            life_at_rate=await at_a_rate(shop, settings.rate, settings.seconds),
            signal=await signals(shop),
            child=await children(shop),
            nodes_cpu_us=round(cpu_seconds / settings.lives * 1e6),
        )


def as_markdown(report: Report) -> str:
    settings = report.settings
    titles = [f"{one.nodes} node{'s' * (one.nodes > 1)}" for one in report.results]
    rates = [
        ("executions of three effects per second", "effects_per_second"),
        ("executions of three reads per second", "reads_per_second"),
        (f"steps per second, {settings.long_lives} executions", "steps_per_second"),
        ("CPU of the nodes for an execution of three effects, µs", "nodes_cpu_us"),
    ]
    waits = [
        ("a step after the other, ms", "step"),
        (f"three effects at {settings.rate}/s, start to result, ms", "life_at_rate"),
        ("signal to parked execution, next step begun, ms", "signal"),
        ("child without steps, spawn to result, ms", "child"),
    ]
    lines = [
        f"{report.machine}; {named()}. Each node on disk; one worker with {CONCURRENCY} executions "
        f"at a time, one client; {PARTITIONS} partitions.",
        "",
        f"| what | {' | '.join(titles)} |",
        f"|---|{'---|' * len(titles)}",
    ]
    for title, field in rates:
        cells = [f"{getattr(one, field):,.0f}" for one in report.results]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    for title, field in waits:
        found = [getattr(one, field) for one in report.results]
        cells = [f"{one.p50:g}, {one.p99:g}, {one.most:g}" for one in found]
        lines.append(f"| {title}: p50, p99, max | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.durable",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3], help="default: 1 3")
    parser.add_argument("--lives", type=int, default=2_000, help="executions of a kind (2,000)")
    parser.add_argument("--long-lives", type=int, default=200, help="at work together (200)")
    parser.add_argument("--long-steps", type=int, default=40, help="steps of each (40)")
    parser.add_argument("--rate", type=int, default=50, help="starts per second (50)")
    parser.add_argument("--seconds", type=int, default=10, help="of starts at that rate (10)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    parser.add_argument("--work", metavar="ADDRESS", help="be a worker (used by this program)")
    arguments = parser.parse_args()
    if arguments.work:
        await work(arguments.work)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        arguments.lives, arguments.long_lives, arguments.long_steps, arguments.rate,
        arguments.seconds,
    )  # fmt: skip
    results = [await measure(nodes, settings) for nodes in arguments.nodes]
    report = Report(machine(), versions(), settings, results)
    keep(report, as_markdown(report), arguments.output, "durable")


if __name__ == "__main__":
    asyncio.run(main())
