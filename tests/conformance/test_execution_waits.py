"""Waits for executions: until one of them has ended."""

import asyncio

import pytest

from tests.conformance.executions import Executions, begun, executions, kinds
from tests.conformance.make import Make
from tests.conformance.queues import refusal

pytestmark = pytest.mark.doors("unary", "streams-1")


async def test_what_has_ended_is_returned_at_once(make: Make):
    shop, held = await begun(make)
    await shop.close(held, b"done")
    [ended] = await shop.wait("e", wait_s=0)
    assert (ended.id, ended.end.payload) == ("e", b"done")
    assert ended.execution == (await shop.get()).execution


async def test_a_wait_ends_when_the_execution_ends(make: Make):
    shop, held = await begun(make)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.wait("e"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await shop.close(held, b"done")
    assert [one.end.payload for one in waiting.result()] == [b"done"]


@pytest.mark.parametrize("outcome", ["FAILED", "CANCELLED"])
async def test_a_wait_ends_with_every_outcome(make: Make, outcome: str):
    shop, held = await begun(make)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.wait("e"))
        await shop.close(held, outcome=outcome)
    assert [kinds([one.end]) for one in waiting.result()] == [[outcome]]


async def test_a_wait_ends_with_a_termination(make: Make):
    shop = await executions(make)
    await shop.start()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.wait("e"))
        await shop.terminate()
    assert [kinds([one.end]) for one in waiting.result()] == [["TERMINATED"]]


async def test_a_wait_ends_empty_when_its_time_is_over(make: Make):
    shop = await executions(make)
    await shop.start()
    assert await shop.wait("e", wait_s=0.2) == []


async def test_a_wait_for_several_ends_with_the_first(make: Make):
    shop = await executions(make, partitions=3)
    for number in range(6):
        await shop.start(f"e-{number}")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.wait(*(f"e-{number}" for number in range(6))))
        await shop.terminate("e-4")
    assert [one.id for one in waiting.result()] == ["e-4"]


async def test_repeated_waits_return_all_that_have_ended(make: Make):
    shop = await executions(make, partitions=3)
    for number in range(6):
        await shop.start(f"e-{number}")
    for number in range(5):
        await shop.terminate(f"e-{number}")
    wanted = {f"e-{number}" for number in range(6)}
    while wanted > {"e-5"}:
        ended = {one.id for one in await shop.wait(*wanted)}
        assert ended
        assert "e-5" not in ended
        wanted -= ended
    assert wanted == {"e-5"}


async def test_an_unknown_id_is_returned_without_an_execution(make: Make):
    shop = await executions(make)
    [unknown] = await shop.wait("nothing")
    assert unknown.id == "nothing"
    assert not unknown.HasField("execution")


async def test_an_id_that_is_named_twice_is_returned_once(make: Make):
    shop, held = await begun(make)
    await shop.close(held)
    assert [one.id for one in await shop.wait("e", "e")] == ["e"]


async def test_many_may_wait_for_one_execution(make: Make):
    shop, held = await begun(make)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(shop.through(n % make.size).wait("e")) for n in range(20)]
        await shop.close(held, b"done")
    assert [task.result()[0].end.payload for task in waiting] == [b"done"] * 20


async def test_a_wait_does_not_end_when_the_execution_parks(make: Make):
    shop, held = await begun(make)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(shop.wait("e", wait_s=0.5))
        await shop.park(held, names=["word"])
        await shop.signal()
    assert waiting.result() == []


async def test_large_results_come_one_after_the_other(make: Make):
    shop = await executions(make)
    for id_ in ("e/1", "e/2"):
        await shop.start(id_)
    for held in await shop.lease(2):
        await shop.close(held, b"x" * (3 * 2**20))
    got = {one.id for one in await shop.wait("e/1", "e/2")}
    assert len(got) == 1
    got |= {one.id for one in await shop.wait(*({"e/1", "e/2"} - got))}
    assert got == {"e/1", "e/2"}


async def test_a_wait_for_nothing_is_refused(make: Make):
    shop = await executions(make)
    assert (await refusal(shop.wait())).field == "ids"


async def test_a_wait_for_1001_is_refused(make: Make):
    shop = await executions(make)
    refused = await refusal(shop.wait(*(f"e-{number}" for number in range(1001))))
    assert (refused.code, refused.field) == ("LIMIT_EXCEEDED", "ids")


async def test_a_wait_of_more_than_15_minutes_is_refused(make: Make):
    shop = await executions(make)
    assert (await refusal(shop.wait("e", wait_s=901))).field == "wait_timeout"


async def test_a_wait_in_a_queue_of_items_is_refused(make: Make):
    stranger = Executions(await make(), make.nodes)
    assert (await refusal(stranger.wait("e"))).code == "QUEUE_KIND"


async def test_a_wait_ends_when_the_queue_is_deleted(make: Make):
    shop = await executions(make)
    await shop.start()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(refusal(shop.wait("e")))
        await asyncio.sleep(0.1)
        await shop.queue.delete()
    assert waiting.result().code in ("QUEUE_NOT_FOUND", "QUEUE_DELETING")
