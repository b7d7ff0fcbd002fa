"""Producers and consumers over the plain stubs, which live through restarts of the server.

Each repeats what it does not know the outcome of with the same identity, as docs/guarantees.md
says, and writes down what it saw.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc
import uuid_utils
from google.protobuf.duration_pb2 import Duration

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Item, LeasedBatch, SeqRange
from querator.v1.queue_service_pb2_grpc import QueueServiceStub
from tests.integration.history import Completion, Delivery, History

if TYPE_CHECKING:
    # The type alone: at run time there is one stub for both.
    from querator.v1.queue_service_pb2_grpc import QueueServiceAsyncStub

LEASE_TIMEOUT_S = 2
CALL_TIMEOUT_S = 5
_UNKNOWN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_Answer = TypeVar("_Answer")


class Load:
    """Runs against whatever address `address()` names at the time; `gone` ends it."""

    def __init__(self, queue: str, address: Callable[[], str], seed: int) -> None:
        self.queue = queue
        self.history = History()
        self.random = random.Random(seed)
        self.gone = asyncio.Event()
        self._address = address
        self._numbers = iter(range(1, 10**9))

    @contextlib.asynccontextmanager
    async def stub(self) -> AsyncIterator["QueueServiceAsyncStub"]:
        options = [
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
        ]
        async with grpc.aio.insecure_channel(self._address(), options=options) as channel:
            yield QueueServiceStub(channel)

    async def until_known(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer | None:
        """Repeats the call until it is answered; None when the load ends before that."""
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                if error.code() not in _UNKNOWN:
                    raise
            if self.gone.is_set():
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self.gone.wait()

    async def produce(self, batch_items: int) -> None:
        """One idempotent producer: each request is repeated until it is acknowledged."""
        producer_id = uuid_utils.uuid7().bytes
        sequence = 0
        async with self.stub() as stub:
            while not self.gone.is_set():
                sequence += 1
                references = [f"i{next(self._numbers)}" for _ in range(batch_items)]
                request = pb.ProduceRequest(
                    queue=self.queue,
                    producer_id=producer_id,
                    sequence=sequence,
                    items=[Item(payload=r.encode() * 20, reference=r) for r in references],
                )
                answer = await self.until_known(
                    partial(stub.Produce, request, timeout=CALL_TIMEOUT_S)
                )
                if answer is not None:
                    self.history.acknowledged.update(references)

    async def consume(self, name: str, *, until_empty: bool = False) -> None:
        """One consumer: leases, completes most, retries some, and lets a few lapse."""
        request_number = 0
        async with self.stub() as stub:
            while until_empty or not self.gone.is_set():
                request_number += 1
                request = pb.LeaseRequest(
                    queue=self.queue,
                    client_id=name,
                    request_id=f"{name}-{request_number}",
                    max_items=self.random.choice([1, 7, 50]),
                    lease_timeout=Duration(seconds=LEASE_TIMEOUT_S),
                    wait_timeout=Duration(seconds=LEASE_TIMEOUT_S + 4 if until_empty else 1),
                )
                asked_s = time.monotonic()
                answer = await self.until_known(
                    partial(stub.Lease, request, timeout=CALL_TIMEOUT_S + 5)
                )
                if answer is None or (until_empty and not answer.batches):
                    return
                for batch in answer.batches:
                    self._delivered(batch, asked_s)
                    await self._settle(stub, batch, settle_all=until_empty)

    def _delivered(self, batch: LeasedBatch, asked_s: float) -> None:
        got_s = time.monotonic()
        self.history.deliveries.extend(
            Delivery(item.reference, batch.lease_id, batch.attempt, asked_s, got_s)
            for item in batch.items
        )

    async def _settle(
        self, stub: "QueueServiceAsyncStub", batch: LeasedBatch, *, settle_all: bool
    ) -> None:
        chance = 1.0 if settle_all else self.random.random()
        ordinals = batch.ordinals or range(len(batch.items))
        seqs = {
            batch.first_seq + o: i.reference for o, i in zip(ordinals, batch.items, strict=True)
        }
        lease = pb.LeaseItems(
            lease_id=batch.lease_id, ranges=[SeqRange(first_seq=s, count=1) for s in seqs]
        )
        if chance < 0.05:
            return  # lapses
        if chance < 0.15:
            retry = pb.RetryRequest(queue=self.queue, leases=[lease], error="try again")
            await self.until_known(lambda: stub.Retry(retry, timeout=CALL_TIMEOUT_S))
            return
        complete = pb.CompleteRequest(queue=self.queue, leases=[lease])
        asked_s = time.monotonic()
        answer = await self.until_known(lambda: stub.Complete(complete, timeout=CALL_TIMEOUT_S))
        if answer is None:
            self.history.unsettled.update((r, batch.lease_id) for r in seqs.values())
            return
        answered_s = time.monotonic()
        (outcome,) = answer.outcomes
        for repeated, ranges in ((False, outcome.done), (True, outcome.repeated_answer)):
            for run in ranges:
                for seq in range(run.first_seq, run.first_seq + run.count):
                    self.history.completions.append(
                        Completion(seqs[seq], batch.lease_id, asked_s, answered_s, repeated)
                    )
        self.history.lost_leases += sum(run.count for run in outcome.lost)
