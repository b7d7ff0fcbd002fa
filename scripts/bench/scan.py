"""`make bench-spark`: how fast a queue is scanned, and where the time goes.

One node on disk, one queue of two partitions, ITEMS items of 1 KiB. It is read by Browse in two
threads that throw the answers away, then as Arrow, then by Spark (local[2], sink noop), each
several times. CPU is that of the node, of this process, and of Spark with its workers, per row.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

# Before gRPC is loaded: Spark is forked from this process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable

from querator import Client
from querator.client import Item
from querator.spark.browsing import BrowseReader, Range
from querator.spark.options import BrowseOptions, browse_options
from querator.spark.rpc import cluster
from querator.v1 import queue_service_pb2
from scripts.bench.report import machine, named
from scripts.bench.servers import CLOCK_TICKS, Server, Servers

QUEUE: Final = "scan"
PAYLOAD_BYTES: Final = 1_024
CHUNK: Final = 10_000


async def fill(address: str, items: int) -> None:
    payload = os.urandom(PAYLOAD_BYTES)
    async with Client(address) as client:
        await client.create_queue(QUEUE, partitions=2)
        # One that keeps an order would use one partition.
        for start in range(0, items, CHUNK):
            count = min(CHUNK, items - start)
            async with client.producer(QUEUE, ordered=False) as producer:
                await producer.produce_many([Item(payload, kind="bench")] * count)


def scan(options: BrowseOptions, wanted: Range) -> int:
    request = queue_service_pb2.BrowseRequest(
        queue=QUEUE,
        partition=wanted.partition,
        from_seq=wanted.from_seq,
        upto_seq=wanted.upto_seq,
    )
    answers = cluster(options.target).browse(request, retry_seconds=options.retry_seconds)
    return sum(answer.message.columns.rows for answer in answers)


def arrow(options: BrowseOptions, wanted: Range) -> int:
    return sum(batch.num_rows for batch in BrowseReader(options).read(wanted))


def in_threads(options: BrowseOptions, read: Callable[[BrowseOptions, Range], int]) -> int:
    ranges = [each for each in BrowseReader(options).partitions() if isinstance(each, Range)]
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(lambda wanted: read(options, wanted), ranges))


def spark_session() -> Any:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def spark_scan(session: Any, items: int, address: str) -> int:
    reader = session.read.format("querator").options(endpoint=address, queue=QUEUE)
    reader.load().write.format("noop").mode("overwrite").save()
    return items


def descendants_cpu_seconds() -> float:
    """Of all processes below this one, the nodes not."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text().rpartition(")")
        except OSError:
            continue
        fields = tail.split()
        pid = int(head.split()[0])
        parents.setdefault(int(fields[1]), []).append(pid)
        # With those of its children that have ended: Spark's workers come and go.
        spent[pid] = sum(map(int, fields[11:15])) / CLOCK_TICKS
    found, total = [os.getpid()], 0.0
    while found:
        for child in parents.get(found.pop(), ()):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"serve" not in command:
                total += spent.get(child, 0.0)
                found.append(child)
    return total


def measured(name: str, items: int, server: Server, run: Callable[[], int], times: int) -> str:
    rates, costs = [], []
    for _ in range(times):
        began, cpu = time.perf_counter(), server.cpu_seconds()
        own, below = time.process_time(), descendants_cpu_seconds()
        rows = run()
        assert rows == items, f"{rows} rows of {items}"
        rates.append(items / (time.perf_counter() - began))
        spent = (
            server.cpu_seconds() - cpu,
            time.process_time() - own,
            descendants_cpu_seconds() - below,
        )
        costs.append([seconds / items * 1e6 for seconds in spent])
    node, here, spark = (statistics.median(each) for each in zip(*costs, strict=True))
    return (
        f"{name}: {statistics.median(rates):,.0f} rows/s ({min(rates):,.0f} - {max(rates):,.0f}); "
        f"CPU µs/row {node:.2f} node, {here:.2f} here, {spark:.2f} Spark"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=400_000)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    items, times = arguments.items, arguments.times
    # Before the first call by gRPC in this process.
    session = await asyncio.to_thread(spark_session)
    from querator.spark import QueratorDataSource

    session.dataSource.register(QueratorDataSource)
    with tempfile.TemporaryDirectory(prefix="querator-scan-") as home:
        servers = Servers(Path(home), nodes=1, memory=False)
        await servers.start()
        try:
            [server] = servers
            await fill(server.address, items)
            options = browse_options({"endpoint": server.address, "queue": QUEUE})
            print(f"{machine()}; {named()}; {items:,} items of {PAYLOAD_BYTES} bytes")
            readings: dict[str, Callable[[], int]] = {
                "Browse": partial(in_threads, options, scan),
                "Browse to Arrow": partial(in_threads, options, arrow),
                "Spark, noop": partial(spark_scan, session, items, server.address),
            }
            for name, run in readings.items():
                # The first one warms up.
                await asyncio.to_thread(run)
                print(await asyncio.to_thread(measured, name, items, server, run, times))
        finally:
            await servers.stop()
    session.stop()


if __name__ == "__main__":
    asyncio.run(main())
