"""Structs that `--output json` prints: one for each kind of result.

Durations are ms, instants RFC 3339 in UTC. Every field is always present; null means none.
"""

import base64
from datetime import datetime, timedelta

import msgspec

from querator.client import Breaker, FairGroup, LeasedItem, RateLimit
from querator.client.replies import ItemResult
from querator.client.values import (
    DeadLetter,
    Item,
    PartitionStats,
    PeekedItem,
    QueueInfo,
    QueueStats,
    RetryPolicy,
)


def milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else round(duration / timedelta(milliseconds=1))


class ProduceView(msgspec.Struct, frozen=True):
    """`ids` are present only if the payloads were arguments or files; they include `duplicates`."""

    produced: int
    duplicates: int
    replaced: int
    refused: int
    seconds: float
    items_per_second: float
    ids: list[str] | None


class BreakerView(msgspec.Struct, frozen=True):
    failure_percent: int
    outcomes_min: int
    window_ms: int | None
    open_time_ms: int | None
    probes: int


class RateLimitView(msgspec.Struct, frozen=True):
    items: int
    interval_ms: int | None
    burst: int


class QueueView(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    id: int
    state: str
    partitions: int
    lease_timeout_ms: int | None
    expire_timeout_ms: int | None
    max_attempts: int
    retry_delay_ms: int | None
    retry_delay_max_ms: int | None
    retry_backoff: str
    retry_jitter: bool
    priority_aging_ms: int | None
    dead_queue: str
    dedup_window_ms: int | None
    dedup_until: str
    partition_items_max: int
    description: str
    replicas: int
    settings_version: int
    created_at: datetime
    partitions_opening: int = 0
    partitions_closing: int = 0
    kind: str = "plain"
    fairness: str = "in_flight"
    group_leased_max: int = 0
    groups: tuple[FairGroup, ...] = ()
    key_leased_max: int = 1
    key_retry_blocks: bool = True
    lease_paused: bool = False
    produce_paused: bool = False
    breaker: BreakerView | None = None
    rate_limit: RateLimitView | None = None
    lease_limit: int = 0
    group_rate_limit: RateLimitView | None = None
    key_rate_limit: RateLimitView | None = None
    events_retention_ms: int | None = None


def _breaker_view(breaker: Breaker | None) -> BreakerView | None:
    if breaker is None:
        return None
    return BreakerView(
        failure_percent=breaker.failure_percent,
        outcomes_min=breaker.outcomes_min,
        window_ms=milliseconds(breaker.window),
        open_time_ms=milliseconds(breaker.open_time),
        probes=breaker.probes,
    )


def _rate_limit_view(rate: RateLimit | None) -> RateLimitView | None:
    if rate is None:
        return None
    return RateLimitView(rate.items, milliseconds(rate.interval), rate.burst)


def queue_view(queue: QueueInfo) -> QueueView:
    return QueueView(
        namespace=queue.namespace,
        name=queue.name,
        id=queue.id,
        state=queue.state.lower(),
        partitions=queue.partitions,
        lease_timeout_ms=milliseconds(queue.lease_timeout),
        expire_timeout_ms=milliseconds(queue.expire_timeout),
        max_attempts=queue.max_attempts,
        retry_delay_ms=milliseconds(queue.retry_delay),
        retry_delay_max_ms=milliseconds(queue.retry_delay_max),
        retry_backoff=queue.retry_backoff,
        retry_jitter=queue.retry_jitter,
        priority_aging_ms=milliseconds(queue.priority_aging),
        dead_queue=queue.dead_queue,
        dedup_window_ms=milliseconds(queue.dedup_window),
        dedup_until=queue.dedup_until,
        partition_items_max=queue.partition_items_max,
        description=queue.description,
        replicas=queue.replicas,
        settings_version=queue.settings_version,
        created_at=queue.created_at,
        partitions_opening=queue.partitions_opening,
        partitions_closing=queue.partitions_closing,
        kind=queue.kind,
        fairness=queue.fairness,
        group_leased_max=queue.group_leased_max,
        groups=queue.groups,
        key_leased_max=queue.key_leased_max,
        key_retry_blocks=queue.key_retry_blocks,
        lease_paused=queue.lease_paused,
        produce_paused=queue.produce_paused,
        breaker=_breaker_view(queue.breaker),
        rate_limit=_rate_limit_view(queue.rate_limit),
        lease_limit=queue.lease_limit,
        group_rate_limit=_rate_limit_view(queue.group_rate_limit),
        key_rate_limit=_rate_limit_view(queue.key_rate_limit),
        events_retention_ms=milliseconds(queue.events_retention),
    )


class StatsView(msgspec.Struct, frozen=True):
    """Counts of one queue, each partition at one moment."""

    queue: str
    durable: bool
    total: PartitionStats
    partitions: tuple[PartitionStats, ...]


def stats_view(stats: QueueStats) -> StatsView:
    return StatsView(stats.queue.name, stats.durable, stats.total, stats.partitions)


class DeadLetterView(msgspec.Struct, frozen=True):
    origin_queue: str
    origin_id: str
    attempts: int
    reason: str
    errors: tuple[str, ...]
    produced_at: datetime
    died_at: datetime


def dead_letter_view(letter: DeadLetter | None) -> DeadLetterView | None:
    if letter is None:
        return None
    return DeadLetterView(
        origin_queue=letter.origin_queue,
        origin_id=str(letter.origin_id),
        attempts=letter.attempts,
        reason=letter.reason.name.lower(),
        errors=letter.errors,
        produced_at=letter.produced_at,
        died_at=letter.died_at,
    )


class RetryView(msgspec.Struct, frozen=True):
    """The retry policy that an item has in place of the queue's."""

    delay_ms: int
    delay_max_ms: int
    backoff: str
    jitter: bool


_MS = timedelta(milliseconds=1)


class ItemView(msgspec.Struct, frozen=True):
    """An item as it was produced. The payload is in `payload` when it is UTF-8, else in
    `payload_base64`.
    """

    payload: str | None
    payload_base64: str | None
    kind: str
    encoding: str
    reference: str
    attributes: dict[str, str]
    priority: int
    group: str
    key: str
    enqueue_at: datetime | None
    expire_timeout_ms: int | None
    lease_timeout_ms: int | None
    dedup_key: str
    max_attempts: int | None
    retry: RetryView | None
    on_duplicate: str
    debounce_max_ms: int | None
    keep_result_ms: int | None


def item_view(item: Item) -> ItemView:
    text, encoded = payload_texts(item.payload)
    return ItemView(
        payload=text,
        payload_base64=encoded,
        kind=item.kind,
        encoding=item.encoding,
        reference=item.reference,
        attributes=dict(item.attributes),
        priority=item.priority,
        group=item.group,
        key=item.key,
        enqueue_at=item.enqueue_at,
        expire_timeout_ms=milliseconds(item.expire_timeout),
        lease_timeout_ms=milliseconds(item.lease_timeout),
        dedup_key=item.dedup_key,
        max_attempts=item.max_attempts,
        retry=None if item.retry is None else _retry_view(item.retry),
        on_duplicate=item.on_duplicate,
        debounce_max_ms=milliseconds(item.debounce_max),
        keep_result_ms=milliseconds(item.keep_result),
    )


def _retry_view(policy: RetryPolicy) -> RetryView:
    return RetryView(
        delay_ms=policy.delay // _MS,
        delay_max_ms=policy.delay_max // _MS,
        backoff=policy.backoff,
        jitter=policy.jitter,
    )


def payload_texts(payload: bytes | str) -> tuple[str | None, str | None]:
    """(text, None), or (None, base64) when it is not UTF-8."""
    if isinstance(payload, str):
        return payload, None
    try:
        return payload.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(payload).decode()


class PeekedView(msgspec.Struct, frozen=True):
    """`priority` and `attributes` are those now, those of `item` the ones with which it was
    produced. `client_id`, `leased_at` and `deadline` are the owner, the grant and the end of the
    lease.
    """

    id: str
    state: str
    attempt: int
    priority: int
    attributes: dict[str, str]
    produced_at: datetime
    due_at: datetime | None
    lease_id: str | None
    client_id: str | None
    leased_at: datetime | None
    deadline: datetime | None
    dead_letter: DeadLetterView | None
    errors: tuple[str, ...]
    item: ItemView
    checkpoint_bytes: int


def peeked_view(peeked: PeekedItem) -> PeekedView:
    return PeekedView(
        id=str(peeked.id),
        state=peeked.state.name.lower(),
        attempt=peeked.attempt,
        priority=peeked.priority,
        attributes=dict(peeked.attributes),
        produced_at=peeked.produced_at,
        due_at=peeked.due_at,
        lease_id=peeked.lease_id or None,
        client_id=peeked.client_id or None,
        leased_at=peeked.leased_at,
        deadline=peeked.deadline,
        dead_letter=dead_letter_view(peeked.dead_letter),
        errors=peeked.errors,
        item=item_view(peeked.item),
        checkpoint_bytes=peeked.checkpoint_bytes,
    )


def preview(payload: bytes | str, *, characters_max: int = 60) -> str:
    """The beginning of a payload, for a table."""
    text, encoded = payload_texts(payload)
    if text is None:
        return f"({len(payload):,} bytes, not text)"
    assert encoded is None
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


class LeasedView(msgspec.Struct, frozen=True):
    """`lease_remaining_ms` counts from the server's answer. `priority` and `attributes` are those
    now, those of `item` the ones with which it was produced. `checkpoint` is null if it is not
    UTF-8; it is then in `checkpoint_base64`.
    """

    id: str
    lease_id: str
    attempt: int
    priority: int
    attributes: dict[str, str]
    deadline: datetime
    lease_remaining_ms: int | None
    produced_at: datetime
    dead_letter: DeadLetterView | None
    errors: tuple[str, ...]
    item: ItemView
    checkpoint: str | None
    checkpoint_base64: str | None


def leased_view(leased: LeasedItem) -> LeasedView:
    text, encoded = payload_texts(leased.checkpoint)
    return LeasedView(
        id=str(leased.id),
        lease_id=leased.lease_id,
        attempt=leased.attempt,
        priority=leased.priority,
        attributes=dict(leased.attributes),
        deadline=leased.deadline,
        lease_remaining_ms=milliseconds(leased.remaining),
        produced_at=leased.produced_at,
        dead_letter=dead_letter_view(leased.dead_letter),
        errors=leased.errors,
        item=item_view(leased.item),
        checkpoint=text,
        checkpoint_base64=encoded,
    )


class ResultView(msgspec.Struct, frozen=True):
    """The end of an item with a result. `data` is None when it is not UTF-8: then `data_base64` has
    it. `reason` is that of a dead item.
    """

    id: str
    outcome: str
    data: str | None
    data_base64: str | None
    reason: str | None
    error: str
    attempts: int
    ended_at: datetime | None


def result_view(result: ItemResult) -> ResultView:
    text, encoded = payload_texts(result.data)
    return ResultView(
        id=str(result.id),
        outcome=result.outcome,
        data=text,
        data_base64=encoded,
        reason=None if result.reason is None else result.reason.name.lower(),
        error=result.error,
        attempts=result.attempts,
        ended_at=result.ended_at,
    )


class SettleView(msgspec.Struct, frozen=True):
    """The outcome of a lease, by item id. `repeated`: the items were completed or retried
    before.
    """

    lease_id: str
    done: list[str]
    repeated: list[str]
    lost: list[str]


class ExtendView(msgspec.Struct, frozen=True):
    lease_id: str
    deadline: datetime
    lease_remaining_ms: int | None
