"""The end of a lease: lapse, extend, release, and the attempts of an item."""

import time

from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import DONE, LOST, REPEATED, soon, span, texts


async def test_an_item_comes_back_when_its_lease_lapses(make: Make):
    queue = await make(lease_timeout=span(1))
    await queue.produce("a")
    first = await queue.lease_one(client="silent")
    again = await queue.lease_one(client="other")
    assert (again.text, again.attempt) == ("a", 2)
    assert again.lease_id != first.lease_id


async def test_a_lease_does_not_lapse_before_its_time(make: Make):
    queue = await make()
    await queue.elapse(2)  # No lease lapses in the first two seconds of a leader.
    await queue.produce("a")
    began_s = time.monotonic()
    await queue.lease(1, client="silent", timeout_s=2)
    await queue.lease(1, client="other")
    assert time.monotonic() - began_s >= 1.5


async def test_a_complete_after_the_lapse_is_refused_as_lost(make: Make):
    queue = await make(lease_timeout=span(1))
    await queue.produce("a")
    late = await queue.lease_one(client="slow")
    await queue.lease_one(client="other", timeout_s=60)
    assert await queue.complete(late) == [LOST]
    assert await queue.counts() == {"leased": 1}


async def test_a_retry_after_the_lapse_is_refused_as_lost(make: Make):
    queue = await make(lease_timeout=span(1))
    await queue.produce("a")
    late = await queue.lease_one(client="slow")
    await queue.lease_one(client="other", timeout_s=60)
    assert await queue.retry(late, error="too late") == [LOST]
    assert await queue.counts("leased", "retried") == {"leased": 1, "retried": 0}


async def test_an_extend_after_the_lapse_is_refused_as_lost(make: Make):
    queue = await make(lease_timeout=span(1))
    await queue.produce("a")
    late = await queue.lease_one(client="slow")
    await queue.lease_one(client="other", timeout_s=60)
    [outcome] = await queue.extend(late.lease_id)
    assert outcome.error == 8  # LEASE_LOST
    assert not outcome.HasField("deadline")


async def test_a_lapse_puts_the_item_to_the_tail(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.lease(1, client="silent", timeout_s=1)
    await queue.produce("b")
    await queue.until(ready=2)
    assert texts(await queue.lease(2)) == ["b", "a"]


async def test_a_lapse_is_counted(make: Make):
    queue = await make(lease_timeout=span(1))
    await queue.produce("a", "b")
    await queue.lease(2)
    await queue.until(ready=2, lapsed=2)
    assert await queue.counts("delivered", "released", "retried") == {
        "delivered": 2, "released": 0, "retried": 0,
    }  # fmt: skip


async def test_all_items_of_a_lapsed_lease_come_back_in_their_order(make: Make):
    queue = await make(lease_timeout=span(1))
    await queue.produce(*"abcde")
    await queue.lease(5, client="silent")
    assert texts(await queue.lease(5, client="other", timeout_s=60)) == list("abcde")


async def test_items_that_were_completed_do_not_lapse_with_the_rest_of_their_lease(make: Make):
    queue = await make(lease_timeout=span(1))
    await queue.produce(*"abc")
    _a, b, _c = await queue.lease(3)
    await queue.complete(b)
    await queue.until(ready=2, lapsed=2)
    assert texts(await queue.lease(2)) == ["a", "c"]


async def test_the_shorter_of_two_timeouts_lapses_alone(make: Make):
    queue = await make()
    await queue.produce(Item(payload=b"short", lease_timeout=span(1)), "long")
    await queue.lease(2)
    await queue.until(ready=1)
    assert await queue.counts("ready", "leased") == {"ready": 1, "leased": 1}
    assert texts(await queue.lease(1)) == ["short"]


# -- extend


async def test_an_extended_lease_outlives_its_first_deadline(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one(timeout_s=1)
    [outcome] = await queue.extend(item.lease_id, timeout_s=60)
    assert 58 < outcome.lease_remaining.ToMilliseconds() / 1000 <= 60
    await queue.elapse(3)
    assert await queue.counts("lapsed", "leased") == {"lapsed": 0, "leased": 1}
    assert await queue.complete(item) == [DONE]


async def test_an_extend_never_shortens_a_lease(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one(timeout_s=100)
    [outcome] = await queue.extend(item.lease_id, timeout_s=5)
    assert outcome.lease_remaining.ToMilliseconds() / 1000 > 90
    [shown] = await queue.peek()
    assert shown.deadline.ToMilliseconds() / 1000 > time.time() + 90


async def test_an_extend_without_a_time_gives_the_timeout_of_the_queue(make: Make):
    queue = await make(lease_timeout=span(200))
    await queue.produce("a")
    item = await queue.lease_one(timeout_s=5)
    [outcome] = await queue.extend(item.lease_id)
    assert 198 < outcome.lease_remaining.ToMilliseconds() / 1000 <= 200


async def test_an_extend_without_a_time_gives_an_item_its_own_timeout(make: Make):
    queue = await make(lease_timeout=span(200))
    await queue.produce(Item(payload=b"a", lease_timeout=span(400)))
    item = await queue.lease_one()
    [outcome] = await queue.extend(item.lease_id)
    assert 398 < outcome.lease_remaining.ToMilliseconds() / 1000 <= 400


async def test_an_extend_of_a_client_extends_all_its_leases_and_no_others(make: Make):
    queue = await make(partitions=2)
    await queue.produce("a", "b")
    await queue.produce("c", "d")
    mine = await queue.lease(2, client="mine") + await queue.lease(1, client="mine")
    await queue.lease(1, client="other")
    outcomes = await queue.extend(client="mine", timeout_s=500)
    assert {one.lease_id for one in outcomes} == {item.lease_id for item in mine}
    ends = {
        one.client_id: one.deadline.ToMilliseconds() / 1000 - time.time()
        for one in await queue.peek()
    }
    assert ends["mine"] > 450
    assert ends["other"] < 60


async def test_an_extend_answers_for_each_lease_in_the_order_of_the_request(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    a, b, c = [await queue.lease_one() for _ in range(3)]
    await queue.complete(b)
    outcomes = await queue.extend(c.lease_id, b.lease_id, a.lease_id, timeout_s=60)
    assert [one.lease_id for one in outcomes] == [c.lease_id, b.lease_id, a.lease_id]
    assert [one.error for one in outcomes] == [0, 8, 0]


async def test_an_extend_may_be_repeated(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one(timeout_s=5)
    for _ in range(3):
        [outcome] = await queue.extend(item.lease_id, timeout_s=60)
        assert 58 < outcome.lease_remaining.ToMilliseconds() / 1000 <= 60
    assert await queue.complete(item) == [DONE]


async def test_an_extend_counts_no_attempt(make: Make):
    queue = await make(max_attempts=1)
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.extend(item.lease_id, timeout_s=60)
    [shown] = await queue.peek()
    assert shown.attempt == 1


# -- release


async def test_a_released_item_returns_to_its_place_with_its_attempt_given_back(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    item = await queue.lease_one()
    assert await queue.release(item) == [DONE]
    again = await queue.lease(3)
    assert texts(again) == ["a", "b", "c"]
    assert [one.attempt for one in again] == [1, 1, 1]


async def test_items_that_are_released_in_another_order_return_to_their_places(make: Make):
    queue = await make()
    await queue.produce(*"abcd")
    a, b, c = await queue.lease(3)
    await queue.release(c)
    await queue.release(a)
    await queue.release(b)
    assert texts(await queue.lease(4)) == ["a", "b", "c", "d"]


async def test_a_release_repeated_is_answered_as_a_repeat(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    assert await queue.release(item) == [DONE]
    assert await queue.release(item) == [REPEATED]
    assert await queue.counts("ready", "released") == {"ready": 1, "released": 1}


async def test_a_complete_after_a_release_is_refused_as_lost(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.release(item)
    assert await queue.complete(item) == [LOST]
    assert await queue.counts() == {"ready": 1}


async def test_a_reject_after_a_release_is_refused_as_lost(make: Make):
    queue = await make()
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.release(item)
    assert await queue.reject(item) == [LOST]
    assert await queue.counts() == {"ready": 1}


async def test_a_released_item_never_dies_of_releases(make: Make):
    queue = await make(max_attempts=1)
    await queue.produce("a")
    for _ in range(102):
        assert await queue.release(await queue.lease_one()) == [DONE]
    assert await queue.counts("ready", "dead") == {"ready": 1, "dead": 0}


async def test_a_release_for_later_gives_the_attempt_back(make: Make):
    queue = await make()
    await queue.produce("a")
    due = soon(0.4)
    await queue.release(await queue.lease_one(), at=due)
    again = await queue.lease_one()
    assert again.attempt == 1
    assert time.time() >= due.ToMilliseconds() / 1000


# -- attempts


async def test_an_item_is_leased_as_often_as_its_queue_allows_and_then_dies(make: Make):
    queue = await make(max_attempts=3, dead_queue="")
    await queue.produce("a")
    for attempt in (1, 2, 3):
        item = await queue.lease_one()
        assert item.attempt == attempt
        await queue.retry(item)
    assert await queue.counts("ready", "leased", "dead", "dropped") == {
        "ready": 0, "leased": 0, "dead": 1, "dropped": 1,
    }  # fmt: skip


async def test_lapses_count_as_attempts(make: Make):
    queue = await make(max_attempts=2, dead_queue="", lease_timeout=span(1))
    await queue.produce("a")
    await queue.lease(1)
    await queue.lease(1)
    await queue.until(dead=1, ready=0, leased=0)
    assert (await queue.stats()).lapsed == 2


async def test_an_item_on_its_last_attempt_stays_with_its_consumer_until_it_is_done(make: Make):
    queue = await make(max_attempts=1, dead_queue="")
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.elapse(0.3)
    assert await queue.counts("leased", "dead") == {"leased": 1, "dead": 0}
    assert await queue.complete(item) == [DONE]


async def test_an_item_without_a_limit_is_leased_more_often_than_the_default(make: Make):
    queue = await make(max_attempts=0)
    await queue.produce("a")
    for _ in range(25):
        await queue.retry(await queue.lease_one())
    assert (await queue.lease_one()).attempt == 26


async def test_an_item_dies_after_20_attempts_by_default(make: Make):
    queue = await make(dead_queue="")
    await queue.produce("a")
    for _ in range(20):
        await queue.retry(await queue.lease_one())
    assert await queue.counts("ready", "dead") == {"ready": 0, "dead": 1}


async def test_the_limit_of_an_item_counts_instead_of_that_of_its_queue(make: Make):
    queue = await make(max_attempts=2, dead_queue="")
    await queue.produce(
        Item(payload=b"once", max_attempts=1),
        Item(payload=b"four times", max_attempts=4),
        Item(payload=b"as the queue says"),
    )
    died: dict[str, int] = {}
    for attempt in range(1, 5):
        items = await queue.lease((await queue.stats()).ready)
        died |= {item.text: attempt for item in items}
        await queue.retry(*items)
    assert died == {"once": 1, "four times": 4, "as the queue says": 2}
    assert await queue.counts("ready", "dead") == {"ready": 0, "dead": 3}


async def test_an_item_without_a_limit_of_its_own_outlives_that_of_its_queue(make: Make):
    queue = await make(max_attempts=1, dead_queue="")
    await queue.produce(Item(payload=b"a", max_attempts=0))
    for _ in range(5):
        await queue.retry(await queue.lease_one())
    assert (await queue.lease_one()).attempt == 6
