"""Lease streams under random steps: deliveries stay within the credit, all credit can be used in
the end, and each partition's items come in order.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from querator.model.calls import CompleteCall, LeasedRun
from querator.service.lease.subscriptions import BATCHES_AHEAD_MAX, Subscription
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import BLOCKS
from tests.unit.service.service_node import ServiceNode, payloads, seqs, service_node, whole
from tests.unit.service.storage_damage import gone

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 25), st.sampled_from([1, 200, 3_000])),
        st.tuples(st.just("grant"), st.integers(1, 30), st.sampled_from([500, 2_000, 20_000])),
        st.tuples(st.just("take"), st.integers(1, 30)),
        st.tuples(st.just("steal"), st.integers(1, 9)),
    ),
    min_size=3,
    max_size=14,
)


class Reader:
    """One consumer of one stream, with counts of what it has granted and received."""

    def __init__(self, node: ServiceNode, stream: Subscription) -> None:
        self.node = node
        self.stream = stream
        self.granted = 0
        self.granted_bytes = 0
        self.taken = 0
        self.taken_bytes = 0
        self.last: Counter[int] = Counter()

    def grant(self, items: int, size: int) -> None:
        self.granted += items
        self.granted_bytes += size
        self.stream.grant(items, size)

    async def take(self) -> None:
        batches = (await self.stream.next()).batches
        assert batches
        for batch in batches:
            self._note(batch)
        refs = tuple(map(whole, batches))
        outcomes = (await self.stream.complete(CompleteCall("", "", refs))).outcomes
        assert all(outcome.error is None for outcome in outcomes)

    def _note(self, batch: LeasedRun) -> None:
        assert batch.attempt == 1
        found = seqs(batch)
        assert found == sorted(found)
        assert found[0] > self.last[batch.partition], "the partition's order"
        self.last[batch.partition] = found[-1]
        self.taken += len(found)
        self.taken_bytes += len(batch.loaded.items)
        assert self.taken <= self.granted
        assert self.taken_bytes <= self.granted_bytes

    async def try_to_take(self, patience: int) -> None:
        """Waits for a few rounds of the loop, then cancels the wait."""
        waiting = asyncio.get_running_loop().create_task(self.take())
        for _ in range(patience):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() or waiting.result() is None


async def play(steps: list[tuple[Any, ...]], *, partitions: int, max_items: int) -> None:
    async with service_node() as node:
        await node.create(partitions=partitions)
        stream = await node.subscribe(max_items=max_items, max_bytes=8_000)
        reader = Reader(node, stream)
        for step in steps:
            match step:
                case "produce", count, size:
                    await node.produce(*[b"x" * size] * count)
                case "grant", items, size:
                    reader.grant(items, size)
                case "take", patience:
                    await reader.try_to_take(patience)
                case "steal", count:
                    for batch in (await node.lease(count, client_id="thief")).batches:
                        await node.complete(batch)
        # With enough bytes granted, all items of the credit can be delivered.
        stream.grant(0, 10_000_000)
        reader.granted_bytes += 10_000_000
        while reader.taken < reader.granted:
            await node.produce(*[b"y"] * 20)
            await reader.take()
        for _ in range(BATCHES_AHEAD_MAX):
            await node.produce(b"z")
        assert (await node.total()).leased == 0, "without credit nothing is leased"
        await stream.close(polite=True)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, partitions=st.sampled_from([1, 3]), max_items=st.sampled_from([1, 4, 10]))
def test_credit_is_kept_and_none_is_lost(steps, partitions, max_items):
    asyncio.run(play(steps, partitions=partitions, max_items=max_items))


async def test_many_streams_do_not_cut_a_small_backlog_in_pieces():
    async with service_node() as node:
        await node.create(partitions=8)
        for _ in range(8):
            await node.produce(*[b"x"] * 10)
        streams = [await node.subscribe(max_items=10) for _ in range(10)]
        for stream in streams:
            stream.grant(1_000, 0)
        leases: set[str] = set()
        items = 0
        async with asyncio.TaskGroup() as tasks:

            async def read(stream: Subscription) -> None:
                nonlocal items
                while items < 80:
                    for batch in (await stream.next()).batches:
                        leases.add(batch.lease_id)
                        items += len(payloads(batch))
                for reader in readers:
                    reader.cancel()

            readers = [tasks.create_task(read(stream)) for stream in streams]
        assert items == 80
        assert len(leases) <= 40, "one for each partition and stream that it has batches for"
        for stream in streams:
            await stream.close(polite=False)


def is_delivered(node: ServiceNode, items: int) -> bool:
    return node.counts().delivered == items


async def test_a_grant_of_which_nothing_is_left_gives_its_credit_back():
    """Twice the block of the granted item is gone when the delivery is read. The third is there."""
    async with service_node() as node:
        [group] = (await node.create()).groups
        assert isinstance(node.environment, MemoryEnvironment)
        stream = await node.subscribe(max_items=1, max_bytes=100)
        stream.grant(1, 100)
        while (number := node.counts().delivered) < 2:
            await node.produce(b"%d" % number)
            await node.until(partial(is_delivered, node, number + 1))
            with gone(node.environment, BLOCKS, group):
                waiting = asyncio.get_running_loop().create_task(stream.next())
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
        await node.produce(b"2")
        assert payloads(*(await stream.next()).batches) == [b"2"]
        await stream.close(polite=True)
