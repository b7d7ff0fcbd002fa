"""Measurements of `make bench-spark`: scans, ingests and archives by Spark, and scans without it.

Each run moves all items once; one that has lost an item fails.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import msgspec

from querator import Client
from querator.client import Item
from querator.client.sync.client import SyncClient
from querator.spark.browsing import BrowseReader, Range
from querator.spark.options import BrowseOptions, browse_options
from querator.spark.rpc import cluster
from querator.v1 import queue_service_pb2
from scripts.bench.processes import Spent, spent

PAYLOAD_BYTES: Final = 1_024
_PARTITIONS: Final = 2
_CHUNK: Final = 10_000
_LOOK_SECONDS: Final = 0.01
_LARGE: Final = {"maxItemsPerTrigger": "150000", "maxBytesPerTrigger": str(1 << 28)}


class Meter:
    """Measures from `begin`, which may be called again, to `end`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._began, self._before = time.perf_counter(), spent()

    def end(self, rows: int) -> "Measured":
        return Measured(rows, time.perf_counter() - self._began, spent().since(self._before))


class Measured(msgspec.Struct, frozen=True):
    rows: int
    seconds: float
    spent: Spent


class Run(msgspec.Struct, frozen=True):
    """`move` gets a queue, and moves all items out of it or into it. Unless it `keeps` them, each
    time needs another queue, which is `filled` or empty.
    """

    name: str
    move: Callable[[str], Measured]
    filled: bool = True
    keeps: bool = False


def runs(session: Any, address: str, items: int) -> list[Run]:
    """`session`: a Spark session with the data source registered."""
    thrown_away = partial(_in_threads, _thrown_away, address, items)
    arrow = partial(_in_threads, _arrow, address, items)
    archive = partial(_archive, session, address, items)
    return [
        Run("Browse, two streams, answers thrown away", thrown_away, keeps=True),
        Run("Browse, two streams, made into Arrow", arrow, keeps=True),
        Run("Spark: Browse to noop", partial(_scan, session, address, items), keeps=True),
        Run("Spark: Browse, counted", partial(_count, session, address, items), keeps=True),
        Run("Spark: ingest", partial(_ingest, session, address, items), filled=False),
        Run("Spark: archive to Parquet", partial(archive, {})),
        Run(f"the same, {int(_LARGE['maxItemsPerTrigger']):,} a batch", partial(archive, _LARGE)),
    ]


async def prepare(address: str, queue: str, items: int) -> None:
    """Makes a queue, and fills it."""
    async with Client(address) as client:
        await client.create_queue(queue, partitions=_PARTITIONS)
        for start in range(0, items, _CHUNK):
            payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(min(_CHUNK, items - start))]
            # A producer that keeps an order would use one partition.
            async with client.producer(queue, ordered=False) as producer:
                await producer.produce_many([Item(payload, kind="bench") for payload in payloads])


def _in_threads(
    read: Callable[[BrowseOptions, Range], int], address: str, items: int, queue: str
) -> Measured:
    meter = Meter()
    options = browse_options({"endpoint": address, "queue": queue})
    ranges = [each for each in BrowseReader(options).partitions() if isinstance(each, Range)]
    with ThreadPoolExecutor(len(ranges)) as pool:
        rows = sum(pool.map(partial(read, options), ranges))
    assert rows == items, f"{rows} rows of {items}"
    return meter.end(rows)


def _thrown_away(options: BrowseOptions, wanted: Range) -> int:
    request = queue_service_pb2.BrowseRequest(
        queue=options.queue,
        partition=wanted.partition,
        from_seq=wanted.from_seq,
        upto_seq=wanted.upto_seq,
    )
    answers = cluster(options.target).browse(request, retry_seconds=options.retry_seconds)
    return sum(answer.message.columns.rows for answer in answers)


def _arrow(options: BrowseOptions, wanted: Range) -> int:
    return sum(batch.num_rows for batch in BrowseReader(options).read(wanted))


def _scan(session: Any, address: str, items: int, queue: str) -> Measured:
    meter = Meter()
    frame = session.read.format("querator").options(endpoint=address, queue=queue).load()
    frame.write.format("noop").mode("overwrite").save()
    return meter.end(items)


def _count(session: Any, address: str, items: int, queue: str) -> Measured:
    """Not in the runs above: what the JVM learns of one use of rows makes it slower at another."""
    meter = Meter()
    frame = session.read.format("querator").options(endpoint=address, queue=queue).load()
    rows: int = frame.count()
    assert rows == items, f"{rows} rows of {items}"
    return meter.end(rows)


def _ingest(session: Any, address: str, items: int, queue: str) -> Measured:
    """Runs until all items can be leased."""
    from pyspark.sql import functions

    payload = functions.lpad(functions.col("id").cast("string"), PAYLOAD_BYTES, "-")
    frame = session.range(items, numPartitions=_PARTITIONS).select(
        payload.alias("value"), functions.lit("bench").alias("kind")
    )
    meter = Meter()
    written = frame.write.format("querator").options(endpoint=address, queue=queue)
    written.mode("append").save()
    with SyncClient(address) as client:
        while (ready := client.stats(queue).total.ready) < items:
            time.sleep(_LOOK_SECONDS)
    assert ready == items
    return meter.end(items)


def _archive(
    session: Any, address: str, items: int, options: Mapping[str, str], queue: str
) -> Measured:
    """Runs until all items are in files, and completed. Measures from the end of the first
    micro-batch on, with which a query starts its processes.
    """
    stream = session.readStream.format("querator").options(
        endpoint=address, queue=queue, readerId="archive", **options
    )
    meter = Meter()
    with tempfile.TemporaryDirectory(prefix="querator-archive-") as home:
        query = (
            stream.load()
            .writeStream.format("parquet")
            .options(path=f"{home}/archive", checkpointLocation=f"{home}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        while query.isActive and not query.recentProgress:
            time.sleep(_LOOK_SECONDS)
        meter.begin()
        query.awaitTermination()
        batches = [progress.numInputRows for progress in query.recentProgress]
        measured = meter.end(sum(batches[1:]))
        assert session.read.parquet(f"{home}/archive").count() == sum(batches) == items
    return measured
