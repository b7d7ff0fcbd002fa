"""Archive → queue: a range of time, at a rate.

A stream of files with a checkpoint fixes the files of a batch, the same after every crash. A batch
is cut into chunks by a hash of the items' ids. Each chunk is a transaction with its own number, so
committed chunks are skipped when the batch is repeated.
"""

from datetime import datetime
from typing import Any, Final

import msgspec
import uuid_utils
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from querator.spark.pipelines import books, mapping
from querator.spark.pipelines.copying import AS_THEY_ARE
from querator.spark.pipelines.failures import PipelineFailed, checked, explained
from querator.spark.pipelines.files import ANY_AGE, Files
from querator.spark.pipelines.following import follow
from querator.spark.pipelines.pace import ItemPace
from querator.spark.pipelines.settings import ReplaySettings, SettingsError
from querator.spark.pipelines.summary import BatchProgress, Control, Count, Stopwatch, Summary
from querator.spark.schema import SPARK_SCHEMA

CHUNK_SECONDS: Final = 2.0
"""With a rate: the duration for which one chunk, which becomes visible at once, lasts."""
CHUNK_ITEMS_MAX: Final = 100_000
BATCH_BYTES: Final = 256 * 1024 * 1024
PACED_BATCH_BYTES: Final = 32 * 1024 * 1024
_CHUNKS_MAX: Final = 1_000_000_000
"""Transaction numbers of a batch: batch N begins at N times this number."""
_NEEDED: Final = ("value", "timestamp", "id")
_TAKEN: Final = "rows of the range, read by Spark"
_MADE: Final = "items committed, by the queue"


class _Plan(msgspec.Struct, frozen=True):
    """What a checkpoint belongs to. `chunk_items` 0: a batch is one chunk."""

    endpoint: str
    namespace: str
    queue: str
    since: datetime | None
    until: datetime | None
    chunk_items: int
    producer: str
    where: str | None = None
    """None: an earlier version has written the plan, and it is not known."""


class _Stopped(Exception):
    """The run is to stop, between two chunks."""


def replay(spark: Any, settings: ReplaySettings, control: Control | None = None) -> Summary:
    """Puts the items of an archive back into a queue, each exactly once for a checkpoint. It
    replays a range of time, no faster than `rate`, file by file in the order in which they were
    written.

    Items are made as by `copy`. Raises as `ingest`.
    """
    control = control or Control()
    clock = Stopwatch()
    files = Files(spark)
    files.check_reach(path=settings.path, checkpoint=settings.checkpoint)
    frame = _rows(spark, settings)
    mapping.check_target(_items(frame, settings, mapping.OBSERVED), settings.target)
    plan = _plan(files, settings)
    replayer = _Replayer(settings, plan, control)
    with explained():
        writer = (
            frame.writeStream.foreachBatch(replayer.put)
            .option("checkpointLocation", settings.checkpoint)
            .trigger(availableNow=True)
        )
    try:
        # `follow` gets a control of its own: the replay stops between two chunks, because a chunk
        # that is cut off would not be counted.
        follow(writer, Control(), lambda _: None)
    except PipelineFailed:
        if not control.stop.is_set():
            raise
    return replayer.summary(clock)


def _rows(spark: Any, settings: ReplaySettings) -> Any:
    """Rows of the archive, in the range. Raises SettingsError."""
    with checked(f"path is {settings.path}"):
        columns = spark.read.parquet(settings.path).columns
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise SettingsError(
            f"path {settings.path} is no archive of a queue: it has no column {missing[0]}"
        )
    schema = StructType.fromDDL(SPARK_SCHEMA)
    schema = StructType([field for field in schema.fields if field.name in columns])
    limit = PACED_BATCH_BYTES if settings.rate else BATCH_BYTES
    frame = spark.readStream.schema(schema).option("maxBytesPerTrigger", limit).option(*ANY_AGE)
    with checked(f"path is {settings.path}"):
        frame = frame.parquet(settings.path)
    if settings.since is not None:
        frame = frame.where(F.col("timestamp") >= F.timestamp_micros(F.lit(_us(settings.since))))
    if settings.until is not None:
        frame = frame.where(F.col("timestamp") < F.timestamp_micros(F.lit(_us(settings.until))))
    return frame


def _us(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000)


def _items(frame: Any, settings: ReplaySettings, observation: Any) -> Any:
    there = {name: said for name, said in AS_THEY_ARE.items() if name in frame.columns}
    kept = mapping.filtered(frame, settings.where, observation)
    return mapping.to_items(kept, settings.columns, there)


def _plan(files: Files, settings: ReplaySettings) -> _Plan:
    """The plan of the checkpoint; a new checkpoint gets a new plan. Raises SettingsError."""
    place = settings.target
    chunk = min(CHUNK_ITEMS_MAX, max(1, round(settings.rate * CHUNK_SECONDS)))
    fresh = _Plan(
        endpoint=place.endpoint,
        namespace=place.namespace,
        queue=place.queue,
        since=settings.since,
        until=settings.until,
        chunk_items=chunk if settings.rate else 0,
        producer=str(uuid_utils.uuid7()),
        where=settings.where,
    )
    path = f"{settings.checkpoint.rstrip('/')}/querator-replay.json"
    written = files.read(path) if files.exists(path) else ""
    # A run that was killed while it wrote the file leaves it empty, and has replayed nothing.
    if not written:
        files.write(path, msgspec.json.encode(fresh).decode())
        return fresh
    plan = msgspec.json.decode(written, type=_Plan)
    for name in ("namespace", "queue", "since", "until", "where"):
        before, now = getattr(plan, name), getattr(fresh, name)
        if before != now and (name, before) != ("where", None):
            raise SettingsError(
                f"checkpoint {settings.checkpoint} is of a replay with {name} {before or 'unset'}, "
                f"and it is {now or 'unset'}: a checkpoint is of one queue and one choice of "
                "items; give this one its own"
            )
    return plan


class _Replayer:
    """Puts batches of files into the queue, chunk by chunk."""

    def __init__(self, settings: ReplaySettings, plan: _Plan, control: Control) -> None:
        self._settings = settings
        self._plan = plan
        self._control = control
        self._pace = ItemPace(settings.rate, control.stop)
        self._before = books.totals(settings.target, plan.producer)
        self._rows = self._left_out = self._chunks = 0

    def put(self, frame: Any, batch: int) -> None:
        """Spark calls it, and again for a batch that was not committed."""
        size = self._plan.chunk_items
        if not size:
            self._put(frame, batch, batch * _CHUNKS_MAX)
            return
        frame = frame.persist()
        try:
            chunks = -(-frame.count() // size)
            for chunk in range(chunks):
                of_chunk = F.pmod(F.xxhash64("id"), F.lit(chunks)) == chunk
                self._put(frame.where(of_chunk), batch, batch * _CHUNKS_MAX + chunk)
        finally:
            frame.unpersist()

    def _put(self, frame: Any, batch: int, number: int) -> None:
        if self._control.stop.is_set():
            raise _Stopped
        if number <= self._before.batch:
            return
        clock = Stopwatch()
        seen = Observation(mapping.OBSERVED)
        items = _items(frame, self._settings, seen)
        options = self._settings.target.options(
            txnAppId=self._plan.producer, txnVersion=str(number)
        )
        items.write.format("querator").mode("append").options(**options).save()
        read, left_out = mapping.rows(seen.get), mapping.left_out(seen.get)
        self._rows += read
        self._left_out += left_out
        self._chunks += 1
        self._control.report(BatchProgress(batch, read - left_out, clock.seconds))
        self._pace.wait(read - left_out)

    def summary(self, clock: Stopwatch) -> Summary:
        made = books.totals(self._settings.target, self._plan.producer).items - self._before.items
        return Summary(
            pipeline="replay",
            taken=Count(self._rows, _TAKEN),
            made=Count(made, _MADE),
            left_out=self._left_out,
            batches=self._chunks,
            seconds=clock.seconds,
        )
