"""A streaming query from start to end, batch by batch as Spark reports them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import msgspec

from querator.model.errors import ErrorCode
from querator.spark.pipelines.failures import PipelineFailed, explained
from querator.spark.pipelines.files import Files
from querator.spark.pipelines.summary import Control, Count, Stopwatch, Summary

POLL_SECONDS: Final = 0.3
"""Interval of polls. Spark keeps its last 100 reports, and a batch takes longer than 10 ms."""

RESTARTS_MAX: Final = 5
"""Restarts of a query in a row without a batch that was committed."""
_ABORTED: Final = ErrorCode.TRANSACTION_ABORTED.name


class MicroBatch(msgspec.Struct, frozen=True):
    """A batch that Spark has committed. `rows` were read; `start` and `end` are offsets of the
    source as JSON; `observed` are the metrics of the observation "querator".
    """

    number: int
    rows: int
    seconds: float
    start: str
    end: str
    observed: Mapping[str, int]


class Tally:
    """Sums over the batches of a run; `first` and `last` are their numbers."""

    def __init__(self) -> None:
        self.batches = 0
        self.first = self.last = -1
        self.taken = self.left_out = 0

    def add(self, batch: MicroBatch, *, taken: int, left_out: int) -> None:
        if not self.batches:
            self.first = batch.number
        self.batches += 1
        self.last = batch.number
        self.taken += taken
        self.left_out += left_out

    def summary(self, pipeline: str, words: str, made: Count, clock: Stopwatch) -> Summary:
        taken = Count(self.taken, words)
        return Summary(
            pipeline=pipeline,
            taken=taken,
            made=made,
            left_out=self.left_out,
            batches=self.batches,
            seconds=clock.seconds,
        )


class Metadata(msgspec.Struct):
    """The file `metadata` that Spark writes into a checkpoint."""

    id: str


def follow(
    writer: Any,
    control: Control,
    each: Callable[[MicroBatch], None],
    *,
    start: AbstractContextManager[None] | None = None,
    restarts: bool = False,
) -> None:
    """Starts the query, within `start` if it is given, and reports each batch, until the query has
    ended or the run is to stop. The next run repeats a batch that is then unfinished. `restarts`:
    a query whose transaction was aborted, as by a change of the number of partitions, begins again
    at its checkpoint, RESTARTS_MAX times without a batch between them. Raises PipelineFailed.
    """
    with explained(), start or nullcontext():
        query = writer.start()
    last = -1
    ended = False
    begun_again, begun_behind = 0, last
    try:
        while not ended:
            try:
                with explained():
                    ended = bool(query.awaitTermination(POLL_SECONDS))
            except PipelineFailed as error:
                last = _tell(query, last, each)
                if last > begun_behind:
                    begun_again, begun_behind = 0, last
                # Ctrl-C also reaches Spark's processes, and the query may end first.
                if control.stop.is_set():
                    ended = True
                elif restarts and _ABORTED in str(error) and begun_again < RESTARTS_MAX:
                    begun_again += 1
                    with explained():
                        query = writer.start()
                    continue
                else:
                    raise
            if control.stop.is_set() and not ended:
                query.stop()
                ended = True
            last = _tell(query, last, each)
    finally:
        if query.isActive:
            query.stop()


def _tell(query: Any, last: int, each: Callable[[MicroBatch], None]) -> int:
    for progress in query.recentProgress:
        # A trigger that found nothing is reported under the number of the next batch.
        if progress.batchId > last and "addBatch" in progress.durationMs:
            last = progress.batchId
            each(_batch(progress))
    return last


def _batch(progress: Any) -> MicroBatch:
    observed = progress.observedMetrics.get("querator")
    source = progress.sources[0]
    return MicroBatch(
        number=progress.batchId,
        rows=progress.numInputRows,
        seconds=progress.batchDuration / 1000,
        start=source.startOffset or "",
        end=source.endOffset or "",
        observed=observed.asDict() if observed is not None else {},
    )


def query_id(files: Files, checkpoint: str) -> str:
    """The id of the query of a checkpoint; "" if it has not begun."""
    path = f"{checkpoint.rstrip('/')}/metadata"
    if not files.exists(path):
        return ""
    return msgspec.json.decode(files.read(path), type=Metadata).id


def trigger(continuous: bool, every_seconds: float) -> dict[str, Any]:
    """The trigger of a query: it ends after the available items, or runs continuously with at most
    one batch in `every_seconds`.
    """
    if not continuous:
        return {"availableNow": True}
    return {"processingTime": f"{round(every_seconds * 1000)} milliseconds"}
