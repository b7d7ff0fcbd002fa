"""`make bench`: runs the scenarios and writes the measurements to build/bench."""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from querator import Client
from querator.client.cluster import ClusterAdmin
from scripts.bench.report import Measurement, write_report
from scripts.bench.scenarios import SCENARIOS, Scenario
from scripts.bench.servers import HERE, Checkout, Servers
from scripts.bench.worker import QUEUE, WorkerResult


class LostItemsError(Exception):
    """A run whose counts do not balance measures nothing."""


async def run_once(
    scenario: Scenario,
    *,
    nodes: int,
    memory: bool,
    profile: Path | None = None,
    checkout: Checkout = HERE,
) -> Measurement:
    """A run with new servers. `checkout` gives the nodes and the clients."""
    with tempfile.TemporaryDirectory(prefix="querator-bench-") as name:
        server = Servers(Path(name), nodes=nodes, memory=memory, checkout=checkout)
        await server.start()
        try:
            async with Client(server.address) as client:
                await client.create_queue(QUEUE, partitions=scenario.partitions)
            restart_seconds = 0.0
            if scenario.backlog_items:
                await fill(server.address, scenario)
                if not memory:
                    await server.stop(kill=True)
                    started = time.monotonic()
                    await server.start()
                    await first_answer(server.address)
                    restart_seconds = time.monotonic() - started
            async with asyncio.TaskGroup() as tasks:
                address = await entrance(scenario, server)
                running = tasks.create_task(run_clients(scenario, server, address))
                if profile is not None:
                    tasks.create_task(server.profiled(scenario.seconds, profile))
            results, server_cpu = running.result()
            resident = server.resident_bytes()
            await balance(scenario, server.address, results)
        finally:
            await server.stop()
    return measured(scenario, results, server_cpu, restart_seconds, resident)


async def fill(address: str, scenario: Scenario) -> None:
    from querator.client import Item

    item = Item(payload=os.urandom(scenario.payload_bytes))
    async with Client(address) as client, client.producer(QUEUE, batch_items=250) as producer:
        await producer.produce_many(item for _ in range(scenario.backlog_items))


async def first_answer(address: str) -> None:
    """Time until a lease is granted after a restart; it is given back."""
    async with Client(address) as client:
        items = await client.lease(QUEUE, max_items=1)
        assert items, "the backlog is there"
        await items[0].release()


async def entrance(scenario: Scenario, server: Servers) -> str:
    """Address for the clients: the node that leads the first partition, or, for a scenario that
    says so, one that leads none. Otherwise chance would decide which node they use, and a call or a
    delivery that passes through another node costs more.
    """
    async with ClusterAdmin(server.address, request_timeout=10, connect_timeout=10) as admin:
        while True:
            picture = await admin.picture()
            leaders = {group.leader for group in picture.groups if group.queue == QUEUE}
            if leaders and "" not in leaders:
                break
            await asyncio.sleep(0.1)
    addresses = {one.node.name: one.node.client_address for one in picture.nodes}
    entrances = leaders if not scenario.elsewhere else addresses.keys() - leaders
    # A node by itself has no address in the map.
    return addresses[min(entrances)] or server.address


async def run_clients(
    scenario: Scenario, server: Servers, address: str
) -> tuple[list[WorkerResult], float]:
    """The workers' results, and the server's CPU seconds while the first of them measured."""
    cpu: list[float] = []

    async def one(role: str) -> WorkerResult:
        process = await server.checkout.run(
            "scripts.bench.worker", address, role,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(scenario))
        process.stdin.close()
        last = b""
        async for line in process.stdout:
            if line.strip() in (b"measuring", b"measured"):
                cpu.append(server.cpu_seconds())
            last = line
        if await process.wait():
            raise RuntimeError(f"the {role} client of {scenario.name!r} failed")
        return msgspec.json.decode(last, type=WorkerResult)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(role)) for role in scenario.roles]
    return [task.result() for task in running], max(cpu) - min(cpu)


async def balance(scenario: Scenario, address: str, results: list[WorkerResult]) -> None:
    """Raises LostItemsError when the server and its clients do not agree."""
    async with Client(address) as client:
        total = (await client.stats(QUEUE)).total
    produced = sum(result.produced for result in results) + scenario.backlog_items
    completed = sum(result.completed for result in results)
    drained = scenario.kind in ("both", "drain")
    if (
        total.produced != produced
        or total.completed != completed
        or total.ready + total.leased + total.completed != produced
        or (drained and completed != produced)
    ):
        raise LostItemsError(
            f"{scenario.name}: clients produced {produced} and completed {completed}; the server "
            f"took {total.produced}, completed {total.completed}, has {total.ready} ready and "
            f"{total.leased} leased"
        )


def measured(
    scenario: Scenario,
    results: list[WorkerResult],
    server_cpu: float,
    restart_seconds: float,
    resident_bytes: int,
) -> Measurement:
    window = max(result.window_seconds for result in results)
    produced = sum(result.window_produced for result in results)
    completed = sum(result.window_completed for result in results)
    items = completed if scenario.kind in ("both", "drain") else produced
    latencies = sorted(value for result in results for value in result.latencies_ms)
    return Measurement(
        scenario=scenario.name,
        items_per_second=items / window,
        server_us_per_item=server_cpu / max(1, items) * 1e6,
        client_us_per_item=sum(r.window_cpu_seconds for r in results) / max(1, items) * 1e6,
        p50_ms=quantile(latencies, 0.5),
        p99_ms=quantile(latencies, 0.99),
        max_ms=latencies[-1] if latencies else 0.0,
        restart_seconds=restart_seconds,
        resident_bytes=resident_bytes,
    )


def quantile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose name has this part")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each scenario")
    parser.add_argument("--nodes", type=int, default=1, help="1, or the nodes of a cluster")
    parser.add_argument("--memory", action="store_true", help="measure without the disk")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="draw a flame graph of the node (it slows the node down)",
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    if arguments.memory and arguments.nodes > 1:
        parser.error("--memory: the nodes of a cluster keep their data on disk")
    arguments.output.mkdir(parents=True, exist_ok=True)
    measurements: list[list[Measurement]] = []
    for scenario in SCENARIOS:
        if arguments.only not in scenario.name or (scenario.elsewhere and arguments.nodes == 1):
            continue
        name = scenario.name.replace("/", " per ")
        profile = arguments.output / f"{name}.svg" if arguments.profile else None
        runs = []
        for _ in range(arguments.repeat):
            run = await run_once(
                scenario, nodes=arguments.nodes, memory=arguments.memory, profile=profile
            )
            runs.append(run)
            print(runs[-1].line(), flush=True)
        measurements.append(runs)
        median = statistics.median(run.items_per_second for run in runs)
        print(f"{scenario.name}: median {median:,.0f} items/s", flush=True)
    write_report(
        arguments.output, measurements, nodes=arguments.nodes, durable=not arguments.memory
    )


if __name__ == "__main__":
    asyncio.run(main())
