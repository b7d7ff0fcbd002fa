"""A service whose answers a test decides, and a server in front of it.

Tests of the transport's own guarantees need a service that is slow, stuck or broken on demand.
The integration tests cover the answers of the real service through this transport.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc

from querator.model.calls import (
    CompleteCall,
    ExtendCall,
    ExtendReply,
    LeaseCall,
    LeasedRun,
    LeaseExtension,
    LeaseOutcome,
    LeaseReply,
    LoadedItems,
    ProduceCall,
    ProducedBatch,
    ProduceReply,
    RetryCall,
    SettleReply,
    SubscribeCall,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.server.grpc_server import GrpcServer
from querator.v1 import items_pb2, queue_service_pb2, queue_service_pb2_grpc


def stored_item(payload: bytes) -> bytes:
    item = items_pb2.Item(payload=payload)
    return queue_service_pb2.ProduceRequest(items=[item]).SerializeToString()


def delivery(payload: bytes) -> LeaseReply:
    loaded = LoadedItems(
        first_seq=7,
        ordinals=(),
        count=1,
        produced_at_ms=1_000,
        overlays=(),
        items=stored_item(payload),
    )
    return LeaseReply(
        (
            LeasedRun(
                lease_id="a.0.1",
                queue="q",
                partition=0,
                attempt=1,
                deadline_ms=2_000,
                remaining_ms=900,
                repeated=False,
                loaded=loaded,
            ),
        ),
        True,
    )


class Changes:
    """Counts events, and lets a test wait until a condition on the counts holds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    async def note(self, what: str) -> None:
        async with self._changed:
            self.counts[what] += 1
            self._changed.notify_all()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(holds)


class FakeSubscription:
    """Delivers the replies that the test puts into `replies`, and raises the exceptions."""

    lease_timeout_ms = 30_000
    durable = True

    def __init__(self, call: SubscribeCall, changes: Changes) -> None:
        self.call = call
        self.changes = changes
        self.replies: asyncio.Queue[LeaseReply | Exception] = asyncio.Queue()
        self.credit: list[tuple[int, int]] = []
        self.delivers = True
        self.closed: list[bool] = []
        self.settle_gate = asyncio.Event()
        self.settle_gate.set()

    def grant(self, items: int, bytes: int) -> None:
        if items == 99:
            raise QueratorError(ErrorCode.LIMIT_EXCEEDED, "too much", field="credit.items")
        self.credit.append((items, bytes))

    def end_deliveries(self) -> None:
        self.delivers = False

    async def next(self) -> LeaseReply:
        reply = await self.replies.get()
        if isinstance(reply, Exception):
            raise reply
        await self.changes.note("delivered")
        return reply

    def as_of_now(self, reply: LeaseReply) -> LeaseReply:
        return reply

    async def complete(self, call: CompleteCall) -> SettleReply:
        await self.changes.note("settling")
        await self.settle_gate.wait()
        if call.all_or_nothing:
            raise RuntimeError("secret of the inside")
        return settled(call)

    async def retry(self, call: RetryCall) -> SettleReply:
        return settled(call)

    async def extend(self, call: ExtendCall) -> ExtendReply:
        return extended(call)

    async def close(self, *, polite: bool) -> None:
        self.closed.append(polite)
        await self.changes.note("closed")


def settled(call: CompleteCall | RetryCall) -> SettleReply:
    return SettleReply(
        tuple(LeaseOutcome(ref.lease_id, ref.ranges, (), (), None) for ref in call.leases)
    )


def extended(call: ExtendCall) -> ExtendReply:
    return ExtendReply(tuple(LeaseExtension(lease_id, 5_000, 400) for lease_id in call.lease_ids))


class FakeService:
    """Refuses or fails depending on the queue's name. It is stuck while `gate` is not set."""

    def __init__(self) -> None:
        self.changes = Changes()
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls: list[Any] = []
        self.subscriptions: list[FakeSubscription] = []
        self.executions = self
        """The calls of executions are none of this service's."""

    async def _take(self, call: Any) -> None:
        self.calls.append(call)
        await self.changes.note("taken")
        try:
            if call.queue == "full":
                raise QueratorError(
                    ErrorCode.QUEUE_FULL, "full", limit="5 items", retry_delay_ms=250
                )
            if call.queue == "broken":
                raise RuntimeError("secret of the inside")
            if call.queue != "open":
                await self.gate.wait()
        except asyncio.CancelledError:
            await self.changes.note("cancelled")
            raise

    async def produce(self, call: ProduceCall) -> ProduceReply:
        await self._take(call)
        return ProduceReply((ProducedBatch(0, 17, len(call.lengths) // 4),), True)

    async def lease(self, call: LeaseCall) -> LeaseReply:
        await self._take(call)
        return delivery(b"work")

    async def complete(self, call: CompleteCall) -> SettleReply:
        await self._take(call)
        return settled(call)

    async def retry(self, call: RetryCall) -> SettleReply:
        await self._take(call)
        return settled(call)

    async def extend(self, call: ExtendCall) -> ExtendReply:
        await self._take(call)
        return extended(call)

    async def subscribe(self, call: SubscribeCall) -> FakeSubscription:
        await self._take(call)
        subscription = FakeSubscription(call, self.changes)
        self.subscriptions.append(subscription)
        await self.changes.note("subscribed")
        return subscription


class RunningServer:
    """A server, its service, and a client's channel to it."""

    def __init__(self, server: GrpcServer, service: FakeService, address: str) -> None:
        self.server = server
        self.service = service
        self.address = address
        self.channel = grpc.aio.insecure_channel(address)
        self.stub = queue_service_pb2_grpc.QueueServiceStub(self.channel)


@asynccontextmanager
async def running_server(
    service: FakeService | None = None, **options: Any
) -> AsyncIterator[RunningServer]:
    service = service or FakeService()
    server = GrpcServer(cast(Any, service), cast(Any, None), listen="127.0.0.1:0", **options)
    there = RunningServer(server, service, await server.start())
    try:
        yield there
    finally:
        await there.channel.close()
        await server.stop(0)
