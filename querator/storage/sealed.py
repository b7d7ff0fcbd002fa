"""Rows with a checksum in front: CRC-32 of the key and the body, big-endian, then the body.

The back end may not check pages. The key is part of the checksum, so a read detects flipped bits,
and also whole rows in the place of others (a page write that was lost or misplaced). All rows that
Raft's safety depends on are sealed: log, term, vote, applied index; and attachments, the users'
data.

The checksum is that of `zlib.crc32`, which takes 47 µs for 100 KiB; zlib-ng takes 7 µs. It is
computed in slices: both libraries release the interpreter lock for longer buffers, and getting it
back beside a busy thread costs more than the checksum itself.
"""

import struct

from zlib_ng.zlib_ng import crc32

from querator.storage.environment import StorageCorrupt

_CRC = struct.Struct(">I")
SEAL_BYTES = _CRC.size
_SLICE_BYTES = 5 * 1024
"""The longest buffer for which `crc32` keeps the interpreter lock."""


def seal(key: bytes, body: bytes) -> bytes:
    """The value to store under `key`."""
    return _CRC.pack(checksum(key, body)) + body


def unseal(key: bytes, value: bytes, what: str) -> bytes:
    """The body of a stored value. Raises StorageCorrupt; its message names `what` the row holds."""
    body = value[_CRC.size :]
    if len(value) < _CRC.size or _CRC.unpack_from(value)[0] != checksum(key, body):
        raise StorageCorrupt(f"{what}: wrong checksum")
    return body


def checksum(key: bytes, body: bytes | memoryview) -> int:
    """CRC-32 of the key followed by the body."""
    crc = crc32(key)
    if len(body) <= _SLICE_BYTES:
        return crc32(body, crc)
    view = memoryview(body)
    for start in range(0, len(body), _SLICE_BYTES):
        crc = crc32(view[start : start + _SLICE_BYTES], crc)
    return crc
