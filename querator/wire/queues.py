"""Requests and answers of AdminService: queues, their settings and counts, items that are shown.

Longer than 500 lines: each setting is read and written once, side by side.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from querator.model import ids, limits
from querator.model.calls import (
    BlockDamage,
    BrowsedItem,
    PartitionCounts,
    PartitionTimeError,
    PeekedPage,
    QueueCounts,
    QueuePage,
)
from querator.model.errors import invalid, over_limit
from querator.model.group_paths import check_group_path
from querator.model.ids import check_name
from querator.model.queues import (
    DEAD_QUEUE_DEFAULT,
    DedupUntil,
    Fairness,
    GroupSettings,
    Queue,
    QueueKind,
    QueueSettings,
    RateSettings,
)
from querator.model.rates import drain_ms
from querator.v1 import admin_service_pb2, items_pb2
from querator.wire import field_checks, lease
from querator.wire.breakers import breaker_message, breaker_stats_message, check_breaker
from querator.wire.limits import check_rate_limit, limit_stats_message, rate_limit_message
from querator.wire.retry_policies import check_backoff

# Names of fields in the protocol's QueueSettings and in the model's, where they differ.
_MODEL_FIELDS = {
    "lease_timeout": "lease_timeout_ms",
    "expire_timeout": "expire_timeout_ms",
    "dedup_window": "dedup_window_ms",
    "retry_delay": "retry_delay_ms",
    "retry_delay_max": "retry_delay_max_ms",
    "priority_aging": "priority_aging_ms",
    "events_retention": "events_retention_ms",
    "execution_retention": "execution_retention_ms",
}
_COUNTS = [
    name
    for name in PartitionCounts.__struct_fields__
    if not name.startswith(
        ("oldest", "state_ms", "behind_ms", "breaker", "limits", "rates", "executions")
    )
]


class QueueName(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class StatsCall(msgspec.Struct, frozen=True):
    queue: QueueName
    stale: bool


class CreateQueueCall(msgspec.Struct, frozen=True):
    """`given`: the fields of `settings` that the request sets; the others have their defaults."""

    queue: QueueName
    settings: QueueSettings
    given: tuple[str, ...]


class UpdateQueueCall(msgspec.Struct, frozen=True):
    """An update of settings. `mask` has names of fields of the model's `QueueSettings`.
    `expected_version` 0: any version.
    """

    queue: QueueName
    settings: QueueSettings
    mask: tuple[str, ...]
    expected_version: int


class PageCall(msgspec.Struct, frozen=True):
    """A request for a page of the items of `queue`, or of the queues of a namespace (the queue's
    name is then empty). `page_token` empty: the first page. `state`: an `ItemState` of the
    protocol; 0: any. `after_item_id`: only items after this one; empty: from the first.
    """

    queue: QueueName
    page_size: int
    page_token: str
    state: int = 0
    stale: bool = False
    after_item_id: str = ""


_Named = (
    admin_service_pb2.CreateQueueRequest
    | admin_service_pb2.GetQueueRequest
    | admin_service_pb2.UpdateQueueRequest
    | admin_service_pb2.DeleteQueueRequest
    | admin_service_pb2.GetQueueStatsRequest
    | admin_service_pb2.PeekItemsRequest
    | admin_service_pb2.ListDeadLettersRequest
    | admin_service_pb2.RepairTimeRequest
    | admin_service_pb2.GiveUpDamagedItemsRequest
)
_Paged = (
    admin_service_pb2.ListQueuesRequest
    | admin_service_pb2.PeekItemsRequest
    | admin_service_pb2.ListDeadLettersRequest
)


def parse_create_queue(data: bytes) -> CreateQueueCall:
    message = field_checks.parse_message(admin_service_pb2.CreateQueueRequest, data)
    queue = _queue_name(message)
    given = [field.name for field, _ in message.settings.ListFields()]
    if "partitions" in given and not message.settings.partitions:
        given.remove("partitions")
    return CreateQueueCall(
        queue=queue,
        settings=check_settings(message.settings, name=queue.name),
        given=tuple(_MODEL_FIELDS.get(name, name) for name in given),
    )


def parse_get_queue(data: bytes) -> QueueName:
    return _queue_name(field_checks.parse_message(admin_service_pb2.GetQueueRequest, data))


def parse_delete_queue(data: bytes) -> QueueName:
    return _queue_name(field_checks.parse_message(admin_service_pb2.DeleteQueueRequest, data))


def parse_queue_stats(data: bytes) -> StatsCall:
    message = field_checks.parse_message(admin_service_pb2.GetQueueStatsRequest, data)
    return StatsCall(_queue_name(message), message.stale)


def parse_list_queues(data: bytes) -> PageCall:
    message = field_checks.parse_message(admin_service_pb2.ListQueuesRequest, data)
    return _page_call(message, QueueName(field_checks.check_namespace(message.namespace), ""))


def parse_update_queue(data: bytes) -> UpdateQueueCall:
    message = field_checks.parse_message(admin_service_pb2.UpdateQueueRequest, data)
    known = admin_service_pb2.QueueSettings.DESCRIPTOR.fields_by_name
    mask: dict[str, None] = {}
    for position, path in enumerate(message.update_mask.paths):
        if path not in known:
            field = f"update_mask.paths[{position}]"
            raise invalid(field, "is not a field of QueueSettings", value=path)
        mask[_MODEL_FIELDS.get(path, path)] = None
    if not mask:
        raise invalid("update_mask", "must not be empty")
    if "partitions" in mask:
        most = limits.PARTITIONS_MAX
        field_checks.check_range(
            message.settings.partitions, field="settings.partitions", least=1, most=most
        )
    queue = _queue_name(message)
    return UpdateQueueCall(
        queue=queue,
        settings=check_settings(message.settings, name=queue.name),
        mask=tuple(mask),
        expected_version=message.expected_version,
    )


def parse_peek_items(data: bytes) -> PageCall:
    message = field_checks.parse_message(admin_service_pb2.PeekItemsRequest, data)
    if message.state not in items_pb2.ItemState.values():
        raise invalid("state", "is not a known state", value=int(message.state))
    if message.after_item_id:
        ids.parse_item_id(message.after_item_id, field="after_item_id")
    call = _page_call(message, _queue_name(message), state=message.state, stale=message.stale)
    return msgspec.structs.replace(call, after_item_id=message.after_item_id)


def parse_list_dead_letters(data: bytes) -> PageCall:
    message = field_checks.parse_message(admin_service_pb2.ListDeadLettersRequest, data)
    return _page_call(message, _queue_name(message), stale=message.stale)


def _queue_name(message: _Named) -> QueueName:
    namespace = field_checks.check_namespace(message.namespace)
    return QueueName(namespace, check_name(message.queue, field="queue"))


def _page_call(
    message: _Paged, queue: QueueName, *, state: int = 0, stale: bool = False
) -> PageCall:
    page_size = field_checks.check_range(
        message.page_size or limits.PAGE_ITEMS_DEFAULT,
        field="page_size",
        least=1,
        most=limits.PAGE_ITEMS_MAX,
    )
    token = field_checks.check_chars(
        message.page_token, limits.PAGE_TOKEN_CHARS_MAX, field="page_token"
    )
    return PageCall(queue=queue, page_size=page_size, page_token=token, state=state, stale=stale)


def check_settings(message: admin_service_pb2.QueueSettings, *, name: str) -> QueueSettings:
    """Checks settings of the queue `name`; unset ones get their defaults."""
    kind = _kind(message.kind)
    keeps_all = name == DEAD_QUEUE_DEFAULT or kind is QueueKind.EXECUTIONS
    dead_queue = "" if keeps_all else DEAD_QUEUE_DEFAULT
    if message.HasField("dead_queue"):
        dead_queue = message.dead_queue
    if dead_queue:
        check_name(dead_queue, field="settings.dead_queue")
    max_attempts = 0 if keeps_all else limits.ATTEMPTS_DEFAULT
    if message.HasField("max_attempts"):
        max_attempts = message.max_attempts
    lease_timeout_ms = limits.LEASE_TIMEOUT_MS_DEFAULT
    if message.HasField("lease_timeout"):
        lease_timeout_ms = field_checks.lease_timeout_ms(
            message.lease_timeout, field="settings.lease_timeout"
        )
    expire_timeout_ms = 0
    if message.HasField("expire_timeout"):
        expire_timeout_ms = field_checks.duration_ms(
            message.expire_timeout,
            field="settings.expire_timeout",
            least_ms=0,
            most_ms=limits.EXPIRE_TIMEOUT_MS_MAX,
        )
    dedup_window_ms = limits.DEDUP_WINDOW_MS_DEFAULT
    if message.HasField("dedup_window"):
        dedup_window_ms = field_checks.duration_ms(
            message.dedup_window,
            field="settings.dedup_window",
            least_ms=0,
            most_ms=limits.DEDUP_WINDOW_MS_MAX,
        )
    return QueueSettings(
        partitions=field_checks.check_range(
            message.partitions or 1,
            field="settings.partitions",
            least=1,
            most=limits.PARTITIONS_MAX,
        ),
        lease_timeout_ms=lease_timeout_ms,
        expire_timeout_ms=expire_timeout_ms,
        max_attempts=field_checks.check_range(
            max_attempts, field="settings.max_attempts", least=0, most=limits.ATTEMPTS_MAX
        ),
        dead_queue=dead_queue,
        dedup_window_ms=dedup_window_ms,
        partition_items_max=message.partition_items_max,
        description=field_checks.check_chars(
            message.description, limits.DESCRIPTION_CHARS_MAX, field="settings.description"
        ),
        replicas=message.replicas,
        retry_delay_ms=_retry_delay_ms(message, "retry_delay", least_ms=0, default_ms=0),
        retry_delay_max_ms=_retry_delay_ms(
            message,
            "retry_delay_max",
            least_ms=limits.SCHEDULE_NOW_MS,
            default_ms=limits.RETRY_DELAY_MAX_MS_DEFAULT,
        ),
        retry_backoff=check_backoff(message.retry_backoff, field="settings.retry_backoff"),
        retry_jitter=message.retry_jitter if message.HasField("retry_jitter") else True,
        priority_aging_ms=_priority_aging_ms(message),
        dedup_until=_dedup_until(message.dedup_until),
        kind=kind,
        fairness=_fairness(message.fairness),
        group_leased_max=field_checks.check_range(
            message.group_leased_max,
            field="settings.group_leased_max",
            least=0,
            most=limits.FLOW_LEASED_MAX,
        ),
        groups=_groups(message),
        key_leased_max=field_checks.check_range(
            message.key_leased_max if message.HasField("key_leased_max") else 1,
            field="settings.key_leased_max",
            least=1,
            most=limits.FLOW_LEASED_MAX,
        ),
        key_retry_blocks=message.key_retry_blocks if message.HasField("key_retry_blocks") else True,
        lease_paused=message.lease_paused,
        produce_paused=message.produce_paused,
        breaker=check_breaker(message.breaker, field="settings.breaker")
        if message.HasField("breaker")
        else None,
        rate_limit=_rate(message, "rate_limit"),
        group_rate_limit=_rate(message, "group_rate_limit"),
        key_rate_limit=_rate(message, "key_rate_limit"),
        events_retention_ms=_events_retention_ms(message),
        execution_retention_ms=_retention_ms(message),
        lease_limit=field_checks.check_range(
            message.lease_limit,
            field="settings.lease_limit",
            least=0,
            most=limits.LEASE_LIMIT_MAX,
        ),
    )


def _events_retention_ms(message: admin_service_pb2.QueueSettings) -> int:
    retention = message.events_retention
    if not retention.seconds and not retention.nanos:
        return 0
    return field_checks.duration_ms(
        retention,
        field="settings.events_retention",
        least_ms=limits.EVENTS_RETENTION_MS_MIN,
        most_ms=limits.EVENTS_RETENTION_MS_MAX,
    )


def _rate(
    message: admin_service_pb2.QueueSettings,
    name: Literal["rate_limit", "group_rate_limit", "key_rate_limit"],
) -> RateSettings | None:
    if not message.HasField(name):
        return None
    return check_rate_limit(getattr(message, name), field=f"settings.{name}")


def _kind(value: int) -> QueueKind:
    if value not in admin_service_pb2.QueueKind.values():
        raise invalid("settings.kind", "is not a known kind", value=value)
    # The protocol has one more value: unspecified.
    return QueueKind(max(0, value - 1))


def _fairness(value: int) -> Fairness:
    if value not in admin_service_pb2.Fairness.values():
        raise invalid("settings.fairness", "is not a known fairness", value=value)
    return Fairness(value or Fairness.IN_FLIGHT)


def _groups(message: admin_service_pb2.QueueSettings) -> tuple[GroupSettings, ...]:
    most = limits.GROUP_SETTINGS_MAX
    if len(message.groups) > most:
        raise over_limit("settings.groups", value=len(message.groups), limit=most, unit="groups")
    by_path: dict[str, GroupSettings] = {}
    for position, group in enumerate(message.groups):
        field = f"settings.groups[{position}]"
        check_group_path(group.path, field=f"{field}.path")
        if group.path in by_path:
            raise invalid(f"{field}.path", "is there twice", value=group.path)
        by_path[group.path] = GroupSettings(
            path=group.path,
            weight=field_checks.check_range(
                group.weight if group.HasField("weight") else 1,
                field=f"{field}.weight",
                least=1,
                most=limits.GROUP_WEIGHT_MAX,
            ),
            leased_max=field_checks.check_range(
                group.leased_max,
                field=f"{field}.leased_max",
                least=1,
                most=limits.FLOW_LEASED_MAX,
            )
            if group.HasField("leased_max")
            else 0,
            paused=group.paused,
            rate_limit=check_rate_limit(group.rate_limit, field=f"{field}.rate_limit")
            if group.HasField("rate_limit")
            else None,
        )
    return tuple(by_path[path] for path in sorted(by_path))


def _retry_delay_ms(
    message: admin_service_pb2.QueueSettings,
    name: Literal["retry_delay", "retry_delay_max"],
    *,
    least_ms: int,
    default_ms: int,
) -> int:
    if not message.HasField(name):
        return default_ms
    return field_checks.duration_ms(
        getattr(message, name),
        field=f"settings.{name}",
        least_ms=least_ms,
        most_ms=limits.RETRY_DELAY_MS_MAX,
    )


def _dedup_until(value: int) -> DedupUntil:
    if value not in admin_service_pb2.DedupUntil.values():
        raise invalid("settings.dedup_until", "is not a known value", value=value)
    return DedupUntil(value or DedupUntil.WINDOW)


def _priority_aging_ms(message: admin_service_pb2.QueueSettings) -> int:
    aging = message.priority_aging
    if not (aging.seconds or aging.nanos):
        return 0
    return field_checks.duration_ms(
        aging,
        field="settings.priority_aging",
        least_ms=limits.PRIORITY_AGING_MS_MIN,
        most_ms=limits.PRIORITY_AGING_MS_MAX,
    )


def _retention_ms(message: admin_service_pb2.QueueSettings) -> int:
    if not message.HasField("execution_retention"):
        return limits.EXECUTION_RETENTION_MS_DEFAULT
    return field_checks.duration_ms(
        message.execution_retention,
        field="settings.execution_retention",
        least_ms=limits.EXECUTION_RETENTION_MS_MIN,
        most_ms=limits.EXECUTION_RETENTION_MS_MAX,
    )


def settings_message(settings: QueueSettings) -> admin_service_pb2.QueueSettings:
    return admin_service_pb2.QueueSettings(
        partitions=settings.partitions,
        lease_timeout=field_checks.duration(settings.lease_timeout_ms),
        expire_timeout=field_checks.duration(settings.expire_timeout_ms),
        max_attempts=settings.max_attempts,
        dead_queue=settings.dead_queue,
        dedup_window=field_checks.duration(settings.dedup_window_ms),
        partition_items_max=settings.partition_items_max,
        description=settings.description,
        replicas=settings.replicas,
        retry_delay=field_checks.duration(settings.retry_delay_ms),
        retry_delay_max=field_checks.duration(settings.retry_delay_max_ms),
        retry_backoff=items_pb2.RetryBackoff.ValueType(settings.retry_backoff),
        retry_jitter=settings.retry_jitter,
        priority_aging=field_checks.duration(settings.priority_aging_ms),
        dedup_until=admin_service_pb2.DedupUntil.ValueType(settings.dedup_until),
        kind=admin_service_pb2.QueueKind.ValueType(settings.kind + 1),
        fairness=admin_service_pb2.Fairness.ValueType(settings.fairness),
        group_leased_max=settings.group_leased_max,
        groups=[
            admin_service_pb2.GroupSettings(
                path=group.path,
                weight=group.weight,
                leased_max=group.leased_max or None,
                paused=group.paused or None,
                rate_limit=rate_limit_message(group.rate_limit),
            )
            for group in settings.groups
        ],
        key_leased_max=settings.key_leased_max,
        key_retry_blocks=settings.key_retry_blocks,
        lease_paused=settings.lease_paused,
        produce_paused=settings.produce_paused,
        breaker=None if settings.breaker is None else breaker_message(settings.breaker),
        rate_limit=rate_limit_message(settings.rate_limit),
        group_rate_limit=rate_limit_message(settings.group_rate_limit),
        key_rate_limit=rate_limit_message(settings.key_rate_limit),
        events_retention=field_checks.duration(settings.events_retention_ms),
        lease_limit=settings.lease_limit,
        execution_retention=field_checks.duration(settings.execution_retention_ms)
        if settings.kind is QueueKind.EXECUTIONS
        else None,
    )


def queue_message(queue: Queue) -> admin_service_pb2.Queue:
    return admin_service_pb2.Queue(
        namespace=queue.namespace,
        name=queue.name,
        id=queue.id,
        state=admin_service_pb2.QueueState.ValueType(queue.state),
        settings=settings_message(queue.settings),
        settings_version=queue.settings_version,
        created_at=field_checks.timestamp(queue.created_at_ms),
        partitions_opening=queue.opening,
        partitions_closing=queue.closing,
    )


def encode_created_queue(queue: Queue, *, created: bool) -> bytes:
    return admin_service_pb2.CreateQueueResponse(
        queue=queue_message(queue), created=created
    ).SerializeToString()


def encode_got_queue(queue: Queue) -> bytes:
    return admin_service_pb2.GetQueueResponse(queue=queue_message(queue)).SerializeToString()


def encode_updated_queue(queue: Queue) -> bytes:
    return admin_service_pb2.UpdateQueueResponse(queue=queue_message(queue)).SerializeToString()


def encode_deleted_queue() -> bytes:
    return admin_service_pb2.DeleteQueueResponse().SerializeToString()


def encode_queue_page(page: QueuePage) -> bytes:
    return admin_service_pb2.ListQueuesResponse(
        queues=map(queue_message, page.queues), next_page_token=page.next_page_token
    ).SerializeToString()


def encode_queue_stats(stats: QueueCounts) -> bytes:
    return admin_service_pb2.GetQueueStatsResponse(
        queue=queue_message(stats.queue),
        total=_stats_message(stats.total),
        partitions=map(_stats_message, stats.partitions),
        durable=stats.durable,
    ).SerializeToString()


def _stats_message(stats: PartitionCounts) -> admin_service_pb2.PartitionStats:
    message = admin_service_pb2.PartitionStats(**{name: getattr(stats, name) for name in _COUNTS})
    if stats.oldest_ready_at_ms:
        message.oldest_ready_at.CopyFrom(field_checks.timestamp(stats.oldest_ready_at_ms))
    if stats.oldest_batch_at_ms:
        message.oldest_batch_at.CopyFrom(field_checks.timestamp(stats.oldest_batch_at_ms))
    if stats.oldest_stage_at_ms:
        message.oldest_stage_at.CopyFrom(field_checks.timestamp(stats.oldest_stage_at_ms))
    if stats.oldest_lease_at_ms:
        message.oldest_lease_at.CopyFrom(field_checks.timestamp(stats.oldest_lease_at_ms))
    for name, one in zip(("rates_1m", "rates_5m", "rates_15m"), stats.rates, strict=False):
        rates = admin_service_pb2.Rates(came=one.came, completed=one.completed, left=one.left)
        getattr(message, name).CopyFrom(rates)
    drained_ms = drain_ms(stats.ready, stats.rates)
    if drained_ms is not None:
        message.drain_time.CopyFrom(field_checks.duration(drained_ms))
    if stats.breaker is not None:
        message.breaker.CopyFrom(breaker_stats_message(stats.breaker))
    if stats.limits is not None:
        message.limits.CopyFrom(limit_stats_message(stats.limits))
    return message


def parse_repair_time(data: bytes) -> tuple[QueueName, bool]:
    """The queue, and whether this is a dry run."""
    message = field_checks.parse_message(admin_service_pb2.RepairTimeRequest, data)
    return _queue_name(message), message.dry_run


def encode_repaired_time(partitions: Iterable[PartitionTimeError]) -> bytes:
    return admin_service_pb2.RepairTimeResponse(
        partitions=[
            admin_service_pb2.PartitionTime(
                partition=one.partition,
                ahead=field_checks.signed_duration(one.ahead_ms),
                repaired=one.repaired,
                leases=one.leases,
                scheduled=one.scheduled,
                expired=one.expired,
            )
            for one in partitions
        ]
    ).SerializeToString()


def parse_give_up(data: bytes) -> tuple[QueueName, bool]:
    """The queue, and whether this is a dry run."""
    message = field_checks.parse_message(admin_service_pb2.GiveUpDamagedItemsRequest, data)
    return _queue_name(message), message.dry_run


def encode_given_up(blocks: Iterable[BlockDamage], given_up: int) -> bytes:
    return admin_service_pb2.GiveUpDamagedItemsResponse(
        blocks=[
            admin_service_pb2.DamagedBlock(
                partition=one.partition,
                first_seq=one.first_seq,
                items=one.items,
                kept=one.kept,
                lost=one.lost,
                node=one.node,
                reason=one.reason,
            )
            for one in blocks
        ],
        given_up=given_up,
    ).SerializeToString()


def encode_peeked_items(page: PeekedPage) -> bytes:
    return admin_service_pb2.PeekItemsResponse(
        items=peeked(page), next_page_token=page.next_page_token
    ).SerializeToString()


def encode_dead_letters(page: PeekedPage) -> bytes:
    return admin_service_pb2.ListDeadLettersResponse(
        items=peeked(page), next_page_token=page.next_page_token
    ).SerializeToString()


def peeked(page: PeekedPage) -> list[admin_service_pb2.PeekedItem]:
    return [peeked_message(*entry) for entry in page.items]


def peeked_message(group: int, partition: int, item: BrowsedItem) -> admin_service_pb2.PeekedItem:
    message = admin_service_pb2.PeekedItem(
        partition=partition,
        seq=item.seq,
        state=items_pb2.ItemState.ValueType(item.state),
        attempt=item.attempt,
        produced_at=field_checks.timestamp(item.produced_at_ms),
        errors=item.errors,
        item=lease.item_message(item.item),
        priority=item.priority,
        client_id=item.client_id,
        checkpoint_bytes=item.checkpoint_bytes,
    )
    if item.due_at_ms:
        message.due_at.CopyFrom(field_checks.timestamp(item.due_at_ms))
    if item.lease:
        message.lease_id = ids.format_lease_id(
            ids.GroupId(group), ids.PartitionNumber(partition), ids.LeaseNumber(item.lease)
        )
    if item.leased_at_ms:
        message.leased_at.CopyFrom(field_checks.timestamp(item.leased_at_ms))
    if item.deadline_ms:
        message.deadline.CopyFrom(field_checks.timestamp(item.deadline_ms))
    if item.dead_letter is not None:
        message.dead_letter.CopyFrom(lease.dead_letter_message(item.dead_letter))
    if item.attributes is not None:
        message.attributes.CopyFrom(items_pb2.Attributes(values=dict(item.attributes)))
    return message


assert set(QueueSettings.__struct_fields__) == {
    _MODEL_FIELDS.get(name, name)
    for name in admin_service_pb2.QueueSettings.DESCRIPTOR.fields_by_name
}
assert items_pb2.LeasedBatch.ITEMS_FIELD_NUMBER == 15
