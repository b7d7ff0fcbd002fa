"""Programs that use the SDK and record what they saw: a history for `tests.checkers`.

The SDK repeats calls by itself. So each call is one operation, from its first try to the answer.
The answer reports what an earlier try may have done (`again`, `unseen`). An error that reaches the
program is counted: `OutcomeUnknown` leaves an unknown outcome; all others mean that nothing was
executed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta

from querator import Client
from querator.client import Consumer, Item, LeasedBatch, LeasedItem, Producer
from querator.client.errors import LeaseLost, OutcomeUnknown, RequestError, ServerFailed
from querator.client.values import LeaseRef, ProducedItem, SettleOutcome
from tests.checkers.history import (
    Complete,
    Count,
    Counted,
    Extend,
    Extended,
    Grant,
    Lease,
    Leased,
    Named,
    Operation,
    Outcome,
    Pending,
    Produce,
    Produced,
    ProducedPart,
    Recorder,
    Refused,
    Retry,
    Settled,
    Unknown,
    ranges,
)
from tests.integration.stub_load import new_references

LEASE_TIMEOUT_S = 3.0
PREFETCH = 40
DELIVERY_S = 20.0
"""Largest age of a grant that a stream delivers: an older one would have lapsed, or been given
back.
"""


class User:
    """One program with a client of its own. `gone` ends its loops."""

    def __init__(
        self,
        name: str,
        client: Client,
        recorder: Recorder,
        errors: "Counter[str]",
        *,
        seed: int,
        pause_s: float,
        gone: asyncio.Event,
    ) -> None:
        self.name = name
        self.client = client
        self.recorder = recorder
        self.errors = errors
        """Errors that reached the program, by code."""
        self.chance = random.Random(f"{name} {seed}")
        self.gone = gone
        self._pause_s = pause_s
        self._delivering: dict[str, Operation] = {}

    async def pause(self) -> None:
        """Waits between two requests, so that the nodes get enough of the machine."""
        await asyncio.sleep(self.chance.expovariate(1) * self._pause_s)

    def _failed(self, pending: Pending, error: RequestError) -> None:
        self.errors[error.code.name] += 1
        self.recorder.note(f"{self.name}: {error}")
        if isinstance(error, OutcomeUnknown | ServerFailed):
            pending.ended(Unknown())
        else:
            pending.ended(Refused(error.code.name))

    # --- produce -----------------------------------------------------------------------------

    async def produce(self, queue: str) -> None:
        """Produces a few items by each call."""
        while not self.gone.is_set():
            references = new_references(self.chance.choice([1, 1, 5, 20]))
            pending = self.recorder.begin(self.name, queue, Produce(tuple(references)))
            try:
                stored = await self.client.produce(queue, *_items(references))
            except RequestError as error:
                self._failed(pending, error)
            else:
                pending.ended(Produced(parts_of(stored)))
            await self.pause()

    async def produce_on_a_stream(self, queue: str, *, ordered: bool) -> None:
        async with self.client.producer(queue, ordered=ordered) as producer:
            async with asyncio.TaskGroup() as tasks:
                # Several requests are in flight at a time.
                for _ in range(3):
                    tasks.create_task(self._produce_many(queue, producer))

    async def _produce_many(self, queue: str, producer: Producer) -> None:
        while not self.gone.is_set():
            references = new_references(self.chance.choice([1, 10, 50]))
            pending = self.recorder.begin(self.name, queue, Produce(tuple(references)))
            try:
                stored = await producer.produce_many(_items(references))
            except RequestError as error:
                self._failed(pending, error)
            else:
                pending.ended(Produced(parts_of(stored)))
            await self.pause()

    # --- consume by calls ----------------------------------------------------------------------

    async def consume(self, queue: str) -> None:
        """Completes most items, retries some, extends some, and lets a few leases lapse."""
        while not self.gone.is_set():
            most = self.chance.choice([1, 7, 30])
            for batch in await self.lease(queue, most, wait_s=1.0):
                await self._work(queue, batch)
            await self.pause()

    async def lease(self, queue: str, most: int, *, wait_s: float) -> list[LeasedBatch]:
        pending = self.recorder.begin(self.name, queue, Lease(most, "", LEASE_TIMEOUT_S))
        try:
            items = await self.client.lease(
                queue,
                max_items=most,
                wait=timedelta(seconds=wait_s),
                lease_timeout=timedelta(seconds=LEASE_TIMEOUT_S),
            )
        except RequestError as error:
            self._failed(pending, error)
            return []
        batches = list(dict.fromkeys(item.batch for item in items))
        # An earlier try may have been granted something, or a partition that answered late.
        pending.ended(Leased(tuple(grant_of(batch) for batch in batches), unseen=most))
        return batches

    async def _work(self, queue: str, batch: LeasedBatch) -> None:
        chance = self.chance.random()
        if chance < 0.04:
            return  # lapses
        seqs = seqs_of(batch)
        if chance < 0.12:
            await self._extend(queue, batch.lease_id)
            await self.pause()
        if chance < 0.2:
            await self.retry(queue, batch.lease_id, seqs)
        elif chance < 0.3:
            half = len(seqs) // 2
            await self.complete(queue, batch.lease_id, seqs[half:])
            if seqs[:half]:
                await self.complete(queue, batch.lease_id, seqs[:half])
        else:
            await self.complete(queue, batch.lease_id, seqs)
            if chance > 0.97:
                await self.complete(queue, batch.lease_id, seqs)

    async def complete(self, queue: str, lease: str, seqs: Sequence[int]) -> None:
        pending = self.recorder.begin(
            self.name, queue, Complete((Named(lease, ranges(list(seqs))),))
        )
        try:
            (outcome,) = await self.client.complete(
                queue, LeaseRef(lease, tuple(seqs)), check=False
            )
        except RequestError as error:
            self._failed(pending, error)
        else:
            pending.ended(Settled((outcome_of(outcome, seqs),), again=True))

    async def retry(self, queue: str, lease: str, seqs: Sequence[int]) -> None:
        style = self.chance.random()
        delay_s = 1.0 if style < 0.2 else 0.0
        asked = Retry(
            (Named(lease, ranges(list(seqs))),),
            delay_s,
            dead=0.2 <= style < 0.3,
            count_attempt=not 0.3 <= style < 0.6,
        )
        pending = self.recorder.begin(self.name, queue, asked)
        try:
            (outcome,) = await self.client.retry(
                queue,
                LeaseRef(lease, tuple(seqs)),
                delay=timedelta(seconds=delay_s) if delay_s else None,
                dead=asked.dead,
                count_attempt=asked.count_attempt,
                error="try again",
                check=False,
            )
        except RequestError as error:
            self._failed(pending, error)
        else:
            pending.ended(Settled((outcome_of(outcome, seqs),), again=True))

    async def _extend(self, queue: str, lease: str) -> None:
        timeout = timedelta(seconds=LEASE_TIMEOUT_S)
        pending = self.recorder.begin(self.name, queue, Extend((lease,), LEASE_TIMEOUT_S))
        try:
            (outcome,) = await self.client.extend(queue, lease, lease_timeout=timeout, check=False)
        except RequestError as error:
            self._failed(pending, error)
        else:
            pending.ended(Extended(((lease, bool(outcome.remaining)),)))

    # --- consume on a stream ---------------------------------------------------------------------

    async def consume_on_a_stream(self, queue: str) -> None:
        """Items that were leased ahead and never seen here belong to a lease of unknown outcome."""
        while not self.gone.is_set():
            began_s = self.recorder.clock()
            ahead = self.recorder.begin(self.name, queue, Lease(10 * PREFETCH, "", LEASE_TIMEOUT_S))
            held: dict[LeasedBatch, None] = {}
            try:
                async with self.client.consumer(
                    queue,
                    prefetch_items=PREFETCH,
                    batch_items=10,
                    lease_timeout=timedelta(seconds=LEASE_TIMEOUT_S),
                    idle_timeout=timedelta(seconds=1),
                ) as consumer:
                    await self._deliveries(queue, consumer, began_s, held)
                    # The end of the stream gives back what is not settled.
                    given_back = [
                        self.recorder.begin(
                            self.name,
                            queue,
                            Retry((named(batch),), count_attempt=False),
                        )
                        for batch in held
                    ]
            except RequestError as error:
                self._failed(ahead, error)
            else:
                for pending in given_back:
                    pending.ended(Unknown())
            ahead.ended(Unknown())

    async def _deliveries(
        self, queue: str, consumer: Consumer, began_s: float, held: dict[LeasedBatch, None]
    ) -> None:
        until = asyncio.get_running_loop().time() + self.chance.uniform(5, 30)
        async with asyncio.TaskGroup() as tasks:
            async for batch in consumer.batches():
                self._delivered(queue, batch, began_s)
                held[batch] = None
                tasks.create_task(self._settle(queue, batch, held))
                if self.gone.is_set() or asyncio.get_running_loop().time() > until:
                    return
                await self.pause()

    def _delivered(self, queue: str, batch: LeasedBatch, began_s: float) -> None:
        """A lease may come as several batches, so its items were granted before the first
        of them.
        """
        op = self._delivering.get(batch.lease_id)
        if op is None:
            now_s = self.recorder.clock()
            begin_s = max(began_s, now_s - DELIVERY_S)
            op = Operation(
                client=self.name,
                queue=queue,
                begin_s=begin_s,
                end_s=now_s,
                request=Lease(0),
                outcome=Leased(()),
            )
            self._delivering[batch.lease_id] = op
            self.recorder.history.operations.append(op)
        assert isinstance(op.request, Lease)
        assert isinstance(op.outcome, Leased)
        op.request = Lease(op.request.max_items + len(batch), "", LEASE_TIMEOUT_S)
        op.outcome = Leased((*op.outcome.grants, grant_of(batch)))

    async def _settle(self, queue: str, batch: LeasedBatch, held: dict[LeasedBatch, None]) -> None:
        chance = self.chance.random()
        if chance < 0.05:
            return  # lapses, or goes back when the stream ends
        if chance < 0.15:
            asked: Complete | Retry = Retry((named(batch),))
        else:
            asked = Complete((named(batch),))
        pending = self.recorder.begin(self.name, queue, asked)
        seqs = seqs_of(batch)
        try:
            await (batch.complete() if isinstance(asked, Complete) else batch.retry(error="again"))
        except LeaseLost as lost:
            gone = [item.seq for item in lost.items] or seqs
            done = [seq for seq in seqs if seq not in gone]
            outcome = Outcome(batch.lease_id, ranges(done), (), ranges(gone))
            pending.ended(Settled((outcome,), again=True))
        except RequestError as error:
            self._failed(pending, error)
        else:
            pending.ended(Settled((Outcome(batch.lease_id, ranges(seqs)),), again=True))
        del held[batch]

    # --- look ------------------------------------------------------------------------------------

    async def count(self, queue: str) -> None:
        """Reads the counters repeatedly."""
        while not self.gone.is_set():
            pending = self.recorder.begin(self.name, queue, Count())
            try:
                stats = await self.client.stats(queue)
            except RequestError as error:
                self._failed(pending, error)
            else:
                pending.ended(
                    Counted(tuple((p.partition, p.produced, p.completed) for p in stats.partitions))
                )
            await asyncio.sleep(self.chance.uniform(0.5, 3))


def _items(references: Iterable[str]) -> list[Item]:
    return [Item(reference * 10, reference=reference) for reference in references]


def seqs_of(batch: LeasedBatch) -> list[int]:
    return [batch.seq(index) for index in range(len(batch))]


def named(batch: LeasedBatch) -> Named:
    return Named(batch.lease_id, ranges(seqs_of(batch)))


def grant_of(batch: LeasedBatch) -> Grant:
    items: list[LeasedItem] = list(batch)
    return Grant(
        batch.lease_id,
        batch.partition,
        batch.attempt,
        tuple((item.id.seq, item.reference) for item in items),
    )


def parts_of(stored: Sequence[ProducedItem]) -> tuple[ProducedPart, ...]:
    """Runs of the items of one request."""
    parts: list[ProducedPart] = []
    start = 0
    for index in range(1, len(stored) + 1):
        first = stored[start]
        offset = index - start
        follows = (
            index < len(stored)
            and stored[index].partition == first.partition
            and stored[index].seq == first.seq + offset
        )
        if not follows:
            indexes = tuple(range(start, index))
            parts.append(ProducedPart(first.partition, first.seq, offset, indexes, first.repeated))
            start = index
    return tuple(parts)


def outcome_of(outcome: SettleOutcome, seqs: Sequence[int]) -> Outcome:
    """When the lease is unknown, all named items are lost."""
    lost = outcome.lost
    if outcome.error is not None and not (outcome.done or outcome.repeated or lost):
        lost = tuple(seqs)
    return Outcome(
        outcome.lease_id,
        ranges(outcome.done),
        ranges(outcome.repeated),
        ranges(lost),
    )
