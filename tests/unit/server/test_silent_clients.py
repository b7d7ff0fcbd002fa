"""Clients whose process is stopped: their connections stand, and nothing comes from them."""

import asyncio
import struct

import pytest

from querator.server import grpc_server
from tests.unit.server.fake_service import running_server

TIMES_FASTER = 50

DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
_END_OF_HEADERS, _END_OF_STREAM = 4, 1


def frame(kind: int, content: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing; `name` is encoded."""
    return name + bytes((len(value),)) + value


def watching() -> bytes:
    """An HTTP/2 client that asks for the health of the server, which answers without an end."""
    headers = b"".join(
        (
            b"\x83\x86",  # POST, http
            literal(b"\x04", b"/grpc.health.v1.Health/Watch"),
            literal(b"\x01", b"localhost"),
            literal(b"\x0f\x10", b"application/grpc"),
            literal(b"\x00\x02te", b"trailers"),
        )
    )
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(SETTINGS, b"")
        + frame(HEADERS, headers, flags=_END_OF_HEADERS, stream=1)
        + frame(DATA, bytes(5), flags=_END_OF_STREAM, stream=1)
    )


async def test_a_client_that_answers_no_ping_is_left_after_the_keepalive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes of the client make gRPC measure the link by a ping, which waits for a minute if
    nothing else is set. No keepalive is sent meanwhile.
    """
    fast = tuple(
        (name, value // TIMES_FASTER if name.endswith(("_time_ms", "_timeout_ms")) else value)
        for name, value in grpc_server._OPTIONS
    )
    monkeypatch.setattr(grpc_server, "_OPTIONS", fast)
    async with running_server() as there, asyncio.timeout(20):
        host, _, port = there.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(watching())
            kinds = []
            while head := await reader.read(9):
                head += await reader.readexactly(9 - len(head))
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                kinds.append(head[3])
        finally:
            writer.close()
    assert {SETTINGS, PING} <= set(kinds)
