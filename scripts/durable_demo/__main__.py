"""`make durable-demo`: flights of 2013 as executions, and the proof that nothing was lost.

A cluster of three nodes, and three worker processes. Each flight is an execution: its seat is
booked, its fare is charged, and a durable timer waits for its departure. A flight that departed
lands; one that the data call cancelled is compensated by a saga. A day lasts 100 ms, so the timers
take 0.1 to 6 seconds. Meanwhile each worker is killed (kill -9), and so is a node that leads.

The last line is a JSON object; the exit code is 1 if something does not balance.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from querator import Client
from querator.cli.demo.flights import find_flights
from querator.cli.demo.local_nodes import LocalNodes, local_nodes
from querator.cli.demo.measure import Bars
from querator.cli.shared.output import note
from querator.durable import Executions
from scripts.durable_demo.balance import Balance, balance, read_ledger
from scripts.durable_demo.flights import DAY_MS, Flight, choose_flights
from scripts.durable_demo.shop import Journey, journey

QUEUE: Final = "journeys"
PARTITIONS: Final = 4
NODES: Final = 3
WORKERS: Final = 3
OPEN_MOST: Final = 1_000
"""Executions that are open at a time."""
FLIGHTS: Final = 20_000
LEASE_TIMEOUT: Final = timedelta(seconds=3)
REQUEST_TIMEOUT: Final = timedelta(seconds=60)
WAIT: Final = timedelta(minutes=10)
DOWN_SECONDS: Final = 1.0
UNDOING: Final = ("refund", "release")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of output."""

    flights: int
    balance: Balance
    killed_workers: int
    killed_node: str
    seconds: float
    executions_per_second: float


class Workers:
    """Processes of `scripts.durable_demo.shop`."""

    def __init__(self, address: str, ledger: Path) -> None:
        self._command = ("-m", "scripts.durable_demo.shop", address, QUEUE, str(ledger))
        self._log = ledger.with_name("workers.log")
        self._processes: list[asyncio.subprocess.Process] = []
        self.killed = 0

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._processes.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, *self._command, stderr=log, start_new_session=True
                )
            )

    async def kill(self) -> None:
        """Kills the oldest one. Raises RuntimeError if it has ended by itself."""
        process = self._processes.pop(0)
        if process.returncode is not None:
            log = self._log.read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"a worker ended with exit code {process.returncode}: {log}")
        process.kill()
        await process.wait()
        self.killed += 1

    async def end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def working(address: str, ledger: Path) -> AsyncIterator[Workers]:
    workers = Workers(address, ledger)
    try:
        for _ in range(WORKERS):
            await workers.start()
        yield workers
    finally:
        await workers.end()


class Run:
    """All flights, each from its start to its result."""

    def __init__(self, shop: Executions, flights: list[Flight], day_ms: int) -> None:
        self._shop = shop
        self._flights = flights
        self._day_ms = day_ms
        self._progress = asyncio.Event()
        self.results: dict[int, Journey] = {}
        self.undone: dict[int, list[str]] = {}

    @property
    def count(self) -> int:
        return len(self.results)

    async def run(self) -> None:
        source = iter(self._flights)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(OPEN_MOST):
                tasks.create_task(self._live(source))

    async def _live(self, source: Iterator[Flight]) -> None:
        """One flight after the other."""
        for flight in source:
            handle = await self._shop.start(journey, flight, self._day_ms, id=flight.id)
            result = await handle.result(timeout=WAIT)
            if result.outcome == "cancelled":
                self.undone[flight.row] = [
                    msgspec.json.decode(entry.payload, type=str)
                    async for entry in handle.journal()
                    if entry.kind == "STEP_DONE" and entry.name in UNDOING
                ]
            self.results[flight.row] = result
            self._progress.set()

    async def until(self, share: float) -> None:
        """Returns when this share of the flights has a result."""
        while self.count < share * len(self._flights):
            self._progress.clear()
            await self._progress.wait()


async def kill_all_in_turn(run: Run, workers: Workers, nodes: LocalNodes) -> str:
    """Kills each worker and a node, at equal shares of the run. Returns the name of the node."""
    kills = WORKERS + 1
    for number in range(WORKERS):
        await run.until((number + 1) / (kills + 1))
        note(f"kill -9 of worker {number + 1}, after {run.count:,} flights.")
        await workers.kill()
        await workers.start()
    await run.until(kills / (kills + 1))
    name = await nodes.leader(QUEUE, 0)
    note(f"kill -9 of {name}, which leads partition 0, after {run.count:,} flights.")
    await nodes[name].kill()
    await asyncio.sleep(DOWN_SECONDS)
    await nodes.restart(name)
    return name


async def run_demo(flights: list[Flight], directory: Path, day_ms: int) -> Line:
    ledger = directory / "ledger"
    ledger.touch()
    async with (
        local_nodes(directory, NODES) as nodes,
        Client(nodes.address, client_id="shop", request_timeout=REQUEST_TIMEOUT) as client,
    ):
        await client.create_queue(
            QUEUE, kind="executions", partitions=PARTITIONS, lease_timeout=LEASE_TIMEOUT
        )
        run = Run(Executions(client, QUEUE), flights, day_ms)
        async with working(nodes.address, ledger) as workers:
            began = time.monotonic()
            counters = {"finished": lambda: run.count}
            async with Bars(len(flights), counters), asyncio.TaskGroup() as tasks:
                killing = tasks.create_task(kill_all_in_turn(run, workers, nodes))
                await run.run()
                seconds = time.monotonic() - began
    found = balance(flights, run.results, run.undone, read_ledger(ledger), day_ms=day_ms)
    return Line(
        flights=len(flights),
        balance=found,
        killed_workers=workers.killed,
        killed_node=killing.result(),
        seconds=round(seconds, 1),
        executions_per_second=round(len(flights) / seconds, 1),
    )


def summary(line: Line) -> str:
    found = line.balance
    return (
        f"flights      {line.flights:,}, each an execution\n"
        f"landed       {found.landed:,}, and {found.diverted:,} were diverted\n"
        f"cancelled    {found.cancelled:,}, of which {found.compensated:,} are compensated\n"
        f"money        {found.charged_cents / 100:,.2f} charged, "
        f"{found.refunded_cents / 100:,.2f} paid back\n"
        f"killed       {line.killed_workers} workers and {line.killed_node}\n"
        f"steps        {found.steps:,}; {found.repeated:,} ran once more, because a kill came "
        f"before their record; {found.run_again} behind it\n"
        f"time         {line.seconds:,.1f} s: {line.executions_per_second:,.0f} per second"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts.durable_demo", description=__doc__)
    parser.add_argument(
        "--flights", type=int, metavar="N",
        help=f"so many flights, spread evenly (default: {FLIGHTS:,} of the year, all of a month)",
    )  # fmt: skip
    parser.add_argument(
        "--month", type=int, choices=range(1, 13), metavar="N", help="flights of one month"
    )
    parser.add_argument(
        "--day-ms", type=int, default=DAY_MS, metavar="MS",
        help=f"how long a day lasts (default: {DAY_MS})",
    )  # fmt: skip
    options = parser.parse_args()
    if not 1 <= options.day_ms <= 86_400_000:
        parser.error(f"--day-ms is {options.day_ms}; it must be from 1 to 86400000")
    count = options.flights
    if count is None and options.month is None:
        count = FLIGHTS
    try:
        flights = choose_flights(find_flights(), month=options.month, count=count)
    except ValueError as error:
        parser.error(f"--{error}")
    note(f"Starting a cluster of {NODES} nodes; then {len(flights):,} flights are executions.")
    with tempfile.TemporaryDirectory(prefix="querator-durable-demo-") as directory:
        line = asyncio.run(run_demo(flights, Path(directory), options.day_ms))
    print(summary(line))
    problems = line.balance.problems()
    for problem in problems:
        note(f"WRONG: {problem}.")
    print(msgspec.json.encode(line).decode())
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
