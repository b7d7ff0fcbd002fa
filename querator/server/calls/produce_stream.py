"""ProduceStream: requests are read without waiting for answers. Each is answered by its number as
soon as it is done, in any order.

    reader ──task per request──► service ──► outbox ──► writer
"""

import asyncio
import time

from querator.model.calls import ProduceCall
from querator.model.errors import QueratorError
from querator.server.calls.call_counts import OK, CallCounts
from querator.server.calls.grpc_calls import DRAINING, Context, now_ms, refusal_of
from querator.server.calls.outbox import Outbox
from querator.server.calls.streams import read_frame
from querator.server.incoming import Messages
from querator.service.queue_service import QueueService
from querator.wire import frames
from querator.wire.field_checks import RequestLimits

_METHOD = "ProduceStream/Produce"


class ProduceStream:
    """One stream; see `streams.LiveStream`."""

    def __init__(
        self,
        context: Context,
        request_id: str,
        service: QueueService,
        request_limits: RequestLimits,
        counts: CallCounts,
        messages: Messages,
    ) -> None:
        self._context = context
        self._request_id = request_id
        self._service = service
        self._limits = request_limits
        self._counts = counts
        self._messages = messages
        self._outbox = Outbox()
        self._reader: asyncio.Task[QueratorError | None] | None = None
        self._draining = False

    def drain(self) -> None:
        self._draining = True
        if self._reader is not None:
            self._reader.cancel()

    async def run(self) -> QueratorError | None:
        outbox = self._outbox
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(outbox.write_all(self._context.write))
            self._reader = tasks.create_task(self._read(tasks))
            await asyncio.wait((self._reader,))
            await outbox.until(outbox.is_answered)
            outbox.close()
        return DRAINING if self._reader.cancelled() else self._reader.result()

    async def _read(self, tasks: asyncio.TaskGroup) -> QueratorError | None:
        """Reads until the stream ends. Returns the reason; None: the client's half-close."""
        outbox, context, request_limits = self._outbox, self._context, self._limits
        while not self._draining:
            if not outbox.has_room_for_request():
                with self._messages.unread():
                    await outbox.until(outbox.has_room_for_request)
            frame = await read_frame(context, self._messages)
            if frame is None:
                return None
            try:
                number, call = frames.parse_produce_frame(
                    frame, now_ms=now_ms(), request_limits=request_limits
                )
            except QueratorError as error:
                return error
            outbox.took(len(frame))
            if isinstance(call, QueratorError):
                self._refuse(number, len(frame), call, time.perf_counter())
            else:
                tasks.create_task(self._produce(number, len(frame), call))
        return DRAINING

    async def _produce(self, number: int, size: int, call: ProduceCall) -> None:
        began_s = time.perf_counter()
        try:
            reply = await self._service.produce(call)
        except Exception as error:  # noqa: BLE001 - the top of the request's task
            self._refuse(number, size, error, began_s)
        else:
            self._outbox.answer(frames.encode_produced_frame(number, reply), size)
            self._counts.ended(_METHOD, OK, began_s)

    def _refuse(self, number: int, size: int, error: Exception, began_s: float) -> None:
        request_id = f"{self._request_id}/{number}"
        refusal = refusal_of(error, request_id=request_id, method=_METHOD)
        frame = frames.encode_produce_error(number, refusal, request_id=request_id)
        self._outbox.answer(frame, size)
        self._counts.refused(_METHOD, refusal, began_s)
