"""The number of partitions of a queue in use grows and shrinks."""

import asyncio
from typing import Any

import pytest

from querator.model.calls import LeasedRun
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.limits import KEY_CHANGES_MAX
from querator.model.queues import Queue, QueueKind, QueueSettings
from querator.model.routing import slot_of_key
from querator.partition.rows import RowState
from querator.placement.tasks import repartitioning
from querator.placement.tasks.partition_calls import here
from querator.raft.clock import RealClock
from querator.storage import generations
from querator.storage.memory_environment import MemoryEnvironment
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire.produce import parse_produce
from tests.unit.service.service_node import (
    LONG_MS,
    ServiceNode,
    payloads,
    places_of,
    producer_id,
    refusal,
    service_node,
)


async def change(node: ServiceNode, partitions: int, queue: str = "q") -> Queue:
    settings = QueueSettings(partitions=partitions)
    return await node.admin.update_queue("default", queue, settings, ("partitions",), 0)


def placed(node: ServiceNode, queue: str = "q") -> Queue:
    found = node.placement.map.find("default", queue)
    assert found is not None
    return found


def stored_groups(node: ServiceNode) -> list[int]:
    with node.environment.snapshot() as txn:
        return list(generations.stored_groups(txn))


async def test_new_partitions_take_items_at_once():
    async with service_node() as node:
        await node.create(partitions=2)
        queue = await change(node, 5)
        assert (len(queue.groups), queue.routed_partitions, queue.opening, queue.closing) == (
            5,
            5,
            0,
            0,
        )
        used: set[int] = set()
        for _ in range(5):
            used.update(batch.partition for batch in (await node.produce(b"x")).batches)
        assert used == set(range(5))
        assert len(payloads(*(await node.lease(100)).batches)) == 5


@pytest.mark.parametrize("after", [1, 2, 5, 12])
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_repeat_after_the_change_gets_the_first_answer(after: int, ordered: bool):
    async with service_node() as node:
        await node.create(partitions=4)
        calls: list[dict[str, Any]] = [
            {"producer_id": producer, "sequence": sequence, "ordered": ordered}
            for producer in [producer_id() for _ in range(5)]
            for sequence in range(1, 8)
        ]
        first = [await node.produce(b"x", b"y", **call) for call in calls]
        await change(node, after)
        again = [await node.produce(b"x", b"y", **call) for call in calls]
        assert [(b.partition, b.first_seq, b.count) for r in first for b in r.batches] == [
            (b.partition, b.first_seq, b.count) for r in again for b in r.batches
        ]
        assert all(batch.repeated for reply in again for batch in reply.batches)
        for call in calls[6::7]:
            await node.produce(b"z", **{**call, "sequence": 8})
        assert (await node.total()).produced == 2 * len(calls) + 5


async def test_keys_are_known_after_the_change():
    async with service_node() as node:
        await node.create(partitions=3)
        keys = [b"k%d" % number for number in range(20)]
        first = await node.produce(*keys, keys=keys)
        places = places_of(first)
        for partitions in (8, 2, 5):
            await change(node, partitions)
            again = await node.produce(*keys, keys=keys)
            assert places == {
                index: (partition, seq)
                for batch in again.batches
                for index, partition, seq in batch.duplicates
            }
        assert (await node.total()).produced == 20


async def test_closing_partitions_are_leased_from_and_go_when_they_are_empty():
    async with service_node() as node:
        await node.create(partitions=4)
        for number in range(8):
            await node.produce(b"%d" % number)
        groups = placed(node).groups
        queue = await change(node, 2)
        assert (len(queue.groups), queue.closing) == (4, 2)
        for _ in range(6):
            [stored] = (await node.produce(b"new")).batches
            assert stored.partition < 2
        stats = await node.admin.queue_stats("default", "q")
        assert [part.ready for part in stats.partitions] == [5, 5, 2, 2]

        leased = (await node.lease(100)).batches
        assert {batch.partition for batch in leased} == {0, 1, 2, 3}
        for batch in leased:
            [outcome] = (await node.complete(batch)).outcomes
            assert outcome.error is None
        # A closing partition remembers the outcomes of leases for a while.
        for batch in leased:
            [outcome] = (await node.complete(batch)).outcomes
            assert outcome.repeated
        assert placed(node).groups == groups


async def test_empty_partitions_go_and_their_successors_go_on_with_other_ids():
    async with service_node() as node:
        await node.create(partitions=3)
        before = placed(node).groups
        await change(node, 1)
        await node.until(lambda: len(placed(node).groups) == 1)
        while {*before[1:]} & set(stored_groups(node)):
            # The data of deleted partitions is removed in the background.
            await node.produce(b"x")
        queue = await change(node, 3)
        assert queue.groups[0] == before[0]
        assert not set(queue.groups[1:]) & set(before)
        used: set[int] = set()
        for _ in range(3):
            used.update(batch.partition for batch in (await node.produce(b"x")).batches)
        assert used == {0, 1, 2}


async def test_items_of_a_key_wait_for_earlier_ones_in_another_partition():
    async with service_node() as node:
        await node.create(partitions=2)
        keys = [b"k%d" % number for number in range(40)]
        await node.produce(*keys, keyed=keys)
        [leased] = (await node.lease(1)).batches
        await change(node, 5)
        await node.produce(*keys, keyed=keys)
        await node.produce(b"plain")
        stats = await node.admin.queue_stats("default", "q")
        staying = sum(slot_of_key(key) % 10 in (0, 1) for key in keys)
        assert (stats.total.ready, stats.total.held) == (39 + staying + 1, 40 - staying)
        assert stats.total.waits_for == (0, 1)
        page = await node.admin.peek_items("default", "q", RowState.HELD, 1_000, "")
        assert len(page.items) == stats.total.held

        # In the end the lease holds back only the items that wait for its partition.
        found: list[bytes] = []
        while (counts := node.counts()).ready or counts.waits_for != (leased.partition,):
            for batch in (await node.lease(100)).batches:
                found += payloads(batch)
                await node.complete(batch)
            await node.until(lambda: node.counts().ready > 0 or len(node.counts().waits_for) == 1)
        [kept] = payloads(leased)
        waiting = [
            key
            for key in keys
            if slot_of_key(key) % 10 > 1 and slot_of_key(key) % 2 == leased.partition
        ]
        assert node.counts().held == len(waiting)
        assert all(found.count(key) < 2 for key in waiting)
        await node.complete(leased)
        await node.until(lambda: not node.counts().held)
        while len(found) < 80:
            found += payloads(*(await node.lease(100, wait_ms=LONG_MS)).batches)
        assert sorted([*found, kept]) == sorted([*keys, *keys, b"plain"])
        await node.until(lambda: not node.counts().waits_for)


async def test_keys_go_on_as_soon_as_nothing_is_ahead_of_them(monkeypatch: pytest.MonkeyPatch):
    # Polling comes too late: the test makes its pauses long.
    for pause in ("FOLLOWING_S_MIN", "FOLLOWING_S_MAX"):
        monkeypatch.setattr(repartitioning, pause, LONG_MS / 1000)
    async with service_node() as node:
        await node.create(partitions=2)
        keys = [b"k%d" % number for number in range(10)]
        await node.produce(*keys, keyed=keys)
        await change(node, 3)
        await node.produce(*keys, keyed=keys)
        assert node.counts().held
        found: list[bytes] = []
        while len(found) < 2 * len(keys):
            batches = (await node.lease(100, wait_ms=LONG_MS // 2)).batches
            assert batches, f"{node.counts().held} items are held"
            found += payloads(*batches)
            await node.complete(*batches)
        assert sorted(found) == sorted([*keys, *keys])


async def test_changes_follow_one_another_while_keys_wait_and_not_for_ever():
    async with service_node() as node:
        await node.create(partitions=1)
        keys = [b"k%d" % number for number in range(8)]
        for number in range(KEY_CHANGES_MAX):
            await node.produce(*keys, keyed=keys)
            await change(node, 1 + (number + 1) % 2)
        changing = asyncio.get_running_loop().create_task(change(node, 2))
        await node.until(lambda: placed(node).is_changing)
        found: dict[bytes, int] = dict.fromkeys(keys, 0)
        while sum(found.values()) < 8 * KEY_CHANGES_MAX:
            for batch in (await node.lease(100, wait_ms=LONG_MS)).batches:
                for key in payloads(batch):
                    found[key] += 1
                await node.complete(batch)
        await changing
        assert set(found.values()) == {KEY_CHANGES_MAX}
        assert (len(placed(node).groups), placed(node).routing) == (2, KEY_CHANGES_MAX + 1)


async def test_a_waiting_consumer_gets_what_comes_to_a_new_partition():
    async with service_node() as node:
        await node.create()
        stream = await node.subscribe(max_items=1)
        stream.grant(10, 0)
        waiting = asyncio.get_running_loop().create_task(node.lease(wait_ms=LONG_MS))
        await change(node, 3)
        found = []
        for _ in range(3):
            await node.produce(b"x")
        found += payloads(*(await waiting).batches)
        while len(found) < 3:
            found += payloads(*(await stream.next()).batches)
        assert found == [b"x"] * 3
        await stream.close(polite=True)


async def test_a_second_change_waits_for_the_first():
    async with service_node() as node:
        await node.create(partitions=2)
        results = await asyncio.gather(
            change(node, 3), change(node, 4), change(node, 5), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, Exception)]
        assert len(errors) < 3
        for error in errors:
            assert "being changed" in str(error)
            assert getattr(error, "code", None) is ErrorCode.UNAVAILABLE
        # Closing partitions that come back are used again.
        await change(node, 6)
        groups = placed(node).groups
        await node.produce(*[b"x"] * 10)
        for number in range(12):
            await node.produce(b"%d" % number)
        await change(node, 2)
        queue = await change(node, 6)
        assert queue.groups == groups
        used: set[int] = set()
        for _ in range(6):
            used.update(batch.partition for batch in (await node.produce(b"x")).batches)
        assert used == set(range(6))


@pytest.mark.parametrize("partitions", [0, -1, 1_025, 10_000])
async def test_numbers_that_are_refused(partitions: int):
    async with service_node() as node:
        await node.create()
        error = await refusal(change(node, partitions))
        assert (error.code, error.field) == (ErrorCode.LIMIT_EXCEEDED, "settings.partitions")
        assert str(partitions) in error.value


async def test_dead_letters_follow_the_partitions_of_their_queue():
    async with service_node() as node:
        await node.create("dead", partitions=4)
        await node.create(partitions=4, dead_queue="dead", max_attempts=1)
        for number in range(8):
            await node.produce(b"%d" % number)
        await change(node, 1, "dead")
        for batch in (await node.lease(100)).batches:
            await node.retry(batch, dead=True)
        await node.until(lambda: node.counts("dead").ready == 8)
        await node.until(lambda: len(placed(node, "dead").groups) == 1)
        assert (await node.admin.redrive_dead_letters("default", "q", ())) == 8
        await node.until(lambda: node.counts("q").ready == 8)
        assert node.counts("dead").ready == 0


async def keyed_with_letters(node: ServiceNode, *keys: str) -> None:
    """A keyed queue of 2 partitions, and a dead letter of each key with an attribute."""
    await node.create("dead")
    await node.create(partitions=2, dead_queue="dead", kind=QueueKind.KEYED)
    await produce_keyed(node, *keys)
    for batch in (await node.lease(100)).batches:
        await node.retry(batch, attributes=(("tries", "1"),))
    for batch in (await node.lease(100)).batches:
        await node.retry(batch, dead=True)
    await node.until(lambda: node.counts("dead").ready == len(keys))


async def produce_keyed(node: ServiceNode, *keys: str) -> None:
    request = queue_service_pb2.ProduceRequest(
        queue="q", items=[items_pb2.Item(payload=key.encode(), key=key) for key in keys]
    )
    await node.queues.produce(parse_produce(request.SerializeToString(), now_ms=0))


async def leased(node: ServiceNode, items: int) -> list[LeasedRun]:
    """Leases this number of items. One call may come back without those of a slow partition."""
    batches: list[LeasedRun] = []
    while sum(batch.loaded.count for batch in batches) < items:
        batches += (await node.lease(100, wait_ms=LONG_MS)).batches
    return batches


def keys_of(*batches: LeasedRun) -> list[tuple[int, str]]:
    """Partition and key of leased items."""
    return [
        (batch.partition, item.key)
        for batch in batches
        for item in items_pb2.LeasedBatch.FromString(batch.loaded.items).items
    ]


@pytest.mark.parametrize("partitions", [1, 5])
async def test_letters_of_a_keyed_queue_return_to_the_partitions_of_their_keys(partitions: int):
    keys = [f"key {number}" for number in range(12)]
    homes = sorted((slot_of_key(key.encode()) % partitions, key) for key in keys)
    async with service_node() as node:
        await keyed_with_letters(node, *keys)
        await change(node, partitions)
        assert (await node.admin.redrive_dead_letters("default", "q", ())) == len(keys)
        await produce_keyed(node, *keys)
        await node.until(lambda: node.counts().ready + node.counts().held == 2 * len(keys))
        await node.until(lambda: node.counts().held == 0)
        first = await leased(node, len(keys))
        assert sorted(keys_of(*first)) == homes
        assert not (await node.lease(100)).batches, "the other item of each key waits"
        await node.complete(*first)
        assert sorted(keys_of(*await leased(node, len(keys)))) == homes


class Broken:
    """Lets this number of commands and queries of a change through, and then none."""

    def __init__(self, node: ServiceNode, commands: int) -> None:
        self.left = commands
        self.reached = asyncio.Event()
        self._propose = node.host.propose
        telling = node.placement._repartitioner.telling
        telling.propose = self.propose
        telling.ask = self.ask
        self._ask = here(node.host, node.environment)

    async def propose(self, group: GroupId, command: Any) -> Any:
        self.count()
        return await self._propose(group, command)

    async def ask(self, group: GroupId, query: Any) -> Any:
        self.count()
        return await self._ask(group, query)

    def count(self) -> None:
        if not self.left:
            self.reached.set()
            raise QueratorError(ErrorCode.UNAVAILABLE, "broken")
        self.left -= 1


@pytest.mark.parametrize("after", [1, 5])
@pytest.mark.parametrize("commands", range(1, 22, 2))
async def test_a_crash_at_any_step_loses_and_doubles_nothing(commands: int, after: int):
    environment = MemoryEnvironment()
    clock = RealClock()
    calls: list[dict[str, Any]] = [
        {"producer_id": producer, "sequence": sequence, "ordered": ordered}
        for ordered in (False, True)
        for producer in (producer_id(), producer_id())
        for sequence in (1, 2, 3, 4)
    ]
    async with service_node(environment, clock) as node:
        await node.create(partitions=3)
        first = [await node.produce(b"x", **call) for call in calls]
        keys = [b"k%d" % number for number in range(9)]
        keyed: dict[str, Any] = {"keyed": keys, "producer_id": producer_id(), "sequence": 1}
        await node.produce(*keys, **keyed)
        broken = Broken(node, commands)
        task = asyncio.get_running_loop().create_task(change(node, after))
        reached = asyncio.get_running_loop().create_task(broken.reached.wait())
        await asyncio.wait([task, reached], return_when=asyncio.FIRST_COMPLETED)
        for waiting in (task, reached):
            waiting.cancel()
        await asyncio.wait([task, reached])
    async with service_node(environment, clock) as node:
        await node.until(lambda: not placed(node).is_changing)
        again = [await node.produce(b"x", **call) for call in calls]
        assert [(b.partition, b.first_seq) for reply in first for b in reply.batches] == [
            (b.partition, b.first_seq) for reply in again for b in reply.batches
        ]
        await node.produce(*keys, **keyed)
        assert (await node.total()).produced == len(first) + len(keys)
        later = [key.upper() for key in keys]
        await node.produce(*later, keyed=keys)
        found: list[bytes] = []
        while len(found) < len(first) + 2 * len(keys):
            batches = (await node.lease(100, wait_ms=LONG_MS)).batches
            found += payloads(*batches)
            for batch in batches:
                await node.complete(batch)
        assert sorted(found) == sorted([b"x"] * len(first) + keys + later)
        assert all(found.index(key) < found.index(key.upper()) for key in keys)


async def test_a_change_goes_on_after_a_restart():
    environment = MemoryEnvironment()
    clock = RealClock()
    producer = producer_id()
    async with service_node(environment, clock) as node:
        await node.create(partitions=2)
        first = await node.produce(b"x", producer_id=producer, sequence=1)
        task = asyncio.get_running_loop().create_task(change(node, 7))
        await node.until(lambda: len(placed(node).groups) == 7)
        task.cancel()
        await asyncio.wait([task])
    async with service_node(environment, clock) as node:
        await node.until(lambda: not placed(node).is_changing)
        again = await node.produce(b"x", producer_id=producer, sequence=1)
        assert [b.first_seq for b in again.batches] == [b.first_seq for b in first.batches]
        assert (await node.total()).produced == 1
