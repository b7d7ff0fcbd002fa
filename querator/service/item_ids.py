"""Ids of items in calls: split by partition, and checked against the queue."""

from collections.abc import Sequence

from querator.model.errors import ErrorCode, QueratorError, invalid, over_limit
from querator.model.ids import parse_item_id
from querator.model.limits import OVERLOADED_RETRY_MS, REQUEST_ITEMS_MAX
from querator.model.queues import Queue


def by_partition(item_ids: Sequence[str]) -> dict[int, list[int]]:
    """Sequences by partition; repeated ids count once. Raises INVALID_ARGUMENT, LIMIT_EXCEEDED."""
    if len(item_ids) > REQUEST_ITEMS_MAX:
        raise over_limit("item_ids", value=len(item_ids), limit=REQUEST_ITEMS_MAX, unit="items")
    found: dict[int, list[int]] = {}
    for position, item_id in enumerate(dict.fromkeys(item_ids)):
        partition, seq = parse_item_id(item_id, field=f"item_ids[{position}]")
        found.setdefault(partition, []).append(seq)
    return found


def check_partitions(item_ids: Sequence[str], queue: Queue, *, known: bool) -> None:
    """Raises QueratorError when an id names a partition that the queue does not have; `known` tells
    whether that is certain.
    """
    for position, item_id in enumerate(item_ids):
        field = f"item_ids[{position}]"
        partition, _ = parse_item_id(item_id, field=field)
        if partition < len(queue.groups):
            continue
        message = f"is {item_id}, and queue {queue.name} has no partition {partition}"
        if known:
            raise invalid(field, message, value=item_id)
        raise QueratorError(
            ErrorCode.UNAVAILABLE,
            f"{field} {message}, by the map of this node, which may be old; not executed",
            field=field,
            value=item_id,
            retry_delay_ms=OVERLOADED_RETRY_MS,
        )
