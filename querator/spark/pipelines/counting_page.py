"""The report of `stats` as a page."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from querator.model.ids import DEFAULT_NAMESPACE
from querator.spark.pipelines.counting_tables import (
    duration,
    instant,
    kinds_of,
    size,
    stats_tables,
    unit_of,
)
from querator.spark.pipelines.scans import STATES, QueueScan, StateHistogram
from querator.spark.report.charts import bars, columns
from querator.spark.report.page import Cell, Page, PageTable, Picture, Section


def stats_page(scans: Sequence[QueueScan], namespace: str = "") -> Page:
    """One section for each queue."""
    names = ", ".join(scan.queue for scan in scans)
    return Page(
        title=f"What is in {names}",
        words=f"Namespace {namespace or DEFAULT_NAMESPACE}. Nothing was leased.",
        problems=tuple(problem for scan in scans for problem in scan.problems),
        sections=tuple(map(_section, scans)),
    )


def _section(scan: QueueScan) -> Section:
    oldest = max((group.age_s_max for group in scan.states.values()), default=None)
    payload = sum(group.payload_bytes or 0 for group in scan.states.values())
    facts: list[tuple[str, Cell]] = [
        ("scanned at", instant(scan.scanned_at)),
        ("items", scan.rows),
        ("partitions with items", len(scan.partitions)),
        ("kinds", len({*scan.kinds} - {""}) + scan.kinds_more),
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


def _parts(scan: QueueScan) -> Iterable[Picture | PageTable]:
    states, kinds, partitions, *letters = stats_tables(scan, wide=True)
    yield Picture(
        "Age, by state",
        _spread(scan.ages, _spans(scan.ages.edges, duration), x="time since production"),
        "Columns: number of items by age.",
    )
    yield states
    if scan.dues is not None:
        yield Picture(
            "Due times of scheduled items",
            _spread(scan.dues, _spans(scan.dues.edges, duration), x="time until the item is due"),
            "Columns: number of scheduled items by the time until they are due.",
        )
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
    kinds = kinds_of(scan)
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
