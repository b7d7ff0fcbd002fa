"""Dead letters and redrives arrive exactly once, despite failures on the way."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from querator.model.calls import PartitionCounts
from querator.model.commands import Move
from querator.model.errors import QueratorError
from querator.partition.departed import sources
from querator.service import departed, moves
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import OUTBOX_TARGETS
from tests.unit.raft.running_host import CrashAt
from tests.unit.service.service_node import ServiceNode, payloads, service_node, whole


async def kill_all(node: ServiceNode, items: int, queue: str = "q") -> None:
    """Rejects this number of items of a queue."""
    killed = 0
    while killed < items:
        reply = await node.lease(100, queue=queue, wait_ms=60_000)
        await node.retry(*map(whole, reply.batches), queue=queue, dead=True)
        killed += sum(batch.loaded.count for batch in reply.batches)


async def settled(node: ServiceNode, queue: str, **fields: int) -> PartitionCounts:
    """Waits until the counts of a queue have these values. Returns all its counts."""

    def reached() -> bool:
        counts = node.counts(queue)
        return all(getattr(counts, field) == value for field, value in fields.items())

    await node.until(reached)
    return node.counts(queue)


async def test_dead_letters_arrive_and_leave_the_source():
    async with service_node() as node:
        await node.create("dead", partitions=3)
        await node.create(partitions=2, dead_queue="dead")
        for number in range(10):
            await node.produce(*[b"%d-%d" % (number, item) for item in range(5)])
        await kill_all(node, 50)
        await settled(node, "dead", ready=50)
        source = await settled(node, "q", moving=0)
        assert (source.dead, source.moved_out, source.bytes) == (50, 50, 0)
        assert (await node.total("dead")).moved_in == 50


async def test_more_than_a_batch():
    async with service_node() as node:
        await node.create("dead")
        await node.create(dead_queue="dead")
        for _ in range(3):
            await node.produce(*[b"x"] * 500)
        await kill_all(node, 1_500)
        await settled(node, "dead", ready=1_500)


async def test_redriven_letters_come_home_once():
    async with service_node() as node:
        await node.create("dead", partitions=2)
        await node.create(partitions=2, dead_queue="dead")
        for number in range(6):
            await node.produce(b"%d" % number)
        await kill_all(node, 6)
        await settled(node, "dead", ready=6)
        assert await node.admin.redrive_dead_letters("default", "q", ()) == 6
        assert await node.admin.redrive_dead_letters("default", "q", ()) == 0
        await settled(node, "q", ready=6)
        await settled(node, "dead", moving=0, bytes=0)
        reply = await node.lease(10)
        assert sorted(payloads(*reply.batches)) == [b"%d" % number for number in range(6)]
        assert {batch.attempt for batch in reply.batches} == {1}


async def test_a_full_target_gets_the_rest_when_there_is_room():
    async with service_node() as node:
        await node.create("dead", partition_items_max=2)
        await node.create(dead_queue="dead")
        await node.produce(b"1", b"2")
        await kill_all(node, 2)
        await settled(node, "dead", ready=2)
        await node.produce(b"3", b"4")
        await kill_all(node, 2)
        assert (await node.total("q")).moving == 2
        reply = await node.lease(2, queue="dead")
        await node.complete(*map(whole, reply.batches), queue="dead")
        await settled(node, "dead", ready=2)
        await settled(node, "q", moving=0)


async def test_what_is_remembered_of_deleted_queues_goes(monkeypatch):
    monkeypatch.setattr(departed, "LOOK_S", 0.01)
    async with service_node() as node:
        await node.create("dead")
        for name in ("a", "b", "c"):
            await node.create(name, dead_queue="dead")
            await node.produce(b"x", queue=name)
            await kill_all(node, 1, queue=name)
            await settled(node, name, moving=0)
        dead = (await node.admin.get_queue("default", "dead")).groups[0]
        third = (await node.admin.get_queue("default", "c")).groups[0]

        def remembers() -> tuple[int, ...]:
            with node.environment.snapshot() as txn:
                return sources(txn, dead)

        def sent_to() -> list[bytes]:
            with node.environment.snapshot() as txn:
                return [key for key, _ in OUTBOX_TARGETS.rows(txn, third)]

        assert len(remembers()) == 3
        await node.admin.delete_queue("default", "a")
        await node.admin.delete_queue("default", "b")
        await node.until(lambda: remembers() == (third,))
        await node.produce(b"y", queue="c")
        await kill_all(node, 1, queue="c")
        await settled(node, "dead", ready=4)
        assert sent_to()
        bare = (await node.admin.get_queue("default", "dead")).settings
        await node.admin.update_queue("default", "c", bare, ("dead_queue",), 0)
        await node.admin.delete_queue("default", "dead")
        await node.until(lambda: not sent_to())


async def drain(node: ServiceNode, queue: str, items: int) -> int:
    """Completes up to this number of items of a queue. Returns how many it completed."""
    reply = await node.lease(items, queue=queue)
    await node.complete(*map(whole, reply.batches), queue=queue)
    return sum(batch.loaded.count for batch in reply.batches)


async def test_more_die_at_once_than_the_dead_queue_has_room_for():
    """A batch of moves is larger than the target's whole limit. All items arrive in the end."""
    async with service_node() as node:
        await node.create("dead", partition_items_max=100)
        await node.create(dead_queue="dead")
        await node.produce(*[b"x"] * 300)
        await kill_all(node, 300)
        await settled(node, "dead", ready=100)
        source = await settled(node, "q", moving=200)
        assert (source.moved_out, source.dead, source.dropped) == (100, 300, 0)
        arrived = 0
        while arrived < 300:
            await node.until(lambda: node.counts("dead").ready > 0)
            arrived += await drain(node, "dead", 70)
        assert (await settled(node, "q", moving=0)).moved_out == 300
        assert (await node.total("dead")).moved_in == 300


async def test_items_that_die_one_by_one_into_a_full_dead_queue():
    async with service_node() as node:
        await node.create("dead", partition_items_max=2)
        await node.create(dead_queue="dead")
        for number in range(6):
            await node.produce(b"%d" % number)
            await kill_all(node, 1)
        await settled(node, "dead", ready=2)
        await settled(node, "q", moving=4)
        found: list[bytes] = []
        while len(found) < 6:
            reply = await node.lease(1, queue="dead", wait_ms=60_000)
            found += payloads(*reply.batches)
            await node.complete(*map(whole, reply.batches), queue="dead")
        assert found == [b"%d" % number for number in range(6)]
        await settled(node, "q", moving=0)


async def test_a_redrive_into_a_queue_with_little_room():
    async with service_node() as node:
        await node.create("dead")
        await node.create(dead_queue="dead", partition_items_max=3)
        for _ in range(2):
            await node.produce(*[b"x"] * 3)
            await kill_all(node, 3)
            await settled(node, "q", moving=0)
        await settled(node, "dead", ready=6)
        assert await node.admin.redrive_dead_letters("default", "q", ()) == 6
        await settled(node, "q", ready=3)
        await settled(node, "dead", moving=3)
        assert await drain(node, "q", 3) == 3
        await settled(node, "q", ready=3, completed=3)
        await settled(node, "dead", moving=0, moved_out=6)


async def test_a_full_target_that_has_room_again_in_the_same_turn(monkeypatch):
    """The refusal arrives after the target has reported free space: no pause follows."""
    monkeypatch.setattr(moves, "PAUSE_S_MIN", 1_000.0)
    monkeypatch.setattr(moves, "PAUSE_S_MAX", 1_000.0)
    async with service_node() as node:
        [full] = (await node.create("dead", partition_items_max=2)).groups
        await node.create(dead_queue="dead")
        await node.produce(b"1", b"2")
        await kill_all(node, 2)
        await settled(node, "dead", ready=2)
        letters = (await node.lease(2, queue="dead", wait_ms=60_000)).batches
        router = node.queues.router
        post = router.post
        completing: list[asyncio.Task[Any]] = []

        def complete_behind(route: Any, command: Any, *rest: Any, **more: Any) -> None:
            post(route, command, *rest, **more)
            if route.group == full and isinstance(command, Move) and not completing:
                call = node.complete(*map(whole, letters), queue="dead")
                completing.append(asyncio.get_running_loop().create_task(call))

        router.post = complete_behind  # type: ignore[method-assign]
        await node.produce(b"3")
        await kill_all(node, 1)
        await settled(node, "dead", ready=1, completed=2)
        await asyncio.gather(*completing)


async def test_a_full_target_is_not_asked_all_the_time():
    """While nothing leaves the target, its log grows by one entry per pause. Pauses double."""
    async with service_node() as node:
        await node.create("dead", partition_items_max=1)
        await node.create(dead_queue="dead")
        await node.produce(*[b"x"] * 50)
        await kill_all(node, 50)
        await settled(node, "q", moving=49)
        before = node.index("dead")
        for _ in range(100):
            await node.produce(b"y")
        assert node.index("dead") - before <= 10


async def test_what_waits_for_a_deleted_target_comes_back():
    async with service_node() as node:
        await node.create("dead", partition_items_max=1)
        await node.create(dead_queue="dead")
        await node.produce(b"1", b"2")
        await kill_all(node, 2)
        await settled(node, "dead", ready=1)
        assert (await node.total("q")).moving >= 1
        await node.admin.update_queue(
            "default",
            "q",
            (await node.admin.get_queue("default", "dead")).settings,
            ("dead_queue",),
            0,
        )
        await node.admin.delete_queue("default", "dead")
        source = await settled(node, "q", ready=1, moving=0)
        assert source.moved_out == 1
        [batch] = (await node.lease()).batches
        assert (batch.attempt, payloads(batch)) == (1, [b"2"])


@pytest.mark.parametrize("point", ["sync", "synced"])
@pytest.mark.parametrize("nth", range(1, 9))
async def test_a_crash_at_any_commit_on_the_way_loses_and_doubles_nothing(point, nth):
    """Power fails at the nth commit after four items were rejected, just before the commit is
    durable or just after. Then the node starts again.
    """
    environment = MemoryEnvironment()
    async with service_node(environment, may_fail=True) as node:
        await node.create("dead", partitions=2)
        await node.create(partitions=2, dead_queue="dead")
        for number in range(4):
            await node.produce(b"%d" % number)
        refs = [whole(batch) for batch in (await node.lease(4)).batches]
        environment.faults = CrashAt(point, nth)
        with suppress(QueratorError):
            await node.retry(*refs, dead=True)
        await node.until(lambda: bool(node.failures) or node.counts("dead").ready == 4)
        assert node.failures or nth > 1
    async with service_node(environment.crash()) as node:
        source = await settled(node, "q", moving=0)
        await node.until(lambda: node.counts("dead").ready + source.leased == 4)
        dead = node.counts("dead")
        assert dead.moved_in == dead.ready == source.moved_out == source.dead
        page = await node.admin.list_dead_letters("default", "q", 9, "")
        letters = [item.dead_letter for _, _, item in page.items if item.dead_letter]
        seen = [(letter.origin_partition, letter.origin_seq) for letter in letters]
        assert len(set(seen)) == len(seen) == dead.ready
