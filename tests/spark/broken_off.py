"""Pipelines whose driver dies at a chosen moment. The content of the disk at that moment is kept,
and put in place when they have ended.

`copy` has the items of its second batch staged in the target queue and not committed, and the
second batch of `archive` is planned and not stored. In tests.spark_chaos a driver is really killed,
at random moments.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from querator.spark import QueratorDataSource, register
from querator.spark.offsets import BatchPart
from querator.spark.options import StreamOptions
from querator.spark.pipelines import (
    ArchiveSettings,
    CopySettings,
    PipelineFailed,
    QueuePlace,
    archive,
    copy,
)
from querator.spark.sink_options import SinkOptions
from querator.spark.streaming import QueueStreamReader
from querator.spark.writing import StreamWriter

ARCHIVE = "lake"
COPY = "copy"
STUCK_S = 100.0


def copying(home: Path, endpoint: str) -> CopySettings:
    return CopySettings(
        QueuePlace(endpoint, "from"),
        QueuePlace(endpoint, "to"),
        COPY,
        str(home / COPY),
        max_items=100,
    )


def archiving(home: Path, endpoint: str) -> ArchiveSettings:
    place = QueuePlace(endpoint, "archived")
    return ArchiveSettings(place, ARCHIVE, str(home / ARCHIVE), max_items=100)


class StuckReader(QueueStreamReader):
    """The archive's second batch is never read to its end."""

    def __init__(self, options: StreamOptions, home: Path) -> None:
        super().__init__(options)
        self._home = home

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, BatchPart)
        if self._options.reader_id == ARCHIVE and partition.batch_seq == 2:
            (self._home / "stuck").touch()
            until(self._home / "dead")
            raise RuntimeError("the driver is dead")
        yield from super().read(partition)


class MortalWriter(StreamWriter):
    """Copies the content of the disk instead of committing the second batch, when the archive is
    stuck; does nothing from then on.
    """

    def __init__(self, options: SinkOptions, schema: StructType, home: Path) -> None:
        super().__init__(options, schema)
        self._home = home

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        if batchId == 1:
            until(self._home / "stuck")
            for name in (ARCHIVE, COPY):
                shutil.copytree(self._home / name, self._home / "then" / name)
            (self._home / "dead").touch()
            raise RuntimeError("the driver is dead")
        super().commit(messages, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None: ...


def until(path: Path) -> None:
    end_s = time.monotonic() + STUCK_S
    while not path.exists():
        assert time.monotonic() < end_s, path
        time.sleep(0.05)


def mortal(home: Path) -> type[QueratorDataSource]:
    """A replacement of the data source."""

    class Mortal(QueratorDataSource):
        def streamReader(self, schema: StructType) -> StuckReader:
            reader = super().streamReader(schema)
            assert isinstance(reader, QueueStreamReader)
            return StuckReader(reader._options, home)

        def streamWriter(self, schema: StructType, overwrite: bool) -> MortalWriter:
            return MortalWriter(self._sink_options(schema, overwrite), schema, home)

    return Mortal


def break_off(spark: Any, home: Path, endpoint: str) -> None:
    """Runs both pipelines until the driver is dead."""
    session = spark.newSession()
    register(session, mortal(home))
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(archive, session, archiving(home, endpoint)),
            pool.submit(copy, session, copying(home, endpoint)),
        ]
        for run in runs:
            with pytest.raises(PipelineFailed, match="the driver is dead"):
                run.result()
    for name in (ARCHIVE, COPY):
        shutil.rmtree(home / name)
        (home / "then" / name).rename(home / name)
