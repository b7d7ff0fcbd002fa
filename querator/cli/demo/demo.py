"""`querator demo`: real data through real nodes, one of which is killed, and the proof that nothing
was lost.
"""

import asyncio
import csv
import io
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec

from querator.cli.demo import flights
from querator.cli.demo.demo_run import (
    ATTEMPTS_MAX,
    BATCH_ITEMS,
    DEAD_QUEUE,
    PARTITIONS,
    QUEUE,
    FlightCounts,
    Run,
)
from querator.cli.demo.flights import FlightsMissing, find_flights, read_flights
from querator.cli.demo.local_nodes import LocalNodes, local_nodes
from querator.cli.demo.measure import Bars, latency
from querator.cli.shared.connection import run_to_end
from querator.cli.shared.failures import ExitCode, Failure, explained
from querator.cli.shared.output import note, write_details, write_json
from querator.cli.shared.parameters import WholeNumber
from querator.client import Client
from querator.client.values import PartitionStats
from querator.extras import require

DOWN_SECONDS = 1.0
"""How long the killed node stays down."""


class DemoView(msgspec.Struct, frozen=True):
    """The last line of output."""

    produced: int
    completed: int
    retried: int
    lapsed: int
    dead: int
    lost: int
    duplicated: int
    seconds: float
    items_per_second: float
    killed: str
    longest_pause_ms: float


@click.command()
@click.option(
    "--nodes",
    type=click.Choice(["1", "3"]),
    default="3",
    show_default=True,
    help="A cluster in which one node is killed, or a single node.",
)
@click.option(
    "--rows",
    type=WholeNumber(1, flights.ROWS),
    default=flights.ROWS,
    show_default=True,
    metavar="N",
    help="Number of flights.",
)
def demo(rows: int, nodes: str) -> None:
    """Push the 336,776 flights that left New York in 2013 through three nodes of your own.

    The nodes run on a temporary directory and free ports, durably as always; the directory is
    deleted at the end. Each flight is produced, leased and completed. One in a hundred is retried,
    and one consumer dies while it holds leases. In the middle of the run a node that leads is
    killed (kill -9) and returns later.

    At the end the counts must balance: every flight was completed exactly once. The last line is a
    JSON object; the exit code is 1 if there is a problem.
    """
    require("server", "querator demo")
    try:
        path = find_flights()
    except FlightsMissing as error:
        raise Failure(str(error)) from error
    count = int(nodes)
    started = "a node" if count == 1 else f"a cluster of {count} nodes"
    note(f"Starting {started}; then {rows:,} flights go through it.")
    with tempfile.TemporaryDirectory(prefix="querator-demo-") as directory, explained():
        books, total, seconds, killed = run_to_end(_run(Path(directory), path, rows, count))
    view = DemoView(
        produced=books.acknowledged,
        completed=books.completed.count,
        retried=total.retried,
        lapsed=total.lapsed,
        dead=total.dead,
        lost=books.completed.missing(rows),
        duplicated=books.completed.repeated,
        seconds=round(seconds, 2),
        items_per_second=round(rows / seconds, 1),
        killed=killed,
        longest_pause_ms=round(books.longest_pause * 1000, 1),
    )
    _write_summary(books, view, path)
    problems = find_problems(books, total)
    for problem in problems:
        note(f"WRONG: {problem}")
    write_json(view)
    if problems:
        raise click.exceptions.Exit(ExitCode.WRONG)


async def _run(
    directory: Path, path: Path, rows: int, count: int
) -> tuple[FlightCounts, PartitionStats, float, str]:
    """Returns the counts, the nodes' own counts at the end, the duration, and the killed node."""
    books = FlightCounts(rows)
    async with (
        local_nodes(directory, count) as nodes,
        Client(nodes.address, client_id="demo") as client,
        Client(nodes.address, client_id="demo-dying") as dying,
    ):
        await client.create_queue(DEAD_QUEUE)
        await client.create_queue(
            QUEUE, partitions=PARTITIONS, max_attempts=ATTEMPTS_MAX, dead_queue=DEAD_QUEUE
        )
        counters = {
            "produced": lambda: books.acknowledged,
            "completed": lambda: books.completed.count,
        }
        began = time.monotonic()
        async with Bars(rows, counters), asyncio.TaskGroup() as tasks:
            killing = tasks.create_task(_kill_a_leader(nodes, books)) if count > 1 else None
            await Run(client, dying, books).run(read_flights(path, rows))
            seconds = time.monotonic() - began
        killed = "" if killing is None else killing.result()
        return books, (await client.stats(QUEUE)).total, seconds, killed


async def _kill_a_leader(nodes: LocalNodes, books: FlightCounts) -> str:
    """Kills the node that leads the first partition, and starts it again. Returns its name."""
    await books.a_third.wait()
    name = await nodes.leader(QUEUE, 0)
    note(f"kill -9 {name}, which leads partition 0, after {books.acknowledged:,} flights.")
    await nodes[name].kill()
    await asyncio.sleep(DOWN_SECONDS)
    await nodes.restart(name)
    note(f"{name} is back, and catches up.")
    return name


def find_problems(books: FlightCounts, total: PartitionStats) -> list[str]:
    """One sentence for each imbalance; empty if all counts balance."""
    rows, completed = books.rows, books.completed
    checks = (
        (books.acknowledged == rows, f"{books.acknowledged} of {rows} flights were acknowledged"),
        (completed.missing(rows) == 0, f"{completed.missing(rows)} flights were lost"),
        (completed.repeated == 0, f"{completed.repeated} flights were completed twice"),
        (
            completed.digest == books.sent.digest,
            f"the digest of the completed items is {completed.digest}, that of the produced "
            f"items {books.sent.digest}",
        ),
        (total.produced == rows, f"the server counts {total.produced} items produced, not {rows}"),
        (total.completed == rows, f"the server counts {total.completed} completed, not {rows}"),
        (
            total.ready == total.leased == total.scheduled == total.moving == 0,
            f"items are left in the queue: {total.ready} ready, {total.leased} leased, "
            f"{total.scheduled} scheduled, {total.moving} moving",
        ),
        (total.dead == 0, f"{total.dead} items died"),
        (
            total.lapsed >= books.lapsing,
            f"{books.lapsing} leases were left alone, but only {total.lapsed} lapsed",
        ),
        (
            total.retried == len(books.retried),
            f"{len(books.retried)} flights were retried, but the server counts {total.retried}",
        ),
    )
    return [sentence for holds, sentence in checks if not holds]


def _write_summary(books: FlightCounts, view: DemoView, path: Path) -> None:
    acks = latency(books.ack_seconds)
    slowest = books.slowest()
    write_details(
        (
            ("flights", f"{view.completed:,} produced, leased and completed, each durably"),
            ("time", f"{view.seconds:.1f} s: {view.items_per_second:,.0f} per second"),
            (
                "produce",
                f"p50 {acks.p50_ms:.1f} ms, p99 {acks.p99_ms:.1f} ms to acknowledge {BATCH_ITEMS}",
            ),
            (
                "killed",
                f"{view.killed or 'no node'}; the longest time without an acknowledgement was "
                f"{view.longest_pause_ms:,.0f} ms",
            ),
            ("retried", f"{view.retried:,}, one in a hundred"),
            (
                "lapsed",
                f"{view.lapsed:,}, held by a consumer that died"
                + (", or on their way through the node that was killed" if view.killed else ""),
            ),
            (
                "slowest carrier",
                "not known"
                if slowest is None
                else f"{_carrier_name(path, slowest[0])}, {slowest[1]:.1f} minutes late on average",
            ),
            ("digest in", books.sent.digest),
            ("digest out", books.completed.digest),
        )
    )
    querator = Path(sys.executable).with_name("querator")
    shown = querator.relative_to(Path.cwd()) if querator.is_relative_to(Path.cwd()) else querator
    click.echo(
        "\nTo continue with your own node, run the second and third command in another terminal:\n"
    )
    click.echo(f"  {shown} serve --data-dir ./data --new")
    click.echo(f"  {shown} queue create mail && {shown} produce mail hello world")
    click.echo(f"  {shown} consume mail --exec 'cat; echo' --limit 2\n")


def _carrier_name(flights_path: Path, code: str) -> str:
    """`F9 (Frontier Airlines Inc.)`, from the list in the directory of the flights."""
    with (flights_path.parent / "airlines.csv").open(encoding="utf-8", newline="") as file:
        names = dict(csv.reader(io.StringIO(file.read())))
    return f"{code} ({names[code]})" if code in names else code
