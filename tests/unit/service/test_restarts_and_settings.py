"""Guarantees of a queue across restarts, stops and changed settings."""

import asyncio
from typing import Any

import pytest

from querator.model.calls import LeasedRun
from querator.model.errors import ErrorCode
from querator.model.queues import QueueSettings
from querator.raft.clock import SimulatedClock
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.service.service_node import (
    LONG_MS,
    ServiceNode,
    code,
    payloads,
    producer_id,
    seqs,
    service_node,
    whole,
)


async def test_repeats_after_a_restart_meet_their_first_outcome():
    environment = MemoryEnvironment()
    clock = SimulatedClock()
    name = producer_id()
    identity: dict[str, Any] = {"producer_id": name, "sequence": 1, "ordered": True}
    clock.step_wall(int.from_bytes(name[:6], "big") - clock.wall_ms())
    async with service_node(environment, clock) as node:
        await node.create()
        first = await node.produce(b"a", b"b", b"c", **identity)
        [batch] = (await node.lease(2, request_id="r")).batches
        one, two = seqs(batch)
        await node.complete(whole(batch, ((one, 1),)))
    environment = environment.crash()
    async with service_node(environment, clock) as node:
        again = await node.produce(b"a", b"b", b"c", **identity)
        assert again.batches[0].repeated
        assert again.batches[0].first_seq == first.batches[0].first_seq
        [held] = (await node.lease(2, request_id="r", partition=0)).batches
        assert (held.repeated, held.lease_id, seqs(held)) == (True, batch.lease_id, [two])
        [outcome] = (await node.complete(whole(batch), all_or_nothing=True)).outcomes
        assert (outcome.done, outcome.repeated) == (((two, 1),), ((one, 1),))
    async with service_node(environment.crash(), clock) as node:
        [outcome] = (await node.complete(whole(batch))).outcomes
        assert outcome.repeated == ((one, 2),)
        [outcome] = (await node.retry(whole(batch, ((one, 1),)))).outcomes
        assert outcome.lost == ((one, 1),)
        assert await code(node.lease(request_id="r", partition=0)) is ErrorCode.LEASE_ENDED
        total = await node.total()
        assert (total.produced, total.completed, total.ready) == (3, 2, 1)


async def test_many_schedules_fire_in_order_after_a_restart():
    environment = MemoryEnvironment()
    clock = SimulatedClock()
    delays = (9_000, 3_000, 6_000)
    async with service_node(environment, clock) as node:
        await node.create()
        for delay in delays:
            await node.produce(b"%d" % delay, enqueue_at_ms=clock.wall_ms() + delay)
    async with service_node(environment.crash(), clock) as node:
        for delay in sorted(delays):
            waiting = asyncio.get_running_loop().create_task(node.lease(wait_ms=LONG_MS))
            await asyncio.sleep(0)
            clock.advance(3_001)
            assert payloads(*(await waiting).batches) == [b"%d" % delay]


async def test_a_lapse_after_a_restart_wakes_who_waits():
    environment = MemoryEnvironment()
    clock = SimulatedClock()
    async with service_node(environment, clock) as node:
        await node.create(lease_timeout_ms=5_000)
        await node.produce(b"x")
        await node.lease()
    async with service_node(environment.crash(), clock) as node:
        waiting = asyncio.get_running_loop().create_task(node.lease(wait_ms=LONG_MS))
        await asyncio.sleep(0)
        clock.advance(6_000)
        [batch] = (await waiting).batches
        assert (payloads(batch), batch.attempt) == ([b"x"], 2)


async def reject(node: ServiceNode) -> None:
    await node.produce(b"x")
    [batch] = (await node.lease()).batches
    await node.retry(batch, dead=True, error="no good")


async def letters(node: ServiceNode, queue: str) -> list[LeasedRun]:
    return list((await node.lease(queue=queue, wait_ms=LONG_MS)).batches)


async def test_a_dead_queue_added_changed_and_removed_holds_at_once_and_after_a_restart():
    environment = MemoryEnvironment()
    clock = SimulatedClock()

    async def point_to(node: ServiceNode, dead_queue: str) -> None:
        changed = QueueSettings(dead_queue=dead_queue)
        await node.admin.update_queue("default", "q", changed, ("dead_queue",), 0)

    async with service_node(environment, clock) as node:
        for name in ("d1", "d2"):
            await node.create(name)
        await node.create()
        await reject(node)
        total = await node.total()
        assert (total.dead, total.dropped) == (1, 1)
        await point_to(node, "d1")
        await reject(node)
        assert payloads(*await letters(node, "d1")) == [b"x"]
    environment = environment.crash()
    async with service_node(environment, clock) as node:
        await reject(node)
        assert payloads(*await letters(node, "d1")) == [b"x"]
        await point_to(node, "d2")
        await reject(node)
        assert payloads(*await letters(node, "d2")) == [b"x"]
        await point_to(node, "")
        await reject(node)
    async with service_node(environment.crash(), clock) as node:
        await reject(node)
        total = await node.total()
        assert (total.dead, total.dropped, total.moved_out) == (6, 3, 3)


@pytest.mark.parametrize("how", ["stop", "delete", "fail"])
async def test_streams_full_of_demand_end_once(how):
    """A stream that loses its dispatcher, for any reason, does not ask again and again."""
    async with service_node(may_fail=True) as node:
        await node.create(partitions=3)
        streams = [await node.subscribe(max_items=1, client_id=f"c{n}") for n in range(20)]
        for stream in streams:
            stream.grant(1_000, 0)
        waiting = [asyncio.get_running_loop().create_task(stream.next()) for stream in streams]
        await asyncio.sleep(0)
        if how == "delete":
            await node.admin.delete_queue("default", "q")
        elif how == "fail":
            await node.host.stop()
        await node.queues.stop()
        for stream, task in zip(streams, waiting, strict=True):
            assert await code(task) in (
                ErrorCode.UNAVAILABLE, ErrorCode.QUEUE_DELETING, ErrorCode.QUEUE_NOT_FOUND
            )  # fmt: skip
            stream.grant(10, 0)
            await stream.close(polite=True)
