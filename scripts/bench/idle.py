"""`make idle`: what three nodes cost that hold a queue of 300 partitions in which nothing happens,
and what it takes when one of them dies.

First nobody is connected: CPU (percent of a core), context switches and resident memory of each
node, from /proc. Then a client writes to another queue, led by a node that stays, while one of the
others is killed (kill -9): the time until every partition that it led is led elsewhere, and the
longest time in which the client was not answered or got nothing. Writes idle.json and idle.md.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from querator import Client
from querator.client.channel import Connection
from querator.client.cluster import ClusterPicture
from querator.model.cluster import ClusterStatus
from querator.model.ids import GroupId
from querator.v1 import cluster_service_pb2
from querator.wire import cluster as wire
from scripts.bench.cluster import until_well
from scripts.bench.pulse import pulse
from scripts.bench.report import machine, named, versions
from scripts.bench.servers import Server, Servers

NODES = 3
QUEUE = "idle"
BUSY_QUEUE = "pulse"
GOAL_PERCENT = 3.0
ELECTIONS_SECONDS = 60.0
LOOK_SECONDS = 0.1
PULSE_SECONDS = 3.0
"""How long the client writes before the kill, and after all is led again."""


class Cost(msgspec.Struct, frozen=True):
    """Of one node that has nothing to do."""

    node: str
    leads: int
    cpu_percent: float
    switches_per_second: float
    resident_bytes: int


class Death(msgspec.Struct, frozen=True):
    """Of one node. `pauses_ms`: the longest times that a client of another queue waited for an
    acknowledgement and for a delivery, before the kill and after it.
    """

    node: str
    led: int
    led_again_seconds: float
    produce_ms: float
    delivery_ms: float
    before_produce_ms: float
    before_delivery_ms: float


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    load: tuple[float, float, float]
    """Of the machine at the end, over 1, 5 and 15 minutes."""
    partitions: int
    seconds: float
    costs: list[Cost]
    death: Death | None
    problems: list[str]


async def measure(arguments: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory(prefix="querator-idle-") as name:
        servers = Servers(Path(name), nodes=NODES, memory=False)
        try:
            await servers.start()
            async with Client(servers.address) as client:
                await client.create_queue(BUSY_QUEUE)
                await client.create_queue(QUEUE, partitions=arguments.partitions)
            picture = await until_well(servers.address)
            await asyncio.sleep(arguments.settle)
            print(f"{len(picture.groups)} groups are led where they should be", flush=True)
            if arguments.profile is not None:
                async with asyncio.TaskGroup() as tasks:
                    for server in servers:
                        path = arguments.profile / f"idle-{server.name}.svg"
                        tasks.create_task(server.profiled(arguments.seconds, path))
            costs = await _costs(servers, picture, arguments.seconds)
            death: Death | None = None
            problems: list[str] = []
            if not arguments.no_kill:
                death, problems = await _kill(servers, picture, arguments.rate)
        finally:
            await servers.stop()
    return Results(
        machine=machine(),
        versions=versions(),
        load=os.getloadavg(),
        partitions=arguments.partitions,
        seconds=arguments.seconds,
        costs=costs,
        death=death,
        problems=problems,
    )


async def _costs(servers: Servers, picture: ClusterPicture, seconds: float) -> list[Cost]:
    before = {server.name: server.used() for server in servers}
    began_s = time.monotonic()
    await asyncio.sleep(seconds)
    after = {server.name: server.used() for server in servers}
    passed_s = time.monotonic() - began_s

    def cost(server: Server) -> Cost:
        first, last = before[server.name], after[server.name]
        return Cost(
            node=server.name,
            leads=_led_by(server.name, picture),
            cpu_percent=round(100 * (last.cpu_seconds - first.cpu_seconds) / passed_s, 2),
            switches_per_second=round((last.switches - first.switches) / passed_s, 1),
            resident_bytes=server.resident_bytes(),
        )

    return [cost(server) for server in servers]


def _led_by(node: str, picture: ClusterPicture) -> int:
    return sum(group.leader == node for group in picture.groups)


async def _kill(servers: Servers, picture: ClusterPicture, rate: float) -> tuple[Death, list[str]]:
    """What came of the death of the node that leads most, and what does not balance."""
    busy = next(group.leader for group in picture.groups if group.queue == BUSY_QUEUE)
    others = [server for server in servers if server.name != busy]
    dying = max(others, key=lambda server: _led_by(server.name, picture))
    staying = [server.address for server in servers if server is not dying]
    async with Client(staying) as client:
        async with pulse(",".join(staying), BUSY_QUEUE, partitions=1, rate=rate) as books:
            began_s = time.monotonic()
            await asyncio.sleep(PULSE_SECONDS)
            killed_s = time.monotonic()
            await dying.stop(kill=True)
            print(f"killed {dying.name}", flush=True)
            led_s = await _until_led(staying, {group.group for group in picture.groups})
            await asyncio.sleep(PULSE_SECONDS)
            ended_s = time.monotonic()
        problems = books.problems((await client.stats(BUSY_QUEUE)).total)
    produce_s, delivery_s, _ = books.pauses(killed_s, ended_s)
    before_produce_s, before_delivery_s, _ = books.pauses(began_s + 1, killed_s)
    death = Death(
        node=dying.name,
        led=_led_by(dying.name, picture),
        led_again_seconds=round(led_s - killed_s, 2),
        produce_ms=round(produce_s * 1000, 1),
        delivery_ms=round(delivery_s * 1000, 1),
        before_produce_ms=round(before_produce_s * 1000, 1),
        before_delivery_ms=round(before_delivery_s * 1000, 1),
    )
    return death, problems


async def _until_led(staying: list[str], groups: set[GroupId]) -> float:
    """When it was seen that the nodes at the addresses lead all groups. Raises TimeoutError."""
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(ELECTIONS_SECONDS):
        connections = [Connection(address) for address in staying]
        for connection in connections:
            stack.push_async_callback(connection.close)
        while True:
            statuses = await asyncio.gather(*map(_status, connections))
            led = {group.group for status in statuses for group in status.groups if group.leads}
            if led >= groups:
                return time.monotonic()
            await asyncio.sleep(LOOK_SECONDS)


async def _status(connection: Connection) -> ClusterStatus:
    stub = connection.cluster.GetClusterStatus
    request = cluster_service_pb2.GetClusterStatusRequest()
    return wire.cluster_status(await connection.call(lambda left: stub(request, timeout=left)))


def as_markdown(results: Results) -> str:
    worst = max(cost.cpu_percent for cost in results.costs)
    text = (
        f"{NODES} nodes on {results.machine}; {named()}; {results.partitions} partitions in which "
        f"nothing happens, over {results.seconds:g} s. Load of the machine: {results.load[0]:.1f}."
        "\n\n| node | leads | CPU, % of a core | context switches/s | resident |\n"
        "|---|---|---|---|---|\n"
    )
    for cost in results.costs:
        text += (
            f"| {cost.node} | {cost.leads} | {cost.cpu_percent:.1f} | "
            f"{cost.switches_per_second:,.0f} | {cost.resident_bytes >> 20} MiB |\n"
        )
    met = "met" if worst < GOAL_PERCENT else "**missed**"
    text += f"\nGoal: under {GOAL_PERCENT:g} % of a core per node: {met}.\n"
    if (death := results.death) is not None:
        text += (
            f"\n{death.node} was killed; the {death.led} groups that it led were led by others "
            f"{death.led_again_seconds:.1f} s later. A client of another queue waited at most "
            f"{death.produce_ms:,.0f} ms for an acknowledgement ({death.before_produce_ms:,.0f} "
            f"before the kill) and {death.delivery_ms:,.0f} ms for a delivery "
            f"({death.before_delivery_ms:,.0f}).\n"
        )
    return text + "".join(f"\nWRONG: {problem}.\n" for problem in results.problems)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--partitions", type=int, default=300, help="of the idle queue (300)")
    parser.add_argument("--seconds", type=float, default=30, help="how long is measured (30)")
    parser.add_argument("--settle", type=float, default=10, help="seconds of rest before that (10)")
    parser.add_argument("--rate", type=float, default=200, help="items/s on the other queue (200)")
    parser.add_argument("--no-kill", action="store_true", help="measure idle nodes only")
    parser.add_argument(
        "--profile",
        type=Path,
        help="first draw flame graphs of the idle nodes into this directory",
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = await measure(arguments)
    text = as_markdown(results)
    (arguments.output / "idle.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    (arguments.output / "idle.md").write_text(text)
    print(text)
    if results.problems:
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
