"""The stream reader: named batches of a reader, planned on the driver, read by executors from the
leaders. Each item is in the query's result exactly once.

    latestOffset(start)     Spark has committed everything up to `start`: it is acknowledged, and
                            the next batches are reserved; the offset names them
    (Spark writes the offset into its checkpoint)
    partitions(start, end)  the batches that `end` names, in parts
    read(part)              the items of the part, the same as often as Spark asks

After a crash before the checkpoint was written, latestOffset returns the batches that are open.
After a later crash Spark plans the same two offsets again, and their batches are still open. Spark
calls `commit` one batch late, and never for the last batch: nothing depends on it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from querator.client.errors import BatchNotFound, BatchReleased, RequestError
from querator.spark.offsets import (
    BatchPart,
    Offset,
    initial_offset,
    offset_of,
    pairs_of,
    parts_between,
)
from querator.spark.options import StreamOptions
from querator.spark.reader_run import ReaderCalls, explained
from querator.spark.rpc import cluster
from querator.v1 import reader_service_pb2


class IncompleteBatch(RuntimeError):
    """A part of a batch arrived with a wrong number of items."""


class RefusingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands for the reader of a query that is refused: every call that the query needs raises
    `error`.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self, *_: Any) -> Any:
        raise self._error

    initialOffset = _refuse
    getDefaultReadLimit = _refuse
    prepareForTriggerAvailableNow = _refuse
    latestOffset = _refuse
    partitions = _refuse
    commit = _refuse
    read = _refuse


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One instance belongs to the driver for a run of the query. Another one is pickled to
    executors before its first use.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._run: ReaderCalls | None = None
        self._last: Offset | None = None

    # --- on the driver -------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        return initial_offset(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_items)

    def prepareForTriggerAvailableNow(self) -> None:
        """Later items are left to the next run. Raises RequestError, Unreachable."""
        self._run = ReaderCalls(self._options, bounded=True)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Acknowledges `start`, and returns the end of the batches that are then open; `start`
        itself if there are none. Waits up to `pollTimeout` for a batch. Raises RequestError,
        Unreachable, OffsetError, PoisonBatch.
        """
        options = self._options
        pairs = pairs_of(options, start)
        max_items, max_bytes = options.max_items, options.max_bytes
        if isinstance(limit, ReadMaxRows):
            max_items = min(max_items, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = min(max_bytes, limit.max_bytes)
        progress = self._running().advance(
            {partition: seq for partition, (seq, _) in pairs.items()},
            max_items=max_items,
            max_bytes=max_bytes,
        )
        news = {
            each.partition: (each.batch.seq, each.batch.count)
            for each in progress
            if each.HasField("batch")
        }
        # The adopted position of every partition goes into the checkpoint, if need be by an empty
        # batch: the next run need not adopt.
        adopted = {
            each.partition: (each.acked_seq, 0)
            for each in progress
            if not each.gone and each.acked_seq > pairs.get(each.partition, (0, 0))[0]
        }
        if news or adopted:
            # Deleted partitions leave the offset together with other news: alone they would be an
            # empty batch.
            gone = {each.partition for each in progress if each.gone}
            kept = {partition: pair for partition, pair in pairs.items() if partition not in gone}
            start = offset_of(options, {**kept, **adopted, **news})
        self._last = start
        return start

    def reportLatestOffset(self) -> Offset | None:
        """Serves Spark's progress reports, at any rate: it makes no call."""
        return self._last

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The plan depends on the offsets alone, except that items which were given up are not
        read. Raises OffsetError; and RequestError, PoisonBatch when this is the first call of a run
        that repeats a batch.
        """
        options = self._options
        parts = parts_between(
            pairs_of(options, start), pairs_of(options, end), least=options.min_partitions
        )
        # A run that repeats a batch begins here: it counts as a run, and earlier runs end.
        return self._running().to_read(parts) if parts else []

    def commit(self, end: Offset) -> None:
        """Does nothing: the next `latestOffset` acknowledges what is committed."""

    def _running(self) -> ReaderCalls:
        if self._run is None:
            self._run = ReaderCalls(self._options, bounded=False)
        return self._run

    # --- on executors --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Arrow record batches of `ARROW_SCHEMA`. Raises RequestError, Unreachable,
        IncompleteBatch.
        """
        from querator.spark.columns import to_batch

        assert isinstance(partition, BatchPart)
        options = self._options
        request = reader_service_pb2.ReadBatchRequest(
            namespace=options.namespace,
            queue=options.queue,
            reader_id=options.reader_id,
            partition=partition.partition,
            batch_seq=partition.batch_seq,
            from_index=partition.lo,
            upto_index=partition.hi,
            without_value=not options.include_value,
        )
        answers = cluster(options.target).read_batch(request, retry_seconds=options.retry_seconds)
        rows = 0
        try:
            for answer in answers:
                columns = answer.message.columns
                if columns.rows:
                    rows += columns.rows
                    yield to_batch(columns, answer.payloads, options.queue)
        except (BatchReleased, BatchNotFound) as lost:
            if options.fail_on_data_loss:
                raise explained(lost, options) from None
            return
        except RequestError as error:
            raise explained(error, options) from None
        finally:
            answers.close()  # type: ignore[attr-defined]
        if rows != partition.hi - partition.lo:
            raise IncompleteBatch(
                f"batch {partition.batch_seq} of reader {options.reader_id!r} in partition "
                f"{partition.partition} has {partition.hi - partition.lo} items from index "
                f"{partition.lo} on, and {rows} came: this is a defect of querator"
            )
