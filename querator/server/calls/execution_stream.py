"""ExecutionStream: many calls of ExecutionService on one stream.

    reader ──task per call──► the method's handler ──► outbox ──► writer

A frame has any number of calls, and the writer joins the answers that wait into one frame. So at
high rates the cost of gRPC is paid for each frame, and at low rates for less than one gRPC call. A
call does what its unary method does; it ends with its answer, or when the caller gives it up.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from querator.model.errors import QueratorError
from querator.model.limits import EXECUTION_STREAM_CALLS_MAX
from querator.server.calls.call_counts import CANCELLED, OK, CallCounts
from querator.server.calls.grpc_calls import DRAINING, Context, TimedCall, refusal_of
from querator.server.calls.outbox import Outbox
from querator.server.calls.streams import read_frame
from querator.server.incoming import Messages
from querator.wire import execution_frames
from querator.wire.execution_frames import NumberedCall

_STREAM: Final = "ExecutionStream"
_WAITING: Final = frozenset(("LeaseActivations", "WaitExecutions", "WaitArrivals"))
"""Calls that may wait for what others do: a drain ends them."""


class CallerDeadline(NamedTuple):
    """The deadline of a call on a stream, which handlers read as they read that of a context."""

    seconds: float | None

    def time_remaining(self) -> float | None:
        return self.seconds


_NONE: Final = CallerDeadline(None)


class ExecutionStream:
    """One stream; see `streams.LiveStream`."""

    def __init__(
        self,
        context: Context,
        request_id: str,
        handlers: Mapping[str, TimedCall],
        counts: CallCounts,
        messages: Messages,
    ) -> None:
        """`handlers`: by the name of the unary method."""
        self._context = context
        self._request_id = request_id
        self._handlers = handlers
        self._counts = counts
        self._messages = messages
        self._outbox = Outbox(requests_max=EXECUTION_STREAM_CALLS_MAX, joins=True)
        self._open: dict[int, asyncio.Task[None]] = {}
        self._waiting: set[int] = set()
        self._reader: asyncio.Task[QueratorError | None] | None = None
        self._is_draining = False

    def drain(self) -> None:
        self._is_draining = True
        if self._reader is not None:
            self._reader.cancel()
        for number in self._waiting:
            self._open[number].cancel()

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
        outbox = self._outbox
        while not self._is_draining:
            if not outbox.has_room_for_request():
                with self._messages.unread():
                    await outbox.until(outbox.has_room_for_request)
            frame = await read_frame(self._context, self._messages)
            if frame is None:
                return None
            try:
                calls, given_up = execution_frames.parse_frame(frame)
            except QueratorError as error:
                return error
            for call in calls:
                outbox.took(len(call.request))
                task = tasks.create_task(self._carry_out(call))
                task.add_done_callback(partial(self._ended, call))
                # A caller that uses a number twice can give up the second one only.
                self._open[call.number] = task
                if execution_frames.METHODS.get(call.field) in _WAITING:
                    self._waiting.add(call.number)
            for number in given_up:
                if number in self._open:
                    self._open[number].cancel()
        return DRAINING

    async def _carry_out(self, call: NumberedCall) -> None:
        began_s = time.perf_counter()
        try:
            handler = self._handlers[execution_frames.check_call(call)]
            deadline = CallerDeadline(call.timeout_ms / 1000) if call.timeout_ms else _NONE
            answer = await handler(call.request, deadline)
        except Exception as error:  # noqa: BLE001 - the top of the call's task
            method, request_id = _method(call), f"{self._request_id}/{call.number}"
            refusal = refusal_of(error, request_id=request_id, method=method)
            self._counts.refused(method, refusal, began_s)
            self._refuse(call, refusal)
        else:
            self._counts.ended(_method(call), OK, began_s)
            self._outbox.answer(execution_frames.encode_answer(call, answer), len(call.request))

    def _ended(self, call: NumberedCall, task: "asyncio.Task[None]") -> None:
        if self._open.get(call.number) is task:
            del self._open[call.number]
            self._waiting.discard(call.number)
        if not task.cancelled():
            return
        self._counts.ended(_method(call), CANCELLED, time.perf_counter())
        if self._is_draining:
            self._refuse(call, DRAINING)
        else:
            # It was given up, or the stream is cut.
            self._outbox.answer(b"", len(call.request))

    def _refuse(self, call: NumberedCall, refusal: QueratorError) -> None:
        request_id = f"{self._request_id}/{call.number}"
        frame = execution_frames.encode_refusal(call, refusal, request_id=request_id)
        self._outbox.answer(frame, len(call.request))


def _method(call: NumberedCall) -> str:
    """Its name in the counts of calls."""
    return f"{_STREAM}/{execution_frames.METHODS.get(call.field, 'Frame')}"
