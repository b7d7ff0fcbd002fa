"""Items on their way from the code of an execution to a queue."""

import msgspec

from querator.client.values import Item


class OutgoingItems(msgspec.Struct, frozen=True):
    """Items for one queue. `encoded` are the same, as the field of a message that has items."""

    queue: str
    items: tuple[Item, ...]
    encoded: bytes
