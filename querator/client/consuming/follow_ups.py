"""Follow-ups: items that are produced in the same step in which a leased item is settled."""

from collections.abc import Iterable, Mapping

from querator.client import values
from querator.client.items import AnyItem, encode_items
from querator.client.typed import wrong_type
from querator.v1 import queue_service_pb2

FollowUps = Mapping[str, AnyItem | Iterable[AnyItem]]
"""Items by the name of the queue that they are for."""


class EncodedFollowUps:
    """Follow-ups as a request carries them. No two are equal, so that none share a request."""

    __slots__ = ("messages",)

    def __init__(self, messages: list[queue_service_pb2.FollowUps]) -> None:
        self.messages = messages


def encode_follow_ups(follow_ups: FollowUps | None) -> EncodedFollowUps | None:
    """None when there are no items. Raises TypeError for a value that is not an item, and as
    `items.encode_items`.
    """
    if not follow_ups:
        return None
    if not isinstance(follow_ups, Mapping):
        raise wrong_type("follow_ups", follow_ups, "items by queue, such as {'mail': [b'…']}")
    messages = []
    for queue, items in follow_ups.items():
        if not isinstance(queue, str):
            raise wrong_type("follow_ups", queue, "the name of a queue")
        if isinstance(items, bytes | str | values.Item):
            items = (items,)
        elif not isinstance(items, Iterable):
            raise wrong_type(f"follow_ups[{queue!r}]", items, "an item, or items")
        encoded = encode_items(items)
        if encoded.items:
            message = queue_service_pb2.FollowUps.FromString(b"".join(encoded.pieces))
            message.queue = queue
            messages.append(message)
    return EncodedFollowUps(messages) if messages else None
