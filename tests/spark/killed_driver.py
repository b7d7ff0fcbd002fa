"""A driver that kills itself: `python -m tests.spark.killed_driver SETTINGS`, JSON of `Settings`.

The sink stores a batch in a directory of its own, by its number, so that a batch which comes again
takes the place of what was stored of it.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java's quickest start: a test ends before better code would pay."""


class Settings(msgspec.Struct):
    """`killed_at`: number of the batch behind whose storing it dies; -1: none."""

    home: str
    options: dict[str, str]
    killed_at: int = -1


def drain(spark: Any, settings: Settings) -> None:
    """To the end of what there is, or to the end of this process and of Java's."""
    from querator.spark import QueratorDataSource

    spark.dataSource.register(QueratorDataSource)
    home = Path(settings.home)

    def store(batch: Any, number: int) -> None:
        batch.select("value").write.mode("overwrite").parquet(str(home / "out" / f"batch={number}"))
        if number == settings.killed_at:
            os.killpg(0, signal.SIGKILL)

    query = (
        spark.readStream.format("querator")
        .options(**settings.options)
        .load()
        .writeStream.foreachBatch(store)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    drain(session, msgspec.json.decode(sys.argv[1], type=Settings))
