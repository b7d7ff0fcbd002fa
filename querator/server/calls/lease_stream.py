"""LeaseStream: deliveries for credit, and the settling of leases, on one stream.

    reader ──credit──► subscription ──► pump ──deliveries──► outbox ──► writer
       └─────task per settle────────► service ──answers───────┘

The pump asks for the next delivery only while the outbox has space. So a client that reads slowly
gets no more leases than the outbox can hold.
"""

import asyncio
import time
from functools import partial
from typing import Final

from querator.model.calls import CompleteCall, ExtendCall, LeaseReply, RetryCall, SubscribeCall
from querator.model.errors import QueratorError
from querator.server.calls.call_counts import OK, CallCounts
from querator.server.calls.grpc_calls import DRAINING, Context, now_ms, refusal_of
from querator.server.calls.outbox import Outbox
from querator.server.calls.streams import read_frame
from querator.server.incoming import Messages
from querator.service.lease.subscriptions import Subscription
from querator.service.queue_service import QueueService
from querator.wire import frames
from querator.wire.field_checks import RequestLimits
from querator.wire.frames import Credit, EndDeliveries

CUT_NOTICED_S = 0.05
"""Limit of the time between the end of a stream and its cancellation."""

_METHOD = "LeaseStream"
_METHODS: Final[dict[type[object], str]] = {
    CompleteCall: f"{_METHOD}/Complete",
    RetryCall: f"{_METHOD}/Retry",
    ExtendCall: f"{_METHOD}/Extend",
}
_FRAME = f"{_METHOD}/Frame"


class LeaseStream:
    """One stream; see `streams.LiveStream`."""

    def __init__(
        self,
        context: Context,
        request_id: str,
        service: QueueService,
        counts: CallCounts,
        messages: Messages,
        request_limits: RequestLimits,
    ) -> None:
        self._context = context
        self._request_id = request_id
        self._service = service
        self._counts = counts
        self._messages = messages
        self._limits = request_limits
        self._outbox = Outbox()
        self._call: SubscribeCall | None = None
        self._subscription: Subscription | None = None
        self._pump: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._ending: QueratorError | None = None

    def drain(self) -> None:
        self._end(DRAINING)

    def _end(self, ending: QueratorError | None) -> None:
        """The first ending counts; None is the client's half-close."""
        if not self._ended.is_set():
            self._ending = ending
            self._ended.set()

    async def run(self) -> QueratorError | None:
        outbox, half_closed = self._outbox, False
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(outbox.write_all(self._context.write))
                reader = tasks.create_task(self._read(tasks))
                await self._ended.wait()
                reader.cancel()
                if self._pump is not None:
                    self._pump.cancel()
                if self._ending is None:
                    # Their leases are released at once, so no consumer may work on them.
                    outbox.drop_deliveries()
                await outbox.until(outbox.is_answered)
                outbox.close()
            if self._ending is None:
                # A cut connection may look like the end of the stream just before gRPC cancels
                # this task. Then the client's leases must not be released.
                await asyncio.sleep(CUT_NOTICED_S)
                half_closed = True
        finally:
            if self._subscription is not None and self._call is not None:
                polite = half_closed or self._call.release_on_disconnect
                await self._subscription.close(polite=polite)
        return self._ending

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        """Reads until the client ends the stream, or sends a frame without a readable number."""
        try:
            subscription = await self._open(tasks)
            while subscription is not None:
                if not self._outbox.has_room_for_request():
                    with self._messages.unread():
                        await self._outbox.until(self._outbox.has_room_for_request)
                frame = await read_frame(self._context, self._messages)
                if frame is None:
                    break
                self._on_frame(frame, subscription, tasks)
        except QueratorError as error:
            self._end(error)
        else:
            self._end(None)

    async def _open(self, tasks: asyncio.TaskGroup) -> Subscription | None:
        """Reads the first frame and subscribes; None if the client sends no frame."""
        frame = await read_frame(self._context, self._messages)
        if frame is None:
            return None
        number, call = frames.parse_lease_frame(frame, subscribed=None, now_ms=now_ms())
        if isinstance(call, QueratorError):
            raise call
        assert isinstance(call, SubscribeCall)
        self._call = call
        self._subscription = subscription = await self._service.subscribe(call)
        subscribed = frames.encode_subscribed(
            number,
            lease_timeout_ms=subscription.lease_timeout_ms,
            durable=subscription.durable,
        )
        self._outbox.took(0)
        self._outbox.answer(subscribed, 0)
        self._pump = tasks.create_task(self._deliver(subscription))
        return subscription

    async def _deliver(self, subscription: Subscription) -> None:
        """Runs the pump."""
        try:
            while True:
                await self._outbox.until(self._outbox.has_room_for_delivery)
                reply = await subscription.next()
                size = sum(len(batch.loaded.items) for batch in reply.batches)
                self._outbox.deliver(size, partial(_frame, subscription, reply))
        except Exception as error:  # noqa: BLE001 - the top of the pump's task
            self._end(refusal_of(error, request_id=self._request_id, method=_METHOD))

    def _on_frame(self, frame: bytes, subscription: Subscription, tasks: asyncio.TaskGroup) -> None:
        """Handles a frame. Raises when the frame has no number to answer to."""
        number, said = frames.parse_lease_frame(
            frame, subscribed=self._call, now_ms=now_ms(), request_limits=self._limits
        )
        assert not isinstance(said, SubscribeCall)
        if isinstance(said, Credit):
            try:
                subscription.grant(said.items, said.bytes)
            except QueratorError as error:
                said = error
            else:
                return
        elif isinstance(said, EndDeliveries):
            subscription.end_deliveries()
            return
        self._outbox.took(len(frame))
        if isinstance(said, QueratorError):
            self._refuse(number, len(frame), said, _FRAME, time.perf_counter())
        else:
            tasks.create_task(self._settle(number, len(frame), said, subscription))

    async def _settle(
        self,
        number: int,
        size: int,
        call: CompleteCall | RetryCall | ExtendCall,
        subscription: Subscription,
    ) -> None:
        method, began_s = _METHODS[type(call)], time.perf_counter()
        try:
            if isinstance(call, CompleteCall):
                completed = await subscription.complete(call)
                answer = frames.encode_completed_frame(number, completed)
            elif isinstance(call, RetryCall):
                retried = await subscription.retry(call)
                answer = frames.encode_retried_frame(number, retried)
            else:
                extended = await subscription.extend(call)
                answer = frames.encode_extended_frame(number, extended)
        except Exception as error:  # noqa: BLE001 - the top of the request's task
            self._refuse(number, size, error, method, began_s)
        else:
            self._outbox.answer(answer, size)
            self._counts.ended(method, OK, began_s)

    def _refuse(
        self, number: int, size: int, error: Exception, method: str, began_s: float
    ) -> None:
        request_id = f"{self._request_id}/{number}"
        refusal = refusal_of(error, request_id=request_id, method=method)
        self._counts.refused(method, refusal, began_s)
        self._outbox.answer(frames.encode_lease_error(number, refusal, request_id=request_id), size)


def _frame(subscription: Subscription, reply: LeaseReply) -> bytes | None:
    """The frame of a delivery with the leases as of now; None if none of them remain."""
    left = subscription.as_of_now(reply)
    return None if left is None else frames.encode_delivery(left)
