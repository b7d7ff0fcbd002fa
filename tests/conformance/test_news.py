"""What happens to executions at work: their workers wait for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.executions import Executions, begun, child, executions, step, timer
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary", "streams-1")

ONE = b"\x01"
News = tuple[list[int], list[int]]


@asynccontextmanager
async def waiting(shop: Executions, *held: v1.Activation) -> AsyncIterator["asyncio.Task[News]"]:
    """A question that waits; it has its answer at the end."""
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(shop.news(*held))
        await asyncio.sleep(0.1)
        assert not asking.done()
        yield asking


async def test_a_signal_is_heard_at_once(make: Make):
    shop, held = await begun(make)
    async with waiting(shop, held) as asking:
        await shop.signal()
    assert asking.result() == ([held.item], [])


async def test_a_cancellation_is_heard_at_once(make: Make):
    shop, held = await begun(make)
    async with waiting(shop, held) as asking:
        await shop.cancel()
    assert asking.result() == ([held.item], [])


async def test_a_value_of_a_promise_is_heard_at_once(make: Make):
    shop, held = await begun(make)
    async with waiting(shop, held) as asking:
        await shop.resolve(held, ONE)
    assert asking.result() == ([held.item], [])


async def test_a_timer_of_the_partition_is_heard_when_it_fires(make: Make):
    shop, held = await begun(make)
    await shop.record(held, timers=[timer(ONE, held.now_ms / 1000 + 0.4)])
    async with waiting(shop, held) as asking:
        pass
    assert asking.result() == ([held.item], [])


async def test_the_result_of_a_child_is_heard_at_once(make: Make):
    shop, held = await begun(make)
    await shop.record(held, children=[child(ONE)])
    leased = await shop.lease_one()
    started = (await shop.journal())[-1].index
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(shop.news(held, known=started))
        await asyncio.sleep(0.1)
        assert not asking.done()
        await shop.close(leased)
    assert asking.result() == ([held.item], [])


async def test_a_termination_takes_the_lease(make: Make):
    shop, held = await begun(make)
    async with waiting(shop, held) as asking:
        await shop.terminate()
    assert asking.result() == ([], [held.item])


async def test_a_rewind_takes_the_lease(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE))
    async with waiting(shop, held) as asking:
        await shop.rewind(0)
    assert asking.result() == ([], [held.item])


async def test_what_has_arrived_before_is_heard(make: Make):
    shop, held = await begun(make)
    await shop.signal()
    assert await shop.news(held) == ([held.item], [])
    assert await shop.news(held, known=1, wait_s=0.2) == ([], [])


async def test_what_happens_to_others_is_not_heard(make: Make):
    shop, held = await begun(make)
    await shop.start("other")
    await shop.lease_one()
    await shop.signal("other")
    assert await shop.news(held, wait_s=0.2) == ([], [])


async def test_records_of_the_worker_are_no_news(make: Make):
    shop, held = await begun(make)
    await shop.record(held, step(ONE))
    assert await shop.news(held, wait_s=0.2) == ([], [])


async def test_an_activation_that_is_given_back_is_lost(make: Make):
    shop, held = await begun(make)
    await shop.give_back(held)
    assert await shop.news(held) == ([], [held.item])


async def test_an_execution_may_be_named_by_an_old_lease_and_a_new_one(make: Make):
    """The worker has leased it again, and its former run does not know it yet."""
    shop, old = await begun(make)
    await shop.give_back(old)
    new = await shop.lease_one()
    assert new.execution == old.execution
    assert await shop.news(old, new) == ([], [old.item])
    await shop.signal()
    assert await shop.news(old, new) == ([new.item], [old.item])


async def test_one_question_is_for_all_partitions(make: Make):
    shop = await executions(make, partitions=3)
    for number in range(6):
        await shop.start(f"e{number}")
    held: list[v1.Activation] = []
    while len(held) < 6:
        held += await shop.lease(6)
    assert len({one.partition for one in held}) > 1
    async with waiting(shop, *held) as asking:
        await shop.signal(held[3].id)
    assert asking.result() == ([held[3].item], [])


async def test_a_question_through_another_node_is_answered(make: Make):
    shop, held = await begun(make)
    async with waiting(shop.through(1 % len(make.nodes)), held) as asking:
        await shop.signal()
    assert asking.result() == ([held.item], [])


async def test_a_question_needs_executions(make: Make):
    shop, held = await begun(make)
    error = await refusal(shop.news())
    assert (error.code, error.field) == ("INVALID_ARGUMENT", "executions")
    error = await refusal(shop.news(*[held] * 1_001))
    assert (error.code, error.field) == ("LIMIT_EXCEEDED", "executions")


async def test_a_lease_of_another_queue_is_lost(make: Make):
    """The queue may have been deleted, and made again under its name."""
    _, held = await begun(make)
    other, mine = await begun(make)
    assert await other.news(mine, held) == ([], [held.item])
