"""Files → queue."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uuid_utils
from pyspark.sql import Observation

from querator.spark.pipelines import books, mapping
from querator.spark.pipelines.failures import PipelineFailed, checked, explained
from querator.spark.pipelines.files import ANY_AGE, Files
from querator.spark.pipelines.following import MicroBatch, Tally, follow, query_id, trigger
from querator.spark.pipelines.formats import misfit, no_stream_of, wrong_format
from querator.spark.pipelines.reader_options import ways_out, with_defaults
from querator.spark.pipelines.session import adopt
from querator.spark.pipelines.settings import IngestSettings, SettingsError
from querator.spark.pipelines.summary import BatchProgress, Control, Count, Stopwatch, Summary

_READ: Final = "rows read by Spark"
_MADE: Final = "items committed, by the queue"


def ingest(spark: Any, settings: IngestSettings, control: Control | None = None) -> Summary:
    """Makes an item of each row of files, exactly once: all of `path` in one transaction, or with a
    checkpoint each file that no earlier run has read. Without `columns.value` the payload is the
    line (text), or all columns as JSON.

    Raises SettingsError, OptionError, RequestError and Unreachable before data moves, and
    PipelineFailed.
    """
    control = control or Control()
    adopt(spark)
    files = Files(spark)
    files.check_reach(path=settings.path, checkpoint=settings.checkpoint)
    with checked(f"path is {settings.path}"):
        if not files.found(settings.path):
            raise SettingsError(f"path is {settings.path}: there is nothing")
        if settings.checkpoint and files.is_file(settings.path):
            raise SettingsError(no_stream_of(settings.path))
        _check_format(settings, files.head(settings.path))
    with _readable(settings):
        if settings.checkpoint:
            return _new_files(spark, files, settings, control)
        return _all_files(spark, settings, control)


def _check_format(settings: IngestSettings, found: tuple[str, bytes] | None) -> None:
    """Raises SettingsError if the file is of another format."""
    if found is None:
        return
    name, head = found
    words = misfit(settings.format, head, name, settings.options)
    if words:
        raise SettingsError(wrong_format(settings.format, name, words, head))


@contextmanager
def _readable(settings: IngestSettings) -> Iterator[None]:
    """Adds what to do to errors about records that cannot be read."""
    try:
        yield
    except (SettingsError, PipelineFailed) as error:
        if "cannot be read: " not in str(error):
            raise
        raise type(error)(f"{error}; {ways_out(settings.format, settings.options)}") from error


def _all_files(spark: Any, settings: IngestSettings, control: Control) -> Summary:
    clock = Stopwatch()
    with checked(f"path is {settings.path}"):
        frame = _reader(spark.read, settings, settings.schema).load(settings.path)
    seen = Observation(mapping.OBSERVED)
    frame = _items(frame, settings, seen)
    # The name is unique: the items committed under it are the result of this run.
    producer = str(uuid_utils.uuid7())
    place = settings.target
    with explained(), books.nothing_staged(place, producer):
        frame.write.format("querator").mode("append").options(
            **place.options(txnAppId=producer, txnVersion="0")
        ).save()
    read, left_out = mapping.rows(seen.get), mapping.left_out(seen.get)
    made = books.totals(place, producer).items
    control.report(BatchProgress(0, made, clock.seconds))
    return Summary(
        pipeline="ingest",
        taken=Count(read, _READ),
        made=Count(made, _MADE),
        left_out=left_out,
        batches=1,
        seconds=clock.seconds,
    )


def _new_files(spark: Any, files: Files, settings: IngestSettings, control: Control) -> Summary:
    clock = Stopwatch()
    schema = settings.schema
    if not schema:
        with checked(f"path is {settings.path}"):
            schema = _reader(spark.read, settings, "").load(settings.path).schema
    reader = _reader(spark.readStream.option(*ANY_AGE), settings, schema)
    with checked(f"path is {settings.path}"):
        frame = reader.option("maxBytesPerTrigger", settings.max_bytes).load(settings.path)
    frame = _items(frame, settings, mapping.OBSERVED)
    place = settings.target
    before = books.totals(place, query_id(files, settings.checkpoint))
    tally = Tally()

    def each(batch: MicroBatch) -> None:
        tally.add(batch, taken=batch.rows, left_out=mapping.left_out(batch.observed))
        control.report(BatchProgress(batch.number, batch.rows, batch.seconds))

    writer = frame.writeStream.format("querator").options(**place.options())
    writer = writer.option("checkpointLocation", settings.checkpoint)
    triggered = writer.trigger(**trigger(settings.continuous, 0))
    follow(triggered, control, each, restarts=True)
    after = books.totals(place, query_id(files, settings.checkpoint))
    made = Count(books.committed_items(before, after, tally), _MADE)
    return tally.summary("ingest", _READ, made, clock)


def _reader(reader: Any, settings: IngestSettings, schema: Any) -> Any:
    options = with_defaults(settings.format, settings.options)
    reader = reader.format(settings.format).options(**options)
    with checked("schema"):
        return reader.schema(schema) if schema else reader


def _items(frame: Any, settings: IngestSettings, observation: Any) -> Any:
    kept = mapping.filtered(frame, settings.where, observation)
    value = "value" if settings.format == "text" else "to_json(struct(*))"
    items = mapping.to_items(kept, settings.columns, {"value": value})
    mapping.check_target(items, settings.target)
    return items
