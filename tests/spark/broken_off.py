"""A driver of two pipelines that is killed: python -m tests.spark.killed_pipelines HOME ENDPOINT.

`copy` has the items of its second batch staged in the target queue and not committed, and the
second batch of `archive` is planned and not stored, when this process and Java get SIGKILL.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from querator.spark import QueratorDataSource, register
from querator.spark.offsets import BatchPart
from querator.spark.pipelines import (
    ArchiveSettings,
    CopySettings,
    QueuePlace,
    archive,
    copy,
    open_session,
)
from querator.spark.pipelines.session import QUICK_JAVA
from querator.spark.streaming import QueueStreamReader
from querator.spark.writing import StreamWriter

HOME = "QUERATOR_TEST_HOME"
READER = "lake"


def copying(home: Path, endpoint: str) -> CopySettings:
    return CopySettings(
        QueuePlace(endpoint, "from"),
        QueuePlace(endpoint, "to"),
        "copy",
        str(home / "copy"),
        max_items=100,
    )


def archiving(home: Path, endpoint: str) -> ArchiveSettings:
    place = QueuePlace(endpoint, "archived")
    return ArchiveSettings(place, READER, str(home / "lake"), max_items=100)


class StuckReader(QueueStreamReader):
    """The archive's second batch is never read to its end."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, BatchPart)
        if self._options.reader_id == READER and partition.batch_seq == 2:
            home = Path(os.environ[HOME])
            (home / "stuck").touch()
            while True:
                time.sleep(1)
        yield from super().read(partition)


class MortalWriter(StreamWriter):
    """Kills, instead of the commit of the second batch, when the archive is stuck."""

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        home = Path(os.environ[HOME])
        if batchId == 1:
            while not (home / "stuck").exists():
                time.sleep(0.05)
            others = map(int, (home / "pids").read_text().split())
            for pid in (*others, os.getpid()):
                os.kill(pid, signal.SIGKILL)
        super().commit(messages, batchId)


class Mortal(QueratorDataSource):
    """Takes the place of the data source."""

    def streamReader(self, schema: StructType) -> StuckReader:
        reader = super().streamReader(schema)
        assert isinstance(reader, QueueStreamReader)
        return StuckReader(reader._options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MortalWriter:
        return MortalWriter(self._sink_options(schema, overwrite), schema)


def main(home: Path, endpoint: str) -> None:
    os.environ[HOME] = str(home)
    spark = open_session("local[4]", {"spark.driver.extraJavaOptions": QUICK_JAVA})
    register(spark, Mortal)
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    (home / "pids").write_text(f"{java} {os.getpid()}")
    thread = threading.Thread(target=archive, args=(spark, archiving(home, endpoint)))
    thread.start()
    copy(spark, copying(home, endpoint))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
