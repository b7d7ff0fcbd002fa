"""Priorities and aging: the lowest number first, and what changes it."""

from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import refusal, soon, span, texts


def item(text: str, priority: int = 0, **fields: object) -> Item:
    return Item(payload=text.encode(), priority=priority, **fields)  # type: ignore[arg-type]


async def test_the_lowest_priority_is_leased_first(make: Make):
    queue = await make()
    await queue.produce(item("c", 10), item("a", -10), item("b"))
    leased = await queue.lease(3)
    assert [(one.text, one.priority) for one in leased] == [("a", -10), ("b", 0), ("c", 10)]


async def test_items_of_one_priority_are_leased_in_the_order_of_their_produces(make: Make):
    queue = await make()
    for text in "abc":
        await queue.produce(item(f"{text} high", -1), item(f"{text} low", 1))
    assert texts(await queue.lease(6)) == ["a high", "b high", "c high", "a low", "b low", "c low"]


async def test_an_urgent_item_passes_items_that_wait(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    assert texts(await queue.lease(1)) == ["a"]
    await queue.produce(item("urgent", -1))
    assert texts(await queue.lease(2)) == ["urgent", "b"]


async def test_priorities_reach_from_the_least_to_the_greatest_number_of_32_bits(make: Make):
    queue = await make()
    numbers = [2**31 - 1, 0, -(2**31), 1, -1]
    await queue.produce(*(item(str(number), number) for number in numbers))
    assert [one.priority for one in await queue.lease(5)] == sorted(numbers)


async def test_each_of_many_priorities_has_its_place(make: Make):
    queue = await make()
    numbers = [(n * 7919) % 300 - 150 for n in range(300)]
    await queue.produce(*(item(str(number), number) for number in numbers))
    assert [one.priority for one in await queue.lease(300)] == sorted(numbers)


async def test_a_scheduled_item_takes_its_place_by_priority_when_it_is_due(make: Make):
    queue = await make()
    await queue.produce(item("later", -1, enqueue_at=soon(0.3)), item("ready"))
    await queue.until(ready=2)
    assert texts(await queue.lease(2)) == ["later", "ready"]


async def test_a_released_item_keeps_its_priority_and_place(make: Make):
    queue = await make()
    await queue.produce(item("a", 5), item("b", 5))
    await queue.release(await queue.lease_one())
    again = await queue.lease(2)
    assert [(one.text, one.priority) for one in again] == [("a", 5), ("b", 5)]


async def test_a_lapsed_item_goes_to_the_tail_of_its_priority(make: Make):
    queue = await make()
    await queue.produce(item("a", -5), item("b", -5), item("c"))
    await queue.lease(1, timeout_s=1)
    await queue.until(ready=3)
    assert texts(await queue.lease(3)) == ["b", "a", "c"]


async def test_a_dead_letter_keeps_its_priority_and_gets_it_back_by_a_redrive(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce(item("a", 3))
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    [letter] = await dead.peek()
    assert letter.priority == 3
    await queue.redrive()
    assert (await queue.lease_one()).priority == 3


# -- changed by an operator


async def test_an_operator_moves_waiting_items_to_the_tail_of_another_priority(make: Make):
    queue = await make()
    made = await queue.produce(*"abcde")
    done = await queue.prioritize(made[3].id, made[1].id, priority=-1)
    assert (done.changed, list(done.not_waiting)) == (2, [])
    assert texts(await queue.lease(5)) == ["b", "d", "a", "c", "e"]


async def test_a_change_of_priority_that_is_repeated_changes_nothing(make: Make):
    queue = await make()
    made = await queue.produce("a", "b")
    await queue.prioritize(made[0].id, priority=4)
    assert (await queue.prioritize(made[0].id, priority=4)).changed == 0
    assert texts(await queue.lease(2)) == ["b", "a"]


async def test_a_leased_or_gone_item_gets_no_priority_and_is_named(make: Make):
    queue = await make()
    gone, leased, waits = await queue.produce("gone", "leased", "waits")
    await queue.complete(await queue.lease_one())
    await queue.lease(1)
    done = await queue.prioritize(gone.id, leased.id, waits.id, "0-999", priority=1)
    assert done.changed == 1
    assert sorted(done.not_waiting) == sorted([gone.id, leased.id, "0-999"])


async def test_a_scheduled_item_may_get_another_priority(make: Make):
    queue = await make()
    [made] = await queue.produce(item("a", enqueue_at=soon(3600)))
    assert (await queue.prioritize(made.id, priority=-9)).changed == 1
    assert await queue.counts() == {"scheduled": 1}
    await queue.reschedule(made.id, run_now=True)
    assert (await queue.lease_one()).priority == -9


async def test_a_peek_shows_the_priority_now_and_the_item_the_one_of_its_producer(make: Make):
    queue = await make()
    [made] = await queue.produce(item("a", 2))
    await queue.prioritize(made.id, priority=8)
    [shown] = await queue.peek()
    assert (shown.priority, shown.item.priority) == (8, 2)


async def test_a_change_of_no_items_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.prioritize(priority=1))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "item_ids")


async def test_a_change_of_more_than_1000_items_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.prioritize(*["0-1"] * 1_001, priority=1))
    assert said.facts == ("LIMIT_EXCEEDED", "item_ids", "1000 items", "1001 items")


async def test_an_id_that_is_none_is_refused_by_its_place(make: Make):
    queue = await make()
    said = await refusal(queue.prioritize("0-1", "one", priority=1))
    assert (said.code, said.field, said.value) == ("INVALID_ARGUMENT", "item_ids[1]", "one")


# -- aging


async def test_a_waiting_item_gains_priority_with_time_where_the_queue_says_so(make: Make):
    queue = await make(priority_aging=span(1))
    await queue.produce(item("old", 2), item("later", 1, enqueue_at=soon(2.2)))
    await queue.until(ready=2)
    assert texts(await queue.lease(2)) == ["old", "later"]


async def test_without_aging_a_waiting_item_gains_nothing(make: Make):
    queue = await make()
    await queue.produce(item("old", 2), item("later", 1, enqueue_at=soon(2.2)))
    await queue.until(ready=2)
    assert texts(await queue.lease(2)) == ["later", "old"]


async def test_an_aged_item_shows_the_priority_of_its_producer(make: Make):
    queue = await make(priority_aging=span(1))
    await queue.produce(item("old", 2), item("later", 0, enqueue_at=soon(2.2)))
    await queue.until(ready=2)
    leased = await queue.lease(2)
    assert {one.text: one.priority for one in leased} == {"old": 2, "later": 0}


async def test_an_interval_of_aging_below_a_second_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.update(priority_aging=span(0.999)))
    assert said.facts == ("LIMIT_EXCEEDED", "settings.priority_aging", "1000 ms", "999 ms")
