"""Retry: now, later, dead, with a priority, with attributes, and with words."""

import time

from querator.v1.items_pb2 import DEAD_REASON_REJECTED, Item
from tests.conformance.make import Make
from tests.conformance.queues import DONE, LOST, REPEATED, instant, refusal, soon, texts


async def test_a_retried_item_comes_back_at_the_tail(make: Make):
    queue = await make()
    await queue.produce(*"ABC")
    assert await queue.retry(await queue.lease_one()) == [DONE]
    assert texts(await queue.lease(3)) == ["B", "C", "A"]


async def test_a_retry_counts_an_attempt(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.retry(await queue.lease_one())
    assert (await queue.lease_one()).attempt == 2
    assert (await queue.stats()).retried == 1


async def test_items_that_are_retried_together_come_back_in_their_order(make: Make):
    queue = await make()
    await queue.produce(*"abcd")
    a, b, c, d = await queue.lease(4)
    await queue.retry(c, a, d)
    await queue.retry(b)
    assert texts(await queue.lease(4)) == ["a", "c", "d", "b"]


async def test_a_retry_repeated_is_answered_as_a_repeat_and_counted_once(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    assert await queue.retry(item) == [DONE]
    assert await queue.retry(item) == [REPEATED]
    assert (await queue.stats()).retried == 1
    assert (await queue.lease_one()).attempt == 2


async def test_a_retry_that_is_repeated_after_the_next_lease_does_not_end_that_one(make: Make):
    queue = await make()
    await queue.produce("a")
    first = await queue.lease_one()
    await queue.retry(first)
    second = await queue.lease_one()
    assert await queue.retry(first) == [REPEATED]
    assert await queue.complete(second) == [DONE]


async def test_a_retry_for_later_is_not_leased_before_its_time(make: Make):
    queue = await make()
    await queue.produce("a")
    due = soon(0.5)
    assert await queue.retry(await queue.lease_one(), at=due) == [DONE]
    item = await queue.lease_one()
    assert time.time() >= due.ToMilliseconds() / 1000
    assert (item.text, item.attempt) == ("a", 2)


async def test_a_retry_for_a_time_in_the_past_comes_back_at_once(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.retry(await queue.lease_one(), at=soon(-3600))
    assert await queue.counts() == {"ready": 1}


async def test_a_retry_for_more_than_ten_years_ahead_is_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    said = await refusal(queue.retry(item, at=instant(253_402_300_799)))
    assert (said.code, said.field) == ("LIMIT_EXCEEDED", "retry_at")
    assert said.limit == "315360000000 ms ahead"
    assert await queue.complete(item) == [DONE]


async def test_a_later_retry_after_a_retry_is_another_operation(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.retry(item)
    assert await queue.retry(item, at=soon(60)) == [LOST]
    assert await queue.counts() == {"ready": 1}


# -- words


async def test_the_words_of_a_retry_come_with_the_next_lease(make: Make):
    queue = await make()
    await queue.produce("a", "b")
    a, b = await queue.lease(2)
    await queue.retry(a, error="mailbox busy")
    await queue.retry(b)
    again, other = await queue.lease(2)
    assert again.errors == ("mailbox busy",)
    assert other.errors == ()


async def test_the_words_of_the_last_five_retries_are_kept_the_newest_last(make: Make):
    queue = await make()
    await queue.produce("a")
    for number in range(7):
        await queue.retry(await queue.lease_one(), error=f"failure {number}")
    kept = tuple(f"failure {number}" for number in range(2, 7))
    [shown] = await queue.peek()
    assert tuple(shown.errors) == kept
    assert (await queue.lease_one()).errors == kept


async def test_a_lapse_leaves_no_words(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.retry(await queue.lease_one(), error="first")
    await queue.lease(1, timeout_s=1)
    assert (await queue.lease_one()).errors == ("first",)


async def test_words_of_more_than_1000_characters_are_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    said = await refusal(queue.retry(item, error="ü" * 1_001))
    assert said.facts == ("LIMIT_EXCEEDED", "error", "1000 characters", "1001 characters")
    assert await queue.retry(item, error="ü" * 1_000) == [DONE]
    assert (await queue.lease_one()).errors == ("ü" * 1_000,)


# -- attributes


async def test_the_attributes_of_a_retry_take_the_place_of_all_the_item_had(make: Make):
    queue = await make()
    await queue.produce(Item(payload=b"a", attributes={"kept": "no", "page": "1"}))
    await queue.retry(await queue.lease_one(), attributes={"page": "7"})
    again = await queue.lease_one()
    assert again.attributes == {"page": "7"}
    assert dict(again.item.attributes) == {"kept": "no", "page": "1"}


async def test_a_retry_without_attributes_leaves_those_of_the_retry_before(make: Make):
    queue = await make()
    await queue.produce(Item(payload=b"a", attributes={"page": "1"}))
    await queue.retry(await queue.lease_one(), attributes={"page": "7"})
    await queue.retry(await queue.lease_one())
    assert (await queue.lease_one()).attributes == {"page": "7"}


async def test_the_attributes_of_the_last_of_several_retries_hold(make: Make):
    queue = await make()
    await queue.produce("a")
    for page in ("1", "2", "3"):
        await queue.retry(await queue.lease_one(), attributes={"page": page})
    assert (await queue.lease_one()).attributes == {"page": "3"}


async def test_a_retry_may_remove_all_attributes(make: Make):
    queue = await make()
    await queue.produce(Item(payload=b"a", attributes={"page": "1"}))
    await queue.retry(await queue.lease_one(), attributes={})
    assert (await queue.lease_one()).attributes == {}


async def test_a_peek_shows_the_attributes_of_a_retry(make: Make):
    queue = await make()
    await queue.produce(Item(payload=b"a", attributes={"page": "1"}))
    await queue.retry(await queue.lease_one(), attributes={"page": "7"})
    [shown] = await queue.peek()
    assert dict(shown.attributes.values) == {"page": "7"}


async def test_only_the_retried_items_get_the_attributes(make: Make):
    queue = await make()
    await queue.produce(*(Item(payload=b"%d" % n, attributes={"n": str(n)}) for n in range(3)))
    _, b, _ = items = await queue.lease(3)
    await queue.retry(b, attributes={"n": "changed"})
    await queue.release(items[0], items[2])
    assert [one.attributes["n"] for one in await queue.lease(3)] == ["0", "2", "changed"]


async def test_attributes_of_more_than_8_kib_are_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    said = await refusal(queue.retry(item, attributes={"a": "x" * 8_192}))
    assert said.facts == ("LIMIT_EXCEEDED", "attributes", "8192 bytes", "8193 bytes")
    assert await queue.retry(item, attributes={"a": "x" * 8_191}) == [DONE]


async def test_more_than_64_attributes_are_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    said = await refusal(queue.retry(item, attributes={str(n): "" for n in range(65)}))
    assert said.facts == ("LIMIT_EXCEEDED", "attributes", "64 attributes", "65 attributes")
    assert await queue.counts() == {"leased": 1}


# -- with a priority


async def test_a_retry_may_give_another_priority(make: Make):
    queue = await make()
    await queue.produce("a", "b", "c")
    a, b, c = await queue.lease(3)
    await queue.retry(a, priority=5)
    await queue.retry(b)
    await queue.retry(c, priority=-5)
    again = await queue.lease(3)
    assert [(one.text, one.priority) for one in again] == [("c", -5), ("b", 0), ("a", 5)]
    assert [one.item.priority for one in again] == [0, 0, 0]


async def test_a_retry_without_a_priority_leaves_the_one_that_the_item_has(make: Make):
    queue = await make()
    await queue.produce(Item(payload=b"a", priority=7))
    await queue.retry(await queue.lease_one())
    assert (await queue.lease_one()).priority == 7


async def test_the_priority_of_a_retry_for_later_holds_when_it_is_due(make: Make):
    queue = await make()
    await queue.produce("later")
    await queue.retry(await queue.lease_one(), at=soon(0.3), priority=-1)
    await queue.produce("ready")
    await queue.until(ready=2)
    assert texts(await queue.lease(2)) == ["later", "ready"]


async def test_a_retry_with_a_priority_after_one_without_is_another_operation(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.retry(item)
    assert await queue.retry(item, priority=3) == [LOST]
    assert (await queue.lease_one()).priority == 0


# -- dead


async def test_a_rejected_item_goes_to_the_dead_queue_with_its_reason_and_words(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce("a")
    assert await queue.reject(await queue.lease_one(), error="no such address") == [DONE]
    item = await dead.lease_one()
    assert item.text == "a"
    assert item.dead is not None
    assert item.dead.reason == DEAD_REASON_REJECTED
    assert list(item.dead.errors) == ["no such address"]
    assert (item.dead.origin_queue, item.dead.attempts) == (queue.name, 1)


async def test_a_reject_repeated_is_answered_as_a_repeat_and_makes_one_letter(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce("a")
    item = await queue.lease_one()
    assert await queue.reject(item) == [DONE]
    assert await queue.reject(item) == [REPEATED]
    await queue.dead_letters(1)
    assert (await queue.stats()).dead == 1


async def test_a_reject_with_a_time_is_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    said = await refusal(queue.retry(item, dead=True, at=soon(60)))
    assert said.code == "INVALID_ARGUMENT"
    assert await queue.complete(item) == [DONE]
