"""Streaming queries that fail, and when they begin again. The query is a double."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from querator.spark.pipelines.failures import PipelineFailed
from querator.spark.pipelines.following import RESTARTS_MAX, MicroBatch, follow
from querator.spark.pipelines.summary import Control

CHANGED = (
    "[STREAM_FAILED] Query terminated with exception:\\n"
    "querator.client.errors.TransactionAborted: TRANSACTION_ABORTED: batch 1 of producer q is not "
    "committed: attempt aa at task 0 was staged before the number of partitions changed"
).replace("\\n", "\n")
OTHER = "querator.client.errors.Full: STAGE_FULL: the partition would have 9 stages"


def progress(number: int) -> Any:
    return SimpleNamespace(
        batchId=number,
        durationMs={"addBatch": 1},
        observedMetrics={},
        sources=[SimpleNamespace(startOffset="", endOffset="")],
        numInputRows=1,
        batchDuration=1,
    )


class Query:
    """A query that has committed batches, and then ends or fails."""

    isActive = False

    def __init__(self, batches: list[int], fault: str) -> None:
        self.recentProgress = [progress(number) for number in batches]
        self._fault = fault

    def awaitTermination(self, seconds: float) -> bool:
        if self._fault:
            raise PySparkException(self._fault)
        return True


class Writer:
    def __init__(self, *queries: Query) -> None:
        self._queries = list(queries)
        self.starts = 0

    def start(self) -> Query:
        self.starts += 1
        return self._queries.pop(0)


def numbers_of(writer: Writer, *, restarts: bool) -> list[int]:
    told: list[MicroBatch] = []
    follow(writer, Control(), told.append, restarts=restarts)
    return [batch.number for batch in told]


def test_a_query_begins_again_when_the_number_of_partitions_has_changed() -> None:
    writer = Writer(Query([0], CHANGED), Query([], CHANGED), Query([1, 2], ""))
    assert numbers_of(writer, restarts=True) == [0, 1, 2]
    assert writer.starts == 3


def test_a_query_that_makes_no_batch_is_not_started_for_ever() -> None:
    writer = Writer(*[Query([], CHANGED) for _ in range(RESTARTS_MAX + 2)])
    with pytest.raises(PipelineFailed, match="before the number of partitions changed"):
        numbers_of(writer, restarts=True)
    assert writer.starts == RESTARTS_MAX + 1


def test_a_batch_between_two_changes_counts() -> None:
    queries = [Query([number], CHANGED) for number in range(RESTARTS_MAX + 3)]
    writer = Writer(*queries, Query([], ""))
    assert numbers_of(writer, restarts=True) == list(range(RESTARTS_MAX + 3))


@pytest.mark.parametrize(("fault", "restarts"), [(OTHER, True), (CHANGED, False)])
def test_other_failures_end_the_run(fault: str, restarts: bool) -> None:
    writer = Writer(Query([0], fault), Query([1], ""))
    with pytest.raises(PipelineFailed):
        numbers_of(writer, restarts=restarts)
    assert writer.starts == 1
