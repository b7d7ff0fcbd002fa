"""Leases: what a caller gets, waiting callers, and what the others see meanwhile."""

import asyncio
import time

from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import refusal, soon, span, texts


async def test_a_lease_takes_as_many_items_as_were_asked_for(make: Make):
    queue = await make()
    await queue.produce(*"abcde")
    assert texts(await queue.lease(2)) == ["a", "b"]
    assert await queue.counts() == {"ready": 3, "leased": 2}


async def test_a_leased_item_is_not_leased_again(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.lease(1, client="one")
    await queue.produce("b")
    assert texts(await queue.lease(1, client="other")) == ["b"]


async def test_the_first_lease_of_an_item_is_its_first_attempt(make: Make):
    queue = await make()
    await queue.produce("a")
    assert (await queue.lease_one()).attempt == 1


async def test_a_waiting_caller_gets_an_item_as_soon_as_it_is_produced(make: Make):
    queue = await make()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease(1))
        await queue.produce("a")
    assert texts(waiting.result()) == ["a"]


async def test_a_waiting_caller_is_woken_by_a_retry(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one(client="other"))
        await queue.retry(item)
    assert (waiting.result().text, waiting.result().attempt) == ("a", 2)


async def test_a_waiting_caller_is_woken_by_a_release(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one(client="other"))
        await queue.release(item)
    assert (waiting.result().text, waiting.result().attempt) == ("a", 1)


async def test_a_waiting_caller_is_woken_by_a_due_item(make: Make):
    queue = await make()
    due = soon(0.4)
    await queue.produce(Item(payload=b"later", enqueue_at=due))
    item = await queue.lease_one()
    assert item.text == "later"
    assert time.time() >= due.ToMilliseconds() / 1000


async def test_a_waiting_caller_is_woken_by_a_lapse(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.lease(1, client="silent", timeout_s=1)
    again = await queue.lease_one(client="other")
    assert (again.text, again.attempt) == ("a", 2)


async def test_a_waiting_caller_is_woken_by_a_dead_letter_that_arrives(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce("a")
    item = await queue.lease_one()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(dead.lease_one())
        await queue.reject(item)
    assert waiting.result().text == "a"


async def test_a_waiting_caller_is_woken_by_a_redrive(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce("a")
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await queue.redrive()
    assert waiting.result().text == "a"


async def test_a_waiting_caller_is_woken_by_an_operator_that_runs_a_schedule(make: Make):
    queue = await make()
    [made] = await queue.produce(Item(payload=b"a", enqueue_at=soon(3600)))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await queue.reschedule(made.id, run_now=True)
    assert waiting.result().text == "a"


async def test_waiting_callers_get_one_item_each(make: Make):
    queue = await make()
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(queue.lease(1, client=f"c{n}")) for n in range(5)]
        await queue.produce(*"abcde")
    assert sorted(text for one in waiting for text in texts(one.result())) == list("abcde")


async def test_many_callers_of_one_client_each_get_items_of_their_own(make: Make):
    queue = await make()
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(queue.lease(2)) for _ in range(4)]
        await queue.produce(*"abcdefgh")
    found = [text for one in waiting for text in texts(one.result())]
    assert sorted(found) == list("abcdefgh")


async def test_no_item_is_under_two_leases_when_many_callers_take_items_at_once(make: Make):
    queue = await make(partitions=2)
    await queue.produce(*map(str, range(50)))
    await queue.produce(*map(str, range(50, 100)))
    taken = await asyncio.gather(*(queue.lease(10, client=f"c{n}") for n in range(10)))
    found = [item.text for items in taken for item in items]
    assert sorted(found, key=int) == [str(number) for number in range(100)]


async def test_a_caller_that_waits_for_another_queue_gets_nothing_of_this_one(make: Make):
    queue, other = await make(), await make()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(other.lease(1))
        await queue.produce("here")
        await other.produce("there")
    assert texts(waiting.result()) == ["there"]
    assert await queue.counts() == {"ready": 1}


async def test_a_lease_takes_items_of_all_partitions(make: Make):
    queue = await make(partitions=4)
    me = make.producer()
    for number in range(8):
        await queue.produce(str(number), producer_id=me, sequence=number + 1)
    taken = await queue.lease(8)
    assert sorted(texts(taken)) == [str(number) for number in range(8)]
    assert {item.id.partition("-")[0] for item in taken} == {"0", "1", "2", "3"}


async def test_items_that_were_scheduled_come_behind_those_that_were_ready_before(make: Make):
    queue = await make()
    [later] = await queue.produce(Item(payload=b"scheduled", enqueue_at=soon(3600)))
    await queue.produce("ready")
    await queue.reschedule(later.id, due_at=soon(0.2))
    await queue.until(ready=2)
    assert texts(await queue.lease(2)) == ["ready", "scheduled"]


async def test_the_lease_says_when_it_ends(make: Make):
    queue = await make(lease_timeout=span(60))
    await queue.produce("a")
    item = await queue.lease_one()
    assert 58 < item.remaining_s <= 60
    assert 55 < item.deadline_s - time.time() < 61


async def test_the_lease_timeout_is_that_of_the_call_then_of_the_item_then_of_the_queue(make: Make):
    queue = await make(lease_timeout=span(60))
    await queue.produce("queue", Item(payload=b"item", lease_timeout=span(200)))
    by_queue, by_item = await queue.lease(2)
    assert 58 < by_queue.remaining_s <= 60
    assert 198 < by_item.remaining_s <= 200
    await queue.release(by_queue, by_item)
    by_call = await queue.lease(2, timeout_s=500)
    assert all(498 < item.remaining_s <= 500 for item in by_call)


async def test_items_with_different_timeouts_are_under_different_leases(make: Make):
    queue = await make()
    await queue.produce("a", "b", Item(payload=b"c", lease_timeout=span(200)))
    a, b, c = await queue.lease(3)
    assert a.lease_id == b.lease_id != c.lease_id


async def test_an_operator_sees_which_client_holds_an_item_and_until_when(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one(client="worker-7", timeout_s=60)
    [shown] = await queue.peek()
    assert (shown.lease_id, shown.client_id, shown.attempt) == (item.lease_id, "worker-7", 1)
    assert 55 < shown.deadline.ToMilliseconds() / 1000 - time.time() < 61


async def test_a_peek_leases_nothing(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.peek()
    assert await queue.counts() == {"ready": 1}
    assert (await queue.lease_one()).attempt == 1


async def test_leases_of_one_client_are_counted(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    await queue.lease(2)
    await queue.lease(1)
    assert await queue.counts("leases", "leased") == {"leases": 2, "leased": 3}


async def test_an_item_larger_than_the_reply_may_be_is_named_as_too_large(make: Make):
    queue = await make()
    await queue.produce(Item(payload=bytes(5_000)))
    assert (await refusal(queue.lease(1, max_bytes=1_000))).code == "ITEM_TOO_LARGE"
    await queue.lease(1, max_bytes=10_000)
