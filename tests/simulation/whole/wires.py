"""Streams between the client ports of two nodes, over a simulated network of their own.

A link of the product opens one stream. All streams of a pair of nodes share its connection, and end
with it. The frames are the product's bytes. The simulation does what gRPC does around them: a
stream is opened, half-closed, cancelled by the side that has opened it, or ended by the other one.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

from querator.model.errors import QueratorError
from querator.server.link.link_wire import Wire, WireBroken
from querator.server.link.node_calls import NodeCalls
from querator.v1 import node_service_pb2
from tests.simulation.network import Network
from tests.simulation.whole.loop import VirtualLoop

REFUSED_S = 0.02
"""Time after which a caller learns that no node listens at an address."""
ROOM_S = 0.005
"""Interval between two checks of a full buffer."""
OVERHEAD_BYTES = 60


class Frame(NamedTuple):
    """`kind`: what is done to the stream; `data` is the payload of `asks` and `answers`."""

    kind: str
    stream: int
    data: bytes = b""

    @property
    def size(self) -> int:
        return len(self.data) + OVERHEAD_BYTES


class Serving(Protocol):
    """What the port needs of the process behind it."""

    @property
    def loop(self) -> VirtualLoop: ...

    def node_calls(self, context: "AcceptedStream") -> NodeCalls | None:
        """None as long as it does not serve."""
        ...

    def failed(self, text: str, error: BaseException | None) -> None: ...


class DialedStream:
    """A `querator.server.link.link_wire.Wire`."""

    def __init__(self, port: "LinkPort", peer: str, number: int, loop: VirtualLoop) -> None:
        self._port = port
        self._peer = peer
        self._number = number
        self._loop = loop
        self._frames: deque[bytes] = deque()
        self._ending = ""
        self._waiting: asyncio.Future[None] | None = None

    async def write(self, request: node_service_pb2.LinkRequest) -> None:
        await self._send(Frame("asks", self._number, request.SerializeToString()))

    async def done_writing(self) -> None:
        await self._send(Frame("half-close", self._number))

    async def read(self) -> node_service_pb2.LinkResponse | None:
        while not self._frames:
            if self._ending == "ended":
                return None
            self._check()
            self._waiting = self._loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return node_service_pb2.LinkResponse.FromString(self._frames.popleft())

    async def _send(self, frame: Frame) -> None:
        self._check()
        while not self._port.has_room(self._peer):
            await asyncio.sleep(ROOM_S)
            self._check()
        self._port.send(self._peer, frame)

    def _check(self) -> None:
        if self._ending:
            raise WireBroken(f"the stream to {self._peer} has {self._ending}")

    def heard(self, data: bytes) -> None:
        self._frames.append(data)
        self._wake()

    def end(self, how: str) -> None:
        self._ending = self._ending or how
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class AcceptedStream:
    """A `querator.server.link.link_wire.Accepted`, with the task that serves it."""

    def __init__(self, port: "LinkPort", peer: str, number: int, loop: VirtualLoop) -> None:
        self.task: asyncio.Task[None] | None = None
        self.calls: NodeCalls | None = None
        self._port = port
        self._peer = peer
        self._number = number
        self._loop = loop
        self._frames: deque[bytes | None] = deque()
        self._waiting: asyncio.Future[None] | None = None

    async def read(self) -> object:
        while not self._frames:
            self._waiting = self._loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self._frames.popleft()

    async def write(self, data: bytes) -> None:
        while not self._port.has_room(self._peer):  # noqa: ASYNC110 - as on the other side
            await asyncio.sleep(ROOM_S)
        self._port.send(self._peer, Frame("answers", self._number, data))

    def peer(self) -> str:
        return self._peer

    def heard(self, data: bytes | None) -> None:
        """None: the half-close."""
        self._frames.append(data)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def serve(self, calls: NodeCalls, failed: Callable[[str, BaseException], None]) -> None:
        ending: QueratorError | None = None
        try:
            ending = await calls.run()
        except Exception as error:  # noqa: BLE001 - the top of the stream's task
            failed("a link's calls ended", error)
            ending = None
        self._port.left(self._peer, self._number)
        self._port.send(self._peer, Frame("ended" if ending is None else "broken", self._number))


class LinkPort:
    """The client port of a node, as far as other nodes use it: an endpoint of the network, through
    all starts of the node.
    """

    def __init__(self, network: Network[Frame], key: str, is_up: Callable[[], bool]) -> None:
        self._network = network
        self._key = key
        self._is_up = is_up
        self._serving: Serving | None = None
        self._numbers = 0
        self._dialed: dict[tuple[str, int], DialedStream] = {}
        self._accepted: dict[tuple[str, int], AcceptedStream] = {}

    # --- the process -----------------------------------------------------------------------

    def begin(self, serving: Serving) -> None:
        self._serving = serving
        self._network.came_up(self._key)

    def crash(self, *, silent: bool) -> None:
        self._serving = None
        self._dialed.clear()
        self._accepted.clear()
        self._network.went_down(self._key, silent=silent)

    def resumed(self) -> None:
        self._network.resumed(self._key)

    @asynccontextmanager
    async def connect(self, peer: str) -> AsyncIterator[Wire]:
        serving = self._serving
        assert serving is not None
        self._numbers += 1
        number = self._numbers
        stream = DialedStream(self, peer, number, serving.loop)
        if not peer or not self._network.connected(self._key, peer):
            await asyncio.sleep(REFUSED_S)
            stream.end("found nobody")
            yield stream
            return
        self._dialed[peer, number] = stream
        self.send(peer, Frame("open", number))
        try:
            yield stream
        finally:
            if self._dialed.pop((peer, number), None) is not None and self._serving is serving:
                self.send(peer, Frame("cancel", number))

    def drain(self) -> None:
        """Informs other nodes that nothing more is accepted."""
        for accepted in list(self._accepted.values()):
            if accepted.calls is not None:
                accepted.calls.drain()

    def has_room(self, peer: str) -> bool:
        return self._network.room_bytes(self._key, peer) > 0 or not self._network.connected(
            self._key, peer
        )

    def send(self, peer: str, frame: Frame) -> None:
        if self._serving is not None:
            self._network.send(self._key, peer, frame, size=frame.size)

    def left(self, peer: str, number: int) -> None:
        self._accepted.pop((peer, number), None)

    # --- the network's side ------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        return self._serving is not None and self._is_up()

    def on_connected(self, peer: str) -> None:
        """Does nothing: a node opens a link when it needs one."""

    def on_quiet(self, peer: str) -> None:
        """Does nothing: a link learns of it when it ends, or not at all."""

    def on_disconnected(self, peer: str) -> None:
        for (other, number), stream in list(self._dialed.items()):
            if other == peer:
                del self._dialed[other, number]
                stream.end("broken")
        for (other, number), accepted in list(self._accepted.items()):
            if other == peer:
                del self._accepted[other, number]
                if accepted.task is not None:
                    accepted.task.cancel()

    def on_message(self, peer: str, message: Frame) -> None:
        kind, number, data = message
        if kind in ("answers", "ended", "broken"):
            stream = self._dialed.get((peer, number))
            if stream is None:
                return
            if kind == "answers":
                stream.heard(data)
            else:
                stream.end(kind)
            return
        if kind == "open":
            self._accept(peer, number)
            return
        accepted = self._accepted.get((peer, number))
        if accepted is None:
            return
        if kind == "cancel":
            del self._accepted[peer, number]
            if accepted.task is not None:
                accepted.task.cancel()
        else:
            accepted.heard(data if kind == "asks" else None)

    def _accept(self, peer: str, number: int) -> None:
        serving = self._serving
        assert serving is not None
        context = AcceptedStream(self, peer, number, serving.loop)
        calls = serving.loop.within(serving.node_calls, context)
        if calls is None:
            self.send(peer, Frame("broken", number))
            return
        self._accepted[peer, number] = context
        context.calls = calls
        context.task = serving.loop.start(context.serve(calls, serving.failed))


def network_of_links(frames: "Network[Frame]") -> None:
    """What the trace and the transcript see of it."""
    frames.digest = lambda frame: (frame.kind, frame.stream, len(frame.data))
    frames.describe = lambda frame: f"link {frame.kind} {frame.stream} {len(frame.data)} bytes"
