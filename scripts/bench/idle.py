"""`make idle`: the cost of a queue of 1,000 idle partitions on three nodes, and the effect of the
death and return of one of them.

1. The queue is created: how long the call takes, and the time until every partition is led where it
   should be.
2. No client is connected: CPU (percent of a core), context switches and resident memory of each
   node, from /proc.
3. A client writes to another queue, led by a node that stays, while one of the others is killed
   (kill -9): the time until every partition that it led is led elsewhere.
4. The node is started again: the time until the leaderships are even, and are where they should be.

Steps 3 and 4 also show the longest time in which the client was not answered or got nothing. Writes
idle.json and idle.md.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from querator import Client
from querator.client.cluster import ClusterPicture
from querator.client.transport.channel import Connection
from querator.model.cluster import ClusterStatus
from querator.model.ids import GroupId
from querator.v1 import cluster_service_pb2
from querator.wire import cluster as wire
from scripts.bench.cluster import admin_of, until_well
from scripts.bench.pulse import Books, pulse
from scripts.bench.report import machine, named, versions
from scripts.bench.servers import Server, Servers

NODES = 3
QUEUE = "idle"
BUSY_QUEUE = "pulse"
GOAL_CPU_PERCENT = 5.0
GOAL_MADE_SECONDS = 60.0
GOAL_UNEVEN_PERCENT = 10.0
ELECTIONS_SECONDS = 60.0
HOME_SECONDS = 300.0
LOOK_SECONDS = 0.1
PULSE_SECONDS = 3.0
"""How long the client writes before the kill, and after all partitions are led again."""


class Making(msgspec.Struct, frozen=True):
    """Creation of the queue. `led_at_once` counts the partitions that were led where they should be
    when the call was answered; `cpu_seconds` are those of all nodes until all were.
    """

    answered_seconds: float
    led_at_once: int
    home_seconds: float
    cpu_seconds: float


class Cost(msgspec.Struct, frozen=True):
    """Cost of one idle node."""

    node: str
    leads: int
    cpu_percent: float
    switches_per_second: float
    resident_bytes: int


class Pauses(msgspec.Struct, frozen=True):
    """The longest times that a client of another queue waited for an acknowledgement and for a
    delivery.
    """

    produce_ms: float
    delivery_ms: float


class Death(msgspec.Struct, frozen=True):
    """The death of one node."""

    node: str
    led: int
    led_again_seconds: float
    leads: dict[str, int]
    """Leaderships of the remaining nodes, when all partitions were led again."""
    before: Pauses
    pauses: Pauses


class Return(msgspec.Struct, frozen=True):
    """The return of the same node; seconds since its process was started."""

    ready_seconds: float
    even_seconds: float
    home_seconds: float
    leads: dict[str, int]
    pauses: Pauses


class Results(msgspec.Struct, frozen=True):
    machine: str
    versions: dict[str, str]
    load: tuple[float, float, float]
    """Load of the machine at the end, over 1, 5 and 15 minutes."""
    partitions: int
    seconds: float
    making: Making
    costs: list[Cost]
    death: Death | None
    back: Return | None
    problems: list[str]


async def measure(arguments: argparse.Namespace) -> Results:
    death: Death | None = None
    back: Return | None = None
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="querator-idle-") as name:
        servers = Servers(Path(name), nodes=NODES, memory=False)
        try:
            await servers.start()
            making, picture = await _make(servers, arguments.partitions)
            await asyncio.sleep(arguments.settle)
            if arguments.profile is not None:
                async with asyncio.TaskGroup() as tasks:
                    for server in servers:
                        path = arguments.profile / f"idle-{server.name}.svg"
                        tasks.create_task(server.profiled(arguments.seconds, path))
            costs = await _costs(servers, picture, arguments.seconds)
            if not arguments.no_kill:
                death, back, problems = await _kill(servers, picture, arguments.rate)
        finally:
            await servers.stop()
    return Results(
        machine=machine(),
        versions=versions(),
        load=os.getloadavg(),
        partitions=arguments.partitions,
        seconds=arguments.seconds,
        making=making,
        costs=costs,
        death=death,
        back=back,
        problems=problems,
    )


# --- the queue is made -------------------------------------------------------------


async def _make(servers: Servers, partitions: int) -> tuple[Making, ClusterPicture]:
    async with Client(servers.address) as client:
        await client.create_queue(BUSY_QUEUE)
        await until_well(servers.address)
        used_s = servers.cpu_seconds()
        began_s = time.monotonic()
        await client.create_queue(QUEUE, partitions=partitions)
        answered_s = time.monotonic()
    async with admin_of(servers.address) as admin:
        at_once = await admin.picture()
    picture = await until_well(servers.address)
    making = Making(
        answered_seconds=round(answered_s - began_s, 2),
        led_at_once=sum(
            group.queue == QUEUE and group.leader == group.preferred_leader
            for group in at_once.groups
        ),
        home_seconds=round(time.monotonic() - began_s, 2),
        cpu_seconds=round(servers.cpu_seconds() - used_s, 2),
    )
    print(f"{len(picture.groups)} groups are led where they should be: {making}", flush=True)
    return making, picture


# --- nothing happens ---------------------------------------------------------------


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


# --- a node dies, and comes back -----------------------------------------------------


async def _kill(
    servers: Servers, picture: ClusterPicture, rate: float
) -> tuple[Death, Return, list[str]]:
    """Results of the death of the node that leads most, and the counts that do not balance."""
    busy = next(group.leader for group in picture.groups if group.queue == BUSY_QUEUE)
    others = [server for server in servers if server.name != busy]
    dying = max(others, key=lambda server: _led_by(server.name, picture))
    staying = [server.address for server in servers if server is not dying]
    groups = {group.group for group in picture.groups}
    async with Client(staying) as client:
        async with pulse(",".join(staying), BUSY_QUEUE, partitions=1, rate=rate) as books:
            began_s = time.monotonic()
            await asyncio.sleep(PULSE_SECONDS)
            killed_s = time.monotonic()
            await dying.stop(kill=True)
            print(f"killed {dying.name}", flush=True)
            led_s, leads = await _until(
                staying, lambda led: led.total() >= len(groups), ELECTIONS_SECONDS
            )
            await asyncio.sleep(PULSE_SECONDS)
            started_s = time.monotonic()
            death = Death(
                node=dying.name,
                led=_led_by(dying.name, picture),
                led_again_seconds=round(led_s - killed_s, 2),
                leads=leads,
                before=_pauses(books, began_s + 1, killed_s),
                pauses=_pauses(books, killed_s, started_s),
            )
            back = await _return(servers, dying, books, len(groups))
        problems = books.problems((await client.stats(BUSY_QUEUE)).total)
    return death, back, problems


async def _return(servers: Servers, dead: Server, books: Books, groups: int) -> Return:
    began_s = time.monotonic()
    await dead.start()
    ready_s = time.monotonic()
    addresses = [server.address for server in servers]
    even_s, _ = await _until(
        addresses,
        lambda led: led.total() >= groups and uneven_percent(led) <= GOAL_UNEVEN_PERCENT,
        HOME_SECONDS,
    )
    print(f"{dead.name} leads as many as the others again", flush=True)
    picture = await until_well(servers.address)
    home_s = time.monotonic()
    return Return(
        ready_seconds=round(ready_s - began_s, 2),
        even_seconds=round(even_s - began_s, 2),
        home_seconds=round(home_s - began_s, 2),
        leads={server.name: _led_by(server.name, picture) for server in servers},
        pauses=_pauses(books, began_s, home_s),
    )


def _pauses(books: Books, since_s: float, until_s: float) -> Pauses:
    produce_s, delivery_s, _ = books.pauses(since_s, until_s)
    return Pauses(round(produce_s * 1000, 1), round(delivery_s * 1000, 1))


def uneven_percent(leads: Mapping[str, int]) -> float:
    """Largest deviation of a node from an even share of the leaderships, in percent of the
    share.
    """
    even = sum(leads.values()) / len(leads)
    return max(abs(100 * count / even - 100) for count in leads.values()) if even else 0.0


async def _until(
    addresses: list[str], holds: Callable[[Counter[str]], bool], seconds: float
) -> tuple[float, dict[str, int]]:
    """The instant at which `holds` accepted the number of leaderships of each node, and these
    numbers. Raises TimeoutError.
    """
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(seconds):
        connections = [Connection(address) for address in addresses]
        for connection in connections:
            stack.push_async_callback(connection.close)
        while True:
            statuses = await asyncio.gather(*map(_status, connections))
            leaders = _leaders(statuses)
            leads = Counter(leaders.values())
            for status in statuses:
                leads.setdefault(status.node, 0)
            if holds(leads):
                return time.monotonic(), dict(leads)
            await asyncio.sleep(LOOK_SECONDS)


def _leaders(statuses: list[ClusterStatus]) -> dict[GroupId, str]:
    """The leader of each group; if two nodes report to lead it, the one of the higher term."""
    terms: dict[GroupId, int] = {}
    leaders: dict[GroupId, str] = {}
    for status in statuses:
        for group in status.groups:
            if group.leads and group.term > terms.get(group.group, -1):
                terms[group.group] = group.term
                leaders[group.group] = status.node
    return leaders


async def _status(connection: Connection) -> ClusterStatus:
    stub = connection.cluster.GetClusterStatus
    request = cluster_service_pb2.GetClusterStatusRequest()
    return wire.cluster_status(await connection.call(lambda left: stub(request, timeout=left)))


# --- the report --------------------------------------------------------------------


def as_markdown(results: Results) -> str:
    making = results.making
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
    text += "\n| what | goal | measured |\n|---|---|---|\n"
    worst = max(cost.cpu_percent for cost in results.costs)
    uneven = uneven_percent({cost.node: cost.leads for cost in results.costs})
    rows = [
        _row("making the queue: answered after", making.answered_seconds, GOAL_MADE_SECONDS, "s"),
        ("of its partitions led where they should be then", "–", f"{making.led_at_once}"),
        _row("until all are", making.home_seconds, GOAL_MADE_SECONDS, "s"),
        ("CPU of all nodes for it", "–", f"{making.cpu_seconds:.1f} s"),
        _row("CPU of an idle node, the most", worst, GOAL_CPU_PERCENT, "% of a core"),
        _row("leaderships, furthest from even", uneven, GOAL_UNEVEN_PERCENT, "%"),
    ]
    if (death := results.death) is not None:
        rows += [
            (f"kill -9 of {death.node}: {death.led} led again after", "–",
             f"{death.led_again_seconds:.1f} s, by {_counts(death.leads)}"),
            ("client of another queue, before: without an acknowledgement, a delivery", "–",
             _both(death.before)),
            ("the same after the kill", "–", _both(death.pauses)),
        ]  # fmt: skip
    if (back := results.back) is not None:
        after = uneven_percent(back.leads)
        rows += [
            (f"{death.node if death else 'it'} is started again: ready after", "–",
             f"{back.ready_seconds:.1f} s"),
            (f"leaderships within {GOAL_UNEVEN_PERCENT:g} % of even", "–",
             f"after {back.even_seconds:.1f} s"),
            ("all where they should be", "–",
             f"after {back.home_seconds:.1f} s: {_counts(back.leads)}"),
            _row("furthest from even then", after, GOAL_UNEVEN_PERCENT, "%"),
            ("client of another queue meanwhile", "–", _both(back.pauses)),
        ]  # fmt: skip
    text += "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return text + "".join(f"\nWRONG: {problem}.\n" for problem in results.problems)


def _row(what: str, measured: float, goal: float, unit: str) -> tuple[str, str, str]:
    met = "" if measured <= goal else ": **missed**"
    return what, f"{goal:g} {unit}", f"{measured:.1f} {unit}{met}"


def _both(pauses: Pauses) -> str:
    return f"{pauses.produce_ms:,.0f} ms, {pauses.delivery_ms:,.0f} ms"


def _counts(leads: Mapping[str, int]) -> str:
    return ", ".join(f"{node} {count}" for node, count in sorted(leads.items()))


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--partitions", type=int, default=1000, help="of the idle queue (1000)")
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
