"""Queue → Parquet, each item exactly once.

Spark's file sink logs which files belong to the archive, by batch (`_spark_metadata`). Files that a
killed batch has left behind are not read, and a repeated batch is skipped. The result of a run is
therefore counted in the footers of the files that this log names.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from pyspark.sql import functions as F

from querator.spark.pipelines import books
from querator.spark.pipelines.checkpoints import check_reader
from querator.spark.pipelines.failures import checked, explained
from querator.spark.pipelines.files import Files
from querator.spark.pipelines.following import MicroBatch, Tally, follow, trigger
from querator.spark.pipelines.settings import (
    ArchiveSettings,
    SettingsError,
    partition_column,
)
from querator.spark.pipelines.summary import BatchProgress, Control, Count, Stopwatch, Summary

_TAKEN: Final = "items taken, by the queue"
_MADE: Final = "rows in the archive, by the footers of its files"
_TIMESTAMP_TYPE: Final = "spark.sql.parquet.outputTimestampType"
_STARTS: Final = threading.Lock()
_LOG: Final = "_spark_metadata"
_COMPACT: Final = ".compact"


def archive(spark: Any, settings: ArchiveSettings, control: Control | None = None) -> Summary:
    """Takes items out of a queue into a directory of Parquet files, each exactly once: the items
    that are there when it begins, or with `continuous` all later ones as well. The files have all
    columns of reads except `state`.

    Raises as `ingest`.
    """
    control = control or Control()
    clock = Stopwatch()
    source, stream = settings.source, settings.stream
    files = Files(spark)
    files.check_reach(path=settings.path, checkpoint=settings.checkpoint)
    books.settings_of(source)
    with explained():
        frame = spark.readStream.format("querator").options(**stream.options(source)).load()
    frame, names = _partitioned(frame.drop("state"), settings)
    log = SinkLog(spark, settings.path)
    before = log.newest()
    check_reader(stream, source, *files.offsets(stream.checkpoint))
    _check_checkpoint(files, stream.checkpoint, settings.path, before)
    done = log.files(before)
    tally = Tally()
    repeated = 0

    def each(batch: MicroBatch) -> None:
        nonlocal repeated
        count = books.batch_items(batch.start, batch.end)
        released = count - batch.rows if stream.skip_released else 0
        if batch.number <= before:
            # The sink has the batch already, and reads nothing.
            repeated, released = count, 0
        tally.add(batch, taken=count, left_out=released)
        control.report(BatchProgress(batch.number, count, batch.seconds, books.waiting(source)))

    writer = frame.writeStream.format("parquet").option("path", settings.path)
    # Payloads hardly repeat: a dictionary would cost more than it saves.
    writer = writer.option("parquet.enable.dictionary#value", "false")
    if names:
        writer = writer.partitionBy(*names)
    writer = writer.option("checkpointLocation", stream.checkpoint)
    triggered = writer.trigger(**trigger(stream.continuous, stream.every_seconds))
    follow(triggered, control, each, start=_plain_timestamps(spark))
    made = 0
    if tally.batches:
        # The files of a repeated batch were written by an earlier run, after its sink's log entry
        # and before its commit. Spark may have removed the log entries that tell these files from
        # others.
        whole = log.whole(tally.first - 1)
        if repeated and whole:
            done = log.files(tally.first - 1)
        made = log.rows(log.files(tally.last) - done) + (0 if whole else repeated)
    return tally.summary("archive", _TAKEN, Count(made, _MADE), clock)


@contextmanager
def _plain_timestamps(spark: Any) -> Iterator[None]:
    """A query that starts in the block writes timestamps as microseconds in UTC, unless the session
    has a setting of its own. Spark's default, INT96, is deprecated in Parquet, and other programs
    read it without a time zone. A query keeps a copy of the settings at its start.
    """
    # Other archives of the session may start at the same moment, on other threads.
    with _STARTS:
        if spark.conf.get(_TIMESTAMP_TYPE, None) is not None:
            yield
            return
        spark.conf.set(_TIMESTAMP_TYPE, "TIMESTAMP_MICROS")
        try:
            yield
        finally:
            spark.conf.unset(_TIMESTAMP_TYPE)


def _partitioned(frame: Any, settings: ArchiveSettings) -> tuple[Any, list[str]]:
    """The frame with the columns that name directories, and their names. Raises SettingsError."""
    names = []
    for each in settings.partition_by:
        name, expression = partition_column(each)
        with checked(f"partition_by {each}"):
            if expression != f"`{name}`":
                if name in frame.columns:
                    raise SettingsError(
                        f"partition_by has {each!r}: items have a column {name}; give another name"
                    )
                frame = frame.withColumn(name, F.expr(expression))
            frame.select(name)
        names.append(name)
    return frame, names


def _check_checkpoint(files: Files, checkpoint: str, path: str, stored: int) -> None:
    """Checks that the archive has no batches of another checkpoint. The sink skips batches whose
    number it has, so items would be taken and not stored. Raises SettingsError.
    """
    names = files.names(f"{checkpoint.rstrip('/')}/offsets")
    planned = max((int(name) for name in names if name.isdecimal()), default=-1)
    if stored > planned:
        raise SettingsError(
            f"path {path} has {stored + 1} batches, and checkpoint {checkpoint} has "
            f"{planned + 1}: the checkpoint is of another archive, or was deleted. Put it back, "
            "or give a new path with the new checkpoint"
        )


class _Entry(msgspec.Struct):
    """A line of the log."""

    path: str
    action: str = "add"


class SinkLog:
    """The log of Spark's file sink for a directory: files by batch."""

    def __init__(self, spark: Any, path: str) -> None:
        self._spark = spark
        self._files = Files(spark)
        self._home = f"{path.rstrip('/')}/{_LOG}"

    def newest(self) -> int:
        """The number of the last batch; -1 if there is none."""
        return max(self._parts(), default=-1)

    def whole(self, upto: int) -> bool:
        """Whether the log still names the files that were there after this batch."""
        numbers = {number for number in self._parts() if number <= upto}
        begin = max((each for each in numbers if self._parts()[each].endswith(_COMPACT)), default=0)
        return numbers >= set(range(begin, upto + 1))

    def files(self, upto: int) -> frozenset[str]:
        """The files of all batches up to this one."""
        parts = {number: name for number, name in self._parts().items() if number <= upto}
        compact = [number for number, name in parts.items() if name.endswith(_COMPACT)]
        begin = max(compact, default=0)
        found: set[str] = set()
        for number, name in parts.items():
            if number >= begin:
                found.update(self._read(name))
        return frozenset(found)

    def rows(self, files: frozenset[str]) -> int:
        """The number of rows, from the footers alone: no column is read."""
        if not files:
            return 0
        with explained():
            frame = self._spark.read.schema("value binary").parquet(*sorted(files))
            return int(frame.count())

    def _parts(self) -> dict[int, str]:
        found = {}
        for name in self._files.names(self._home):
            number = name.removesuffix(_COMPACT)
            # A batch may have both files; the compact one is complete.
            if number.isdecimal() and (int(number) not in found or name.endswith(_COMPACT)):
                found[int(number)] = name
        return found

    def _read(self, name: str) -> list[str]:
        """The paths in a log file. Its first line is a version."""
        lines = self._files.read(f"{self._home}/{name}").splitlines()[1:]
        entries = [msgspec.json.decode(line, type=_Entry) for line in lines if line]
        # The log has URLs, and Spark takes paths.
        return [unquote(entry.path) for entry in entries if entry.action == "add"]
