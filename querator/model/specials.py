"""What single items ask for beyond a plain item."""

import msgspec


class ItemSpecial(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one item asks for beyond a plain item. `ordinal` is its position in the command that
    brings it.
    """

    ordinal: int
    enqueue_at_ms: int = 0
    expire_timeout_ms: int = 0
    lease_timeout_ms: int = 0
    dedup_key: bytes = b""
