"""The seam between the protocol of links and what carries them: one stream of frames in each
direction between two nodes.

`server.link.grpc_wire` is the real form of the side that dials; the side that is dialed gets a gRPC
context, of which `Accepted` says what it needs. The simulator has its own forms of both.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from querator.v1 import node_service_pb2


class WireBroken(Exception):
    """The stream is no more. What was written may have arrived, and nobody knows how much of it."""


class Wire(Protocol):
    """Of the node that has dialed. Frames arrive in order, as long as the stream lives. Each method
    raises WireBroken, also in whoever waits in one already.
    """

    async def write(self, request: node_service_pb2.LinkRequest) -> None:
        """Returns when the transport has room for more."""
        ...

    async def read(self) -> node_service_pb2.LinkResponse | None:
        """The next frame; None when the other node has ended the stream in order."""
        ...

    async def done_writing(self) -> None:
        """The half-close: the other node reads everything that was written, and answers it."""
        ...


class Accepted(Protocol):
    """Of the node that was dialed. Its task is cancelled when the stream is no more."""

    async def read(self) -> object:
        """Bytes of the next frame; something else after the half-close."""
        ...

    async def write(self, data: bytes) -> None: ...

    def peer(self) -> str:
        """Who has dialed, for people."""
        ...


Connect = Callable[[str], AbstractAsyncContextManager[Wire]]
"""Opens a stream to `host:port`; the end of the block ends it. That nobody is there is seen by the
first write or read."""
