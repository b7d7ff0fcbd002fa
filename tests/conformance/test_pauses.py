"""Pauses: of the leases of a queue, of its producers, and of groups of a fair queue."""

import asyncio

from querator.v1.admin_service_pb2 import QUEUE_KIND_FAIR, GroupSettings, ListGroupsRequest
from querator.v1.items_pb2 import Item
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import DONE, Queue, refusal, soon, span, texts
from tests.conformance.stubs import answer

SHORT_S = 0.2
"""How long what must not end is left to itself."""


async def paused(make: Make, *things: str, **settings: object) -> Queue:
    queue = await make(**settings)  # type: ignore[arg-type]
    if things:
        await queue.produce(*things)
    await queue.update(lease_paused=True)
    return queue


# --- leases ----------------------------------------------------------------------------------


async def test_a_paused_queue_gives_no_items(make: Make):
    queue = await paused(make, "a", "b")
    await queue.lease_nothing()
    assert await queue.counts() == {"ready": 2}


async def test_a_pause_holds_for_all_partitions_when_the_call_returns(make: Make):
    queue = await paused(make, *map(str, range(20)), partitions=4)
    await asyncio.gather(*(queue.lease_nothing() for _ in range(4)))


async def test_a_resumed_queue_gives_its_items_in_order(make: Make):
    queue = await paused(make, "a", "b")
    await queue.produce("c")
    await queue.update(lease_paused=False)
    assert texts(await queue.lease(3)) == ["a", "b", "c"]


async def test_a_consumer_that_waits_gets_items_when_the_queue_resumes(make: Make):
    queue = await paused(make, "a")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await asyncio.sleep(SHORT_S)
        await queue.update(lease_paused=False)
    assert waiting.result().text == "a"


async def test_a_consumer_that_waited_before_the_pause_gets_nothing_in_it(make: Make):
    queue = await make()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await asyncio.sleep(SHORT_S)
        await queue.update(lease_paused=True)
        await queue.produce("a")
        await asyncio.sleep(SHORT_S)
        assert not waiting.done()
        await queue.update(lease_paused=False)
    assert waiting.result().text == "a"


async def test_producers_continue_while_leases_are_paused(make: Make):
    queue = await paused(make)
    await queue.produce("a", "b")
    assert await queue.counts() == {"ready": 2}


async def test_a_leased_item_can_be_completed_while_leases_are_paused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.update(lease_paused=True)
    assert await queue.complete(item) == [DONE]


async def test_a_lease_can_be_extended_while_leases_are_paused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one(timeout_s=5)
    await queue.update(lease_paused=True)
    [outcome] = await queue.extend(item.lease_id, timeout_s=60)
    assert outcome.deadline.ToMilliseconds() / 1000 > item.deadline_s + 10


async def test_a_retried_item_waits_until_the_queue_resumes(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.update(lease_paused=True)
    assert await queue.retry(item) == [DONE]
    await queue.lease_nothing()
    await queue.update(lease_paused=False)
    assert (await queue.lease_one()).attempt == 2


async def test_a_lease_ends_while_leases_are_paused(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.lease_one(timeout_s=1)
    await queue.update(lease_paused=True)
    await queue.until(leased=0, ready=1)
    await queue.update(lease_paused=False)
    assert (await queue.lease_one()).attempt == 2


async def test_items_become_due_while_leases_are_paused(make: Make):
    queue = await paused(make)
    await queue.produce(Item(payload=b"a", enqueue_at=soon(0.5)))
    await queue.until(ready=1, scheduled=0)
    await queue.update(lease_paused=False)
    assert (await queue.lease_one()).text == "a"


async def test_items_expire_while_leases_are_paused(make: Make):
    queue = await paused(make, expire_timeout=span(1))
    await queue.produce("a")
    await queue.until(ready=0, expired=1)


async def test_a_queue_stays_paused_with_other_partitions(make: Make):
    queue = await paused(make, "a", "b", "c")
    await queue.update(partitions=3)
    await queue.produce("d", "e", "f")
    await queue.lease_nothing()
    await queue.update(lease_paused=False)
    assert sorted(texts(await queue.lease(6))) == ["a", "b", "c", "d", "e", "f"]


async def test_a_queue_is_created_as_paused(make: Make):
    queue = await make(lease_paused=True, produce_paused=True)
    settings = (await queue.get()).settings
    assert (settings.lease_paused, settings.produce_paused) == (True, True)
    assert (await refusal(queue.produce("a"))).code == "QUEUE_PAUSED"


# --- producers -------------------------------------------------------------------------------


async def test_paused_producers_are_refused_by_name(make: Make):
    queue = await make()
    await queue.update(produce_paused=True)
    refused = await refusal(queue.produce("a", "b"))
    assert (refused.code, refused.field, refused.value) == (
        "QUEUE_PAUSED", "queue", queue.name,
    )  # fmt: skip
    assert await queue.counts() == {}


async def test_consumers_continue_while_producers_are_paused(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    await queue.update(produce_paused=True)
    assert await queue.complete(*await queue.lease(2)) == [DONE, DONE]


async def test_resumed_producers_are_accepted(make: Make):
    queue = await make()
    await queue.update(produce_paused=True)
    await refusal(queue.produce("a"))
    await queue.update(produce_paused=False)
    await queue.produce("b")
    assert (await queue.lease_one()).text == "b"


async def test_retried_items_return_while_producers_are_paused(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.update(produce_paused=True)
    await queue.retry(await queue.lease_one())
    assert (await queue.lease_one()).attempt == 2


async def test_dead_letters_arrive_while_the_producers_of_their_queue_are_paused(make: Make):
    dead = await make(produce_paused=True)
    queue = await make(dead_queue=dead.name)
    await queue.produce("a")
    await queue.reject(await queue.lease_one())
    assert (await dead.lease_one()).text == "a"


# --- groups ----------------------------------------------------------------------------------


async def fair(make: Make, *paths: str) -> Queue:
    groups = [GroupSettings(path=path, paused=True) for path in paths]
    return await make(kind=QUEUE_KIND_FAIR, groups=groups)


def of(*groups: str) -> list[Item]:
    return [Item(payload=group.encode(), group=group) for group in groups]


async def test_a_paused_group_gives_no_items_and_the_others_do(make: Make):
    queue = await fair(make, "a")
    await queue.produce(*of("a", "b", "a", "b"))
    assert texts(await queue.lease(2)) == ["b", "b"]
    await queue.lease_nothing()


async def test_groups_below_a_paused_one_are_paused(make: Make):
    queue = await fair(make, "eu")
    await queue.produce(*of("eu.de", "us.ny", "eu"))
    assert (await queue.lease_one()).text == "us.ny"
    await queue.lease_nothing()


async def test_a_consumer_that_waits_gets_items_when_a_group_resumes(make: Make):
    queue = await fair(make, "a")
    await queue.produce(*of("a"))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await asyncio.sleep(SHORT_S)
        await queue.update(groups=[])
    assert waiting.result().text == "a"


async def test_a_group_keeps_its_limit_when_it_resumes(make: Make):
    queue = await make(
        kind=QUEUE_KIND_FAIR, groups=[GroupSettings(path="a", leased_max=2, paused=True)]
    )
    await queue.produce(*of("a", "a", "a"))
    await queue.lease_nothing()
    await queue.update(groups=[GroupSettings(path="a", leased_max=2)])
    await queue.lease(2)
    await queue.lease_nothing()


async def test_the_list_of_groups_says_which_are_paused(make: Make):
    queue = await fair(make, "a")
    await queue.produce(*of("a", "b"))
    request = ListGroupsRequest(queue=queue.name)
    reply = await answer(make.nodes[0].admin.ListGroups(request, timeout=CALL_S))
    assert {one.group: one.paused for one in reply.groups} == {"": False, "a": True, "b": False}
