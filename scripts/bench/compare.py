"""Compares two versions of this project, scenario by scenario.

    python -m scripts.bench.compare ../before [--nodes 3] [--runs 7] [--only NAME ...]

`../before` is a checkout of the earlier version in which `make setup` has run. Each run starts new
nodes of one version and uses the clients of the same version. The versions take turns, and the one
that begins changes each time. Shows, for each scenario, the ratio of the medians (this version to
the earlier one) of items per second and of the nodes' CPU for an item. A ratio of rates below 1
means that this version is slower. Then come the medians of p99 and the rates of all runs: those of
the earlier version, and after the semicolon those of this one.
"""

import argparse
import asyncio
import statistics
from pathlib import Path

import msgspec

from scripts.bench.__main__ import run_once
from scripts.bench.report import Measurement
from scripts.bench.scenarios import SCENARIOS, Scenario
from scripts.bench.servers import HERE, Checkout

SECONDS = 4.0
WARMUP_S = 1.5
BACKLOG_MAX = 200_000
"""Of a drain: its rate does not depend on the backlog, and filling it takes longer than the run."""


def shortened(scenario: Scenario) -> Scenario:
    """The same load for a shorter time, because there are many runs."""
    return msgspec.structs.replace(
        scenario,
        seconds=SECONDS,
        warmup_seconds=WARMUP_S,
        backlog_items=min(scenario.backlog_items, BACKLOG_MAX),
    )


async def compare(scenario: Scenario, before: Checkout, *, nodes: int, runs: int) -> str:
    """One row of the table."""
    taken: dict[Checkout, list[Measurement]] = {before: [], HERE: []}
    for run in range(runs):
        for checkout in (before, HERE) if run % 2 == 0 else (HERE, before):
            taken[checkout].append(
                await run_once(scenario, nodes=nodes, memory=False, checkout=checkout)
            )
    return row(scenario.name, taken[before], taken[HERE])


def row(name: str, before: list[Measurement], after: list[Measurement]) -> str:
    rates = [[one.items_per_second for one in runs] for runs in (before, after)]
    costs = [[one.server_us_per_item for one in runs] for runs in (before, after)]
    rate, cost = (statistics.median(new) / statistics.median(old) for old, new in (rates, costs))
    p99 = "; ".join(
        f"{statistics.median(one.p99_ms for one in runs):.1f}" for runs in (before, after)
    )
    by_run = "; ".join(", ".join(f"{one:,.0f}" for one in runs) for runs in rates)
    return f"| {name} | {rate:.2f} | {cost:.2f} | {p99} | {by_run} |"


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="checkout of the earlier version")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--runs", type=int, default=7, help="runs of each version")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of scenarios' names")
    arguments = parser.parse_args()
    directory = arguments.before.resolve()
    before = Checkout(directory, directory / ".venv/bin/python")
    if not before.python.exists():
        parser.error(f"{before.python} does not exist: run `make setup` in {directory}")
    print("| scenario | items/s | CPU per item | p99, ms | items/s by run |")
    print("|---|---|---|---|---|", flush=True)
    for scenario in SCENARIOS:
        if not any(part in scenario.name for part in arguments.only):
            continue
        if scenario.elsewhere and arguments.nodes == 1:
            continue
        line = await compare(
            shortened(scenario), before, nodes=arguments.nodes, runs=arguments.runs
        )
        print(line, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
