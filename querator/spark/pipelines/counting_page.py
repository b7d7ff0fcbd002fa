"""The report of `stats` as a page."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from querator.model.ids import DEFAULT_NAMESPACE
from querator.spark.pipelines.counting import STATES, ItemGroup, QueueScan, StateHistogram
from querator.spark.report.charts import bars, columns
from querator.spark.report.page import Cell, Page, PageTable, Picture, Section

_BYTES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SECONDS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def stats_page(scans: Sequence[QueueScan], namespace: str = "") -> Page:
    """One section for each queue."""
    names = ", ".join(scan.queue for scan in scans)
    at = scans[0].scanned_at.isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
    return Page(
        title=f"What is in {names}",
        words=f"Namespace {namespace or DEFAULT_NAMESPACE}, scanned {at}. Nothing was leased.",
        problems=tuple(problem for scan in scans for problem in scan.problems),
        sections=tuple(map(_section, scans)),
    )


def _section(scan: QueueScan) -> Section:
    oldest = max((group.age_s_max for group in scan.states.values()), default=None)
    payload = sum(group.payload_bytes or 0 for group in scan.states.values())
    facts: list[tuple[str, Cell]] = [
        ("items", scan.rows),
        ("partitions with items", len(scan.partitions)),
        ("kinds", len(scan.kinds) + scan.kinds_more),
        ("oldest item", None if oldest is None else duration(oldest)),
    ]
    if scan.sizes is not None:
        facts.append(("payloads", size(payload)))
    return Section(
        title=scan.queue,
        words=_agreement(scan),
        facts=tuple(facts),
        parts=tuple(_parts(scan)) if scan.rows else (),
    )


def _agreement(scan: QueueScan) -> str:
    told = sum(scan.told.values())
    if scan.stood_still and not scan.problems:
        return (
            f"The queue did not change: it reports {told:,} items, and the scan found the same "
            "number in each state of each partition."
        )
    if scan.stood_still:
        return f"The queue did not change, and reports {told:,} items."
    return (
        f"The queue changed during the scan: before it the queue had {told:,} items. States and "
        "attempts are those of the moment at which an item was read."
    )


def stats_tables(scan: QueueScan) -> list[PageTable]:
    """States, kinds and partitions, and dead letters if there are any. An empty queue has no
    tables.
    """
    if not scan.rows:
        return []
    partitions = [(str(partition), group) for partition, group in scan.partitions.items()]
    tables = [
        PageTable("States", _columns_of("state"), _rows(scan.states.items())),
        PageTable("Kinds", _columns_of("kind"), _rows(_kinds(scan))),
        PageTable("Partitions", _columns_of("partition"), _rows(partitions)),
    ]
    if scan.dead_letters:
        letters = tuple(scan.dead_letters.items())
        tables.append(PageTable("Dead letters", ("died of", "items"), letters))
    return tables


def _kinds(scan: QueueScan) -> list[tuple[str, ItemGroup]]:
    kinds = [(kind or "(no kind)", group) for kind, group in scan.kinds.items()]
    if scan.other_kinds is not None:
        kinds.append((f"({scan.kinds_more:,} more kinds)", scan.other_kinds))
    return kinds


def _parts(scan: QueueScan) -> Iterable[Picture | PageTable]:
    states, kinds, partitions, *letters = stats_tables(scan)
    yield Picture(
        "Age, by state",
        _spread(scan.ages, _spans(scan.ages.edges, duration), x="time since production"),
        "Columns: number of items by age.",
    )
    yield states
    yield _picture_of_kinds(scan)
    yield kinds
    if scan.sizes is not None:
        yield Picture(
            "Size of payloads, by state",
            _spread(scan.sizes, ["empty", *_spans(scan.sizes.edges, size)[1:]], x="payload"),
            "Columns: number of items by size of their payload.",
        )
    yield Picture(
        "Attempts, by state",
        _spread(scan.attempts, _numbers(scan.attempts.edges), x="leases so far"),
        "Columns: number of items by how many times they were leased.",
    )
    places = scan.states_of_partitions
    by_state = {
        state: [counts.get(state, 0) for counts in places.values()] for state in scan.states
    }
    yield Picture(
        "Partitions, by state",
        columns(list(map(str, places)), by_state, x="partition", y="items", order=STATES),
        "Columns: number of items in each partition, as in the table of partitions.",
    )
    yield partitions
    yield from letters


def _picture_of_kinds(scan: QueueScan) -> Picture:
    kinds = _kinds(scan)
    panels: dict[str, list[float]] = {"items": [group.items for _, group in kinds]}
    if scan.sizes is not None:
        sizes = [group.payload_bytes or 0 for _, group in kinds]
        unit, name = unit_of(max(sizes))
        panels[f"{name} of payload"] = [bytes_ / unit for bytes_ in sizes]
    return Picture(
        "Kinds",
        bars([name for name, _ in kinds], panels, decimals=2),
        "Bars: items of each kind and bytes of their payloads, as in the table of kinds.",
    )


def _columns_of(what: str) -> tuple[str, ...]:
    ages = ("age: median", "95 %", "oldest")
    return (what, "items", *ages, "attempts: mean", "most", "payloads", "largest")


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


def _spread(spread: StateHistogram, labels: Sequence[str], *, x: str) -> bytes:
    return columns(labels, spread.items, x=x, y="items", order=STATES)


def _spans(edges: Sequence[int], name: Callable[[float], str]) -> list[str]:
    """Labels of the ranges between the edges."""
    between = [f"{name(low)} – {name(high)}" for low, high in pairwise(edges)]
    return [f"< {name(edges[0])}", *between, f"≥ {name(edges[-1])}"]


def _numbers(edges: Sequence[int]) -> list[str]:
    """Labels of the ranges of whole numbers."""
    between = [
        str(low) if high == low + 1 else f"{low}–{high - 1}" for low, high in pairwise((0, *edges))
    ]
    return [*between, f"≥ {edges[-1]}"]


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
