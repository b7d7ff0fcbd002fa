"""Ids of items in requests."""

from collections.abc import Sequence

from querator.model import ids, limits
from querator.model.errors import over_limit


def named_items(item_ids: Sequence[str]) -> tuple[str, ...]:
    """Checks the ids of items in a request."""
    if len(item_ids) > limits.REQUEST_ITEMS_MAX:
        most = limits.REQUEST_ITEMS_MAX
        raise over_limit("item_ids", value=len(item_ids), limit=most, unit="items")
    for position, item_id in enumerate(item_ids):
        ids.parse_item_id(item_id, field=f"item_ids[{position}]")
    return tuple(item_ids)
