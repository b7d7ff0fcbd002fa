"""Keyword options that calls of `SyncClient` pass on to the async client, as types.

They are those of the methods of the same names of `Client` and `Client.schedules`, whose docstrings
say what each means. A test compares them.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from querator.client.breaker_values import Breaker
from querator.client.fair_groups import FairGroup
from querator.client.limit_values import RateLimit

RetryBackoff = Literal["fixed", "linear", "exponential"]
"""How the wait after a failed attempt grows with the attempts."""

IfExists = Literal["compare", "keep"]
"""Whether a queue that exists must have the given settings, or is left as it is."""
DedupUntil = Literal["window", "done"]
"""How long a dedup key counts: in the queue's window, or until its item is done."""
MissedRuns = Literal["skip", "one", "all"]
"""What becomes of due times that were missed."""
Overlap = Literal["allow", "skip"]
"""Whether a run is skipped while the item of the last one is not finished."""

QueueKind = Literal["plain", "fair", "keyed", "executions"]
"""How a queue orders its items; or that it has executions instead."""

Fairness = Literal["turns", "in_flight"]
"""How the groups of a fair queue share its leases."""


OnDuplicate = Literal["keep", "replace", "bump"]
"""What an item does if one with its dedup key waits."""


class QueueOptions(TypedDict, total=False):
    """Settings of a queue; None: the default."""

    partitions: int | None
    lease_timeout: timedelta | None
    expire_timeout: timedelta | None
    max_attempts: int | None
    dead_queue: str | None
    dedup_window: timedelta | None
    partition_items_max: int | None
    description: str | None
    replicas: int | None
    retry_delay: timedelta | None
    retry_delay_max: timedelta | None
    retry_backoff: RetryBackoff | None
    retry_jitter: bool | None
    priority_aging: timedelta | None
    dedup_until: DedupUntil | None
    kind: QueueKind | None
    fairness: Fairness | None
    group_leased_max: int | None
    groups: Iterable[FairGroup] | None
    key_leased_max: int | None
    key_retry_blocks: bool | None
    lease_paused: bool | None
    produce_paused: bool | None
    breaker: Breaker | None
    rate_limit: RateLimit | None
    lease_limit: int | None
    group_rate_limit: RateLimit | None
    key_rate_limit: RateLimit | None
    events_retention: timedelta | None


class ProducerOptions(TypedDict, total=False):
    batch_items: int
    batch_bytes: int
    linger: timedelta | None
    ordered: bool
    max_in_flight: int
    dedup_by_content: bool


class ConsumerOptions(TypedDict, total=False):
    concurrency: int
    prefetch_items: int | None
    prefetch_bytes: int
    batch_items: int
    batch_bytes: int
    lease_timeout: timedelta | None
    auto_extend: bool
    release_on_disconnect: bool
    idle_timeout: timedelta | None


class ListOptions(TypedDict, total=False):
    """Options of `ScheduledItems.list`."""

    due_from: datetime | None
    due_until: datetime | None
    kind: str
    limit: int | None
    stale: bool


class CountOptions(TypedDict, total=False):
    """Options of `ScheduledItems.count`."""

    due_from: datetime | None
    due_until: datetime | None
    kind: str
    interval: timedelta
    stale: bool


class ChangeOptions(TypedDict, total=False):
    """Options of `ScheduledItems.move`, `run_now` and `cancel`, without `to` and `by`."""

    due_from: datetime | None
    due_until: datetime | None
    kind: str
    all_items: bool
    dry_run: bool


class RecurrenceOptions(TypedDict, total=False):
    """Options of `Recurrences.create` and `update`."""

    cron: str | None
    time_zone: str | None
    interval: timedelta | None
    phase: timedelta | None
    jitter: timedelta | None
    missed_runs: MissedRuns | None
    missed_max: int | None
    missed_after: timedelta | None
    overlap: Overlap | None
