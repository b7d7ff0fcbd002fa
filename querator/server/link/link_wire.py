"""The interface between the protocol of links and their transport: one stream of frames in each
direction between two nodes.

`server.link.grpc_wire` implements the dialing side over gRPC. The accepting side gets a gRPC
context; `Accepted` is the part of it that is used. The simulator has its own implementation of
both.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from querator.v1 import node_service_pb2


class WireBroken(Exception):
    """The stream has broken. It is unknown how much of the written data has arrived."""


class Wire(Protocol):
    """The side that has dialed. Frames arrive in order, as long as the stream lives. Each method
    raises WireBroken, also in a call that already waits.
    """

    async def write(self, request: node_service_pb2.LinkRequest) -> None:
        """Returns when the transport has space for more."""
        ...

    async def read(self) -> node_service_pb2.LinkResponse | None:
        """The next frame; None when the other node has ended the stream normally."""
        ...

    async def done_writing(self) -> None:
        """Half-closes the stream: the other node reads and answers everything that was written."""
        ...


class Accepted(Protocol):
    """The side that was dialed. Its task is cancelled when the stream breaks."""

    async def read(self) -> object:
        """The bytes of the next frame; another object after the half-close."""
        ...

    async def write(self, data: bytes) -> None: ...

    def peer(self) -> str:
        """Address of the dialing node, for people."""
        ...


Connect = Callable[[str], AbstractAsyncContextManager[Wire]]
"""Opens a stream to `host:port`; the end of the block ends it. If the node is unreachable, the
first write or read fails."""
