"""Dedup keys that last until their item is done, after a change of the number of partitions."""

import msgspec
import pytest

from querator.model.calls import ProduceReply
from querator.model.commands import ItemSpecial
from querator.model.errors import ErrorCode, QueratorError
from querator.model.item_options import OnDuplicate
from querator.model.queues import DedupUntil, QueueSettings
from querator.model.routing import partition_of_key
from querator.partition.dedup_export import ClosureQuery, KeptKeysQuery, closure
from querator.placement.tasks import key_freeing, repartitioning
from querator.service.routing.router import Router
from tests.unit.service.service_node import ServiceNode, produce_call, refusal, service_node

KEYS = [b"k%d" % number for number in range(20)]
MOVED = [number for number, key in enumerate(KEYS) if partition_of_key(key, 3)]


def places(reply: ProduceReply) -> dict[int, tuple[int, int]]:
    """Partition and sequence of the item that has each key, by the index of the key."""
    found = {
        index: (batch.partition, batch.first_seq + offset)
        for batch in reply.batches
        for offset, index in enumerate(batch.indexes or range(batch.count))
    }
    for batch in reply.batches:
        found |= {index: (partition, seq) for index, partition, seq in batch.duplicates}
    return found


async def grow(node: ServiceNode, partitions: int) -> None:
    settings = QueueSettings(partitions=partitions)
    await node.admin.update_queue("default", "q", settings, ("partitions",), 0)


def away(node: ServiceNode) -> int:
    """How many keys the partitions know whose items are elsewhere."""
    queue = node.placement.map.find("default", "q")
    assert queue is not None
    with node.environment.snapshot() as txn:
        return sum(closure(txn, ClosureQuery(group)).away_keys for group in queue.groups)


async def complete_all(node: ServiceNode) -> None:
    for batch in (await node.lease(100)).batches:
        await node.complete(batch)


async def test_keys_whose_items_stayed_elsewhere_count_until_these_are_done():
    async with service_node() as node:
        await node.create(partitions=1, dedup_until=DedupUntil.DONE)
        first = places(await node.produce(*KEYS, keys=KEYS))
        await grow(node, 3)
        again = await node.produce(*KEYS, keys=KEYS)
        assert places(again) == first
        assert sum(len(batch.duplicates) for batch in again.batches) == 20
        await complete_all(node)
        anew = await node.produce(*KEYS, keys=KEYS)
        assert not any(batch.duplicates for batch in anew.batches)
        assert {partition for partition, _ in places(anew).values()} == {0, 1, 2}
        assert places(await node.produce(*KEYS, keys=KEYS)) == places(anew)
        assert (await node.total()).produced == 40


async def test_keys_that_no_producer_uses_again_are_freed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repartitioning, "FOLLOWING_S_MAX", 0.05)
    monkeypatch.setattr(key_freeing, "PAGES_AT_ONCE", 1)
    async with service_node() as node:
        await node.create(partitions=1, dedup_until=DedupUntil.DONE)
        await node.produce(*KEYS, keys=KEYS)
        await grow(node, 3)
        assert away(node) == len(MOVED)
        await complete_all(node)
        await node.until(lambda: not away(node))


async def test_keys_of_partitions_that_have_left_are_free():
    async with service_node() as node:
        await node.create(partitions=3, dedup_until=DedupUntil.DONE)
        first = places(await node.produce(*KEYS, keys=KEYS))
        await grow(node, 1)
        assert places(await node.produce(*KEYS, keys=KEYS)) == first
        await complete_all(node)
        anew = await node.produce(*KEYS, keys=KEYS)
        assert {partition for partition, _ in places(anew).values()} == {0}


async def test_a_partition_that_cannot_be_asked_is_named(monkeypatch: pytest.MonkeyPatch):
    async with service_node() as node:
        await node.create(partitions=1, dedup_until=DedupUntil.DONE)
        await node.produce(*KEYS, keys=KEYS)
        await grow(node, 3)
        read = Router.read

        async def unreachable(self: Router, group: int, query: object, **more: object) -> object:
            if isinstance(query, KeptKeysQuery):
                raise QueratorError(ErrorCode.UNAVAILABLE, "no leader")
            return await read(self, group, query, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Router, "read", unreachable)
        key = KEYS[MOVED[0]]
        error = await refusal(node.produce(key, keys=[key]))
        assert (error.code, error.field) == (ErrorCode.UNAVAILABLE, "dedup_key")
        assert "partition 0 of queue q" in error.message
        assert "no leader" in error.message


async def test_only_keys_that_last_can_be_taken_over():
    async with service_node() as node:
        await node.create(partitions=1)
        key = b"k"
        special = (ItemSpecial(0, dedup_key=key, on_duplicate=OnDuplicate.REPLACE),)
        call = msgspec.structs.replace(
            produce_call(b"x", keys=[key]), specials=special, takes_over=True
        )
        error = await refusal(node.queues.produce(call))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "items[0].on_duplicate")
        assert "REPLACE needs a queue with dedup_until DONE; that of queue q is WINDOW" in str(
            error
        )
        settings = QueueSettings(dedup_until=DedupUntil.DONE)
        await node.admin.update_queue("default", "q", settings, ("dedup_until",), 0)
        first = await node.queues.produce(call)
        second = await node.queues.produce(call)
        assert (first.batches[0].replaced, second.batches[0].replaced) == ((), ((0, 0, 1),))


async def test_an_item_that_stayed_elsewhere_is_not_replaced():
    async with service_node() as node:
        await node.create(partitions=1, dedup_until=DedupUntil.DONE)
        await node.produce(*KEYS, keys=KEYS)
        await grow(node, 3)
        key = KEYS[MOVED[0]]
        special = (ItemSpecial(0, dedup_key=key, on_duplicate=OnDuplicate.REPLACE),)
        call = msgspec.structs.replace(
            produce_call(b"x", keys=[key]), specials=special, takes_over=True
        )
        [stored] = (await node.queues.produce(call)).batches
        assert (stored.duplicates, stored.replaced) == ((), ())
        [again] = (await node.produce(key, keys=[key])).batches
        assert again.duplicates == ((0, stored.partition, stored.first_seq),)
        assert (await node.total()).ready + (await node.total()).held == 21
