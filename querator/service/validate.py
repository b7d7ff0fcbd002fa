"""Checks that need no partition: names, settings, page sizes, and calls that do not fit their
queue. Every refusal names the field, its limit and the value.

`wire` has checked the single fields of requests from the network. Checks are repeated here for
fields that could do harm in embedded use, where `wire` is not involved.
"""

from querator.model import limits
from querator.model.calls import LeasedRanges, ProduceCall
from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.model.group_paths import check_group_path
from querator.model.ids import DEFAULT_NAMESPACE, check_name
from querator.model.item_options import OnDuplicate
from querator.model.placement_map import PlacementMap
from querator.model.queues import (
    REPLICAS_ALLOWED,
    DedupUntil,
    Queue,
    QueueKind,
    QueueSettings,
    QueueState,
)
from querator.model.txn_calls import StageCall

_SEQ_MAX = 2**64 - 1

# Bounds of the settings that are numbers: field, unit, least, most.
_NUMBERS = (
    ("partitions", "", 1, limits.PARTITIONS_MAX),
    ("lease_timeout_ms", "ms", limits.LEASE_TIMEOUT_MS_MIN, limits.LEASE_TIMEOUT_MS_MAX),
    ("expire_timeout_ms", "ms", 0, limits.EXPIRE_TIMEOUT_MS_MAX),
    ("max_attempts", "", 0, limits.ATTEMPTS_MAX),
    ("dedup_window_ms", "ms", 0, limits.DEDUP_WINDOW_MS_MAX),
    ("partition_items_max", "", 0, 2**63 - 1),
    ("retry_delay_max_ms", "ms", limits.SCHEDULE_NOW_MS, limits.RETRY_DELAY_MS_MAX),
    ("lease_limit", "", 0, limits.LEASE_LIMIT_MAX),
    ("group_leased_max", "", 0, limits.FLOW_LEASED_MAX),
    ("key_leased_max", "", 1, limits.FLOW_LEASED_MAX),
)
_BREAKER = (
    ("failure_percent", "", 1, 100),
    ("outcomes_min", "", 1, limits.BREAKER_OUTCOMES_MAX),
    ("window_ms", "ms", limits.BREAKER_WINDOW_MS_MIN, limits.BREAKER_WINDOW_MS_MAX),
    ("open_ms", "ms", limits.BREAKER_OPEN_MS_MIN, limits.BREAKER_OPEN_MS_MAX),
    ("probes", "", 1, limits.BREAKER_PROBES_MAX),
)
"""As `_NUMBERS`, of the breaker."""
_RATE = (
    ("items", "", 1, limits.RATE_ITEMS_MAX),
    ("interval_ms", "ms", limits.RATE_INTERVAL_MS_MIN, limits.RATE_INTERVAL_MS_MAX),
    ("burst", "", 0, limits.RATE_BURST_MAX),
)
"""As `_NUMBERS`, of the rate limit."""
_OF_KIND = (
    ("execution_retention_ms", QueueKind.EXECUTIONS),
    ("fairness", QueueKind.FAIR),
    ("group_leased_max", QueueKind.FAIR),
    ("groups", QueueKind.FAIR),
    ("group_rate_limit", QueueKind.FAIR),
    ("key_rate_limit", QueueKind.KEYED),
    ("key_leased_max", QueueKind.KEYED),
    ("key_retry_blocks", QueueKind.KEYED),
)
"""Settings of queues of one kind."""
_DEFAULTS = QueueSettings()


def usable(placed: PlacementMap, namespace: str, name: str) -> Queue:
    """The queue, if items can be put into it and taken out of it."""
    queue = placed.find(namespace, name)
    if queue is not None and queue.state is QueueState.ACTIVE:
        return queue
    queue = existing(placed, namespace, name)
    if queue.state is QueueState.DELETING:
        raise deleting(name)
    raise QueratorError(
        ErrorCode.UNAVAILABLE,
        f"queue {name} is being created",
        field="queue",
        value=name,
        retry_delay_ms=limits.OVERLOADED_RETRY_MS,
    )


def existing(placed: PlacementMap, namespace: str, name: str) -> Queue:
    """The queue, in any state."""
    queue = placed.find(namespace, name)
    if queue is not None:
        return queue
    if not placed.has_namespace(namespace) and namespace != DEFAULT_NAMESPACE:
        raise namespace_not_found(namespace)
    message = f"there is no queue {name[:255]} in namespace {namespace}"
    raise QueratorError(ErrorCode.QUEUE_NOT_FOUND, message, field="queue", value=name[:255])


def namespace_not_found(namespace: str) -> QueratorError:
    """Error for an unknown namespace. The default namespace always exists, even before its first
    queue.
    """
    message = f"there is no namespace {namespace[:255]}"
    return QueratorError(
        ErrorCode.NAMESPACE_NOT_FOUND, message, field="namespace", value=namespace[:255]
    )


def deleting(name: str) -> QueratorError:
    message = f"queue {name} is being deleted"
    return QueratorError(ErrorCode.QUEUE_DELETING, message, field="queue", value=name)


def gone(queue: Queue | None) -> QueratorError:
    """Error for a queue that has been deleted, or is being deleted."""
    if queue is None:
        return QueratorError(ErrorCode.QUEUE_NOT_FOUND, "the queue has been deleted")
    return deleting(queue.name)


def check_settings(settings: QueueSettings, *, name: str) -> None:
    """Checks settings of the queue `name`. Whether its dead queue is suitable is checked by
    placement.
    """
    for field, unit, least, most in _NUMBERS:
        check_between(getattr(settings, field), least, most, field=f"settings.{field}", unit=unit)
    if settings.replicas not in REPLICAS_ALLOWED:
        raise invalid("settings.replicas", "must be 0, 1, 3 or 5", value=settings.replicas)
    if settings.retry_delay_ms:
        least = limits.SCHEDULE_NOW_MS
        check_between(
            settings.retry_delay_ms,
            least,
            limits.RETRY_DELAY_MS_MAX,
            field="settings.retry_delay",
            unit="ms",
        )
    if settings.priority_aging_ms:
        check_between(
            settings.priority_aging_ms,
            limits.PRIORITY_AGING_MS_MIN,
            limits.PRIORITY_AGING_MS_MAX,
            field="settings.priority_aging",
            unit="ms",
        )
    for part, of, bounds in (
        ("breaker", settings.breaker, _BREAKER),
        ("rate_limit", settings.rate_limit, _RATE),
        ("group_rate_limit", settings.group_rate_limit, _RATE),
        ("key_rate_limit", settings.key_rate_limit, _RATE),
        *(
            (f"groups[{at}].rate_limit", one.rate_limit, _RATE)
            for at, one in enumerate(settings.groups)
        ),
    ):
        for field, unit, least, most in bounds if of is not None else ():
            check_between(
                getattr(of, field), least, most, field=f"settings.{part}.{field}", unit=unit
            )
    _check_flows(settings)
    if settings.kind is QueueKind.EXECUTIONS:
        _check_executions(settings)
    if settings.dead_queue:
        check_name(settings.dead_queue, field="settings.dead_queue")
    if settings.dead_queue == name:
        raise invalid("settings.dead_queue", "must be another queue", value=name)
    characters = len(settings.description)
    if characters > limits.DESCRIPTION_CHARS_MAX:
        raise over_limit(
            "settings.description",
            value=characters,
            limit=limits.DESCRIPTION_CHARS_MAX,
            unit="characters",
        )


_NOT_OF_EXECUTIONS = ("expire_timeout_ms", "max_attempts", "dead_queue", "priority_aging_ms")
"""Settings about the end of items: activations end with their executions."""


def _check_executions(settings: QueueSettings) -> None:
    for field in _NOT_OF_EXECUTIONS:
        if getattr(settings, field):
            raise invalid(f"settings.{field}", "is not for a queue of executions")
    check_between(
        settings.execution_retention_ms,
        limits.EXECUTION_RETENTION_MS_MIN,
        limits.EXECUTION_RETENTION_MS_MAX,
        field="settings.execution_retention",
        unit="ms",
    )


def not_of_items(queue: Queue) -> QueratorError:
    """The error of a call about items of producers, for a queue of executions."""
    message = f"queue {queue.name} is of kind executions: it has executions, and no items"
    return QueratorError(ErrorCode.QUEUE_KIND, message, field="queue", value=queue.name)


def _check_flows(settings: QueueSettings) -> None:
    """Checks the settings of fair and keyed queues."""
    for field, kind in _OF_KIND:
        if settings.kind is not kind and getattr(settings, field) != getattr(_DEFAULTS, field):
            raise invalid(
                f"settings.{field}",
                f"needs a queue of kind {kind.name.lower()}; this one is "
                f"{settings.kind.name.lower()}",
            )
    if len(settings.groups) > limits.GROUP_SETTINGS_MAX:
        raise over_limit(
            "settings.groups",
            value=len(settings.groups),
            limit=limits.GROUP_SETTINGS_MAX,
            unit="groups",
        )
    before = ""
    for position, group in enumerate(settings.groups):
        path = f"settings.groups[{position}]"
        check_group_path(group.path, field=f"{path}.path")
        if group.path <= before:
            raise invalid(f"{path}.path", "is not in ascending order", value=group.path)
        before = group.path
        check_between(group.weight, 1, limits.GROUP_WEIGHT_MAX, field=f"{path}.weight")
        check_between(group.leased_max, 0, limits.FLOW_LEASED_MAX, field=f"{path}.leased_max")


def check_between(value: int, least: int, most: int, *, field: str, unit: str = "") -> None:
    if value > most:
        raise over_limit(field, value=value, limit=most, unit=unit)
    if value < least:
        suffix = f" {unit}" if unit else ""
        raise QueratorError(
            ErrorCode.LIMIT_EXCEEDED,
            f"{field} is {value}{suffix}; the least is {least}{suffix}",
            field=field,
            limit=f"{least}{suffix}",
            value=f"{value}{suffix}",
        )


def check_update_mask(mask: tuple[str, ...]) -> None:
    if not mask:
        raise invalid("update_mask", "must name the settings to change")
    for position, field in enumerate(mask):
        if field not in QueueSettings.__struct_fields__:
            raise invalid(f"update_mask[{position}]", "is not a setting", value=field)


def page_items(page_size: int) -> int:
    """Maximum number of items of a page; 0 requests the default."""
    check_between(page_size, 0, limits.PAGE_ITEMS_MAX, field="page_size", unit="items")
    return page_size or limits.PAGE_ITEMS_DEFAULT


def check_partition(partition: int, queue: Queue) -> None:
    if not 0 <= partition < len(queue.groups):
        raise invalid(
            "partition",
            f"is {partition}; queue {queue.name} has partitions 0 to {len(queue.groups) - 1}",
            value=partition,
        )


def check_on_duplicate(queue: Queue, call: ProduceCall | StageCall) -> None:
    """Raises INVALID_ARGUMENT for an item that would replace another one, if dedup keys do not
    count until their items are done.
    """
    if queue.settings.dedup_until is DedupUntil.DONE:
        return
    for special in call.specials:
        if special.on_duplicate is not OnDuplicate.KEEP:
            raise invalid(
                f"items[{special.ordinal}].on_duplicate",
                f"{special.on_duplicate.name} needs a queue with dedup_until DONE; that of queue "
                f"{queue.name} is {queue.settings.dedup_until.name}",
                value=special.on_duplicate.name,
            )


def check_leases(leases: tuple[LeasedRanges, ...]) -> None:
    """Checks the ranges of leases to settle: ascending, without overlap, and of a size that a lease
    can have.
    """
    if not leases:
        raise invalid("leases", "must not be empty")
    if len(leases) > limits.REQUEST_LEASES_MAX:
        raise over_limit(
            "leases", value=len(leases), limit=limits.REQUEST_LEASES_MAX, unit="leases"
        )
    for position, ref in enumerate(leases):
        if ref.ranges:
            _check_ranges(ref, f"leases[{position}].ranges")


def _check_ranges(ref: LeasedRanges, field: str) -> None:
    stop = 1
    for position, (first_seq, count) in enumerate(ref.ranges):
        path = f"{field}[{position}]"
        if first_seq < 1:
            raise invalid(f"{path}.first_seq", "must be at least 1", value=first_seq)
        if count < 1:
            raise invalid(f"{path}.count", "must be at least 1", value=count)
        if first_seq + count - 1 > _SEQ_MAX:
            raise invalid(path, "ends behind the last sequence", value=first_seq)
        if first_seq < stop:
            raise invalid(f"{path}.first_seq", "is within or before another range", value=first_seq)
        stop = first_seq + count
