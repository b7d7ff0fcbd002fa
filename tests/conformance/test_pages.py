"""Peek and pages: what they show, and that pages are stable while items come and go."""

from querator.v1.items_pb2 import (
    ITEM_STATE_LEASED,
    ITEM_STATE_READY,
    ITEM_STATE_SCHEDULED,
    Item,
)
from tests.conformance.make import Make
from tests.conformance.queues import soon


async def test_a_peek_shows_items_by_partition_and_sequence(make: Make):
    queue = await make(partitions=3)
    await queue.produce(*(Item(payload=b"%d" % n, key=f"k{n}") for n in range(30)))
    shown = await queue.peek(page_size=7)
    places = [(one.partition, one.seq) for one in shown]
    assert len(places) == 30
    assert places == sorted(places)


async def test_a_peek_shows_the_item_as_it_was_produced(make: Make):
    queue = await make()
    item = Item(payload=b"\x00\xff", kind="k", attributes={"a": "b"}, reference="r", priority=3)
    await queue.produce(item)
    [shown] = await queue.peek()
    assert shown.item == item
    assert (shown.state, shown.attempt) == (ITEM_STATE_READY, 0)


async def test_a_peek_of_one_state_shows_items_in_that_state_alone(make: Make):
    queue = await make()
    await queue.produce("leased", "ready", Item(payload=b"scheduled", enqueue_at=soon(3600)))
    await queue.lease(1)
    found = {
        state: [one.item.payload.decode() for one in await queue.peek(state=state)]
        for state in (ITEM_STATE_READY, ITEM_STATE_LEASED, ITEM_STATE_SCHEDULED)
    }
    assert list(found.values()) == [["ready"], ["leased"], ["scheduled"]]


async def test_a_peek_shows_when_a_scheduled_item_is_due(make: Make):
    queue = await make()
    due = soon(3600)
    await queue.produce(Item(payload=b"a", enqueue_at=due))
    [shown] = await queue.peek()
    assert shown.due_at.ToMilliseconds() == due.ToMilliseconds()


async def test_a_peek_of_an_empty_queue_shows_nothing(make: Make):
    queue = await make()
    page = await queue.peek_page()
    assert (list(page.items), page.next_page_token) == ([], "")


async def test_a_page_has_100_items_unless_another_number_is_asked_for(make: Make):
    queue = await make()
    await queue.produce(*["x"] * 150)
    page = await queue.peek_page()
    assert len(page.items) == 100
    assert page.next_page_token
    rest = await queue.peek_page(page_token=page.next_page_token)
    assert (len(rest.items), rest.next_page_token) == (50, "")


async def test_items_that_stay_are_in_the_pages_once_while_others_come_and_go(make: Make):
    queue = await make()
    made = await queue.produce(*map(str, range(60)))
    first = await queue.peek_page(page_size=20)
    await queue.complete(*await queue.lease(10))
    await queue.cancel(*(one.id for one in made[30:35]))
    await queue.produce(*["late"] * 5)
    shown = list(first.items)
    token = first.next_page_token
    while token:
        page = await queue.peek_page(page_size=20, page_token=token)
        shown += page.items
        token = page.next_page_token
    found = [one.item.payload.decode() for one in shown]
    stay = [str(n) for n in range(60) if n not in range(30, 35)]
    assert [text for text in found if text != "late"] == stay
    assert len(set(found) - {"late"}) == len(stay)


async def test_a_token_continues_behind_an_item_that_is_gone(make: Make):
    queue = await make()
    await queue.produce(*map(str, range(10)))
    first = await queue.peek_page(page_size=4)
    await queue.complete(*await queue.lease(4))
    rest = await queue.peek_page(page_size=100, page_token=first.next_page_token)
    assert [one.item.payload for one in rest.items] == [b"%d" % n for n in range(4, 10)]


async def test_dead_letters_come_in_pages_each_once(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce(*map(str, range(25)))
    await queue.reject(*await queue.lease(25))
    letters = await queue.dead_letters(25, page_size=4)
    assert [one.item.payload.decode() for one in letters] == [str(n) for n in range(25)]


async def test_a_page_of_one_item_leads_to_all_others(make: Make):
    queue = await make()
    await queue.produce(*"abcde")
    shown = await queue.peek(page_size=1)
    assert [one.item.payload.decode() for one in shown] == list("abcde")


async def test_pages_of_large_items_are_short_and_lead_on(make: Make):
    queue = await make()
    for _ in range(5):
        await queue.produce(Item(payload=bytes(1_000_000)))
    first = await queue.peek_page(page_size=5)
    assert 0 < len(first.items) < 5
    assert len(await queue.peek(page_size=5)) == 5
