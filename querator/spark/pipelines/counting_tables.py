"""The tables of `stats`: of the page, and of the command."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from querator.spark.pipelines.scans import ItemGroup, QueueScan
from querator.spark.report.page import Cell, PageTable

_BYTES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SECONDS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def stats_tables(scan: QueueScan, *, wide: bool = False) -> list[PageTable]:
    """States, kinds and partitions, and dead letters if there are any. An empty queue has no
    tables. `wide`: with longer names of columns, for pages.
    """
    if not scan.rows:
        return []
    partitions = [(str(partition), group) for partition, group in scan.partitions.items()]
    tables = [
        PageTable("States", _columns_of("state", wide=wide), _rows(scan.states.items())),
        PageTable("Kinds", _columns_of("kind", wide=wide), _rows(kinds_of(scan))),
        PageTable("Partitions", _columns_of("partition", wide=wide), _rows(partitions)),
    ]
    if scan.dead_letters:
        letters = tuple(scan.dead_letters.items())
        tables.append(PageTable("Dead letters", ("died of", "items"), letters))
    return tables


def kinds_of(scan: QueueScan) -> list[tuple[str, ItemGroup]]:
    """Kinds by name, the most frequent first; further kinds are one group at the end."""
    kinds = [(kind or "(no kind)", group) for kind, group in scan.kinds.items()]
    if scan.other_kinds is not None:
        kinds.append((f"({scan.kinds_more:,} more kinds)", scan.other_kinds))
    return kinds


def _columns_of(what: str, *, wide: bool) -> tuple[str, ...]:
    """At 80 columns the tables with short names stay in one piece."""
    ages = ("age 50 %", "age 95 %", "oldest")
    attempts = ("attempts, mean", "attempts, most") if wide else ("attempts", "most")
    return (what, "items", *ages, *attempts, "payload", "largest")


def _rows(groups: Iterable[tuple[str, ItemGroup]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (
            name,
            group.items,
            duration(group.age_s_p50),
            duration(group.age_s_p95),
            duration(group.age_s_max),
            float(group.attempts_mean),
            group.attempts_max,
            None if group.payload_bytes is None else size(group.payload_bytes),
            None if group.payload_bytes_max is None else size(group.payload_bytes_max),
        )
        for name, group in groups
    )


def unit_of(count: float) -> tuple[int, str]:
    """The largest unit of bytes that is not above `count`, in bytes and by name."""
    return next(((unit, name) for unit, name in _BYTES if count >= unit), (1, "B"))


def size(count: float) -> str:
    """Bytes in readable units: `512 B`, `1.5 MiB`."""
    unit, name = unit_of(count)
    return f"{count:.0f} B" if unit == 1 else f"{_short(count / unit)} {name}"


def duration(seconds: float) -> str:
    """Seconds in readable units: `0.5 s`, `10 min`, `2.5 d`."""
    for unit, name in _SECONDS:
        if seconds >= unit:
            return f"{_short(seconds / unit)} {name}"
    return f"{_short(seconds)} s"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")


def instant(at: datetime) -> str:
    """An instant in UTC, as in `2026-01-31 12:00:00 UTC`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
