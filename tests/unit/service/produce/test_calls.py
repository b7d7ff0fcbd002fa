"""Produces: their partitions, answers and refusals."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from querator.model.calls import ProduceReply
from querator.model.errors import ErrorCode
from querator.model.queues import QueueSettings
from querator.model.routing import partition_of_key, partition_of_producer
from querator.service.produce.split import cut, whole
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.running_host import CommitGate
from tests.unit.service.service_node import (
    code,
    payloads,
    places_of,
    produce_call,
    producer_id,
    refusal,
    service_node,
)


def partitions_of(reply: ProduceReply) -> list[int]:
    return [batch.partition for batch in reply.batches]


async def test_requests_one_at_a_time_go_to_the_partitions_in_turn():
    async with service_node() as node:
        await node.create(partitions=4)
        used = [partitions_of(await node.produce(b"x"))[0] for _ in range(8)]
        assert used == [0, 1, 2, 3] * 2


async def test_requests_under_way_together_fill_a_block_before_the_next_partition():
    async with service_node() as node:
        await node.create(partitions=4)
        replies = await asyncio.gather(*[node.produce(*[b"x"] * 64) for _ in range(8)])
        used = Counter(partitions_of(reply)[0] for reply in replies)
        assert used == {0: 4, 1: 4}


async def test_an_unordered_producer_uses_all_partitions_and_may_repeat():
    async with service_node() as node:
        await node.create(partitions=3)
        producer = producer_id()
        replies = [
            await node.produce(b"x", producer_id=producer, sequence=sequence)
            for sequence in range(1, 7)
        ]
        assert [partitions_of(reply) for reply in replies] == [
            [partition_of_producer(producer, sequence, ordered=False, partitions=3)]
            for sequence in range(1, 7)
        ]
        [first] = replies[-1].batches
        [again] = (await node.produce(b"x", producer_id=producer, sequence=6)).batches
        assert again.repeated
        assert (again.partition, again.first_seq) == (first.partition, first.first_seq)
        assert (await node.total()).produced == 6


async def test_an_ordered_producer_has_one_partition_and_no_gaps():
    async with service_node() as node:
        await node.create(partitions=5)
        producer = producer_id()
        used = set()
        for sequence in (1, 2, 3):
            reply = await node.produce(b"x", producer_id=producer, sequence=sequence, ordered=True)
            used.update(partitions_of(reply))
        assert len(used) == 1
        error = await refusal(node.produce(b"x", producer_id=producer, sequence=5, ordered=True))
        assert error.code is ErrorCode.SEQUENCE_GAP
        assert error.limit == "4"


async def test_a_dedup_key_is_stored_once_wherever_it_comes_from():
    async with service_node() as node:
        await node.create(partitions=4)
        keys = [b"k%d" % number for number in range(10)]
        items = [b"item %d" % number for number in range(10)]
        first = await node.produce(*items, keys=keys)
        placed = places_of(first)
        assert {index: partition for index, (partition, _) in placed.items()} == {
            index: partition_of_key(key, 4) for index, key in enumerate(keys)
        }
        again = await node.produce(*reversed(items), keys=list(reversed(keys)))
        duplicates = {
            index: (partition, seq)
            for batch in again.batches
            for index, partition, seq in batch.duplicates
        }
        assert duplicates == {9 - index: place for index, place in placed.items()}
        assert (await node.total()).produced == 10
        reply = await node.lease(100)
        assert sorted(payloads(*reply.batches)) == sorted(items)


async def test_parts_of_a_keyed_request_inherit_its_identity():
    async with service_node() as node:
        await node.create(partitions=4)
        producer = producer_id()
        keys = [b"k%d" % number for number in range(8)]
        call: dict[str, Any] = {"keys": keys, "producer_id": producer, "sequence": 1}
        first = await node.produce(*keys, **call)
        again = await node.produce(*keys, **call)
        assert all(batch.repeated for batch in again.batches)
        assert [(b.partition, b.first_seq, b.indexes) for b in first.batches] == [
            (b.partition, b.first_seq, b.indexes) for b in again.batches
        ]


async def test_a_repeat_stores_what_is_missing_of_a_cut_request():
    async with service_node() as node:
        await node.create(partitions=2, partition_items_max=3)
        keys = [b"k%d" % number for number in range(99)]
        too_many = [key for key in keys if partition_of_key(key, 2) == 0][:4]
        one = [key for key in keys if partition_of_key(key, 2) == 1][:1]
        call: dict[str, Any] = {"keyed": too_many + one, "producer_id": producer_id()}
        error = await refusal(node.produce(*[b"x"] * 5, sequence=1, **call))
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        settings = QueueSettings(partitions=5, partition_items_max=9)
        mask = ("partitions", "partition_items_max")
        await node.admin.update_queue("default", "q", settings, mask, 0)
        reply = await node.produce(*[b"x"] * 5, sequence=1, **call)
        assert (await node.total()).produced == 5
        places = {
            index: (partition, seq)
            for batch in reply.batches
            for index, partition, seq in batch.duplicates
        }
        assert [*places] == [4], "the one that was stored at first"
        assert places[4][0] == 1


async def test_order_and_keys_exclude_each_other_over_many_partitions():
    async with service_node() as node:
        await node.create("one")
        await node.create("many", partitions=2)
        call: dict[str, Any] = {
            "keys": [b"k"],
            "producer_id": producer_id(),
            "sequence": 1,
            "ordered": True,
        }
        error = await refusal(node.produce(b"x", queue="many", **call))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "ordered")
        assert "use ordered=false" in error.message
        assert partitions_of(await node.produce(b"x", queue="one", **call)) == [0]


def test_cutting_keeps_every_item_and_its_place():
    items = [b"a" * length for length in range(12)]
    keys = [b"" if number % 3 == 0 else b"k%d" % number for number in range(12)]
    call = produce_call(*items, keys=keys)
    parts = cut(whole(call, 0, routing=0), home=2, partitions=4, routing=3)
    assert [part.partition for part in parts] == sorted({part.partition for part in parts})
    assert sorted(index for part in parts for index in part.indexes) == list(range(12))
    for part in parts:
        alone = produce_call(
            *[items[index] for index in part.indexes], keys=[keys[index] for index in part.indexes]
        )
        assert (part.items, part.command.lengths) == (alone.items, alone.lengths)
        assert (part.command.slots, part.command.routing) == (alone.slots, 3)
        for ordinal, index in enumerate(part.indexes):
            specials = [s.dedup_key for s in part.command.specials if s.ordinal == ordinal]
            assert specials == ([keys[index]] if keys[index] else [])
            expected = partition_of_key(keys[index], 4) if keys[index] else 2
            assert part.partition == expected


async def test_a_full_partition_is_an_error_and_stores_nothing():
    async with service_node() as node:
        await node.create(partition_items_max=3)
        assert await code(node.produce(*[b"x"] * 4)) is ErrorCode.QUEUE_FULL
        assert (await node.total()).ready == 0


async def test_a_request_stored_in_part_says_so():
    async with service_node() as node:
        await node.create(partitions=2, partition_items_max=3)
        keys = [b"k%d" % number for number in range(99)]
        too_many = [key for key in keys if partition_of_key(key, 2) == 0][:4]
        one = [key for key in keys if partition_of_key(key, 2) == 1][:1]
        error = await refusal(node.produce(*[b"x"] * 5, keys=too_many + one))
        assert error.code is ErrorCode.OUTCOME_UNKNOWN, "QUEUE_FULL may be repeated by anybody"
        assert "exceed its limit" in error.message
        assert "stored" in error.message
        assert (await node.total()).ready == 1


async def test_a_deadline_after_taking_on_leaves_the_outcome_unknown_and_repeatable():
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        await node.create(partitions=2)
        call: dict[str, Any] = {"producer_id": producer_id(), "sequence": 1}
        gate = CommitGate(environment)
        gate.close()
        error = await refusal(node.produce(b"x", timeout_ms=20, **call))
        gate.open()
        assert error.code is ErrorCode.OUTCOME_UNKNOWN
        assert error.field == "partition"
        [batch] = (await node.produce(b"x", **call)).batches
        assert batch.repeated
        assert str(batch.partition) == error.value


async def test_a_cancelled_produce_is_still_carried_out():
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        await node.create()
        gate = CommitGate(environment)
        gate.close()
        task = asyncio.get_running_loop().create_task(node.produce(b"x"))
        await gate.reached()
        task.cancel()
        await asyncio.wait([task])
        gate.open()
        [batch] = (await node.lease(wait_ms=60_000)).batches
        assert payloads(batch) == [b"x"]


async def test_unanswered_produces_are_bounded_and_completes_still_get_in():
    environment = MemoryEnvironment()
    async with service_node(environment, produce_bytes_max=1_000) as node:
        await node.create()
        await node.produce(b"x")
        [batch] = (await node.lease()).batches
        gate = CommitGate(environment)
        gate.close()
        first = asyncio.get_running_loop().create_task(node.produce(b"x" * 900))
        await gate.reached()
        error = await refusal(node.produce(b"x" * 200))
        assert error.code is ErrorCode.OVERLOADED
        assert error.retry_delay_ms
        done = asyncio.get_running_loop().create_task(node.complete(batch))
        gate.open()
        assert (await done).outcomes[0].error is None
        await first
        await node.produce(b"x" * 200)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_deleted_queue_and_its_successor(partitions):
    async with service_node() as node:
        await node.create(partitions=partitions)
        await node.produce(b"old")
        [batch] = (await node.lease()).batches
        await node.admin.delete_queue("default", "q")
        assert await code(node.produce(b"x")) in (
            ErrorCode.QUEUE_DELETING,
            ErrorCode.QUEUE_NOT_FOUND,
        )
        await node.until(lambda: node.placement.map.find("default", "q") is None)
        await node.create(partitions=partitions)
        assert (await node.total()).ready == 0
        [outcome] = (await node.complete(batch)).outcomes
        assert outcome.error is ErrorCode.LEASE_LOST
