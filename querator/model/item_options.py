"""Attributes of single items beyond a plain item."""

from enum import IntEnum

import msgspec

from querator.model.queues import RetryWaits

NO_FLOW = 0xFFFF
"""The position of an item without a group or key."""


class FlowNames(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The groups of a command's items in a fair queue, or their keys in a keyed one. `names` are
    distinct and not empty, in UTF-8. `items` has one little-endian u16 per item: the position of
    its name, or NO_FLOW.
    """

    names: tuple[bytes, ...]
    items: bytes


NO_SLOT = 0xFFFF
"""The slot of an item without a key."""


class FollowUpFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a follow-up takes to the partition for which it is meant. `ordinal` is its place in its
    block. `slot` is that of its key.
    """

    ordinal: int
    enqueue_at_ms: int = 0
    dedup_key: bytes = b""
    slot: int = NO_SLOT


class FollowTarget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the next `count` items of a command go that settles or records: to this partition
    (`group` 0), or to a partition with the `group`, of any queue.
    """

    queue: str
    partition: int
    group: int
    count: int


class OnDuplicate(IntEnum):
    """What a new item does if another one has its dedup key: it is not stored, or it takes the
    place of the one that waits, or it does so and moves the start to its own `enqueue_at`.
    """

    KEEP = 1
    REPLACE = 2
    BUMP = 3


class ItemSpecial(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The attributes of one item beyond a plain item. `ordinal` is its position in its command.
    `max_attempts` and `retry` None: those of the queue. `holder`: the partition and the sequence of
    the item that has the dedup key, in another partition, which was there when the command was
    proposed; empty: not known. `debounce_max_ms` bounds the start of a bumped item, counted from
    the first produce with its key. `keep_result_ms`: how long the result of the item is kept after
    its end; 0: it has none.
    """

    ordinal: int
    enqueue_at_ms: int = 0
    expire_timeout_ms: int = 0
    lease_timeout_ms: int = 0
    dedup_key: bytes = b""
    priority: int = 0
    max_attempts: int | None = None
    retry: RetryWaits | None = None
    holder: tuple[int, ...] = ()
    on_duplicate: OnDuplicate = OnDuplicate.KEEP
    debounce_max_ms: int = 0
    keep_result_ms: int = 0
