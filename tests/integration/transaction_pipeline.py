"""A pipeline that writes batches into a queue by transactions, through nodes that come and go."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import grpc
import uuid_utils

from querator.client.errors import TransactionAborted
from querator.client.transport.rpc_errors import from_rpc
from querator.v1 import items_pb2
from querator.v1 import transaction_service_pb2 as pb
from querator.v1.transaction_service_pb2_grpc import TransactionServiceStub

T = TypeVar("T")

CALL_S = 5.0
"""A node that has not answered within this time is given up, and another one is asked."""


class Pipeline:
    """`addresses` are those of all nodes. Every call is repeated until some node has answered."""

    def __init__(self, addresses: Iterable[str], producer: str, chance: random.Random) -> None:
        self.addresses = list(addresses)
        self.producer = producer
        self.chance = chance
        self.repeats = 0
        """Commits that were answered as repeated ones."""
        self.aborted = 0
        self._channels = {address: grpc.aio.insecure_channel(address) for address in self.addresses}

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def call(self, send: Callable[[Any], Awaitable[T]]) -> T:
        """Raises errors that a repeat cannot help."""
        while True:
            address = self.chance.choice(self.addresses)
            stub: Any = TransactionServiceStub(self._channels[address])
            try:
                return await send(stub)
            except grpc.aio.AioRpcError as failed:
                error = from_rpc(failed, address=address, changes=True)
                if not error.retriable:
                    raise error from failed
                await asyncio.sleep(0.05)

    async def stage(
        self, batch: int, task: int, items: list[bytes], *, requests: int = 3
    ) -> pb.StagedAttempt | None:
        """Makes one attempt at a task; None: the batch is committed."""
        attempt = uuid_utils.uuid4().bytes
        found: dict[int, pb.StagedPart] = {}
        size = -(-len(items) // requests)
        for sequence, start in enumerate(range(0, len(items), size), start=1):
            request = pb.StageRequest(
                queue="q",
                producer=self.producer,
                batch=batch,
                task=task,
                attempt=attempt,
                sequence=sequence,
                items=[items_pb2.Item(payload=item) for item in items[start : start + size]],
            )
            response = await self.call(partial(_stage, request))
            if response.already_committed:
                return None
            for part in response.parts:
                sums = found.setdefault(part.partition, pb.StagedPart(partition=part.partition))
                sums.count += part.count
                sums.checksum = (sums.checksum + part.checksum) % 2**32
        return pb.StagedAttempt(task=task, attempt=attempt, parts=found.values())

    async def commit(self, batch: int, stages: list[pb.StagedAttempt]) -> bool:
        """Whether the batch is committed; False: it must be staged again."""
        request = pb.CommitTxnRequest(queue="q", producer=self.producer, batch=batch, stages=stages)
        try:
            response = await self.call(lambda stub: stub.CommitTxn(request, timeout=CALL_S))
        except TransactionAborted:
            self.aborted += 1
            return False
        self.repeats += response.repeated_answer
        return True

    async def totals(self) -> tuple[int, int]:
        """The last committed batch, and the number of items of all batches, as the queue has
        counted them.
        """
        request = pb.GetTxnProducerRequest(queue="q", producer=self.producer)
        response = await self.call(lambda stub: stub.GetTxnProducer(request, timeout=CALL_S))
        assert response.HasField("batch")
        return response.batch, response.items

    async def write(
        self,
        batch: int,
        tasks: list[list[bytes]],
        *,
        staged: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Writes a batch as a pipeline does, until it is committed. `staged` runs before the
        commit.
        """
        while True:
            stages = []
            for number, items in enumerate(tasks):
                if self.chance.random() < 0.3:
                    # An attempt that does not count.
                    await self.stage(batch, number, items)
                stages.append(await self.stage(batch, number, items))
            if None in stages:
                return
            if staged is not None:
                await staged()
            if await self.commit(batch, [one for one in stages if one is not None]):
                return


async def _stage(request: pb.StageRequest, stub: Any) -> pb.StageResponse:
    response: pb.StageResponse = await stub.Stage(request, timeout=CALL_S)
    return response
