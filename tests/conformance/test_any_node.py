"""Three nodes: every call works through every node, whichever leads."""

import asyncio

import pytest

from querator.v1 import queue_service_pb2 as pb
from querator.v1.items_pb2 import Item
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import DONE, REPEATED, Queue, refusal, soon, texts
from tests.conformance.stubs import answer

pytestmark = pytest.mark.sizes(3)


async def leader_of(make: Make, queue: Queue) -> str:
    """The address of the node that leads the first partition, once its leader is known."""
    request = pb.GetRoutingRequest(queue=queue.name)
    async with asyncio.timeout(CALL_S):
        while True:
            known = await answer(make.nodes[0].queue.GetRouting(request, timeout=CALL_S))
            if known.leaders[0]:
                break
            await asyncio.sleep(0.05)
    return {node.name: node.client_address for node in known.nodes}[known.leaders[0]]


async def through_all(make: Make, queue: Queue) -> list[Queue]:
    """The queue through each node, the one that leads first."""
    leads = await leader_of(make, queue)
    numbers = sorted(range(3), key=lambda number: make.nodes[number].address != leads)
    return [queue.through(make.open(number), make.nodes[number]) for number in numbers]


async def test_a_queue_that_was_created_through_one_node_is_known_to_all(make: Make):
    queue = await make()
    for number, one in enumerate(await through_all(make, queue)):
        assert (await one.get()).name == queue.name
        await one.produce(str(number))
    assert await queue.counts() == {"ready": 3}


async def test_items_that_are_produced_through_all_nodes_come_in_the_order_of_the_answers(
    make: Make,
):
    queue = await make()
    ways = await through_all(make, queue)
    for number in range(12):
        await ways[number % 3].produce(str(number))
    assert texts(await queue.lease(12)) == [str(number) for number in range(12)]


async def test_a_node_that_does_not_lead_leases_what_another_one_stored(make: Make):
    queue = await make()
    leader, first, second = await through_all(make, queue)
    await leader.produce("a", "b")
    assert texts(await first.lease(1)) == ["a"]
    assert texts(await second.lease(1)) == ["b"]


async def test_a_caller_that_waits_at_one_node_gets_what_another_one_stores(make: Make):
    queue = await make()
    _leader, first, second = await through_all(make, queue)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(first.lease_one())
        await second.produce("a")
    assert waiting.result().text == "a"


async def test_callers_that_wait_at_all_nodes_get_an_item_each(make: Make):
    queue = await make()
    ways = await through_all(make, queue)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(way.lease_one()) for way in ways]
        await queue.produce(*"abc")
    assert sorted(one.result().text for one in waiting) == list("abc")


async def test_a_lease_of_one_node_is_completed_through_another(make: Make):
    queue = await make()
    ways = await through_all(make, queue)
    await queue.produce(*"abc")
    for number, way in enumerate(ways):
        item = await way.lease_one()
        assert await ways[number - 1].complete(item) == [DONE]
        assert await ways[number - 2].complete(item) == [REPEATED]
    assert await queue.counts() == {}


async def test_a_lease_of_one_node_is_retried_through_another(make: Make):
    queue = await make()
    leader, first, second = await through_all(make, queue)
    await queue.produce("a")
    assert await second.retry(await first.lease_one(), error="busy") == [DONE]
    again = await leader.lease_one()
    assert (again.attempt, again.errors) == (2, ("busy",))


async def test_a_lease_of_one_node_is_extended_through_another(make: Make):
    queue = await make()
    _leader, first, second = await through_all(make, queue)
    await queue.produce("a")
    item = await first.lease_one(timeout_s=5)
    [outcome] = await second.extend(item.lease_id, timeout_s=300)
    assert outcome.lease_remaining.seconds > 290


async def test_all_leases_of_a_client_are_extended_through_any_node(make: Make):
    queue = await make(partitions=3)
    ways = await through_all(make, queue)
    await queue.produce(*(Item(payload=b"x", key=f"k{n}") for n in range(12)))
    held = {item.lease_id for way in ways for item in await way.lease(4, client="mine")}
    outcomes = await ways[1].extend(client="mine", timeout_s=300)
    assert {one.lease_id for one in outcomes} == held
    assert all(one.lease_remaining.seconds > 290 for one in outcomes)


async def test_a_producer_that_repeats_through_another_node_stores_nothing_twice(make: Make):
    queue = await make(partitions=3)
    ways = await through_all(make, queue)
    me = make.producer()
    for number in range(1, 7):
        answers = [await way.produce("x", producer_id=me, sequence=number) for way in ways]
        assert len({one.id for [one] in answers}) == 1
    assert (await queue.stats()).ready == 6


async def test_a_dedup_key_is_known_to_all_nodes(make: Make):
    queue = await make(partitions=3)
    ways = await through_all(make, queue)
    made = [(await way.produce(Item(payload=b"x", dedup_key="k")))[0] for way in ways]
    assert [one.duplicate for one in made] == [False, True, True]


async def test_all_nodes_show_what_was_acknowledged_through_one(make: Make):
    queue = await make()
    ways = await through_all(make, queue)
    for number in range(9):
        await ways[number % 3].produce("x")
        assert [(await way.stats()).produced for way in ways] == [number + 1] * 3


async def test_all_nodes_peek_the_same(make: Make):
    queue = await make(partitions=2)
    await queue.produce(*(Item(payload=b"%d" % n, key=f"k{n}") for n in range(20)))
    ways = await through_all(make, queue)
    shown = [[(one.partition, one.seq) for one in await way.peek()] for way in ways]
    assert len(shown[0]) == 20
    assert shown[0] == shown[1] == shown[2]


async def test_an_operator_works_through_any_node(make: Make):
    queue = await make()
    ways = await through_all(make, queue)
    for way in ways:
        first, second, third = await queue.produce(
            "a", "b", Item(payload=b"c", enqueue_at=soon(3600))
        )
        assert (await way.prioritize(second.id, priority=-1)).changed == 1
        assert (await way.cancel(first.id)).cancelled == 1
        assert (await way.reschedule(third.id, run_now=True)).changed == 1
        assert (await way.purge()).removed == 2
    assert await queue.counts() == {}


async def test_settings_that_are_changed_through_one_node_hold_at_all(make: Make):
    queue = await make()
    ways = await through_all(make, queue)
    for number, way in enumerate(ways):
        await way.update(partition_items_max=number + 1)
        await ways[number - 1].produce("x")
        assert (await ways[number - 2].get()).settings.partition_items_max == number + 1
    assert await queue.counts() == {"ready": 3}


async def test_dead_letters_are_redriven_through_any_node(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    ways = await through_all(make, queue)
    await queue.produce("a")
    for way in ways:
        await way.reject(await way.lease_one())
        await way.dead_letters(1)
        assert await way.redrive() == 1
    assert texts(await queue.lease(1)) == ["a"]


async def test_a_deleted_queue_is_gone_at_all_nodes(make: Make):
    queue = await make()
    ways = await through_all(make, queue)
    await ways[1].delete()
    for way in ways:
        said = await refusal(way.produce("a"))
        assert said.code in ("QUEUE_NOT_FOUND", "QUEUE_DELETING")


async def test_a_delete_through_one_node_ends_the_calls_that_wait_at_others(make: Make):
    queue = await make()
    ways = await through_all(make, queue)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(refusal(way.lease_one())) for way in ways]
        await ways[2].delete()
    assert {one.result().code for one in waiting} <= {"QUEUE_DELETING", "QUEUE_NOT_FOUND"}


async def test_the_answer_names_the_leader_when_another_node_was_asked(make: Make):
    queue = await make()
    leads = await leader_of(make, queue)
    named = [
        (await way.produce_reply("x")).leader_address for way in await through_all(make, queue)
    ]
    assert named == ["", leads, leads]
