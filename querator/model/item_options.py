"""Attributes of single items beyond a plain item."""

import msgspec


class ItemSpecial(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The attributes of one item beyond a plain item. `ordinal` is its position in its command."""

    ordinal: int
    enqueue_at_ms: int = 0
    expire_timeout_ms: int = 0
    lease_timeout_ms: int = 0
    dedup_key: bytes = b""
    priority: int = 0
