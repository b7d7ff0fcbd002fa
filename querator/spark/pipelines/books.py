"""The queues' own counts, which are independent of Spark's."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from querator.client.errors import NotFound, RequestError
from querator.spark.options import target
from querator.spark.pipelines.following import Tally
from querator.spark.pipelines.settings import QueuePlace
from querator.spark.rpc import Unreachable
from querator.spark.sending import sender
from querator.spark.writing import ABORT_SECONDS
from querator.v1 import admin_service_pb2


class Totals(msgspec.Struct, frozen=True):
    """A queue's counts of a producer: its last batch (-1: none), items in it, and items in all
    batches.
    """

    batch: int = -1
    batch_items: int = 0
    items: int = 0


class _Offset(msgspec.Struct):
    """An offset of `querator.spark.offsets`: number of the batch and of its items, by partition."""

    p: dict[str, tuple[int, int]]


def totals(place: QueuePlace, producer: str) -> Totals:
    """Raises RequestError, Unreachable."""
    if not producer:
        return Totals()
    found = sender(target(place.options())).totals(
        place.namespace, place.queue, producer, retry_seconds=place.retry_seconds
    )
    if not found.HasField("batch"):
        return Totals()
    return Totals(found.batch, found.batch_items, found.items)


@contextmanager
def nothing_staged(place: QueuePlace, producer: str) -> Iterator[None]:
    """Drops what the producer, whose name is used once, has staged if the block fails. Tasks that
    have not ended yet are refused. If no node answers, staged items expire after STAGE_TIMEOUT_MS.
    """
    try:
        yield
    except BaseException:
        seconds = min(ABORT_SECONDS, place.retry_seconds)
        with suppress(RequestError, Unreachable):
            sender(target(place.options())).give_up(
                place.namespace, place.queue, producer, 0, retry_seconds=seconds
            )
        raise


def committed_items(before: Totals, after: Totals, tally: Tally) -> int:
    """Items of the batches of a run, from the queue's counts before and after the run.

    A batch that is repeated, because an earlier run died after its commit, counts: Spark reads it
    again. A batch after the last reported one was stopped after its commit, and belongs to the next
    run.
    """
    if not tally.batches:
        return 0
    upto = after.items - (after.batch_items if after.batch > tally.last else 0)
    done = before.items - (before.batch_items if before.batch >= tally.first else 0)
    return upto - done


def batch_items(start: str, end: str) -> int:
    """Items of the named batches between two offsets of a stream, as the queue has counted them."""
    before, after = (
        msgspec.json.decode(offset or "null", type=_Offset | None) or _Offset({})
        for offset in (start, end)
    )
    return sum(pair[1] for name, pair in after.p.items() if before.p.get(name) != pair)


def waiting(place: QueuePlace) -> int | None:
    """The number of ready items; None if no node answers at once."""
    calls: Any = sender(target(place.options()))
    with suppress(RequestError, Unreachable):
        stats = calls.stats(place.namespace, place.queue, retry_seconds=1)
        return int(sum(each.ready for each in stats.partitions))
    return None


def settings_of(place: QueuePlace) -> admin_service_pb2.QueueSettings:
    """Settings of a queue that items are to be taken from. Raises RequestError, which names a
    missing queue, and Unreachable.
    """
    calls = sender(target(place.options()))
    try:
        return calls.queue(place.namespace, place.queue, retry_seconds=place.retry_seconds)
    except NotFound as error:
        error.message = f"{error.message} (cluster at {place.endpoint}); nothing was taken"
        raise
