"""The driver that is killed: `python -m tests.spark_chaos.driver SETTINGS`, JSON of `Settings`.

Two queries run until standard input ends: LAKE to Parquet, and WELL through a shuffle to COPY. A
query that fails is started again. Then both run to the end of the available items, and the archive,
as Spark reads it, is written to HOME/archived. Events are printed as lines of JSON after `SAYS`.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from querator.spark.pipelines import open_session
from querator.spark.pipelines.session import QUICK_JAVA

LAKE, WELL, COPY = "lake", "well", "copy"
QUERIES = (LAKE, WELL)
SAYS = "driver says "
PAUSE_S = 0.1
WORDS = 4_000


class Settings(msgspec.Struct):
    """`items`: largest size of a micro-batch."""

    home: str
    endpoint: str
    items: int


class Said(msgspec.Struct):
    """`event` is `started`, `failed` (a query, with its error), `drained` (then it ends)."""

    event: str
    query: str = ""
    words: str = ""


def checkpoint(home: Path, query: str) -> Path:
    return home / f"checkpoint-{query}"


def say(event: str, query: str = "", words: str = "") -> None:
    line = msgspec.json.encode(Said(event, query, words[:WORDS])).decode()
    sys.stdout.write(f"{SAYS}{line}\n")
    sys.stdout.flush()


class Queries:
    def __init__(self, spark: Any, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._home = Path(settings.home)
        self._writers: dict[str, Callable[[], Any]] = {LAKE: self._archive, WELL: self._copy}
        self._running: dict[str, Any] = {}

    def _stream(self, queue: str) -> Any:
        settings = self._settings
        return (
            self._spark.readStream.format("querator")
            .options(endpoint=settings.endpoint, queue=queue, readerId=queue)
            .option("maxItemsPerTrigger", settings.items)
            .load()
        )

    def _archive(self) -> Any:
        stream = self._stream(LAKE).select("id", "value")
        return stream.writeStream.format("parquet").option("path", str(self._home / "lake"))

    def _copy(self) -> Any:
        # The shuffle: a repeated task does not have the same rows in the same order.
        stream = self._stream(WELL).select("value").repartition(3)
        options = {"endpoint": self._settings.endpoint, "queue": COPY}
        return stream.writeStream.format("querator").options(**options)

    def start(self, query: str, **trigger: bool) -> Any:
        writer = self._writers[query]()
        writer = writer.option("checkpointLocation", str(checkpoint(self._home, query)))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def tend(self) -> None:
        """Starts queries that do not run."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        for query in self._writers:
            running = self._running.get(query)
            if running is not None and not running.isActive:
                say("failed", query, str(running.exception()))
                del self._running[query]
            if query not in self._running:
                try:
                    self._running[query] = self.start(query)
                except (PySparkException, Py4JJavaError) as error:
                    # Columns are also read in a worker.
                    say("failed", query, str(error))

    def stop(self) -> None:
        for running in self._running.values():
            running.stop()

    def drain(self) -> None:
        """Takes the items that waited when it began, each query in a run that ends by itself."""
        for query in self._writers:
            self.start(query, availableNow=True).awaitTermination()

    def keep_archive(self) -> None:
        import pyarrow as pa

        archive = self._spark.read.parquet(str(self._home / "lake")).select("id", "value")
        table = archive.toArrow()
        with pa.OSFile(str(self._home / "archived"), "wb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)


def until_told(queries: Queries) -> None:
    told = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    queries.tend()
    say("started")
    while not told.wait(PAUSE_S):
        queries.tend()


def main(settings: Settings) -> None:
    spark = open_session(
        # A task is tried four times: its worker may be killed.
        "local[2,4]",
        {
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "ERROR",
        },
        name="querator chaos",
    )
    queries = Queries(spark, settings)
    until_told(queries)
    queries.stop()
    queries.drain()
    queries.keep_archive()
    say("drained")
    spark.stop()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Settings))
