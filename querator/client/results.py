"""Conversion of protocol answers to the SDK's values."""

from collections.abc import Iterable, Mapping

from querator.client.breakers import breaker_settings, breaker_stats
from querator.client.errors import ErrorCode, LeaseLost, make_error
from querator.client.groups import group_settings
from querator.client.items import decode_dead_letter, decode_item, instant, span
from querator.client.limits import limit_stats, rate_limit
from querator.client.options import DedupUntil, RetryBackoff
from querator.client.transport.rpc_errors import code_of
from querator.client.values import (
    FAIRNESSES,
    KINDS,
    ExtendOutcome,
    ItemId,
    ItemState,
    PartitionStats,
    PeekedItem,
    ProducedRun,
    QueueInfo,
    QueueStats,
    Rates,
    SettleOutcome,
)
from querator.v1 import admin_service_pb2, items_pb2, queue_service_pb2

_STATES = {
    admin_service_pb2.QUEUE_STATE_CREATING: "creating",
    admin_service_pb2.QUEUE_STATE_ACTIVE: "active",
    admin_service_pb2.QUEUE_STATE_DELETING: "deleting",
}
_COUNTS = [
    name
    for name in PartitionStats.__struct_fields__
    if name not in ("waits_for", "breaker", "limits", "drain_time")
    and not name.startswith(("oldest", "rates"))
]


def produced_runs(response: queue_service_pb2.ProduceResponse) -> tuple[ProducedRun, ...]:
    return tuple(
        ProducedRun(
            partition=batch.partition,
            first_seq=batch.first_seq,
            count=batch.count,
            indexes=tuple(batch.indexes),
            repeated=batch.repeated_answer,
            duplicates=tuple((twin.index, twin.partition, twin.seq) for twin in batch.duplicates),
            replaced=tuple((gone.index, gone.partition, gone.seq) for gone in batch.replaced),
        )
        for batch in response.batches
    )


def seqs_of(ranges: Iterable[items_pb2.SeqRange]) -> tuple[int, ...]:
    return tuple(seq for run in ranges for seq in range(run.first_seq, run.first_seq + run.count))


def settle_outcome(outcome: queue_service_pb2.LeaseOutcome) -> SettleOutcome:
    return SettleOutcome(
        outcome.lease_id,
        seqs_of(outcome.done),
        seqs_of(outcome.repeated_answer),
        seqs_of(outcome.lost),
        code_of(outcome.error) if outcome.error else None,
    )


def extend_outcome(outcome: queue_service_pb2.ExtendOutcome) -> ExtendOutcome:
    return ExtendOutcome(
        outcome.lease_id,
        instant(outcome.deadline),
        span(outcome.lease_remaining),
        tuple(outcome.lost_checkpoints),
    )


def lease_lost(lease_id: str, items: tuple[ItemId, ...] = ()) -> LeaseLost:
    what = f"of {', '.join(map(str, items[:5]))}{' …' if len(items) > 5 else ''} " if items else ""
    error = make_error(
        ErrorCode.LEASE_LOST,
        f"the lease {lease_id} {what}has ended: another consumer may have the work",
        field="lease_id",
        value=lease_id,
    )
    assert isinstance(error, LeaseLost)
    error.lease_id, error.items = lease_id, items
    return error


_BACKOFFS: Mapping[int, RetryBackoff] = {
    items_pb2.RETRY_BACKOFF_UNSPECIFIED: "exponential",
    items_pb2.RETRY_BACKOFF_FIXED: "fixed",
    items_pb2.RETRY_BACKOFF_LINEAR: "linear",
    items_pb2.RETRY_BACKOFF_EXPONENTIAL: "exponential",
}

_DEDUP_UNTIL: Mapping[int, DedupUntil] = {
    admin_service_pb2.DEDUP_UNTIL_UNSPECIFIED: "window",
    admin_service_pb2.DEDUP_UNTIL_WINDOW: "window",
    admin_service_pb2.DEDUP_UNTIL_DONE: "done",
}


def queue_info(queue: admin_service_pb2.Queue, *, created: bool = False) -> QueueInfo:
    settings = queue.settings
    return QueueInfo(
        namespace=queue.namespace,
        name=queue.name,
        id=queue.id,
        state=_STATES.get(queue.state, "unknown"),
        partitions=settings.partitions,
        lease_timeout=span(settings.lease_timeout),
        expire_timeout=span(settings.expire_timeout) or None,
        max_attempts=settings.max_attempts,
        dead_queue=settings.dead_queue,
        dedup_window=span(settings.dedup_window),
        partition_items_max=settings.partition_items_max,
        description=settings.description,
        replicas=settings.replicas,
        retry_delay=span(settings.retry_delay) or None,
        retry_delay_max=span(settings.retry_delay_max),
        retry_backoff=_BACKOFFS[settings.retry_backoff],
        retry_jitter=settings.retry_jitter,
        priority_aging=span(settings.priority_aging),
        dedup_until=_DEDUP_UNTIL[settings.dedup_until],
        kind=KINDS[max(0, settings.kind - 1)],
        fairness=FAIRNESSES[settings.fairness - 1],
        group_leased_max=settings.group_leased_max,
        groups=tuple(map(group_settings, settings.groups)),
        key_leased_max=settings.key_leased_max,
        key_retry_blocks=settings.key_retry_blocks,
        lease_paused=settings.lease_paused,
        produce_paused=settings.produce_paused,
        breaker=breaker_settings(settings),
        rate_limit=rate_limit(settings, "rate_limit"),
        group_rate_limit=rate_limit(settings, "group_rate_limit"),
        key_rate_limit=rate_limit(settings, "key_rate_limit"),
        lease_limit=settings.lease_limit,
        events_retention=span(settings.events_retention) or None,
        settings_version=queue.settings_version,
        created_at=instant(queue.created_at),
        created=created,
        partitions_opening=queue.partitions_opening,
        partitions_closing=queue.partitions_closing,
    )


def _partition_stats(stats: admin_service_pb2.PartitionStats) -> PartitionStats:
    ready = instant(stats.oldest_ready_at) if stats.HasField("oldest_ready_at") else None
    stage = instant(stats.oldest_stage_at) if stats.HasField("oldest_stage_at") else None
    counts = {name: getattr(stats, name) for name in _COUNTS}
    lease = instant(stats.oldest_lease_at) if stats.HasField("oldest_lease_at") else None
    batch = instant(stats.oldest_batch_at) if stats.HasField("oldest_batch_at") else None
    return PartitionStats(
        **counts,
        oldest_ready_at=ready,
        oldest_batch_at=batch,
        oldest_stage_at=stage,
        oldest_lease_at=lease,
        waits_for=tuple(stats.waits_for),
        breaker=breaker_stats(stats),
        limits=limit_stats(stats),
        rates_1m=_rates(stats.rates_1m) if stats.HasField("rates_1m") else None,
        rates_5m=_rates(stats.rates_5m) if stats.HasField("rates_5m") else None,
        rates_15m=_rates(stats.rates_15m) if stats.HasField("rates_15m") else None,
        drain_time=stats.drain_time.ToTimedelta() if stats.HasField("drain_time") else None,
    )


def _rates(rates: admin_service_pb2.Rates) -> Rates:
    return Rates(rates.came, rates.completed, rates.left)


def queue_stats(response: admin_service_pb2.GetQueueStatsResponse) -> QueueStats:
    return QueueStats(
        queue_info(response.queue),
        _partition_stats(response.total),
        tuple(_partition_stats(stats) for stats in response.partitions),
        response.durable,
    )


def peeked_item(peeked: admin_service_pb2.PeekedItem) -> PeekedItem:
    return PeekedItem(
        id=ItemId(peeked.partition, peeked.seq),
        state=ItemState(peeked.state),
        attempt=peeked.attempt,
        produced_at=instant(peeked.produced_at),
        due_at=instant(peeked.due_at) if peeked.HasField("due_at") else None,
        lease_id=peeked.lease_id,
        dead_letter=(
            decode_dead_letter(peeked.dead_letter) if peeked.HasField("dead_letter") else None
        ),
        errors=tuple(peeked.errors),
        item=decode_item(peeked.item),
        priority=peeked.priority,
        client_id=peeked.client_id,
        deadline=instant(peeked.deadline) if peeked.HasField("deadline") else None,
        leased_at=instant(peeked.leased_at) if peeked.HasField("leased_at") else None,
        attributes=dict(
            peeked.attributes.values if peeked.HasField("attributes") else peeked.item.attributes
        ),
        checkpoint_bytes=peeked.checkpoint_bytes,
    )
