"""Dead letters → the queue they came from.

Spark scans the letters and selects them. The queue itself moves them, each in one step of its own.
A run may therefore die at any point, and the next run finds the remaining letters.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import functions as F

from querator.model.limits import REQUEST_ITEMS_MAX
from querator.spark.options import target
from querator.spark.pipelines import books
from querator.spark.pipelines.failures import checked, explained
from querator.spark.pipelines.pace import ItemPace
from querator.spark.pipelines.settings import QueuePlace, RedriveSettings, SettingsError
from querator.spark.pipelines.summary import (
    BatchProgress,
    Control,
    Count,
    DeadGroup,
    RedriveSummary,
    Stopwatch,
)
from querator.spark.sending import sender

_TAKEN: Final = "dead letters found by Spark"
_MADE: Final = "sent back, by the dead queue"


def redrive(
    spark: Any, settings: RedriveSettings, control: Control | None = None
) -> RedriveSummary:
    """Sends dead letters of a queue back to it, with their attempts counted from 0: all of them, or
    those that the settings select. Letters that a consumer of the dead queue holds are left out. A
    dry run sends none, and counts those that a run would send.

    Raises SettingsError, RequestError and Unreachable before anything moves, and PipelineFailed.
    """
    control = control or Control()
    clock = Stopwatch()
    place = settings.queue
    name = books.settings_of(place).dead_queue
    if not name:
        raise SettingsError(
            f"queue {place.queue} has no dead queue; give it one with `querator queue update "
            f"{place.queue} --dead-queue NAME`"
        )
    grave = msgspec.structs.replace(place, queue=name)
    letters = _letters(spark, settings, grave)
    with explained():
        found = letters.toArrow()
    states = found.column("state").to_pylist()
    pairs = zip(found.column("id").to_pylist(), states, strict=True)
    ready = [id for id, state in pairs if state == "ready"]
    chosen = [] if settings.dry_run else ready
    sent, moved, doubtful, calls = _send(place, chosen, settings.rate, control)
    would_be_sent = len(ready) if settings.dry_run else 0
    left = found.num_rows - sent - would_be_sent
    if moved < sent:
        # A frame shows the moment of its first use, so a new one is needed.
        still = _still_there(_letters(spark, settings, grave), chosen[:sent])
        left += still
        # If a call was repeated, its lost first answer may have counted these letters.
        moved += min(doubtful, max(0, sent - moved - still))
    return RedriveSummary(
        pipeline="redrive",
        taken=Count(found.num_rows, _TAKEN),
        made=Count(moved, _MADE),
        left_out=left,
        batches=calls,
        seconds=clock.seconds,
        would_be_sent=would_be_sent,
        groups=_groups(found),
    )


def _letters(spark: Any, settings: RedriveSettings, grave: QueuePlace) -> Any:
    """The selected letters, without payloads unless the user's condition needs them."""
    options = grave.options(includeValue=str("value" in settings.where.lower()).lower())
    with explained():
        frame = spark.read.format("querator").options(**options).load()
    frame = frame.where(F.col("dead_letter.queue") == settings.queue.queue).select(
        "*",
        F.col("dead_letter.reason").alias("reason"),
        F.col("dead_letter.died_at").alias("died_at"),
        F.coalesce(F.try_element_at("dead_letter.errors", F.lit(-1)), F.lit("")).alias("error"),
    )
    if settings.reasons:
        frame = frame.where(F.col("reason").isin(*settings.reasons))
    if settings.kinds:
        frame = frame.where(F.coalesce("kind", F.lit("")).isin(*settings.kinds))
    if settings.where:
        with checked(f"where {settings.where}"):
            frame = frame.where(settings.where)
            _ = frame.schema
    return frame.select("id", "state", "reason", "kind", "died_at", "error")


def _send(
    place: QueuePlace, ids: Sequence[str], rate: float, control: Control
) -> tuple[int, int, int, int]:
    """Four numbers: letters named in calls; letters that the queue has reported as sent; other
    letters that a lost answer may have reported; calls.
    """
    calls = sender(target(place.options()))
    pace = ItemPace(rate, control.stop)
    sent = moved = doubtful = number = 0
    for part in _parts(ids, rate):
        if control.stop.is_set():
            break
        clock = Stopwatch()
        count, attempts = calls.redrive(
            place.namespace, place.queue, part, retry_seconds=place.retry_seconds
        )
        sent += len(part)
        moved += count
        doubtful += len(part) - count if attempts > 1 else 0
        control.report(BatchProgress(number, count, clock.seconds, len(ids) - sent))
        number += 1
        pace.wait(len(part))
    return sent, moved, doubtful, number


def _parts(ids: Sequence[str], rate: float) -> Iterator[Sequence[str]]:
    size = min(REQUEST_ITEMS_MAX, max(1, int(rate))) if rate else REQUEST_ITEMS_MAX
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def _still_there(letters: Any, ids: Sequence[str]) -> int:
    """How many of these letters are in the dead queue, and not on their way."""
    with explained():
        there = letters.where(F.col("state") != "moving").select("id").toArrow()
    return len({*ids} & {*there.column("id").to_pylist()})


def _groups(found: Any) -> tuple[DeadGroup, ...]:
    ordered = found.sort_by([("died_at", "ascending")])
    table = ordered.group_by(["reason", "kind"], use_threads=False).aggregate(
        [("id", "count"), ("died_at", "min"), ("died_at", "max"), ("error", "last")]
    )
    groups = [
        DeadGroup(
            reason=row["reason"],
            kind=row["kind"],
            items=row["id_count"],
            first_died_at=row["died_at_min"],
            last_died_at=row["died_at_max"],
            error=row["error_last"],
        )
        for row in table.to_pylist()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.items, group.reason, group.kind or "")))
