"""Offsets of a stream, as Spark keeps them in its checkpoint, and the items between two offsets.

    {"v": 1, "q": "orders", "r": "lake", "p": {"0": [17, 500], "3": [9, 120]}}

By partition: the last batch of the reader, and its number of items. A batch number stands for the
same set of items for ever, so two offsets determine what to read without a call to the queue. Spark
compares offsets as text: a reader without news returns the offset that it received, and keys are
always in the same order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from querator.model.ids import DEFAULT_NAMESPACE
from querator.spark.options import StreamOptions

VERSION: Final = 1
Offset = dict[str, Any]
"""JSON, as Spark hands it over."""
Pairs = Mapping[int, tuple[int, int]]
"""Number of the batch and of its items, by partition."""


class OffsetError(ValueError):
    """The checkpoint belongs to another queue or reader; the message says which, and names a
    remedy.
    """


@dataclass
class BatchPart(InputPartition):
    """Items of one open batch by their index in it: from `lo` to before `hi`."""

    partition: int
    batch_seq: int
    lo: int
    hi: int


def initial_offset(options: StreamOptions) -> Offset:
    """The offset before the first batch. It is always the same: Spark asks again after a crash."""
    return offset_of(options, {})


def offset_of(options: StreamOptions, pairs: Pairs) -> Offset:
    return {
        "v": VERSION,
        "q": _queue(options),
        "r": options.reader_id,
        "p": {str(partition): list(pairs[partition]) for partition in sorted(pairs)},
    }


def pairs_of(options: StreamOptions, offset: Offset) -> dict[int, tuple[int, int]]:
    """Raises OffsetError."""
    if offset.get("v") != VERSION:
        raise OffsetError(
            f"the checkpoint was written by another version of querator (offset {offset}); "
            "continue with that version, or begin with a new checkpointLocation"
        )
    for key, option, now in (
        ("q", "queue", _queue(options)),
        ("r", "readerId", options.reader_id),
    ):
        if offset.get(key) != now:
            raise OffsetError(
                f"the checkpoint is of {option} {offset.get(key)!r}, and option {option} is "
                f"{now!r}: a checkpoint is of one queue and one reader; change the option back, or "
                "give the query a checkpointLocation of its own"
            )
    return {int(partition): (seq, count) for partition, (seq, count) in offset["p"].items()}


def parts_between(start: Pairs, end: Pairs, *, least: int) -> list[BatchPart]:
    """The batches of `end` that are not in `start`. There are at least `least` parts, if there are
    that many items. Large batches are split into more parts than small ones.
    """
    batches = [
        (partition, seq, count)
        for partition, (seq, count) in sorted(end.items())
        if count and start.get(partition) != (seq, count)
    ]
    total = sum(count for _, _, count in batches)
    return [
        part
        for partition, seq, count in batches
        for part in _split(partition, seq, count, max(1, -(-least * count // total)))
    ]


def _split(partition: int, seq: int, count: int, parts: int) -> Iterable[BatchPart]:
    parts = min(parts, count)
    bounds = [count * part // parts for part in range(parts + 1)]
    for lo, hi in pairwise(bounds):
        yield BatchPart(partition, seq, lo, hi)


def _queue(options: StreamOptions) -> str:
    if options.namespace in ("", DEFAULT_NAMESPACE):
        return options.queue
    return f"{options.namespace}/{options.queue}"
