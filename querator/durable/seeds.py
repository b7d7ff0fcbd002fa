"""Bytes that follow from a key of an execution: random numbers, ids, the jitter of retries."""

from hashlib import blake2b
from typing import Final

_BYTES: Final = 16


def seed(key: bytes, *parts: bytes) -> bytes:
    """The same for the same parts; not to be guessed without the key."""
    hashed = blake2b(key=key, digest_size=_BYTES)
    for part in parts:
        hashed.update(len(part).to_bytes(4, "big"))
        hashed.update(part)
    return hashed.digest()


def share(data: bytes) -> float:
    """A number from 0 to below 1."""
    return int.from_bytes(data[:6], "big") / (1 << 48)
