"""Producers and consumers over the plain stubs, which live through restarts of the servers.

Each repeats calls of unknown outcome with the same identity, as docs/guarantees.md describes, and
records what it saw: a history for `tests.checkers`.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import grpc
import uuid_utils
from google.protobuf.duration_pb2 import Duration

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Item, LeasedBatch, SeqRange
from querator.v1.queue_service_pb2_grpc import QueueServiceStub
from tests.checkers.history import (
    Complete,
    Grant,
    History,
    Lease,
    Leased,
    Named,
    Outcome,
    Pending,
    Produce,
    Produced,
    ProducedPart,
    QueueRules,
    Ranges,
    Recorder,
    Retry,
    Settled,
    Unknown,
    ranges,
    spread,
)

if TYPE_CHECKING:
    # Only the type: at run time there is one stub for both.
    from querator.v1.queue_service_pb2_grpc import QueueServiceAsyncStub

LEASE_TIMEOUT_S = 2
PATIENCE_S = LEASE_TIMEOUT_S + 4
"""A consumer that gets nothing for this long may assume that no item is left."""
CALL_TIMEOUT_S = 5
STRAGGLER_S = 0.15
"""A lease call that took this long may have missed partitions that granted items late; the node
gives these items back.
"""
_HOLD_S = 30.0
_UNKNOWN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_Answer = TypeVar("_Answer")
_numbers = count(1)
"""References are unique in the process."""


def new_references(number: int) -> list[str]:
    return [f"i{next(_numbers)}" for _ in range(number)]


def new_recorder(queue: str, partitions: int) -> Recorder:
    """A recorder for a history of one queue, on the process's monotonic clock."""
    history = History({queue: QueueRules(partitions, LEASE_TIMEOUT_S)}, [], hold_s=_HOLD_S)
    return Recorder(history, time.monotonic)


def acknowledged(history: History) -> set[str]:
    """References of the items whose produce was answered."""
    return {
        reference
        for op in history.operations
        if isinstance(op.request, Produce) and isinstance(op.outcome, Produced)
        for reference in op.request.references
    }


def completed(history: History) -> int:
    """Items whose complete was answered as done."""
    return sum(
        len(spread(outcome.done))
        for op in history.operations
        if isinstance(op.request, Complete) and isinstance(op.outcome, Settled)
        for outcome in op.outcome.outcomes
    )


class StubLoad:
    """Runs against the address that `address()` names at the time; `gone` ends it. `pause_s`: how
    long each client rests between its requests; `payload_bytes`: smallest size of items.
    """

    def __init__(
        self,
        queue: str,
        address: Callable[[], str],
        seed: int,
        recorder: Recorder,
        *,
        pause_s: float = 0.0,
        payload_bytes: int = 0,
    ) -> None:
        self.queue = queue
        self.payload_bytes = payload_bytes
        self.pause_s = pause_s
        self.recorder = recorder
        self.random = random.Random(seed)
        self.gone = asyncio.Event()
        self._address = address

    @contextlib.asynccontextmanager
    async def stub(self) -> AsyncIterator["QueueServiceAsyncStub"]:
        options = [
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
        ]
        async with grpc.aio.insecure_channel(self._address(), options=options) as channel:
            yield QueueServiceStub(channel)

    async def until_known(
        self, call: Callable[[], Awaitable[_Answer]], *, ends: bool = True
    ) -> _Answer | None:
        """Repeats the call until it is answered; None when the load ends before that and `ends`."""
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                if error.code() not in _UNKNOWN:
                    raise
            if not ends:
                await asyncio.sleep(0.05)
                continue
            if self.gone.is_set():
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self.gone.wait()

    def _payload(self, reference: str) -> bytes:
        return (reference.encode() * 20).ljust(self.payload_bytes, b".")

    async def produce(self, batch_items: int) -> None:
        """One idempotent producer: each request is repeated until it is acknowledged."""
        producer_id = uuid_utils.uuid7().bytes
        async with self.stub() as stub:
            for sequence in count(1):
                if self.gone.is_set():
                    return
                await self.produce_once(stub, new_references(batch_items), producer_id, sequence)
                await asyncio.sleep(self.pause_s)

    async def produce_once(
        self,
        stub: "QueueServiceAsyncStub",
        references: Sequence[str],
        producer_id: bytes,
        sequence: int,
    ) -> None:
        request = pb.ProduceRequest(
            queue=self.queue,
            producer_id=producer_id,
            sequence=sequence,
            items=[Item(payload=self._payload(r), reference=r) for r in references],
        )
        asked = Produce(tuple(references), producer_id.hex(), sequence)
        pending = self.recorder.begin("producer", self.queue, asked)
        answer = await self.until_known(partial(stub.Produce, request, timeout=CALL_TIMEOUT_S))
        if answer is None:
            pending.ended(Unknown())
            return
        parts = [
            ProducedPart(b.partition, b.first_seq, b.count, tuple(b.indexes))
            for b in answer.batches
        ]
        pending.ended(Produced(tuple(parts)))

    async def consume(self, name: str, *, until_empty: bool = False) -> None:
        """One consumer: leases, completes most, retries some, and lets a few lapse."""
        async with self.stub() as stub:
            for number in count(1):
                if self.gone.is_set() and not until_empty:
                    return
                began_s = time.monotonic()
                batches = await self._lease(stub, name, f"{name}-{number}", until_empty)
                # An empty answer before that time: items had been granted too late to be used.
                waited = time.monotonic() - began_s >= PATIENCE_S
                if batches is None or (until_empty and not batches and waited):
                    return
                for batch in batches:
                    await self._settle(stub, name, batch, settle_all=until_empty)
                await asyncio.sleep(self.pause_s)

    async def _lease(
        self, stub: "QueueServiceAsyncStub", name: str, request_id: str, patient: bool
    ) -> Sequence[LeasedBatch] | None:
        """None: the load has ended."""
        most = self.random.choice([1, 7, 50])
        request = pb.LeaseRequest(
            queue=self.queue,
            client_id=name,
            request_id=request_id,
            max_items=most,
            lease_timeout=Duration(seconds=LEASE_TIMEOUT_S),
            wait_timeout=Duration(seconds=PATIENCE_S if patient else 1),
        )
        pending = self.recorder.begin(name, self.queue, Lease(most, request_id, LEASE_TIMEOUT_S))
        tries = 0

        async def call() -> pb.LeaseResponse:
            nonlocal tries
            tries += 1
            answer: pb.LeaseResponse = await stub.Lease(request, timeout=CALL_TIMEOUT_S + 5)
            return answer

        try:
            answer = await self.until_known(call, ends=not patient)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            # LEASE_ENDED: an earlier try was granted items that no client has seen.
            pending.ended(Unknown())
            return await self._lease(stub, name, f"{request_id}+", patient)
        if answer is None:
            pending.ended(Unknown())
            return None
        late = time.monotonic() - pending.operation.begin_s > STRAGGLER_S
        unseen = most if tries > 1 or (answer.batches and late) else 0
        grants = [
            Grant(
                batch.lease_id,
                batch.partition,
                batch.attempt,
                tuple(
                    (seq, item.reference)
                    for seq, item in zip(seqs_of(batch), batch.items, strict=True)
                ),
                batch.repeated_answer,
            )
            for batch in answer.batches
        ]
        pending.ended(Leased(tuple(grants), unseen))
        return answer.batches

    async def _settle(
        self, stub: "QueueServiceAsyncStub", name: str, batch: LeasedBatch, *, settle_all: bool
    ) -> None:
        chance = 1.0 if settle_all else self.random.random()
        if chance < 0.05:
            return  # lapses
        runs = ranges(seqs_of(batch))
        lease = pb.LeaseItems(
            lease_id=batch.lease_id,
            ranges=[SeqRange(first_seq=first, count=number) for first, number in runs],
        )
        named = (Named(batch.lease_id, runs),)
        if chance < 0.15:
            retry = pb.RetryRequest(queue=self.queue, leases=[lease], error="try again")
            pending = self.recorder.begin(name, self.queue, Retry(named))
            retried = await self.until_known(partial(stub.Retry, retry, timeout=CALL_TIMEOUT_S))
            _settled(pending, None if retried is None else retried.outcomes)
            return
        complete = pb.CompleteRequest(queue=self.queue, leases=[lease])
        pending = self.recorder.begin(name, self.queue, Complete(named))
        answer = await self.until_known(partial(stub.Complete, complete, timeout=CALL_TIMEOUT_S))
        _settled(pending, None if answer is None else answer.outcomes)


def seqs_of(batch: LeasedBatch) -> list[int]:
    return [batch.first_seq + o for o in batch.ordinals or range(len(batch.items))]


def _settled(pending: Pending, outcomes: Sequence[pb.LeaseOutcome] | None) -> None:
    """`until_known` may have tried more than once."""
    if outcomes is None:
        pending.ended(Unknown())
        return
    answers = [
        Outcome(o.lease_id, _runs(o.done), _runs(o.repeated_answer), _runs(o.lost))
        for o in outcomes
    ]
    pending.ended(Settled(tuple(answers), again=True))


def _runs(found: Sequence[SeqRange]) -> Ranges:
    return tuple((run.first_seq, run.count) for run in found)
