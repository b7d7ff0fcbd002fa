"""The door of unary calls."""

import asyncio

from google.protobuf.duration_pb2 import Duration

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import LeasedBatch
from tests.conformance.door import CALL_S, Refused
from tests.conformance.stubs import Node, answer


class UnaryDoor:
    """Each request is a call."""

    def __init__(self, node: Node) -> None:
        self._stub = node.queue

    async def produce(self, request: pb.ProduceRequest) -> pb.ProduceResponse:
        return await answer(self._stub.Produce(request, timeout=CALL_S))

    async def lease(self, request: pb.LeaseRequest) -> list[LeasedBatch]:
        """Leases until it has all: a call returns with the first items. One whose wait is shorter
        than an election says NOT_LEADER, and is repeated, as clients do: it was not executed.
        """
        batches: list[LeasedBatch] = []
        wanted = pb.LeaseRequest()
        wanted.CopyFrom(request)
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + request.wait_timeout.ToMilliseconds() / 1000
        while True:
            try:
                reply = await answer(self._stub.Lease(wanted, timeout=CALL_S))
            except Refused as refused:
                if refused.code != "NOT_LEADER" or loop.time() > ends_s + CALL_S:
                    raise
                await asyncio.sleep(0.05)
                continue
            batches += reply.batches
            wanted.max_items -= sum(len(batch.items) for batch in reply.batches)
            left_ms = round(1000 * (ends_s - loop.time()))
            if not wanted.max_items or left_ms <= 0:
                return batches
            wanted.wait_timeout.CopyFrom(
                Duration(nanos=left_ms % 1000 * 10**6, seconds=left_ms // 1000)
            )

    async def complete(self, request: pb.CompleteRequest) -> pb.CompleteResponse:
        return await answer(self._stub.Complete(request, timeout=CALL_S))

    async def retry(self, request: pb.RetryRequest) -> pb.RetryResponse:
        return await answer(self._stub.Retry(request, timeout=CALL_S))

    async def extend(self, request: pb.ExtendRequest) -> pb.ExtendResponse:
        return await answer(self._stub.Extend(request, timeout=CALL_S))

    async def close(self) -> None:
        """Unary calls leave nothing open."""
