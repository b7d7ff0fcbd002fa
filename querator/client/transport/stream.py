"""One bidirectional stream that is opened again whenever it breaks.

Its frames belong to its talker (a producer or a consumer). The stream calls the talker:

    opened()      a new stream is open; frames of the last one may not have arrived
    take()        the next frame to send, or None; called again after `wake()`
    received(f)   one frame from the node
    broke(e)      the stream is gone; returns False to stop permanently
    stopped(e)    the stream will not be opened again; e is None after `close()`

All are called on the event loop and must not block. One task reads and one writes; both end with
`close()`. The stream is opened only while the talker wants one (`wanted()`).
"""

import asyncio
from typing import Protocol

import grpc.aio
from grpc.aio import EOF

from querator.client.errors import ConnectionFailed, ErrorCode, RequestError, make_error
from querator.client.transport.backoff import Backoff
from querator.client.transport.channel import Connection
from querator.client.transport.nodes import Nodes
from querator.client.transport.rpc_errors import from_rpc

# Producers and consumers wait for their stream: a node that is back must be noticed soon.
RECONNECT_SECONDS_MOST = 0.5


class Talker(Protocol):
    """The owner of a stream's frames; see the module."""

    def wanted(self) -> bool:
        """Whether there is a reason to have a stream."""

    async def next_address(self) -> str:
        """Address of the node for the next stream; empty: any node."""

    def opened(self) -> None: ...
    def next_frame(self) -> bytes | None: ...
    def received(self, frame: bytes) -> None: ...
    def on_broken(self, error: RequestError) -> bool: ...
    def stopped(self, error: Exception | None) -> None: ...


class Stream:
    """The stream of one talker. `name` is that of the RPC."""

    def __init__(self, nodes: Nodes, name: str, talker: Talker) -> None:
        self._nodes = nodes
        self._name = name
        self._talker = talker
        self._wake = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()
        self._closing = False
        self._heard = False
        self._moving = False
        self._leaving = False
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] | None = None
        self.address = ""
        """Address of the stream's node; empty while there is none."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        # This object owns the task: `close` ends and awaits it, and its errors go to the talker. A
        # TaskGroup would have to be left by the task that entered it, but the sync client enters
        # and leaves from different tasks.
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """Makes the stream call `take` and `wanted` again."""
        self._wake.set()

    def move(self) -> None:
        """Closes the stream and opens the next one at the talker's `place`. No frame may be
        unanswered.
        """
        if self._call is not None:
            self._moving = True
            self._call.cancel()

    def leave(self, *, silent: bool = False) -> None:
        """Goes to another node, if there is one, as if this one had broken the stream. `silent`:
        the node has not answered, so that the connection counts as lost.
        """
        if self._call is not None and self._nodes.leave(self.address):
            self._leaving = not silent
            self._call.cancel()

    def pause_reading(self) -> None:
        """Stops reading until `resume_reading`; gRPC's flow control then holds the node back."""
        self._readable.clear()

    def resume_reading(self) -> None:
        self._readable.set()

    async def close(self, *, patience: float) -> None:
        """Ends sending, and reads until the node ends the stream, at most `patience` seconds."""
        self._closing = True
        self._wake.set()
        self._readable.set()
        if self._task is None:
            return
        try:
            await asyncio.wait((self._task,), timeout=patience)
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            error = await self._keep_open()
        except asyncio.CancelledError:
            self._talker.stopped(None)
            raise
        except Exception as defect:  # noqa: BLE001  a task's top: its waiters get the error
            self._talker.stopped(defect)
        else:
            self._talker.stopped(error)

    async def _keep_open(self) -> RequestError | None:
        backoff = Backoff(most=RECONNECT_SECONDS_MOST)
        while not self._closing:
            if not self._talker.wanted():
                await self._wait()
                continue
            self._heard = False
            error = await self._converse()
            if self._closing:
                return None
            if self._heard:
                backoff.reset()
            if self._moving:
                self._moving = False
                continue
            error = await self._nodes.explained(error)
            if not self._talker.on_broken(error):
                return error
            if self._nodes.has_good():
                continue
            waiting = backoff.next(at_least_ms=error.retry_delay_ms)
            try:
                async with asyncio.timeout(waiting):
                    while not self._closing:
                        await self._wait()
            except TimeoutError:
                continue
        return None

    async def _wait(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    async def _converse(self) -> RequestError:
        """Runs one stream from its opening to its end; returns why it ended."""
        try:
            node = await self._nodes.near(await self._talker.next_address())
            call = node.open_stream(self._name)
        except RequestError as closed:
            self._closing = True
            return closed
        self._call, self.address, self._leaving = call, node.address, False
        self._talker.opened()
        self._wake.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write(call))
                try:
                    error = await self._read(call, node)
                finally:
                    writer.cancel()
        finally:
            self._call, self.address = None, ""
            call.cancel()
        if not self._closing and not self._moving and not self._leaving:
            # A stream that the client has left because of a refusal is no lost connection.
            self._nodes.failed(node, error)
        return error

    async def _read(
        self, call: "grpc.aio.StreamStreamCall[bytes, bytes]", node: Connection
    ) -> RequestError:
        received = self._talker.received
        try:
            while (frame := await call.read()) is not EOF:
                assert isinstance(frame, bytes)
                if not self._heard:
                    self._heard = True
                    self._nodes.mark_working(node)
                received(frame)
                if not self._readable.is_set():
                    await self._readable.wait()
            return make_error(ErrorCode.UNAVAILABLE, "the node ended the stream")
        except grpc.aio.AioRpcError as raw:
            error = from_rpc(raw, address=node.address, changes=True)
            if isinstance(error, ConnectionFailed):
                node.not_connected(error)
            else:
                self._heard = True
            return error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC cancels the reader of a call that was cancelled or cut locally.
            return make_error(ErrorCode.OUTCOME_UNKNOWN, "the stream was cut")

    async def _write(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        take = self._talker.next_frame
        try:
            while True:
                self._wake.clear()
                while (frame := take()) is not None:
                    await call.write(frame)
                if self._closing:
                    await call.done_writing()
                    return
                await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The reader gets the reason why the stream ended, and returns it.
            return
