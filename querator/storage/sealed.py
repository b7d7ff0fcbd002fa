"""Rows with a checksum in front: CRC-32 of the key and the body, big-endian, then the body.

The back end may not check pages. With the key in the sum, a row that is whole but in another's
place (a page write that was lost or went astray) is found as well as a flipped bit. Everything that
Raft's safety rests on is kept so: log, term, vote, applied index; and attachments, the users' data.

The sum is that of `zlib.crc32`, which takes 47 µs for 100 KiB; zlib-ng takes 7 µs. It is computed
in slices: both give the interpreter lock away for longer buffers, and getting it back beside a busy
thread costs more than the sum itself.
"""

import struct

from zlib_ng.zlib_ng import crc32

from querator.storage.environment import StorageCorrupt

_CRC = struct.Struct(">I")
SEAL_BYTES = _CRC.size
_SLICE_BYTES = 5 * 1024
"""The longest buffer that `crc32` sums up without giving the interpreter lock away."""


def seal(key: bytes, body: bytes) -> bytes:
    """The value to keep under `key`."""
    return _CRC.pack(checksum(key, body)) + body


def unseal(key: bytes, value: bytes, what: str) -> bytes:
    """The body of a kept value. Raises StorageCorrupt, which names `what` the row holds."""
    body = value[_CRC.size :]
    if len(value) < _CRC.size or _CRC.unpack_from(value)[0] != checksum(key, body):
        raise StorageCorrupt(f"{what}: wrong checksum")
    return body


def checksum(key: bytes, body: bytes | memoryview) -> int:
    """CRC-32 of the two, one after the other."""
    crc = crc32(key)
    if len(body) <= _SLICE_BYTES:
        return crc32(body, crc)
    view = memoryview(body)
    for start in range(0, len(body), _SLICE_BYTES):
        crc = crc32(view[start : start + _SLICE_BYTES], crc)
    return crc
