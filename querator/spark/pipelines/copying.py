"""Queue → queue, each item exactly once."""

from collections.abc import Mapping
from typing import Any, Final

from querator.spark.pipelines import books, mapping
from querator.spark.pipelines.checkpoints import check_reader
from querator.spark.pipelines.failures import explained
from querator.spark.pipelines.files import Files
from querator.spark.pipelines.following import MicroBatch, Tally, follow, query_id, trigger
from querator.spark.pipelines.session import adopt
from querator.spark.pipelines.settings import CopySettings
from querator.spark.pipelines.summary import BatchProgress, Control, Count, Stopwatch, Summary
from querator.spark.rows import WRITTEN
from querator.spark.schema import COLUMNS

AS_THEY_ARE: Final[Mapping[str, str]] = {
    name: f"`{name}`" for name in WRITTEN if name in COLUMNS and name != "partition"
}
"""The columns of reads that another queue may have as well. There the key decides the partition."""
_TAKEN: Final = "items taken, by the source queue"
_MADE: Final = "items committed, by the target queue"


def copy(spark: Any, settings: CopySettings, control: Control | None = None) -> Summary:
    """Takes items out of a queue and puts them into another one, each exactly once, changed as
    `columns` say: the items that are there when it begins, or with `continuous` all later ones as
    well.

    The copies are new items: attempts and errors are not copied, nor are `expire_timeout`,
    `lease_timeout` and dedupe keys, which Spark does not see. Raises as `ingest`.
    """
    control = control or Control()
    source, target = settings.source, settings.target
    clock = Stopwatch()
    adopt(spark)
    files = Files(spark)
    stream = settings.stream
    files.check_reach(checkpoint=stream.checkpoint)
    books.settings_of(source)
    check_reader(stream, source, *files.offsets(stream.checkpoint))
    with explained():
        frame = spark.readStream.format("querator").options(**stream.options(source)).load()
    kept = mapping.filtered(frame, settings.where)
    items = mapping.to_items(kept, settings.columns, AS_THEY_ARE)
    mapping.check_target(items, target)
    before = books.totals(target, query_id(files, stream.checkpoint))
    tally = Tally()

    def each(batch: MicroBatch) -> None:
        count = books.batch_items(batch.start, batch.end)
        released = count - batch.rows if stream.skip_released else 0
        tally.add(batch, taken=count, left_out=mapping.left_out(batch.observed) + released)
        control.report(BatchProgress(batch.number, count, batch.seconds, books.waiting(source)))

    writer = items.writeStream.format("querator").options(**target.options())
    writer = writer.option("checkpointLocation", stream.checkpoint)
    triggered = writer.trigger(**trigger(stream.continuous, stream.every_seconds))
    follow(triggered, control, each, restarts=True)
    after = books.totals(target, query_id(files, stream.checkpoint))
    made = Count(books.committed_items(before, after, tally), _MADE)
    return tally.summary("copy", _TAKEN, made, clock)
