"""Calls about executions on one ExecutionStream of a connection.

A gRPC call costs a node about half a millisecond of processor time, a call on a stream a part of
that: calls that are made meanwhile share a frame, and so do their answers. The stream is opened by
the first call, and ends when it was not used for a while. Each call gets an answer, or the error
with which the stream has ended; it is repeated like any other call.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc.aio import EOF

from querator.client.errors import RequestError
from querator.client.transport.rpc_errors import from_frame
from querator.v1 import execution_service_pb2 as v1
from querator.wire.execution_frames import SERVED
from querator.wire.fields import VARINT, prefix, varint

CALLS_MOST: Final = 768
"""Less than EXECUTION_STREAM_CALLS_MAX, from which on a node does not read."""
WAITS_MOST: Final = 64
"""Calls that may wait for minutes. More of them are gRPC calls, so that they hold up nothing."""
REQUEST_BYTES_MOST: Final = 256 * 1024
"""A larger request would delay the others of the stream."""
IDLE_SECONDS: Final = 5.0
_FRAME_BYTES: Final = 1024 * 1024

_FIELDS: Final = {
    field.name: field.number for field in v1.ExecutionCall.DESCRIPTOR.oneofs_by_name["call"].fields
}
_CALLS: Final = v1.ExecutionStreamRequest.CALLS_FIELD_NUMBER
_NUMBER_TAG: Final = varint(v1.ExecutionCall.NUMBER_FIELD_NUMBER << 3 | VARINT)
_TIMEOUT_TAG: Final = varint(v1.ExecutionCall.TIMEOUT_MS_FIELD_NUMBER << 3 | VARINT)
_GIVEN_UP_TAG: Final = varint(v1.ExecutionStreamRequest.GIVEN_UP_FIELD_NUMBER << 3 | VARINT)

OpenStream = Callable[[], "grpc.aio.StreamStreamCall[bytes, bytes]"]


class StreamRefusal(Exception):
    """A node has refused a call on a stream."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(str(error))
        self.error = error


class StreamedCalls:
    """The calls of one connection. Belongs to one event loop."""

    def __init__(self, open_stream: OpenStream) -> None:
        self._open_stream = open_stream
        self._stream: _Stream | None = None
        self._streams: set[_Stream] = set()
        self._waits = 0
        self._is_unknown = False
        """Whether the node does not have the method, because it is older than this client."""

    def takes(self, request: Message, *, waits: bool) -> bool:
        """Whether the call should be on the stream; else it is a gRPC call."""
        if self._is_unknown or request.ByteSize() > REQUEST_BYTES_MOST:
            return False
        if waits and self._waits >= WAITS_MOST:
            return False
        return self._stream is None or len(self._stream.answers) < CALLS_MOST

    async def call(self, kind: str, request: Message, seconds: float, *, waits: bool) -> Any:
        """Returns the answer. `kind`: the field of an ExecutionCall. Raises
        `StreamRefusal`, and AioRpcError as a gRPC call does.
        """
        stream = self._stream
        if stream is None or not stream.is_open:
            stream = self._stream = _Stream(self._open_stream, self._ended)
            self._streams.add(stream)
        self._waits += waits
        try:
            return await stream.call(kind, request.SerializeToString(), seconds)
        except grpc.aio.AioRpcError as error:
            self._is_unknown |= error.code() is grpc.StatusCode.UNIMPLEMENTED
            raise
        finally:
            self._waits -= waits

    def _ended(self, stream: "_Stream") -> None:
        self._streams.discard(stream)
        if self._stream is stream:
            self._stream = None

    async def close(self, grace: float | None) -> None:
        """Ends the stream. Calls may end within `grace` seconds; those that are left fail."""
        for stream in tuple(self._streams):
            await stream.close(grace)


class _Stream:
    """One stream, from its opening to its end."""

    def __init__(self, open_stream: OpenStream, ended: "Callable[[_Stream], None]") -> None:
        self.is_open = True
        """Whether it takes further calls."""
        self.answers: dict[int, asyncio.Future[Any]] = {}
        self._ended = ended
        self._numbers = 0
        self._outgoing: list[bytes] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # Owned: `close` ends and awaits it.
        self._task = self._loop.create_task(self._run(open_stream))

    async def call(self, kind: str, request: bytes, seconds: float) -> Any:
        self._numbers += 1
        number = self._numbers
        head = b"".join(
            (
                _NUMBER_TAG, varint(number), _TIMEOUT_TAG, varint(max(1, int(seconds * 1000))),
                prefix(_FIELDS[kind], len(request)),
            )
        )  # fmt: skip
        size = len(head) + len(request)
        self._outgoing.append(b"".join((prefix(_CALLS, size), head, request)))
        answer = self.answers[number] = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._late, number)
        self._idle.clear()
        self._wake.set()
        try:
            return await answer
        finally:
            timer.cancel()
            if self.answers.pop(number, None) is not None:
                self._give_up(number)
            if not self.answers:
                self._idle.set()

    def _late(self, number: int) -> None:
        answer = self.answers.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_exception(_failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            self._give_up(number)

    def _give_up(self, number: int) -> None:
        if self.is_open:
            self._outgoing.append(_GIVEN_UP_TAG + varint(number))
            self._wake.set()

    async def close(self, grace: float | None) -> None:
        self.is_open = False
        if grace and self.answers:
            try:
                async with asyncio.timeout(grace):
                    await self._idle.wait()
            except TimeoutError:
                pass
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # The task may not have begun.
        self._end(_closed())

    async def _run(self, open_stream: OpenStream) -> None:
        failure = _closed()
        try:
            call = open_stream()
            try:
                async with asyncio.TaskGroup() as tasks:
                    writer = tasks.create_task(self._write(call))
                    try:
                        failure = await self._read(call)
                    finally:
                        writer.cancel()
            finally:
                call.cancel()
        finally:
            self._end(failure)

    def _end(self, failure: grpc.aio.AioRpcError) -> None:
        self.is_open = False
        answers, self.answers = self.answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(_copy(failure))
        self._ended(self)

    async def _read(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> grpc.aio.AioRpcError:
        """Reads until the stream ends; returns the error for calls without an answer."""
        try:
            while (frame := await call.read()) is not EOF:
                # The deserializer of the method leaves bytes.
                self._received(cast(bytes, frame))
        except grpc.aio.AioRpcError as error:
            return error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC cancels the reader of a call that was cut locally.
            return _failure(grpc.StatusCode.CANCELLED, "the stream was cut")
        return _failure(grpc.StatusCode.UNAVAILABLE, "the node ended the stream")

    def _received(self, frame: bytes) -> None:
        for one in v1.ExecutionStreamResponse.FromString(frame).answers:
            answer = self.answers.pop(one.number, None)
            if answer is None or answer.done():
                continue
            kind = one.WhichOneof("answer")
            if kind == "error":
                answer.set_exception(StreamRefusal(from_frame(one.error)))
            elif kind is None:
                answer.set_exception(
                    _failure(grpc.StatusCode.INTERNAL, f"call {one.number} has an unknown answer")
                )
            else:
                answer.set_result(getattr(one, kind))

    async def _write(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        try:
            # Of a stream that is refused, as by an older node, gRPC hides the reason if a
            # frame is being written.
            served = await call.initial_metadata()
            if (SERVED, "1") not in tuple(served):
                return
            while self.is_open or self._outgoing:
                self._wake.clear()
                if self._outgoing:
                    await call.write(self._frame())
                    continue
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    if not (self.answers or self._outgoing):
                        self.is_open = False
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The reader gets the reason why the stream has ended.
            return

    def _frame(self) -> bytes:
        size = count = 0
        for part in self._outgoing:
            size += len(part)
            if count and size > _FRAME_BYTES:
                break
            count += 1
        frame = b"".join(self._outgoing[:count])
        del self._outgoing[:count]
        return frame


def _closed() -> grpc.aio.AioRpcError:
    return _failure(grpc.StatusCode.CANCELLED, "the client was closed")


def _failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


def _copy(error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """Each caller raises one of its own: an exception keeps its traceback."""
    return grpc.aio.AioRpcError(
        error.code(), error.initial_metadata(), error.trailing_metadata(), details=error.details()
    )
