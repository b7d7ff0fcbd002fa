"""Items that the code produces: they leave the worker with the record that says so.

    live       the call makes a record (PRODUCED), and the items go with it, in one Record
    replayed   the call waits for its record in the journal; it produces nothing
    at the end of the journal, calls that found no record make one: they are live

So items are stored if, and only if, the journal says it, and nothing waits for them: they are in
the same entry as all that the code had been given before. The record is an event of the call that
made it, so a fold removes it like the others.
"""

import sys
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec

from querator.client.errors import RequestError
from querator.client.values import Item
from querator.durable import context
from querator.durable.errors import ValueTooLarge
from querator.durable.folds import CodeEvent
from querator.durable.operations import Site, place_of, site_of
from querator.durable.outgoing_items import OutgoingItems
from querator.durable.paths import Path
from querator.durable.waits import instant_of
from querator.model.errors import QueratorError
from querator.model.ids import check_name
from querator.model.limits import (
    PAYLOAD_BYTES_MAX,
    RECORD_BYTES_MAX,
    RECORD_ITEMS_MAX,
    SCHEDULE_AHEAD_MS_MAX,
)

if TYPE_CHECKING:
    from querator.client.items import AnyItem

_AHEAD_MAX: Final = timedelta(milliseconds=SCHEDULE_AHEAD_MS_MAX)
_BYTES_MAX: Final = RECORD_BYTES_MAX // 2
"""Of one call: a Record also has what the code has seen."""


class Production:
    """A call of `produce` by its path. `event` is its record, as the code is given it. `turn` is
    the number of the turn in which the call was made.
    """

    __slots__ = ("event", "path", "produced", "site", "turn")

    def __init__(
        self, path: Path, produced: OutgoingItems, site: Site, event: CodeEvent, turn: int
    ) -> None:
        self.path = path
        self.produced = produced
        self.site = site
        self.event = event
        self.turn = turn

    def in_words(self) -> str:
        return f"produce {self.produced.queue}   {place_of(self.site)}"


def produce(queue: str, *items: "AnyItem") -> None:
    """Produces items into a queue of the namespace, each exactly once: they are stored with the
    next record, and arrive a little later. The call waits for nothing, and returns nothing.

    An item is an `Item`, bytes or text. Its `delay` counts from `now()`. Raises TypeError and
    ValueError for what is no item or no name of a queue, or for an item with `keep_result` or
    `on_duplicate`; ValueTooLarge for more than 1,000 items or 4 MiB in one call, or for a payload
    of more than 1 MiB. The execution becomes stuck if there is no such queue: make the queue, and
    retry the execution.
    """
    code = context.any_code_or_raise("produce")
    if not isinstance(queue, str):
        raise TypeError(f"the queue is {queue!r}; it must be a text")
    try:
        check_name(queue, field="queue")
    except QueratorError as error:
        raise ValueError(str(error)) from None
    if len(items) > RECORD_ITEMS_MAX:
        raise ValueTooLarge(f"produce was given {len(items)} items, of at most {RECORD_ITEMS_MAX}")
    whole = tuple(_whole(item, nth, code.loop.now_ms) for nth, item in enumerate(items))
    # Loaded when it is needed: it loads Protocol Buffers, and most functions produce nothing.
    try:
        encoded = import_module("querator.client.items").encode_items(whole)
    except RequestError as error:
        raise ValueError(str(error)) from None
    if encoded.size > _BYTES_MAX:
        raise ValueTooLarge(
            f"produce was given items of {encoded.size} bytes, of at most {_BYTES_MAX}"
        )
    if encoded.size > PAYLOAD_BYTES_MAX:
        for nth, item in enumerate(whole):
            if (size := _payload_bytes(item)) > PAYLOAD_BYTES_MAX:
                raise ValueTooLarge(f"item {nth} has {size} bytes, of at most {PAYLOAD_BYTES_MAX}")
    if items:
        produced = OutgoingItems(queue, whole, b"".join(encoded.pieces))
        code.produce(produced, site_of(sys._getframe(1)))


def _payload_bytes(item: Item) -> int:
    payload = item.payload
    return len(payload.encode() if isinstance(payload, str) else payload)


def _whole(item: "AnyItem", nth: int, now_ms: int) -> Item:
    """The item as the partition is given it, with an instant in the place of a delay."""
    if not isinstance(item, Item):
        if not isinstance(item, bytes | str):
            raise TypeError(f"item {nth} is {item!r}; it must be an Item, bytes or str")
        return Item(item)
    for field, plain in (("keep_result", None), ("on_duplicate", "keep")):
        if getattr(item, field) != plain:
            raise ValueError(
                f"item {nth} has {field}={getattr(item, field)!r}: that is not possible for an "
                "item that an execution produces"
            )
    now = instant_of(now_ms)
    if item.enqueue_at is not None:
        if item.enqueue_at.tzinfo is not None:
            _check_ahead(f"enqueue_at of item {nth}", item.enqueue_at - now)
    elif item.delay is not None:
        if item.delay < timedelta(0):
            raise ValueError(f"item {nth} has delay={item.delay!r}; it must not be negative")
        _check_ahead(f"delay of item {nth}", item.delay)
        item = msgspec.structs.replace(item, delay=None, enqueue_at=now + item.delay)
    return item


def _check_ahead(name: str, ahead: timedelta) -> None:
    """Raises ValueError for a time that no queue keeps."""
    if ahead > _AHEAD_MAX:
        raise ValueError(f"the {name} is {ahead} ahead; at most {_AHEAD_MAX}")
