"""Writers: the steps of a write in tasks and in the driver, as Spark calls them.

    writer(schema)        driver    options, columns and the queue are checked: nothing has moved
    write(batches)        executor  once for each attempt at a task; its message says what it staged
    commit(messages)      driver    one CommitTxn with the attempts that Spark has chosen
    abort(messages)       driver    drops what is staged, unless it is committed

A producer and a batch identify a transactional write. For a streaming query these are its id and
the number of the micro-batch. Spark gives these only to tasks, so messages carry them, and commit
needs nothing else. A batch write makes up a name in `__init__`: the writer that Spark pickles for
tasks is the one that commits. Each step may therefore be repeated at any point: an attempt at a
task is another attempt, a batch is committed once, and a committed batch is not aborted.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import uuid_utils
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from querator.client.errors import (
    ErrorCode,
    NotFound,
    RequestError,
    TransactionAborted,
    make_error,
)
from querator.model.limits import TXN_CLAIMS_MAX
from querator.spark.options import OptionError
from querator.spark.oversize import left_out, oversized, refusal, without
from querator.spark.row_words import with_row
from querator.spark.rows import DEDUPE_KEY, Layout, RowsError
from querator.spark.rpc import Unreachable
from querator.spark.sending import (
    PRODUCE,
    STAGE,
    WINDOW,
    BulkRequest,
    by_partition,
    cut,
    sender,
    with_way_out,
)
from querator.spark.sink_options import SinkOptions
from querator.v1 import queue_service_pb2
from querator.v1 import transaction_service_pb2 as pb

ABORT_SECONDS: Final = 10.0
"""How long an abort is tried. Staged items expire by themselves."""
_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True)
class Task:
    """Spark's description of a task. `query` and `batch` belong to a streaming query or to a write
    in foreachBatch; else they are "" and None.
    """

    number: int
    query: str = ""
    batch: int | None = None

    @classmethod
    def current(cls) -> "Task":
        """The task of the worker that this runs in."""
        context = TaskContext.get()
        assert context is not None, "write() is called by Spark's workers"
        batch = context.getLocalProperty(_BATCH_ID)
        query = context.getLocalProperty(_QUERY_ID) or ""
        return cls(context.partitionId(), query, int(batch) if batch else None)


@dataclass
class Written(WriterCommitMessage):
    """The result of an attempt at a task. `parts`: number of items and checksum, by partition of
    the queue. `committed`: the batch was committed before. `skipped` rows were too large and left
    out; `skipped_first` is the first of them.
    """

    producer: str
    batch: int
    task: int
    attempt: bytes = b""
    rows: int = 0
    committed: bool = False
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    skipped: int = 0
    skipped_first: int = 0

    def add(self, parts: Iterable[pb.StagedPart]) -> None:
        for part in parts:
            count, checksum = self.parts.get(part.partition, (0, 0))
            self.parts[part.partition] = count + part.count, (checksum + part.checksum) % 2**32


class Sink:
    """The common part of both writers. It is pickled: it holds options and positions of columns."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises OptionError, RowsError."""
        self._options = options
        self._layout = Layout(
            schema, dedupe_key=options.dedupe_key, unique=options.guarantee == "idempotent"
        )
        if options.guarantee == "idempotent" and DEDUPE_KEY not in self._layout:
            raise OptionError(
                "guarantee=idempotent needs a key for each row, the same whenever it is written: "
                f"a column {DEDUPE_KEY}, or its name as option dedupeKeyColumn"
            )

    def check_queue(self) -> None:
        """Checks the queue before data moves. Raises NotFound, OptionError and, as calls do,
        Unreachable.
        """
        options = self._options
        try:
            settings = sender(options.target).queue(
                options.namespace, options.queue, retry_seconds=options.retry_seconds
            )
        except NotFound as error:
            raise with_way_out(
                error, target=options.target, namespace=options.namespace, queue=options.queue
            ) from None
        if options.guarantee == "idempotent" and not settings.dedup_window.ToMilliseconds():
            raise OptionError(
                f"guarantee=idempotent: queue {options.queue} does not remember dedupe keys; give "
                f"it a window with `querator queue update {options.queue} --dedup-window 1h`"
            )

    # --- tasks -------------------------------------------------------------------------------

    def produce(self, task: Task, batches: Iterable[Any]) -> Written:
        """Writes at once. Written items stay, even when the task is tried again."""
        options = self._options
        head = queue_service_pb2.ProduceRequest(namespace=options.namespace, queue=options.queue)
        start = head.SerializeToString()
        written = Written("", 0, task.number)

        def requests() -> Iterator[BulkRequest]:
            for items, rows, partition in self._cut(written, batches):
                if partition is not None:
                    raise RowsError(
                        f"column partition is {partition} in row {rows[0]} of this task: it is for "
                        f"guarantee=transactional, and this is {options.guarantee}; drop the "
                        "column, or give a key"
                    )
                written.rows += len(items)
                yield BulkRequest(b"".join((start, *items)), rows)

        answers = sender(options.target).send(
            PRODUCE,
            requests(),
            queue_service_pb2.ProduceResponse,
            first=task.number,
            # Items with the same key keep the order of the rows.
            window=1 if "key" in self._layout else WINDOW,
            retry_seconds=options.retry_seconds,
        )
        for _ in answers:
            pass
        return written

    def stage(self, task: Task, producer: str, batch: int, batches: Iterable[Any]) -> Written:
        """Stages the items under an attempt of its own. Ends early if the batch is already
        committed.
        """
        options = self._options
        written = Written(producer, batch, task.number, uuid_utils.uuid7().bytes)
        answers = sender(options.target).send(
            STAGE,
            self._stages(written, batches),
            pb.StageResponse,
            first=task.number,
            window=WINDOW,
            retry_seconds=options.retry_seconds,
        )
        for answer in answers:
            if answer.already_committed:
                written.committed = True
                break
            written.add(answer.parts)
        # Requests in flight are useless once the batch is committed.
        answers.close()  # type: ignore[attr-defined]
        return written

    def _stages(self, written: Written, batches: Iterable[Any]) -> Iterator[BulkRequest]:
        head = pb.StageRequest(
            namespace=self._options.namespace,
            queue=self._options.queue,
            producer=written.producer,
            batch=written.batch,
            task=written.task,
            attempt=written.attempt,
        )
        for sequence, (items, rows, partition) in enumerate(self._cut(written, batches), start=1):
            head.sequence = sequence
            head.ClearField("partition")
            if partition is not None:
                head.partition = partition
            written.rows += len(items)
            yield BulkRequest(b"".join((head.SerializeToString(), *items)), rows)

    def _cut(
        self, written: Written, batches: Iterable[Any]
    ) -> Iterator[tuple[list[bytes], Sequence[int], int | None]]:
        """All rows, cut into requests: items, row numbers, partition. Raises RowsError."""
        begun = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            try:
                large = self._oversized(written, batch, begun)
                items = self._layout.encode(batch, begun)
                partitions = self._layout.partitions(batch, begun)
            except RowsError as error:
                if error.row is None:
                    raise
                shown = self._layout.shown(batch, error.row - begun)
                raise RowsError(with_row(str(error), error.row, shown)) from None
            rows: Sequence[int] = range(begun, begun + len(items))
            if large:
                items, rows = without(large, items), without(large, rows)
                partitions = partitions and without(large, partitions)
            for partition, chosen, of_rows in by_partition(items, rows, partitions):
                for part, numbers in cut(chosen, of_rows):
                    yield part, numbers, partition
            begun += batch.num_rows

    def _oversized(self, written: Written, batch: Any, begun: int) -> list[int]:
        """Indexes of the rows of a batch that are left out. Raises RowsError."""
        values = self._layout.values(batch)
        places = oversized(values)
        if not places:
            return []
        row = begun + places[0]
        if not self._options.skips_oversized:
            size = len(values[places[0]].as_buffer())
            raise refusal(self._layout.names["value"], size, row)
        if not written.skipped:
            written.skipped_first = row
        written.skipped += len(places)
        return places

    # --- on the driver -----------------------------------------------------------------------

    def decide(self, messages: Sequence[WriterCommitMessage | None], *, once: bool = False) -> None:
        """Commits the attempts of the messages; does nothing if the batch is already committed.
        `once`: no other write has this name. Raises RequestError, Unreachable.
        """
        written = _of(messages)
        _tell_skipped(written)
        if not written or not self._options.transactional:
            return
        if any(one.committed for one in written):
            self._tell_if_older(written[0])
            return
        parts = sum(len(one.parts) for one in written)
        if parts > TXN_CLAIMS_MAX:
            raise OptionError(
                f"{len(written)} tasks have written to {parts} partitions together; a commit takes "
                f"{TXN_CLAIMS_MAX}: write with fewer tasks, by coalesce(…)"
            )
        options = self._options
        request = pb.CommitTxnRequest(
            namespace=options.namespace,
            queue=options.queue,
            producer=written[0].producer,
            batch=written[0].batch,
            stages=[_attempt(one) for one in written if one.parts],
        )
        try:
            answer = sender(options.target).commit(request, retry_seconds=options.retry_seconds)
            if answer.repeated_answer and once:
                self._check_not_closed(written)
        except TransactionAborted as error:
            error.message = (
                f"{error.message}. Nothing of it is visible. Start the query or the write again: "
                "it writes the batch again"
            )
            raise

    def _check_not_closed(self, written: Sequence[Written]) -> None:
        """Raises TransactionAborted if `drop` has closed the name of a write that has rows."""
        options = self._options
        found = sender(options.target).totals(
            options.namespace,
            options.queue,
            written[0].producer,
            retry_seconds=options.retry_seconds,
        )
        if not found.batch_items and any(one.parts for one in written):
            raise make_error(
                ErrorCode.TRANSACTION_ABORTED,
                f"batch {written[0].batch} of producer {written[0].producer} was given up",
            )

    def _tell_if_older(self, written: Written) -> None:
        """Reports in the driver's log that nothing was written because the producer has committed a
        later batch. A repeat of the last batch is as it should be.
        """
        options = self._options
        with suppress(RequestError, Unreachable):
            found = sender(options.target).totals(
                options.namespace,
                options.queue,
                written.producer,
                retry_seconds=min(ABORT_SECONDS, options.retry_seconds),
            )
            if found.HasField("batch") and written.batch < found.batch:
                name = "the number of the batch" if options.batch is None else "txnVersion"
                sys.stderr.write(
                    f"querator: nothing was written: {name} is {written.batch}, and producer "
                    f"{written.producer!r} has already committed {found.batch}. Lower numbers "
                    "count as repeats; for older data give a txnAppId of its own\n"
                )

    def drop(
        self,
        messages: Sequence[WriterCommitMessage | None],
        producer: str,
        batch: int | None,
        *,
        once: bool = False,
    ) -> None:
        """Aborts, if possible; staged items are invisible, and expire by themselves. `producer` and
        `batch`, as far as the driver knows them, are used if no task has ended successfully.
        `once`: no later write has this name, so that tasks which have not ended yet are refused.
        """
        written = _of(messages)
        if written:
            producer, batch = written[0].producer, written[0].batch
        if not producer or batch is None or not self._options.transactional:
            return
        options = self._options
        request = pb.AbortTxnRequest(
            namespace=options.namespace, queue=options.queue, producer=producer, batch=batch
        )
        seconds = min(ABORT_SECONDS, options.retry_seconds)
        with suppress(RequestError, Unreachable):
            if once:
                sender(options.target).give_up(
                    options.namespace, options.queue, producer, batch, retry_seconds=seconds
                )
            else:
                sender(options.target).abort(request, retry_seconds=seconds)


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`, of INSERT, and of writes in foreachBatch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises OptionError, RowsError."""
        self._sink = Sink(options, schema)
        self._options = options
        self._name = options.producer or str(uuid_utils.uuid7())

    def check_queue(self) -> None:
        """As `Sink.check_queue`."""
        self._sink.check_queue()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.write_task(Task.current(), iterator)

    def write_task(self, task: Task, batches: Iterable[Any]) -> Written:
        """Raises OptionError, RowsError, RequestError, Unreachable."""
        if not self._options.transactional:
            return self._sink.produce(task, batches)
        return self._sink.stage(task, self._name, self._batch(task), batches)

    def _batch(self, task: Task) -> int:
        if self._options.batch is not None:
            return self._options.batch
        if task.batch is None:
            if self._options.producer:
                raise OptionError(
                    "option txnAppId needs txnVersion, the number of this write, outside of "
                    "foreachBatch"
                )
            return 0
        if not self._options.producer:
            # The query's id alone would identify all writes of the function: the second write would
            # be taken for a repeat of the first, and left out.
            raise OptionError(
                "a write in foreachBatch needs option txnAppId: a name for this write, different "
                "from those of other writes, and the same after each restart. A repeated "
                "micro-batch is then written once. Or give guarantee=atLeastOnce"
            )
        return task.batch

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Raises RequestError, Unreachable."""
        self._sink.decide(messages, once=not self._options.producer)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        options = self._options
        # In foreachBatch the batch is the number of the micro-batch, which only tasks receive.
        batch = 0 if options.batch is None and not options.producer else options.batch
        self._sink.drop(messages, self._name, batch, once=not options.producer)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`. Spark makes one for each micro-batch, and another to commit
    it.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises OptionError, RowsError."""
        if options.batch is not None:
            raise OptionError(
                "option txnVersion is for df.write only: a stream numbers its batches"
            )
        self._sink = Sink(options, schema)
        self._options = options

    def check_queue(self) -> None:
        """As `Sink.check_queue`."""
        self._sink.check_queue()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.write_task(Task.current(), iterator)

    def write_task(self, task: Task, batches: Iterable[Any]) -> Written:
        """Raises RowsError, RequestError, Unreachable."""
        if not self._options.transactional:
            return self._sink.produce(task, batches)
        assert task.batch is not None, "Spark gives tasks of a stream their batch"
        return self._sink.stage(task, self._options.producer or task.query, task.batch, batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Raises RequestError, Unreachable."""
        self._sink.decide(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.drop(messages, self._options.producer, batchId)


def _of(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """The messages of the tasks that have ended successfully."""
    return [one for one in messages if isinstance(one, Written)]


def _tell_skipped(written: Sequence[Written]) -> None:
    """Reports skipped rows in the driver's log."""
    skipped = [one for one in written if one.skipped]
    if skipped:
        first = f"row {skipped[0].skipped_first} of task {skipped[0].task}"
        sys.stderr.write(left_out(sum(one.skipped for one in skipped), first))


def _attempt(written: Written) -> pb.StagedAttempt:
    return pb.StagedAttempt(
        task=written.task,
        attempt=written.attempt,
        parts=[
            pb.StagedPart(partition=partition, count=count, checksum=checksum)
            for partition, (count, checksum) in sorted(written.parts.items())
        ],
    )
