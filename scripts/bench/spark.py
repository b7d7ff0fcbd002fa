"""`make bench-spark`: the rate of items through Spark, and where the time is spent.

One node on disk; node, Spark (local[2]) and its Python workers on one machine. Each run moves ITEMS
items of 1 KiB, after WARMUPS runs that do not count, in which the JVM compiles hot code. The CPU of
nodes, Python and the JVM is read from /proc, per row; the rest of the cores' time is waiting.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

# Before gRPC is loaded: Spark is forked from this process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable

import msgspec

from querator import Client
from scripts.bench.report import machine, named
from scripts.bench.servers import Server, Servers
from scripts.bench.spark_runs import PAYLOAD_BYTES, Measured, Run, prepare, runs

_KEPT: Final = "scanned"
_HEAD: Final = """\
| what | rows/s: median (min - max) | CPU µs per row: node, Python, JVM | cores in use |
|---|---|---|---|"""


def spark_session() -> Any:
    from pyspark.sql import SparkSession

    from querator.spark import register

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(session)
    return session


async def one(
    run: Run, server: Server, queue: str, items: int, thread: ThreadPoolExecutor
) -> Measured:
    if not run.keeps:
        await prepare(server.address, queue, items if run.filled else 0)
    measured = await asyncio.get_running_loop().run_in_executor(thread, run.move, queue)
    if not run.keeps:
        async with Client(server.address) as client:
            await client.delete_queue(queue)
    return measured


def row(name: str, measured: list[Measured]) -> str:
    rates = [each.rows / each.seconds for each in measured]

    def us(of: str) -> str:
        per_row = [getattr(each.spent, of) / each.rows * 1e6 for each in measured]
        return f"{statistics.median(per_row):.1f}"

    cores = [sum(msgspec.structs.astuple(each.spent)) / each.seconds for each in measured]
    return (
        f"| {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f} - {max(rates):,.0f}) "
        f"| {us('node')}, {us('python')}, {us('jvm')} | {statistics.median(cores):.1f} |"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=400_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--warmups", type=int, default=3)
    parser.add_argument("--only", default="", help="runs whose name has this in it")
    arguments = parser.parse_args()
    items = arguments.items
    # Spark finds a data source only if it was registered in the thread that has created the
    # session.
    thread = ThreadPoolExecutor(1)
    # Before the first call by gRPC in this process.
    session = await asyncio.get_running_loop().run_in_executor(thread, spark_session)
    with tempfile.TemporaryDirectory(prefix="querator-spark-") as home:
        servers = Servers(Path(home), nodes=1, memory=False)
        await servers.start()
        try:
            [server] = servers
            await prepare(server.address, _KEPT, items)
            print(f"{machine()}; {named()}, pyspark {version('pyspark')}; ", end="")
            print(f"{items:,} items of {PAYLOAD_BYTES} bytes\n\n{_HEAD}")
            for place, run in enumerate(runs(session, server.address, items)):
                if arguments.only not in run.name:
                    continue
                measured = [
                    await one(
                        run,
                        server,
                        _KEPT if run.keeps else f"run-{place}-{time_}",
                        items,
                        thread,
                    )
                    for time_ in range(arguments.warmups + arguments.times)
                ]
                print(row(run.name, measured[arguments.warmups :]), flush=True)
        finally:
            await servers.stop()
    await asyncio.get_running_loop().run_in_executor(thread, session.stop)


if __name__ == "__main__":
    asyncio.run(main())
