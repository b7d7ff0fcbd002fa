"""Results of `stats`, without Spark."""

from datetime import datetime
from typing import Final

import msgspec

from querator.client.values import ItemState

STATES: Final = tuple(state.name.lower() for state in ItemState)


class ItemGroup(msgspec.Struct, frozen=True):
    """A group of items. Ages are seconds since an item was produced; quantiles are exact within a
    hundredth of their rank. Sizes are those of payloads, or None if not requested.
    """

    items: int
    age_s_p50: float
    age_s_p95: float
    age_s_max: float
    attempts_mean: float
    attempts_max: int
    payload_bytes: int | None
    payload_bytes_max: int | None


class StateHistogram(msgspec.Struct, frozen=True):
    """Numbers of items by state: below the first of `edges`, between each pair of edges, and from
    the last edge on. Each state therefore has one number more than there are edges. An edge belongs
    to the range above it.
    """

    edges: tuple[int, ...]
    items: dict[str, tuple[int, ...]]


class QueueScan(msgspec.Struct, frozen=True):
    """The result of the scan of one queue. `kinds` has the most frequent kinds, the most frequent
    first, and `""` for items without one; `other_kinds` are the `kinds_more` other kinds.
    `dead_letters` counts the items that came from another queue, by reason.

    `told`: the queue's own counts before the scan, by state. `stood_still`: these counts and all
    counts of events were the same after the scan. `problems`: one sentence for each imbalance.
    """

    queue: str
    scanned_at: datetime
    rows: int
    states: dict[str, ItemGroup]
    kinds: dict[str, ItemGroup]
    kinds_more: int
    other_kinds: ItemGroup | None
    partitions: dict[int, ItemGroup]
    states_of_partitions: dict[int, dict[str, int]]
    ages: StateHistogram
    attempts: StateHistogram
    sizes: StateHistogram | None
    dead_letters: dict[str, int]
    told: dict[str, int]
    stood_still: bool
    problems: tuple[str, ...]
    dues: StateHistogram | None = None
    """Seconds until scheduled items are due; None: none is scheduled."""
