"""What an item says about others with its dedup key: checks of the fields."""

from querator.model import limits
from querator.model.errors import invalid
from querator.model.item_options import OnDuplicate
from querator.v1 import items_pb2
from querator.wire import field_checks


def check_on_duplicate(item: items_pb2.Item, path: str) -> tuple[OnDuplicate, int]:
    """`on_duplicate`, and `debounce_max` in ms (0 unless the item is bumped). `path` is the one of
    the item. Raises INVALID_ARGUMENT, LIMIT_EXCEEDED.
    """
    number = item.on_duplicate
    if number not in items_pb2.OnDuplicate.values():
        raise invalid(f"{path}on_duplicate", "is not a known value", value=number)
    what = OnDuplicate(number or OnDuplicate.KEEP)
    if number and not item.dedup_key:
        name = items_pb2.OnDuplicate.Name(number)
        raise invalid(f"{path}on_duplicate", "needs a dedup_key", value=name)
    if what is not OnDuplicate.BUMP:
        if item.HasField("debounce_max"):
            raise invalid(f"{path}debounce_max", "needs on_duplicate BUMP")
        return what, 0
    if not item.HasField("enqueue_at"):
        raise invalid(f"{path}on_duplicate", "BUMP needs an enqueue_at: the start that it moves to")
    if not item.HasField("debounce_max"):
        return what, limits.DEBOUNCE_MAX_MS_DEFAULT
    most_ms = field_checks.duration_ms(
        item.debounce_max,
        field=f"{path}debounce_max",
        least_ms=limits.DEBOUNCE_MAX_MS_MIN,
        most_ms=limits.DEBOUNCE_MAX_MS_MAX,
    )
    return what, most_ms
