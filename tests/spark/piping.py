"""A query that kills itself: python -m tests.spark.piping HOME ENDPOINT QUEUE.

Files of HOME/source go to the queue, one in each micro-batch. When the second one is staged, and
not committed, this process, Java and the worker that should commit get SIGKILL.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from querator.spark import QueratorDataSource
from querator.spark.writing import StreamWriter

BATCH = 1


class MortalWriter(StreamWriter):
    """Ends the processes `pids` instead of a commit."""

    pids: Sequence[int] = ()

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        if batchId == BATCH:
            for pid in (*self.pids, os.getpid()):
                os.kill(pid, signal.SIGKILL)
        super().commit(messages, batchId)


class Mortal(QueratorDataSource):
    """Option `pids` is its own."""

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> MortalWriter:
        pids = [int(pid) for pid in self.options.pop("pids").split(",")]
        writer = MortalWriter(self._sink_options(schema, overwrite), schema)
        writer.pids = pids
        return writer


def main(home: Path, endpoint: str, queue: str) -> None:
    spark: Any = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    spark.dataSource.register(Mortal)
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    query = (
        lines.load(str(home / "source"))
        .repartition(2)
        .writeStream.format("mortal")
        .options(endpoint=endpoint, queue=queue, pids=f"{os.getpid()},{java}")
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
