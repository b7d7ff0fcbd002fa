"""The batch reader: a snapshot scan, planned on the driver, read by executors from the leaders.

The driver fixes the head of each partition. A DataFrame therefore covers a fixed range of
sequences, and no item is in it twice. Items that are completed before their range is read are
missing, and a task that runs again may find fewer items.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from pyspark.sql.datasource import DataSourceReader, InputPartition

from querator.client.errors import NotFound
from querator.spark.options import BrowseOptions
from querator.spark.rpc import cluster, did_you_mean
from querator.v1 import admin_service_pb2, items_pb2, queue_service_pb2


@dataclass
class Range(InputPartition):
    """Sequences of one partition of the queue, both ends included."""

    partition: int
    from_seq: int
    upto_seq: int


class BrowseReader(DataSourceReader):
    """The reader is pickled to executors, so it holds only the options."""

    def __init__(self, options: BrowseOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Runs on the driver. Raises NotFound, which names the wrong option."""
        options = self._options
        try:
            stats = cluster(options.target).stats(
                options.namespace, options.queue, retry_seconds=options.retry_seconds
            )
        except NotFound as error:
            raise _not_found(error, options) from None
        return plan(stats.partitions, options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Runs on an executor. Yields Arrow record batches of `ARROW_SCHEMA`."""
        if not isinstance(partition, Range):
            # For an empty plan Spark makes one partition without a range.
            return
        from querator.spark.columns import to_batch

        options = self._options
        answers = cluster(options.target).browse(
            _request(options, partition), retry_seconds=options.retry_seconds
        )
        try:
            for answer in answers:
                columns = answer.message.columns
                if columns.rows:
                    yield to_batch(columns, answer.payloads, options.queue)
        finally:
            # Spark stops a reader that has given enough rows (`limit`): the stream ends with it.
            answers.close()  # type: ignore[attr-defined]


def plan(
    partitions: Sequence[admin_service_pb2.PartitionStats], least: int
) -> list[InputPartition]:
    """Ranges that cover all partitions. There are at least `least` ranges, if there are that many
    items. Large partitions are split into more ranges than small ones.
    """
    there = [each for each in partitions if each.first_seq]
    total = sum(each.head_seq - each.first_seq + 1 for each in there)
    ranges: list[InputPartition] = []
    for each in there:
        span = each.head_seq - each.first_seq + 1
        parts = min(span, max(1, -(-least * span // total)))
        bounds = [each.first_seq + span * part // parts for part in range(parts + 1)]
        ranges += [
            Range(each.partition, bounds[part], bounds[part + 1] - 1) for part in range(parts)
        ]
    return ranges


def _request(options: BrowseOptions, wanted: Range) -> queue_service_pb2.BrowseRequest:
    request = queue_service_pb2.BrowseRequest(
        namespace=options.namespace,
        queue=options.queue,
        partition=wanted.partition,
        from_seq=wanted.from_seq,
        upto_seq=wanted.upto_seq,
        states=[items_pb2.ItemState.ValueType(state) for state in options.states],
        kinds=options.kinds,
        without_value=not options.include_value,
    )
    if options.starting_us is not None:
        request.produced_from.CopyFrom(_timestamp(options.starting_us))
    if options.ending_us is not None:
        request.produced_before.CopyFrom(_timestamp(options.ending_us))
    return request


def _timestamp(at_us: int) -> Timestamp:
    return Timestamp(seconds=at_us // 1_000_000, nanos=at_us % 1_000_000 * 1_000)


def _not_found(error: NotFound, options: BrowseOptions) -> NotFound:
    endpoints = ",".join(options.target.endpoints)
    meant = did_you_mean(error, options.target, options.namespace, options.queue)
    error.message = (
        f"{error.message} (cluster at {endpoints}){meant} Check the options queue, namespace and "
        "endpoint, or make it with `querator queue create`"
    )
    return error
