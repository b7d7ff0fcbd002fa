"""A fake node with scripted answers, for refusals and losses that a real node seldom shows."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

import grpc
import grpc.aio

from querator.client.transport.rpc_errors import from_frame
from querator.v1 import (
    errors_pb2,
    items_pb2,
    queue_service_pb2,
    queue_service_pb2_grpc,
)
from querator.wire.errors import error_status

Answer = errors_pb2.Error | queue_service_pb2.ProduceResponse | None
Decide = Callable[[queue_service_pb2.ProduceRequest], Answer]


_SUBSCRIBED = queue_service_pb2.LeaseStreamResponse(subscribed=queue_service_pb2.Subscribed())


def refusal(name: str, **more: Any) -> errors_pb2.Error:
    code = errors_pb2.ErrorCode.Value(f"ERROR_CODE_{name}")
    return errors_pb2.Error(code=code, message=f"told to say {name}", **more)


async def until(condition: Callable[[], bool]) -> None:
    """Polls for what a client learns outside of its calls."""
    while not condition():  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)


class FakeNode(queue_service_pb2_grpc.QueueServiceServicer):
    """One partition in memory that checks order and identity as a real one does.

    `decide` gets each produce request first. It returns the answer, or None to apply the usual
    rules. The next `cut_answers` answers break their call or stream: the answer is lost, and its
    effect stays.
    """

    def __init__(self) -> None:
        self.decide: Decide = lambda request: None
        self.cut_answers = 0
        self.silent = False
        self.stored: list[bytes] = []
        self.outcomes: dict[tuple[bytes, int], queue_service_pb2.ProduceResponse] = {}
        self.last: dict[bytes, int] = {}
        self.requests: list[queue_service_pb2.ProduceRequest] = []
        self.ready: deque[list[bytes]] = deque()
        self.subscriptions: list[queue_service_pb2.Subscribe] = []
        self.credits: list[int] = []
        self.settles: list[queue_service_pb2.LeaseStreamRequest] = []
        self.lost: set[int] = set()
        self.unsettled: deque[errors_pb2.ErrorCode.ValueType] = deque()
        """Errors of the next settled leases, instead of an outcome."""
        self.settle_refusals: deque[errors_pb2.Error | None] = deque()
        """Refusals of the next frames that settle. None: the frame is executed."""
        self.completes: deque[errors_pb2.Error | None] = deque()
        """Errors of the next complete calls. None: the call is executed."""
        self.lease_timeout_seconds = 30
        self.attempt = 1
        self.half_closed = 0
        self.ended_deliveries = 0
        self.knows_end_deliveries = True
        self.stream_refusal: errors_pb2.Error | None = None
        """Ends each lease stream, after the answer to its first frame."""
        self._next_seq = 1
        self._changed = asyncio.Condition()
        self.address = ""
        self.routing: queue_service_pb2.GetRoutingResponse | None = None
        self.routing_open = asyncio.Event()
        """Set: calls for the routing are answered."""
        self.routing_open.set()
        self.routing_calls: list[str] = []
        """What became of each: "answered", "cancelled"."""
        self.leader_address = ""
        """The leader's address in answers."""
        self.produce_streams = 0
        """Number of opened produce streams."""
        self.hung = False
        """Whether produce calls get no answer."""
        self.asked = 0
        self._server: grpc.aio.Server | None = None

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Self]:
        node = cls()
        await node.start()
        try:
            yield node
        finally:
            await node.stop()

    async def start(self) -> None:
        """Starts a server at the node's former address, if there is one."""
        self._server = grpc.aio.server()
        queue_service_pb2_grpc.add_QueueServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Ends like a killed node: without a message to its clients."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)

    def share(self, other: "FakeNode") -> None:
        """Shares the partition of another node: each node knows what the other stores."""
        self.stored, self.outcomes, self.last = other.stored, other.outcomes, other.last
        self.ready, self._changed = other.ready, other._changed

    async def GetRouting(self, request: Any, context: Any) -> Any:
        if self.routing is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not known here")
        try:
            await self.routing_open.wait()
        except asyncio.CancelledError:
            self.routing_calls.append("cancelled")
            raise
        self.routing_calls.append("answered")
        return self.routing

    def put(self, request: queue_service_pb2.ProduceRequest) -> Answer:
        self.requests.append(request)
        decided = self.decide(request)
        if decided is not None:
            return decided
        known = self.outcomes.get((request.producer_id, request.sequence))
        if known is not None:
            again = queue_service_pb2.ProduceResponse.FromString(known.SerializeToString())
            again.batches[0].repeated_answer = True
            again.leader_address = self.leader_address
            return again
        last = self.last.get(request.producer_id, 0)
        if request.ordered and request.sequence != last + 1:
            return refusal("SEQUENCE_GAP", limit=str(last + 1))
        self.last[request.producer_id] = request.sequence
        answer = queue_service_pb2.ProduceResponse(
            batches=[
                queue_service_pb2.ProducedBatch(
                    first_seq=len(self.stored) + 1, count=len(request.items)
                )
            ],
            durable=True,
            leader_address=self.leader_address,
        )
        self.stored += [item.payload for item in request.items]
        self.outcomes[request.producer_id, request.sequence] = answer
        return answer

    async def Produce(self, request: Any, context: Any) -> Any:
        self.asked += 1
        if self.hung:
            await asyncio.Event().wait()
        answer = self.put(request)
        if self.cut_answers:
            self.cut_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if isinstance(answer, errors_pb2.Error):
            await self._refuse(answer, context)
        return answer

    async def _refuse(self, error: errors_pb2.Error, context: Any) -> None:
        status = error_status(from_frame(error), request_id="r-1")
        details = ("grpc-status-details-bin", status.SerializeToString())
        code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
        await context.abort(code, status.message, (details,))

    async def ProduceStream(self, requests: Any, context: Any) -> Any:
        self.produce_streams += 1
        async for frame in requests:
            answer = self.put(frame.produce)
            if self.silent:
                continue
            if self.cut_answers:
                self.cut_answers -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            response = queue_service_pb2.ProduceStreamResponse(request_number=frame.request_number)
            if isinstance(answer, errors_pb2.Error):
                response.error.CopyFrom(answer)
            else:
                assert answer is not None
                response.produced.CopyFrom(answer)
            yield response

    async def make_ready(self, *batches: Iterable[bytes]) -> None:
        async with self._changed:
            self.ready.extend(list(batch) for batch in batches)
            self._changed.notify_all()

    async def Complete(self, request: Any, context: Any) -> Any:
        error = self.completes.popleft() if self.completes else None
        if error is not None:
            await self._refuse(error, context)
        return queue_service_pb2.CompleteResponse(outcomes=map(self._outcome, request.leases))

    async def LeaseStream(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        refused = self.stream_refusal
        if refused is not None:
            self.subscriptions.append((await context.read()).subscribe)
            await context.write(_SUBSCRIBED)
            await self._refuse(refused, context)
        credit = 0
        lock = asyncio.Lock()

        def due() -> bool:
            return bool(self.ready) and credit >= len(self.ready[0])

        async def deliver() -> None:
            nonlocal credit
            while True:
                async with self._changed:
                    await self._changed.wait_for(due)
                    payloads = self.ready.popleft()
                    credit -= len(payloads)
                async with lock:
                    await context.write(self._delivery(payloads))

        async with asyncio.TaskGroup() as tasks:
            pump = tasks.create_task(deliver())
            while (frame := await context.read()) is not grpc.aio.EOF:
                if frame.HasField("subscribe"):
                    self.subscriptions.append(frame.subscribe)
                elif frame.HasField("credit"):
                    self.credits.append(frame.credit.items)
                    credit += frame.credit.items
                    async with self._changed:
                        self._changed.notify_all()
                elif frame.HasField("end_deliveries"):
                    if self.knows_end_deliveries:
                        credit = 0
                        self.ended_deliveries += 1
                        continue
                    unknown = refusal("INVALID_ARGUMENT", field="frame")
                    answer = queue_service_pb2.LeaseStreamResponse(
                        request_number=frame.request_number, error=unknown
                    )
                    async with lock:
                        await context.write(answer)
                else:
                    self.settles.append(frame)
                    if self.cut_answers:
                        self.cut_answers -= 1
                        # gRPC does not end a stream while a message is being written.
                        async with lock:
                            pump.cancel()
                            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
                    answer = self._confirmation(frame)
                    if self.settle_refusals and (error := self.settle_refusals.popleft()):
                        answer = queue_service_pb2.LeaseStreamResponse(
                            request_number=frame.request_number, error=error
                        )
                    async with lock:
                        await context.write(answer)
            self.half_closed += 1
            pump.cancel()

    def _delivery(self, payloads: list[bytes]) -> queue_service_pb2.LeaseStreamResponse:
        batch = items_pb2.LeasedBatch(
            lease_id=f"1.0.{self._next_seq:x}",
            queue="q",
            first_seq=self._next_seq,
            attempt=self.attempt,
            items=[items_pb2.Item(payload=payload) for payload in payloads],
        )
        batch.lease_remaining.FromSeconds(self.lease_timeout_seconds)
        batch.deadline.GetCurrentTime()
        self._next_seq += len(payloads)
        leased = queue_service_pb2.LeaseResponse(batches=[batch], durable=True)
        return queue_service_pb2.LeaseStreamResponse(leased=leased)

    def _confirmation(
        self, frame: queue_service_pb2.LeaseStreamRequest
    ) -> queue_service_pb2.LeaseStreamResponse:
        named = frame.complete if frame.HasField("complete") else frame.retry
        outcomes = [self._outcome(lease) for lease in named.leases]
        response = queue_service_pb2.LeaseStreamResponse(request_number=frame.request_number)
        if frame.HasField("complete"):
            response.completed.outcomes.extend(outcomes)
        else:
            response.retried.outcomes.extend(outcomes)
        return response

    def _outcome(self, lease: queue_service_pb2.LeaseItems) -> queue_service_pb2.LeaseOutcome:
        outcome = queue_service_pb2.LeaseOutcome(lease_id=lease.lease_id)
        if self.unsettled:
            outcome.error = self.unsettled.popleft()
            return outcome
        for run in lease.ranges:
            for seq in range(run.first_seq, run.first_seq + run.count):
                ranges = outcome.lost if seq in self.lost else outcome.done
                ranges.append(items_pb2.SeqRange(first_seq=seq, count=1))
        return outcome
