"""The door of streams: one ProduceStream, and a LeaseStream for each lease.

A lease subscribes, grants credit for what it wants, and collects deliveries. Then it ends the
deliveries; the stream stays open, because its end would release the items. Leases are settled on
the stream that delivered them, others on any stream of the queue.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import LeasedBatch
from tests.conformance.door import CALL_S
from tests.conformance.stubs import Node, refusal, refusal_of_frame

if TYPE_CHECKING:
    from querator.v1.queue_service_pb2_grpc import QueueServiceAsyncStub

_Answer = TypeVar("_Answer")
_Frame = pb.LeaseStreamRequest


class _Stream:
    """Frames with numbers, and the answers by number. A task reads until the stream ends."""

    def __init__(self, call: Any, tasks: "set[asyncio.Task[None]]") -> None:
        self.deliveries: asyncio.Queue[pb.LeaseResponse | None] = asyncio.Queue()
        """What was leased; None when the stream has ended."""
        self._call = call
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._writing = asyncio.Lock()
        self.ended = False
        self.ending: Exception = ConnectionError("the stream was cut")
        """Why it has ended: the server's refusal, if there is one."""
        reader = asyncio.get_running_loop().create_task(self._read())
        tasks.add(reader)
        reader.add_done_callback(tasks.discard)

    async def _read(self) -> None:
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                if frame.request_number:
                    self._answers.pop(frame.request_number).set_result(frame)
                else:
                    self.deliveries.put_nowait(frame.leased)
            self.ending = ConnectionError("the server has ended the stream")
        except grpc.aio.AioRpcError as error:
            self.ending = refusal(error)
        finally:
            self.ended = True
            for waiting in self._answers.values():
                waiting.set_exception(self.ending)
            self.deliveries.put_nowait(None)

    async def tell(self, frame: Any) -> None:
        """Sends a frame that has no answer. When the stream has ended, `ask` raises the reason."""
        async with self._writing:
            with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await self._call.write(frame)

    async def ask(self, frame: Any) -> Any:
        """The answer to a frame. Raises `Refused`."""
        if self.ended:
            raise self.ending
        self._number += 1
        frame.request_number = self._number
        answered = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self.tell(frame)
        async with asyncio.timeout(CALL_S):
            said = await answered
        if said.HasField("error"):
            raise refusal_of_frame(said.error)
        return said

    def cancel(self) -> None:
        self._call.cancel()


class StreamDoor:
    """Each request is a frame of a stream."""

    def __init__(self, node: Node) -> None:
        self._stub: QueueServiceAsyncStub = node.queue
        self._tasks: set[asyncio.Task[None]] = set()
        self._produces: _Stream | None = None
        self._streams: dict[tuple[str, str], _Stream] = {}
        """Open streams by namespace and queue: the last one of each."""
        self._all: list[_Stream] = []
        self._by_lease: dict[tuple[str, str, str], _Stream] = {}

    def _opened(self, call: Any) -> _Stream:
        stream = _Stream(call, self._tasks)
        self._all.append(stream)
        return stream

    async def produce(self, request: pb.ProduceRequest) -> pb.ProduceResponse:
        if self._produces is None:
            self._produces = self._opened(self._stub.ProduceStream())
        frame = pb.ProduceStreamRequest(produce=request)
        answer = await self._produces.ask(frame)
        produced: pb.ProduceResponse = answer.produced
        return produced

    async def _subscribe(self, subscribe: pb.Subscribe) -> _Stream:
        stream = self._opened(self._stub.LeaseStream())
        await stream.ask(_Frame(subscribe=subscribe))
        self._streams[subscribe.namespace, subscribe.queue] = stream
        return stream

    async def lease(self, request: pb.LeaseRequest) -> list[LeasedBatch]:
        subscribe = pb.Subscribe(
            namespace=request.namespace,
            queue=request.queue,
            client_id=request.client_id,
            max_items=request.max_items,
            max_bytes=request.max_bytes,
        )
        if request.HasField("lease_timeout"):
            subscribe.lease_timeout.CopyFrom(request.lease_timeout)
        stream = await self._subscribe(subscribe)
        await stream.tell(_Frame(credit=pb.Credit(items=request.max_items)))
        batches: list[LeasedBatch] = []
        left = request.max_items
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.wait_timeout.ToMilliseconds() / 1000):
                while left:
                    leased = await stream.deliveries.get()
                    if leased is None:
                        raise stream.ending
                    batches += leased.batches
                    left -= sum(len(batch.items) for batch in leased.batches)
        await stream.tell(_Frame(end_deliveries=pb.EndDeliveries()))
        named = (request.namespace, request.queue)
        self._by_lease |= {(*named, batch.lease_id): stream for batch in batches}
        return batches

    async def _settle(
        self, request: Any, lease_ids: list[str], frame: Callable[[Any], _Frame]
    ) -> Any:
        queue = (request.namespace, request.queue)
        delivered = [self._by_lease.get((*queue, lease_id)) for lease_id in lease_ids]
        open_streams = (one for one in (*delivered, self._streams.get(queue)) if one)
        stream = next((one for one in open_streams if not one.ended), None)
        if stream is None:
            client = getattr(request, "client_id", "") or "settler"
            stream = await self._subscribe(
                pb.Subscribe(namespace=request.namespace, queue=request.queue, client_id=client)
            )
        return await stream.ask(frame(request))

    async def complete(self, request: pb.CompleteRequest) -> pb.CompleteResponse:
        ids = [one.lease_id for one in request.leases]
        said = await self._settle(request, ids, lambda one: _Frame(complete=one))
        completed: pb.CompleteResponse = said.completed
        return completed

    async def retry(self, request: pb.RetryRequest) -> pb.RetryResponse:
        ids = [one.lease_id for one in request.leases]
        said = await self._settle(request, ids, lambda one: _Frame(retry=one))
        retried: pb.RetryResponse = said.retried
        return retried

    async def extend(self, request: pb.ExtendRequest) -> pb.ExtendResponse:
        said = await self._settle(request, list(request.lease_ids), lambda one: _Frame(extend=one))
        extended: pb.ExtendResponse = said.extended
        return extended

    async def close(self) -> None:
        """Cuts the streams."""
        for stream in self._all:
            stream.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
