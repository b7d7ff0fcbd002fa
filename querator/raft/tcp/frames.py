"""The frames of a peer connection: a header of 16 bytes, then the body.

    0  magic "QP"
    2  version of the protocol
    3  kind
    4  length of the body            big-endian, as all fields below
    8  CRC-32 of the body
    12 CRC-32 of the 12 bytes before

The header, and the kind REFUSED, are the same in every version of the protocol, so that two nodes
of different releases can exchange the reason of a refusal. Each kind has a largest length, which
depends on what the other side has proven. A header is checked before its body has arrived.

Bytes are read directly into the reader's buffer; a body is a view of it. A partial frame is moved
at most once to free space, and the buffer grows only to the size of the arriving frame.
"""

import enum
import struct
from collections.abc import Mapping
from typing import Final

from querator.model.limits import (
    KIB,
    MIB,
    PEER_DESCRIPTION_BYTES_MAX,
    PEER_FRAME_BYTES_MAX,
    PEER_HELLO_BYTES_MAX,
    PEER_RECEIVE_BYTES,
    PEER_REFUSAL_CHARS_MAX,
)
from querator.raft.refusals import Code, PeerRefused
from querator.storage.sealed import checksum

VERSION: Final = 1
MAGIC: Final = b"QP"
HEADER_BYTES: Final = 16
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32

_FRONT = struct.Struct(">2sBBII")
_WHOLE = struct.Struct(">2sBBIII")
assert _WHOLE.size == HEADER_BYTES == _FRONT.size + 4

_KEPT_BYTES: Final = 1 * MIB
"""A buffer that has grown beyond this is released after its frame."""

_JOINED_BYTES: Final = 16 * KIB
"""A body up to this size is copied behind its header: cheaper than one more buffer in a system
call.
"""


class FrameKind(enum.IntEnum):
    REFUSED = 0
    OPEN = 1
    CHALLENGE = 2
    PROOF = 3
    ANSWER = 4
    READY = 5
    MESSAGES = 6
    PING = 7


_KINDS: Final = {kind.value: kind for kind in FrameKind}

Limits = Mapping[FrameKind, int]
"""Accepted kinds, with the largest body of each."""

_REFUSED_BYTES: Final = 4 * PEER_REFUSAL_CHARS_MAX + 64

HANDSHAKE_LIMITS: Final[Limits] = {
    FrameKind.REFUSED: _REFUSED_BYTES,
    FrameKind.OPEN: NONCE_BYTES,
    FrameKind.CHALLENGE: NONCE_BYTES,
    FrameKind.PROOF: PROOF_BYTES + PEER_HELLO_BYTES_MAX,
    FrameKind.ANSWER: PROOF_BYTES + PEER_HELLO_BYTES_MAX,
    FrameKind.READY: 0,
}

QUERY_LIMITS: Final[Limits] = {
    **HANDSHAKE_LIMITS,
    FrameKind.ANSWER: PROOF_BYTES + PEER_DESCRIPTION_BYTES_MAX,
}
"""Limits of a node that sends a query: the answer is a description."""

REFUSAL_LIMITS: Final[Limits] = {FrameKind.REFUSED: _REFUSED_BYTES}
"""Limits for an unencrypted side where TLS is used: it may only send the reason."""

OPEN_LIMITS: Final[Limits] = {FrameKind.MESSAGES: PEER_FRAME_BYTES_MAX, FrameKind.PING: 0}


def frame(kind: FrameKind, body: bytes = b"") -> list[bytes]:
    """The buffers to send, one after the other."""
    front = _FRONT.pack(MAGIC, VERSION, kind, len(body), checksum(b"", body))
    header = front + checksum(b"", front).to_bytes(4, "big")
    return [header + body] if len(body) <= _JOINED_BYTES else [header, body]


class FrameReader:
    """Turns bytes into frames. After a Refused it must not be used again."""

    __slots__ = ("_buffer", "_coming", "_end", "_start", "_view", "limits")

    def __init__(self, limits: Limits = HANDSHAKE_LIMITS) -> None:
        self.limits = limits
        self._buffer = bytearray(PEER_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._coming: tuple[FrameKind, int, int] | None = None
        """Kind, length and checksum of the frame whose header is read."""

    def space(self) -> memoryview:
        """The space for arriving bytes; never empty. Bodies returned before become invalid."""
        held = self._end - self._start
        needed = HEADER_BYTES if self._coming is None else self._coming[1]
        size = max(PEER_RECEIVE_BYTES, needed)
        if size > len(self._buffer) or (len(self._buffer) > _KEPT_BYTES and not held):
            grown = bytearray(size)
            view = memoryview(grown)
            view[:held] = self._view[self._start : self._end]
            self._buffer, self._view = grown, view
        elif self._start:
            self._view[:held] = self._view[self._start : self._end]
        self._start, self._end = 0, held
        return self._view[held:]

    def received(self, count: int) -> None:
        """Records that `count` bytes were put into the space."""
        self._end += count

    @property
    def partial(self) -> bool:
        """Whether an incomplete frame has begun, once `next` has returned None."""
        return self._coming is not None or self._end > self._start

    def next(self) -> tuple[FrameKind, memoryview] | None:
        """The next whole frame, or None. The body is valid until `space` is called. Raises
        PeerRefused: STRANGER, DAMAGED, VERSION, TOO_LARGE, UNEXPECTED.
        """
        if self._coming is None:
            self._coming = self._header()
            if self._coming is None:
                return None
        kind, length, crc = self._coming
        if self._end - self._start < length:
            return None
        body = self._view[self._start : self._start + length]
        if checksum(b"", body) != crc:
            raise PeerRefused(Code.DAMAGED, f"a frame of {length} bytes has a wrong checksum")
        self._start += length
        self._coming = None
        return kind, body

    def _header(self) -> tuple[FrameKind, int, int] | None:
        held = self._end - self._start
        if held < HEADER_BYTES:
            begun = bytes(self._view[self._start : self._start + min(held, len(MAGIC))])
            if not MAGIC.startswith(begun):
                raise _stranger(bytes(self._view[self._start : self._end]))
            return None
        magic, version, number, length, crc, own_crc = _WHOLE.unpack_from(self._view, self._start)
        if magic != MAGIC:
            raise _stranger(bytes(self._view[self._start : self._start + HEADER_BYTES]))
        if checksum(b"", self._view[self._start : self._start + _FRONT.size]) != own_crc:
            raise PeerRefused(Code.DAMAGED, "the header of a frame has a wrong checksum")
        if version != VERSION and number != FrameKind.REFUSED:
            raise PeerRefused(
                Code.VERSION,
                f"it speaks version {version} of the peer protocol, and this node {VERSION}",
            )
        kind = _KINDS.get(number)
        if kind is None or kind not in self.limits:
            raise PeerRefused(Code.UNEXPECTED, f"a frame of kind {number} is not expected here")
        if length > self.limits[kind]:
            raise PeerRefused(
                Code.TOO_LARGE,
                f"a frame of kind {kind.name} has {length} bytes; the most is {self.limits[kind]}",
            )
        self._start += HEADER_BYTES
        return kind, length, crc


def _stranger(begin: bytes) -> PeerRefused:
    """Describes the sender by its first bytes."""
    if begin.startswith(b"\x16\x03"):
        return PeerRefused(
            Code.TLS,
            "it asks for TLS, which this node does not have at the port for other nodes: give "
            "all nodes --peer-tls-cert-file, --peer-tls-key-file and --peer-tls-ca-file, or none",
        )
    if begin.startswith(b"PRI * HTTP/2"):
        who = "a gRPC or HTTP/2 client"
    elif begin.startswith((b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ")):
        who = "an HTTP client"
    elif begin.startswith(b"SSH-"):
        who = "an SSH client"
    else:
        who = f"a client that begins with {begin!r}"
    return PeerRefused(Code.STRANGER, f"{who} talks to the port for other nodes of the cluster")
