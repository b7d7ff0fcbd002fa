"""Page tokens: the place where a list continues, opaque to clients.

A token names the last entry of a page, not a number of entries: entries that appear or disappear
meanwhile neither repeat nor hide others. It is valid for one list only (`scope`), and carries a
checksum, so that garbage and tokens of other lists are refused.
"""

import base64
import binascii
import struct
from hashlib import blake2b

from querator.model.errors import QueratorError, invalid

_CHECK_BYTES = 6
_ITEM_PLACE = struct.Struct(">IQ")
_DUE_PLACE = struct.Struct(">QIQ")


def encode(scope: str, place: bytes) -> str:
    return base64.urlsafe_b64encode(_check(scope, place) + place).decode().rstrip("=")


def decode(scope: str, token: str) -> bytes:
    """Raises INVALID_ARGUMENT naming `page_token`."""
    try:
        data = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        raise _refused(token) from None
    check, place = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
    if check != _check(scope, place) or encode(scope, place) != token:
        raise _refused(token)
    return place


def encode_item(scope: str, partition: int, after_seq: int) -> str:
    """Token to continue in a partition, after a sequence."""
    return encode(scope, _ITEM_PLACE.pack(partition, after_seq))


def decode_item(scope: str, token: str) -> tuple[int, int]:
    place = decode(scope, token)
    if len(place) != _ITEM_PLACE.size:
        raise _refused(token)
    partition, after_seq = _ITEM_PLACE.unpack(place)
    return partition, after_seq


def encode_due(scope: str, due_ms: int, partition: int, seq: int) -> str:
    """Token to continue after an item in the order of due times, over all partitions."""
    return encode(scope, _DUE_PLACE.pack(due_ms, partition, seq))


def decode_due(scope: str, token: str) -> tuple[int, int, int]:
    place = decode(scope, token)
    if len(place) != _DUE_PLACE.size:
        raise _refused(token)
    due_ms, partition, seq = _DUE_PLACE.unpack(place)
    return due_ms, partition, seq


def _check(scope: str, place: bytes) -> bytes:
    key = blake2b(scope.encode()).digest()
    return blake2b(place, digest_size=_CHECK_BYTES, key=key).digest()


def _refused(token: str) -> QueratorError:
    return invalid("page_token", "is not a token of this list", value=token[:64])


def encode_number(scope: str, number: int) -> str:
    """Token to continue after a number."""
    return encode(scope, number.to_bytes(8, "big"))


def decode_number(scope: str, token: str) -> int:
    place = decode(scope, token)
    if len(place) != 8:
        raise _refused(token)
    return int.from_bytes(place, "big")
