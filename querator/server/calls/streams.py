"""The common part of all streams: reading, drain and end.

A stream ends in one of three ways. After the client's half-close, every request that was read is
answered, and the status is OK. A refusal that cannot be answered on the stream ends it with that
status. At the node's drain, reading stops, the requests that were read are answered, and the status
says why. When the client vanishes, gRPC cancels the handler's task, including its child tasks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import grpc

from querator.model.errors import QueratorError
from querator.server.calls.call_counts import CANCELLED, OK
from querator.server.calls.grpc_calls import (
    DRAINING,
    Context,
    LiveCalls,
    abort,
    log_broken,
    log_call,
    new_request_id,
    refusal_of,
)
from querator.server.incoming import Messages
from querator.service.admission import CONNECTION
from querator.wire.execution_frames import SERVED


class LiveStream(Protocol):
    """One live stream."""

    async def run(self) -> QueratorError | None:
        """Runs until the stream ends. Returns None if the client half-closed and is answered."""

    def drain(self) -> None:
        """Makes `run` end soon with `DRAINING`."""


Handler: TypeAlias = "Callable[[object, Context], Awaitable[None]]"


class Streams:
    """The live streams of a server."""

    def __init__(self, live: LiveCalls) -> None:
        self._calls = live
        self._live: set[LiveStream] = set()

    def drain(self) -> None:
        """Makes every live stream end soon."""
        for stream in self._live:
            stream.drain()

    def handler(self, method: str, make: Callable[[Context, str, object], LiveStream]) -> Handler:
        """Makes a handler of stream calls. `make` gets the context, the request id of the call, and
        its request, which is bytes where only the answers are a stream.
        """

        counts = self._calls.counts

        async def handle(request: object, context: Context) -> None:
            request_id = new_request_id()
            began_s = time.perf_counter()
            if self._calls.draining:
                self._calls.refused()
                counts.refused(method, DRAINING, began_s)
                await abort(context, DRAINING, request_id=request_id)
            peer = context.peer()
            CONNECTION.set(peer)
            self._calls.incoming.got(peer, len(request) if isinstance(request, bytes) else 0)
            stream = make(context, request_id, request)
            self._live.add(stream)
            counts.stream_began(method)
            code = CANCELLED
            with self._calls:
                try:
                    # Sent separately from the first frame: if the write of a first frame is
                    # cancelled, no status can be sent, and the client would wait for ever.
                    await context.send_initial_metadata(((SERVED, "1"),))
                    ending = await stream.run()
                    code = OK if ending is None else ending.code.name
                except Exception as error:  # noqa: BLE001 - the top of the call's task
                    if _is_broken(error, context):
                        log_broken(method, request_id)
                        return
                    ending = refusal_of(error, request_id=request_id, method=method)
                    code = ending.code.name
                finally:
                    self._live.discard(stream)
                    counts.stream_ended(method)
                    counts.ended(method, code, began_s)
                    log_call(method, code, began_s, request_id)
                if ending is not None:
                    await abort(context, ending, request_id=request_id)

        return handle


def _is_broken(error: Exception, context: Context) -> bool:
    """Whether the transport failed, which is no defect. After the client has left, writes to the
    stream fail before the handler is cancelled.
    """
    if not (context.cancelled() or context.done()):
        return False
    if isinstance(error, ExceptionGroup):
        return all(_is_broken(each, context) for each in error.exceptions)
    return isinstance(error, (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError))


class Readable(Protocol):
    """The reading part of a context."""

    def read(self) -> Awaitable[object]: ...


async def read_frame(context: Readable, messages: Messages) -> bytes | None:
    """The next frame; None after the client's half-close."""
    frame: object = await context.read()
    if not isinstance(frame, bytes):
        return None
    messages.got(len(frame))
    return frame
