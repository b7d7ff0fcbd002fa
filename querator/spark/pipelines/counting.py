"""`stats`: items of a queue by state, kind, partition, age, attempts and size.

Spark scans the queue once (a browse: nothing is leased) and keeps only the columns that are
counted, so all figures describe the same rows. The sums must agree with each other and with the
number of rows. They must also agree with the queue's own counts, if those were the same before and
after the scan.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from querator.spark.options import target
from querator.spark.pipelines.failures import explained
from querator.spark.pipelines.scans import STATES, ItemGroup, QueueScan, StateHistogram
from querator.spark.pipelines.settings import StatsSettings
from querator.spark.rpc import cluster
from querator.v1.admin_service_pb2 import GetQueueStatsResponse, PartitionStats

KINDS_SHOWN: Final = 20
"""Number of the most frequent kinds that are shown; others are added up, because a queue may have
any number.
"""
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
AGE_EDGES_S: Final = (1, 10, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY)
DUE_EDGES_S: Final = (_MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 30 * _DAY)
ATTEMPT_EDGES: Final = (1, 2, 3, 4, 5, 10, 100)
SIZE_EDGES_BYTES: Final = (1, 128, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
_EVER: Final = (
    "produced",
    "delivered",
    "completed",
    "acknowledged",
    "retried",
    "released",
    "lapsed",
    "expired",
    "cancelled",
    "dead",
    "dropped",
    "moved_in",
    "moved_out",
)
"""Counts that show whether anything has happened."""
_SETS: Final = (
    ("state",),
    ("kind",),
    ("partition",),
    ("reason",),
    ("partition", "state"),
    ("state", "age_place"),
    ("state", "attempts_place"),
    ("state", "bytes_place"),
    ("state", "due_place"),
)
"""The groupings by which items are counted."""


def stats(spark: SparkSession, settings: StatsSettings) -> QueueScan:
    """Scans a queue and counts its items. Raises RequestError and Unreachable before anything is
    read, and PipelineFailed.
    """
    source = settings.source
    calls = cluster(target(source.options()))

    def ask() -> GetQueueStatsResponse:
        return calls.stats(source.namespace, source.queue, retry_seconds=source.retry_seconds)

    before = ask()
    at = datetime.now(UTC)
    with explained():
        rows = spark.read.format("querator").options(**settings.options()).load()
        frame = _columns(rows, at, sizes=settings.sizes)
        frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            found = _measure(frame, source.queue, at, sizes=settings.sizes)
        finally:
            frame.unpersist()
    after = ask()
    found = msgspec.structs.replace(
        found,
        told={state: sum(_counts(before, state)) for state in STATES},
        stood_still=all(
            _counts(before, name) == _counts(after, name) for name in (*STATES, *_EVER)
        ),
    )
    return msgspec.structs.replace(found, problems=tuple(find_problems(found, before)))


def find_problems(scan: QueueScan, told: GetQueueStatsResponse) -> list[str]:
    """One sentence for each wrong sum. `told`, the queue's counts before the scan, is compared only
    if the queue stood still.
    """
    others = [scan.other_kinds] if scan.other_kinds else []
    sums = {
        "states": sum(group.items for group in scan.states.values()),
        "kinds": sum(group.items for group in (*scan.kinds.values(), *others)),
        "partitions": sum(group.items for group in scan.partitions.values()),
        "states within partitions": sum(
            sum(items.values()) for items in scan.states_of_partitions.values()
        ),
    }
    spreads = {"ages": scan.ages, "attempts": scan.attempts, "sizes": scan.sizes}
    for what, spread in spreads.items():
        if spread is not None:
            sums[what] = sum(map(sum, spread.items.values()))
    problems = list(_wrong_dues(scan))
    problems += [
        f"{scan.queue}: {scan.rows:,} rows were scanned, but the sum over {what} is {items:,}"
        for what, items in sums.items()
        if items != scan.rows
    ]
    if not scan.stood_still:
        return problems
    for each in told.partitions:
        found = scan.states_of_partitions.get(each.partition, {})
        problems += [
            f"{scan.queue}: partition {each.partition} reports {_count(each, state):,} "
            f"items {state}, and {found.get(state, 0):,} were found"
            for state in STATES
            if _count(each, state) != found.get(state, 0)
        ]
    return problems


def _wrong_dues(scan: QueueScan) -> Iterator[str]:
    dues = 0 if scan.dues is None else sum(map(sum, scan.dues.items.values()))
    scheduled = scan.states["scheduled"].items if "scheduled" in scan.states else 0
    if dues != scheduled:
        yield (
            f"{scan.queue}: {scheduled:,} scheduled rows were scanned, but the sum over due times "
            f"is {dues:,}"
        )


def _columns(rows: DataFrame, at: datetime, *, sizes: bool) -> DataFrame:
    """Only the columns that are counted."""
    age = F.lit(at).cast("double") - F.col("timestamp").cast("double")
    due = F.col("due_at").cast("double") - F.lit(at).cast("double")
    return rows.select(
        "partition",
        "state",
        F.coalesce("kind", F.lit("")).alias("kind"),
        F.greatest(age, F.lit(0.0)).alias("age_s"),
        "attempts",
        (F.length("value") if sizes else F.lit(None).cast("int")).alias("bytes"),
        F.col("dead_letter.reason").alias("reason"),
        F.when(F.col("state") == "scheduled", F.greatest(due, F.lit(0.0))).alias("due_s"),
    )


def _measure(frame: DataFrame, queue: str, at: datetime, *, sizes: bool) -> QueueScan:
    by_kind = frame.groupBy("kind").count()
    names = [
        row["kind"] for row in by_kind.orderBy(F.desc("count"), "kind").limit(KINDS_SHOWN).collect()
    ]
    sets = _grouped(frame.withColumn("kind", F.when(F.col("kind").isin(names), F.col("kind"))))
    states = {row["state"]: _group(row) for row in sets["state",]}
    kinds = {row["kind"]: _group(row) for row in sets["kind",]}
    states_of_partitions: dict[int, dict[str, int]] = {}
    for row in sorted(sets["partition", "state"], key=lambda row: row["partition"]):
        states_of_partitions.setdefault(row["partition"], {})[row["state"]] = row["items"]
    return QueueScan(
        queue=queue,
        scanned_at=at,
        rows=frame.count(),
        states={state: states[state] for state in STATES if state in states},
        kinds={name: kinds[name] for name in names if name in kinds},
        kinds_more=by_kind.count() - len(names) if None in kinds else 0,
        other_kinds=kinds.get(None),
        partitions={
            row["partition"]: _group(row)
            for row in sorted(sets["partition",], key=lambda row: row["partition"])
        },
        states_of_partitions=states_of_partitions,
        ages=_spread(sets, "age_place", AGE_EDGES_S),
        attempts=_spread(sets, "attempts_place", ATTEMPT_EDGES),
        sizes=_spread(sets, "bytes_place", SIZE_EDGES_BYTES) if sizes else None,
        dead_letters={
            row["reason"]: row["items"] for row in sets["reason",] if row["reason"] is not None
        },
        told={},
        stood_still=False,
        problems=(),
        dues=_spread(sets, "due_place", DUE_EDGES_S) if "scheduled" in states else None,
    )


def _grouped(frame: DataFrame) -> dict[tuple[str, ...], list[Row]]:
    """Aggregates by each grouping of the report, from one query."""
    placed = (
        frame.withColumn("age_place", _place("age_s", AGE_EDGES_S))
        .withColumn("attempts_place", _place("attempts", ATTEMPT_EDGES))
        .withColumn("bytes_place", _place("bytes", SIZE_EDGES_BYTES))
        .withColumn("due_place", _place("due_s", DUE_EDGES_S))
    )
    columns = sorted({column for each in _SETS for column in each})
    found = placed.groupingSets(_SETS, *columns).agg(
        # One bit for each column that is not in the grouping; the first column has the highest bit.
        F.grouping_id(*columns).alias("set"),
        F.count(F.lit(1)).alias("items"),
        F.percentile_approx("age_s", [0.5, 0.95], 100).alias("ages"),
        F.max("age_s").alias("age_s_max"),
        F.avg("attempts").alias("attempts_mean"),
        F.max("attempts").alias("attempts_max"),
        F.sum("bytes").alias("payload_bytes"),
        F.max("bytes").alias("payload_bytes_max"),
    )
    sets: dict[int, list[Row]] = {}
    for row in found.collect():
        sets.setdefault(row["set"], []).append(row)
    return {each: sets.get(_bits(each, columns), []) for each in _SETS}


def _bits(by: Sequence[str], columns: Sequence[str]) -> int:
    return sum(1 << place for place, column in enumerate(reversed(columns)) if column not in by)


def _group(row: Row) -> ItemGroup:
    return ItemGroup(
        items=row["items"],
        age_s_p50=row["ages"][0],
        age_s_p95=row["ages"][1],
        age_s_max=row["age_s_max"],
        attempts_mean=row["attempts_mean"],
        attempts_max=row["attempts_max"],
        payload_bytes=row["payload_bytes"],
        payload_bytes_max=row["payload_bytes_max"],
    )


def _place(column: str, edges: Sequence[int]) -> Any:
    """The number of edges that the column has reached."""
    return sum(((F.col(column) >= edge).cast("int") for edge in edges), F.lit(0))


def _spread(
    sets: Mapping[tuple[str, ...], Sequence[Row]], place: str, edges: Sequence[int]
) -> StateHistogram:
    items: dict[str, list[int]] = {}
    for row in sets["state", place]:
        if row[place] is None:
            # Only scheduled items are due.
            continue
        items.setdefault(row["state"], [0] * (len(edges) + 1))[row[place]] = row["items"]
    return StateHistogram(
        tuple(edges), {state: tuple(items[state]) for state in STATES if state in items}
    )


def _counts(told: GetQueueStatsResponse, name: str) -> list[int]:
    """One count for each partition, in their order."""
    return [_count(each, name) for each in sorted(told.partitions, key=lambda one: one.partition)]


def _count(partition: PartitionStats, name: str) -> int:
    count: int = getattr(partition, name)
    return count
