"""Expiry: items that are not leased in time die."""

import time

from querator.v1.items_pb2 import DEAD_REASON_EXPIRED, Item
from tests.conformance.make import Make
from tests.conformance.queues import DONE, refusal, soon, span, texts


def short(text: str, seconds: float = 0.3, **fields: object) -> Item:
    return Item(payload=text.encode(), expire_timeout=span(seconds), **fields)  # type: ignore[arg-type]


async def test_an_item_that_is_not_leased_in_time_dies(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce(short("a"))
    letter = await dead.lease_one()
    assert letter.text == "a"
    assert letter.dead is not None
    assert letter.dead.reason == DEAD_REASON_EXPIRED
    assert await queue.counts("ready", "expired", "dead") == {"ready": 0, "expired": 1, "dead": 1}


async def test_items_die_without_any_consumer(make: Make):
    queue = await make(dead_queue="", expire_timeout=span(0.3))
    await queue.produce("a", "b", "c")
    await queue.until(expired=3, dropped=3, ready=0)
    assert await queue.peek() == []


async def test_an_item_is_leased_until_it_expires(make: Make):
    queue = await make()
    await queue.produce(short("a", 30))
    assert texts(await queue.lease(1)) == ["a"]


async def test_an_item_does_not_die_before_its_age(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(short("a", 4))
    await queue.retry(await queue.lease_one(), at=soon(3.2))
    assert (await queue.lease_one()).attempt == 2


async def test_an_expiry_does_not_cut_a_lease(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(short("a"))
    item = await queue.lease_one()
    await queue.elapse(1.6)
    assert await queue.counts("leased", "dead") == {"leased": 1, "dead": 0}
    assert await queue.complete(item) == [DONE]


async def test_an_item_that_expired_under_a_lease_dies_when_it_is_retried(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(short("a"))
    item = await queue.lease_one()
    await queue.elapse(1.6)
    assert await queue.retry(item) == [DONE]
    await queue.until(ready=0, expired=1, dead=1)


async def test_an_item_that_expired_under_a_lease_dies_when_it_is_released(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(short("a"))
    item = await queue.lease_one()
    await queue.elapse(1.6)
    assert await queue.release(item) == [DONE]
    await queue.until(ready=0, expired=1, dead=1)


async def test_an_item_that_waits_for_its_retry_dies_at_its_age(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(short("a"))
    await queue.retry(await queue.lease_one(), at=soon(3600))
    await queue.until(scheduled=0, expired=1)
    assert await queue.counts() == {}


async def test_the_age_of_a_scheduled_item_counts_from_its_time(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(short("a", 30, enqueue_at=soon(1.5)), short("b", 0.1))
    await queue.until(expired=1)
    assert texts(await queue.lease(1)) == ["a"]


async def test_a_retry_does_not_begin_the_age_again(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(short("a", 1))
    began_s = time.monotonic()
    for _ in range(3):
        await queue.retry(await queue.lease_one(), at=soon(0.15))
    await queue.until(expired=1)
    assert time.monotonic() - began_s < 10


async def test_the_expiry_of_an_item_shortens_that_of_its_queue(make: Make):
    queue = await make(dead_queue="", expire_timeout=span(3600))
    await queue.produce(short("short"), "long")
    await queue.until(expired=1)
    assert texts(await queue.lease(1)) == ["long"]


async def test_the_expiry_of_an_item_does_not_lengthen_that_of_its_queue(make: Make):
    queue = await make(dead_queue="", expire_timeout=span(0.3))
    await queue.produce(short("long", 3600))
    await queue.until(expired=1)
    assert await queue.counts() == {}


async def test_items_without_an_expiry_stay(make: Make):
    queue = await make(dead_queue="")
    await queue.produce("stays", short("goes"))
    await queue.until(expired=1)
    assert await queue.counts() == {"ready": 1}


async def test_a_changed_expiry_of_a_queue_holds_for_later_items(make: Make):
    queue = await make(dead_queue="")
    await queue.produce("before")
    await queue.update(expire_timeout=span(0.3))
    await queue.produce("after")
    await queue.until(expired=1)
    assert texts(await queue.lease(1)) == ["before"]


async def test_an_expiry_moves_with_the_time_of_a_scheduled_item(make: Make):
    queue = await make(dead_queue="")
    [made] = await queue.produce(short("a", 0.3, enqueue_at=soon(3600)))
    await queue.reschedule(made.id, due_at=soon(0.2))
    await queue.until(expired=1, scheduled=0, ready=0)
    assert (await queue.stats()).dead == 1


async def test_an_expired_item_is_no_duplicate_barrier_for_others(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(short("a"))
    await queue.until(expired=1)
    await queue.produce("b")
    assert texts(await queue.lease(1)) == ["b"]


async def test_an_expiry_of_more_than_ten_years_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(short("a", 11 * 365 * 86_400)))
    assert said.facts == (
        "LIMIT_EXCEEDED", "items[0].expire_timeout", "315360000000 ms", "346896000000 ms",
    )  # fmt: skip
    assert await queue.counts() == {}


async def test_a_negative_expiry_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.produce(short("a", -1)))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "items[0].expire_timeout")
