"""Waiting leases on real partitions: which caller gets which items, and when."""

import asyncio
from collections import Counter

import pytest

from querator.model.calls import LeaseReply
from querator.model.commands import PartitionEffects
from querator.model.errors import ErrorCode
from querator.model.ids import GroupId
from querator.raft.clock import SimulatedClock
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.raft.running_host import CommitGate
from tests.unit.service.service_node import (
    LONG_MS,
    ServiceNode,
    code,
    payloads,
    refusal,
    service_node,
    whole,
)


def count(reply: LeaseReply) -> int:
    return sum(batch.loaded.count for batch in reply.batches)


async def park(node: ServiceNode, *wanted: int, **more: object) -> list["asyncio.Task[LeaseReply]"]:
    """Starts lease calls that wait, in this order."""
    tasks = []
    for number, items in enumerate(wanted):
        call = node.lease(items, client_id=f"c{number}", wait_ms=LONG_MS, **more)
        tasks.append(asyncio.get_running_loop().create_task(call))
        await asyncio.sleep(0)
    return tasks


async def test_items_come_as_they_were_produced():
    async with service_node() as node:
        await node.create()
        produced = await node.produce(b"one", b"", b"three")
        reply = await node.lease()
        [batch] = reply.batches
        assert payloads(batch) == [b"one", b"", b"three"]
        assert (batch.queue, batch.partition, batch.attempt) == ("q", 0, 1)
        assert batch.loaded.first_seq == produced.batches[0].first_seq
        assert 0 < batch.remaining_ms <= 30_000
        assert not reply.durable
        assert not produced.durable


async def test_nothing_ready_is_an_empty_reply_and_no_log_entry():
    async with service_node() as node:
        await node.create()
        index = node.index()
        assert (await node.lease()).batches == ()
        assert node.index() == index


async def test_a_waiting_lease_is_woken_by_a_produce():
    async with service_node() as node:
        await node.create()
        [waiting] = await park(node, 10)
        await node.produce(b"x")
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_a_wait_that_ends_is_answered_empty():
    async with service_node() as node:
        await node.create()
        assert (await node.lease(wait_ms=1)).batches == ()


@pytest.mark.parametrize(
    ("items", "wanted", "got"),
    [(23, (20, 6, 1), [16, 6, 1]), (10, (10,) * 5, [2] * 5), (1, (5, 5), [1, 0])],
)
async def test_waiting_callers_share_fairly(items, wanted, got):
    async with service_node() as node:
        await node.create()
        waiting = await park(node, *wanted)
        await node.produce(*[b"x"] * items)
        await asyncio.wait([task for task, share in zip(waiting, got, strict=True) if share])
        for task, expected in zip(waiting, got, strict=True):
            if expected:
                assert count(task.result()) == expected
            else:
                task.cancel()


async def test_one_consumer_takes_from_all_partitions():
    async with service_node() as node:
        await node.create(partitions=10)
        for _ in range(10):
            await node.produce(*[b"x"] * 5)
        reply = await node.lease(50)
        assert Counter(batch.partition for batch in reply.batches) == dict.fromkeys(range(10), 1)
        assert [batch.loaded.count for batch in reply.batches] == [5] * 10


async def test_partitions_take_turns():
    async with service_node() as node:
        await node.create(partitions=3)
        for _ in range(3):
            await node.produce(*[b"x"] * 30)
        used = [(await node.lease(10)).batches[0].partition for _ in range(9)]
        assert Counter(used) == {0: 3, 1: 3, 2: 3}


async def test_many_consumers_at_many_partitions_get_everything_once():
    async with service_node() as node:
        await node.create(partitions=4)
        seen: Counter[bytes] = Counter()

        async def consume(client: str) -> None:
            while sum(seen.values()) < 200:
                reply = await node.lease(7, client_id=client, wait_ms=50)
                seen.update(payloads(*reply.batches))
                if reply.batches:
                    await node.complete(*(whole(batch) for batch in reply.batches))

        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(consume(f"c{number}"))
            for number in range(40):
                await node.produce(*[b"%d-%d" % (number, item) for item in range(5)])
        assert len(seen) == 200
        assert set(seen.values()) == {1}
        total = await node.total()
        assert (total.completed, total.ready, total.leased) == (200, 0, 0)


async def test_woken_by_a_due_schedule():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create()
        await node.produce(b"later", enqueue_at_ms=clock.wall_ms() + 5_000)
        [waiting] = await park(node, 1)
        clock.advance(5_001)
        assert payloads(*(await waiting).batches) == [b"later"]


async def test_woken_by_a_lapse_with_the_next_attempt():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(lease_timeout_ms=10_000)
        await node.produce(b"x")
        assert (await node.lease()).batches[0].attempt == 1
        [waiting] = await park(node, 1)
        clock.advance(13_000)
        [batch] = (await waiting).batches
        assert batch.attempt == 2


async def test_woken_by_a_retry():
    async with service_node() as node:
        await node.create()
        await node.produce(b"x")
        [batch] = (await node.lease()).batches
        [waiting] = await park(node, 1)
        await node.retry(batch)
        assert (await waiting).batches[0].attempt == 2


async def test_woken_by_a_dead_letter():
    async with service_node() as node:
        await node.create("dead")
        await node.create(dead_queue="dead")
        await node.produce(b"x")
        [batch] = (await node.lease()).batches
        [waiting] = await park(node, 1, queue="dead")
        await node.retry(batch, dead=True, error="no good")
        [letter] = (await waiting).batches
        assert payloads(letter) == [b"x"]
        origin = letter.loaded.overlays[0].dead_letter
        assert origin is not None
        assert (origin.origin_queue, origin.errors) == ("q", ("no good",))


async def test_a_repeated_request_gets_the_live_lease():
    async with service_node() as node:
        await node.create(partitions=3)
        await node.produce(b"a", b"b")
        [batch] = (await node.lease(request_id="r1")).batches
        [again] = (
            await node.lease(request_id="r1", partition=batch.partition, wait_ms=LONG_MS)
        ).batches
        assert again.repeated
        assert again.lease_id == batch.lease_id
        assert payloads(again) == [b"a", b"b"]


async def test_a_repeated_request_whose_lease_has_ended():
    async with service_node() as node:
        await node.create()
        await node.produce(b"a")
        [batch] = (await node.lease(request_id="r1")).batches
        await node.complete(batch)
        assert await code(node.lease(request_id="r1", partition=0)) is ErrorCode.LEASE_ENDED


async def test_a_repeat_of_what_was_never_granted_waits_at_its_partition():
    async with service_node() as node:
        await node.create(partitions=2)
        [waiting] = await park(node, 5, request_id="r1", partition=1)
        first = await node.produce(b"a")
        second = await node.produce(b"b")
        [batch] = (await waiting).batches
        assert batch.partition == 1
        expected = b"a" if first.batches[0].partition == 1 else b"b"
        assert {first.batches[0].partition, second.batches[0].partition} == {0, 1}
        assert payloads(batch) == [expected]


async def test_who_does_not_wait_is_not_kept_by_another_partition():
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        await node.create(partitions=2)
        produced = await node.produce(b"x")
        gate = CommitGate(environment)
        gate.close()
        [waiting] = await park(node, 1)
        await gate.reached()
        empty = 1 - produced.batches[0].partition
        try:
            async with asyncio.timeout(5):
                assert (await node.lease(partition=empty)).batches == ()
        finally:
            gate.open()
        assert payloads(*(await waiting).batches) == [b"x"]


async def test_a_caller_does_not_stay_with_a_partition_whose_large_item_has_gone(
    monkeypatch: pytest.MonkeyPatch,
):
    async with service_node() as node:
        queue = await node.create(partitions=2)
        for _ in range(2):
            await node.produce(b"x" * 4_000)

        # Both items are larger than half of the bytes, so the caller would ask the last partition
        # alone. Before it does, the items are gone, as if they had expired.
        loop = asyncio.get_running_loop()
        refused, told = asyncio.Event(), node.on_effects

        def gone() -> None:
            for group in queue.groups:
                node.queues.events.on_effects(group, PartitionEffects(ready=0, outbox=0))
            refused.set()

        def on_effects(group: GroupId, effects: PartitionEffects) -> None:
            told(group, effects)
            if group == queue.groups[1]:
                loop.call_soon(gone)

        monkeypatch.setattr(node, "on_effects", on_effects)
        [waiting] = await park(node, 2, max_bytes=5_000)
        await refused.wait()
        monkeypatch.setattr(node, "on_effects", told)
        assert not waiting.done()
        assert (await node.produce(b"y")).batches[0].partition == 0
        assert payloads(*(await waiting).batches)


async def test_a_partition_that_the_queue_has_not():
    async with service_node() as node:
        await node.create(partitions=2)
        error = await refusal(node.lease(partition=2))
        assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "partition")


async def test_a_caller_who_goes_while_items_are_granted_gives_them_back():
    environment = MemoryEnvironment()
    async with service_node(environment) as node:
        await node.create()
        await node.produce(b"x")
        gate = CommitGate(environment)
        gate.close()
        [waiting] = await park(node, 1)
        await gate.reached()
        waiting.cancel()
        await asyncio.wait([waiting])
        gate.open()
        [batch] = (await node.lease(wait_ms=LONG_MS)).batches
        assert batch.attempt == 1, "the attempt was given back"
        total = await node.total()
        assert (total.released, total.leased) == (1, 1)


async def test_a_lease_with_under_half_its_time_left_is_not_delivered():
    clock = SimulatedClock()
    environment = MemoryEnvironment()
    async with service_node(environment, clock) as node:
        await node.create(lease_timeout_ms=10_000)
        await node.produce(b"x")
        gate = CommitGate(environment)
        gate.close()
        [waiting] = await park(node, 1)
        await gate.reached()
        clock.advance(6_000)
        gate.open()
        [batch] = (await waiting).batches
        assert batch.remaining_ms > 9_000
        assert (await node.total()).released == 1


async def test_an_item_s_lease_timeout_holds_for_that_item_alone():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(lease_timeout_ms=100_000)
        await node.produce(b"a", b"b", b"c", b"d", lease_timeouts_ms=[1_000, 0, 1_000, 50_000])
        batches = (await node.lease(request_id="r")).batches
        assert payloads(*batches) == [b"a", b"b", b"c", b"d"], "in their order"
        left = [batch.remaining_ms for batch in batches]
        assert [round(ms, -3) for ms in left] == [1_000, 100_000, 1_000, 50_000]
        assert batches[0].lease_id == batches[2].lease_id
        assert len({batch.lease_id for batch in batches}) == 3
        repeated = (await node.lease(request_id="r", partition=0)).batches
        assert [(b.lease_id, b.repeated) for b in repeated] == [
            (batch.lease_id, True) for batch in batches
        ]
        clock.advance(5_000)
        await node.until(lambda: node.counts().ready == 2)
        first, second = (await node.extend(batches[0].lease_id, batches[3].lease_id)).outcomes
        assert (first.deadline_ms, 49_000 < second.remaining_ms <= 50_000) == (0, True)
        outcomes = (await node.complete(*map(whole, batches))).outcomes
        assert [outcome.error for outcome in outcomes] == [
            ErrorCode.LEASE_LOST, None, ErrorCode.LEASE_LOST, None,
        ]  # fmt: skip
        assert payloads(*(await node.lease()).batches) == [b"a", b"c"]


async def test_the_lease_timeout_of_the_call_comes_before_the_item_s():
    async with service_node() as node:
        await node.create(lease_timeout_ms=100_000)
        await node.produce(b"a", b"b", lease_timeouts_ms=[50_000, 0])
        [batch] = (await node.lease(lease_timeout_ms=7_000)).batches
        assert 6_000 < batch.remaining_ms <= 7_000


async def test_the_wall_clock_does_not_judge_leases():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await node.create(lease_timeout_ms=10_000)
        await node.produce(b"a")
        clock.step_wall(3_600_000)
        [batch] = (await node.lease()).batches
        assert 9_000 < batch.remaining_ms <= 10_000
        await node.produce(b"b")
        clock.step_wall(-7_200_000)
        [batch] = (await node.lease()).batches
        assert 9_000 < batch.remaining_ms <= 10_000


async def test_bytes_bound_a_reply():
    async with service_node() as node:
        await node.create(partitions=2)
        for _ in range(4):
            await node.produce(*[b"x" * 1_000] * 5)
        reply = await node.lease(100, max_bytes=6_000)
        assert 1 <= count(reply)
        assert sum(len(batch.loaded.items) for batch in reply.batches) <= 6_000


async def test_an_item_over_the_bytes_is_its_own_error():
    async with service_node() as node:
        await node.create()
        await node.produce(b"x" * 5_000)
        error = await refusal(node.lease(max_bytes=1_000, wait_ms=LONG_MS))
        assert error.code is ErrorCode.ITEM_TOO_LARGE
        assert error.field == "max_bytes"


async def test_an_item_over_a_piece_of_the_bytes_is_delivered():
    async with service_node() as node:
        await node.create(partitions=2)
        for _ in range(2):
            await node.produce(b"x" * 4_000)
        got = 0
        while got < 2:
            reply = await node.lease(2, max_bytes=5_000, wait_ms=LONG_MS)
            got += count(reply)
        assert got == 2


async def test_deleting_the_queue_ends_waits():
    async with service_node() as node:
        await node.create()
        [waiting] = await park(node, 1)
        await node.admin.delete_queue("default", "q")
        assert await code(waiting) in (ErrorCode.QUEUE_DELETING, ErrorCode.QUEUE_NOT_FOUND)
        assert await code(node.lease()) in (ErrorCode.QUEUE_DELETING, ErrorCode.QUEUE_NOT_FOUND)


async def test_stopping_answers_waits_and_takes_nothing_more():
    async with service_node() as node:
        await node.create()
        [waiting] = await park(node, 1)
        await node.queues.stop()
        assert await code(waiting) is ErrorCode.UNAVAILABLE
        assert await code(node.lease()) is ErrorCode.UNAVAILABLE
        assert await code(node.produce(b"x")) is ErrorCode.UNAVAILABLE


async def test_waiting_calls_are_bounded():
    async with service_node(leases_max=2) as node:
        await node.create()
        waiting = await park(node, 1, 1)
        error = await refusal(node.lease(wait_ms=LONG_MS))
        assert error.code is ErrorCode.OVERLOADED
        assert error.retry_delay_ms
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert (await node.lease()).batches == ()


async def test_unknown_names():
    async with service_node() as node:
        assert await code(node.lease(queue="nobody")) is ErrorCode.QUEUE_NOT_FOUND


async def test_after_a_restart_ready_and_scheduled_items_are_found():
    environment = MemoryEnvironment()
    clock = SimulatedClock()
    async with service_node(environment, clock) as node:
        await node.create()
        await node.produce(b"ready")
        await node.produce(b"later", enqueue_at_ms=clock.wall_ms() + 5_000)
    async with service_node(environment.crash(), clock) as node:
        assert payloads(*(await node.lease()).batches) == [b"ready"]
        [waiting] = await park(node, 1)
        clock.advance(5_001)
        assert payloads(*(await waiting).batches) == [b"later"]
