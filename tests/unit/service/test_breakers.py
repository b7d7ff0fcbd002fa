"""Breakers on a node: consumers that wait, operators, log lines."""

import asyncio
import logging
from typing import Any

import pytest

from querator.model.calls import LeaseReply, SetBreakerCall
from querator.model.errors import ErrorCode
from querator.model.queues import BreakerSettings, BreakerState, QueueSettings
from querator.raft.clock import SimulatedClock
from querator.storage.memory_environment import MemoryEnvironment
from tests.unit.service.service_node import LONG_MS, ServiceNode, refusal, service_node

BREAKER = BreakerSettings(
    failure_percent=50, outcomes_min=2, window_ms=10_000, open_ms=5_000, probes=2
)


def payloads_in(reply: LeaseReply) -> int:
    return sum(batch.loaded.count for batch in reply.batches)


async def opened(node: ServiceNode, items: int = 6, **settings: Any) -> None:
    """A queue of which two items have failed."""
    await node.create(breaker=BREAKER, **settings)
    await node.produce(*(b"%d" % number for number in range(items)))
    await node.retry((await node.lease(2)).batches[0])


async def waiting(node: ServiceNode) -> "asyncio.Task[LeaseReply]":
    """A lease that waits, and causes no entries meanwhile."""
    before = node.index()
    task = asyncio.get_running_loop().create_task(node.lease(10, wait_ms=LONG_MS))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not task.done()
    assert node.index() == before
    return task


async def states(node: ServiceNode) -> list[BreakerState | None]:
    counts = (await node.admin.queue_stats("default", "q")).partitions
    return [None if one.breaker is None else one.breaker.state for one in counts]


async def set_breaker(node: ServiceNode, *, opens: bool, queue: str = "q") -> int:
    return await node.admin.breakers.set_breaker(SetBreakerCall("default", queue, opens))


async def test_a_consumer_that_waits_gets_one_item_after_the_open_time_and_all_when_it_closes():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await opened(node)
        waits = await waiting(node)
        clock.advance(BREAKER.open_ms + 1_000)
        reply = await waits
        assert payloads_in(reply) == 1
        others = await waiting(node)
        await node.complete(reply.batches[0])
        second = await others
        assert payloads_in(second) == 1
        third = await waiting(node)
        await node.complete(second.batches[0])
        assert payloads_in(await third) == 4


async def test_after_a_released_item_the_next_consumer_is_woken():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await opened(node)
        waits = await waiting(node)
        clock.advance(BREAKER.open_ms + 1_000)
        reply = await waits
        again = await waiting(node)
        await node.retry(reply.batches[0], count_attempt=False)
        assert payloads_in(await again) == 1


async def test_many_consumers_share_the_single_items():
    clock = SimulatedClock()
    async with service_node(clock=clock) as node:
        await opened(node, items=12)
        tasks = [await waiting(node) for _ in range(4)]
        clock.advance(BREAKER.open_ms + 1_000)
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(rest)) == (1, 3)
        assert payloads_in(done.pop().result()) == 1
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


@pytest.mark.parametrize("how", ["hand", "settings"])
async def test_a_consumer_that_waits_is_woken_when_it_closes(how: str):
    async with service_node() as node:
        await opened(node)
        waits = await waiting(node)
        if how == "hand":
            assert await set_breaker(node, opens=False) == 1
        else:
            await node.admin.update_queue("default", "q", QueueSettings(), ("breaker",), 0)
        assert payloads_in(await waits) == 6


async def test_by_hand_all_partitions_change():
    async with service_node() as node:
        await node.create(breaker=BREAKER, partitions=3)
        assert await set_breaker(node, opens=True) == 3
        assert await set_breaker(node, opens=True) == 0
        assert await states(node) == [BreakerState.OPEN] * 3
        assert (await node.total()).breaker is None
        assert await set_breaker(node, opens=False) == 3
        assert await states(node) == [BreakerState.CLOSED] * 3


async def test_a_queue_without_a_breaker_is_refused_by_name():
    async with service_node() as node:
        await node.create()
        refused = await refusal(set_breaker(node, opens=True))
        assert (refused.code, refused.field, refused.value) == (
            ErrorCode.INVALID_ARGUMENT, "queue", "q",
        )  # fmt: skip
        assert "has no breaker" in refused.message
        missing = await refusal(set_breaker(node, opens=True, queue="other"))
        assert missing.code is ErrorCode.QUEUE_NOT_FOUND


async def test_partitions_that_are_added_begin_closed():
    async with service_node() as node:
        await node.create(breaker=BREAKER)
        await set_breaker(node, opens=True)
        await node.admin.update_queue(
            "default", "q", QueueSettings(partitions=2), ("partitions",), 0
        )
        assert await states(node) == [BreakerState.OPEN, BreakerState.CLOSED]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("failure_percent", 0), ("failure_percent", 101), ("outcomes_min", 0), ("window_ms", 999),
        ("open_ms", 86_400_001), ("probes", 0), ("probes", 1_001),
    ],
)  # fmt: skip
async def test_settings_out_of_range_are_refused_in_a_node_of_the_same_process(
    field: str, wrong: int
):
    async with service_node() as node:
        refused = await refusal(node.create(breaker=BreakerSettings(**{field: wrong})))
        assert refused.code is ErrorCode.LIMIT_EXCEEDED
        assert refused.field == f"settings.breaker.{field}"
        assert str(wrong) in refused.value


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("breaker.")]


async def test_each_change_of_the_state_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture):
    clock = SimulatedClock()
    with caplog.at_level(logging.INFO, "querator"):
        async with service_node(clock=clock) as node:
            await opened(node)
            await node.produce(b"more")
            waits = await waiting(node)
            clock.advance(BREAKER.open_ms + 1_000)
            for _ in range(BREAKER.probes):
                reply = await waits
                waits = await waiting(node)
                await node.complete(reply.batches[0])
            await waits
    assert lines_of(caplog) == [
        f"breaker.{what} namespace=default queue=q partition=0"
        for what in ("opened", "half_opened", "closed")
    ]


async def test_a_node_that_begins_to_lead_says_that_a_breaker_is_open(
    caplog: pytest.LogCaptureFixture,
):
    clock = SimulatedClock()
    with caplog.at_level(logging.INFO, "querator"):
        environment = MemoryEnvironment()
        async with service_node(environment, clock) as node:
            await opened(node)
        caplog.clear()
        async with service_node(environment, clock) as node:
            await node.until(lambda: bool(lines_of(caplog)))
            assert await states(node) == [BreakerState.OPEN]
    assert len(lines_of(caplog)) == 1
