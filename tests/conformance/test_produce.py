"""Produce: what is stored, in which order, and what a producer's repeats and gaps do."""

import asyncio
import time

from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import refusal, soon, span, texts


async def test_items_of_one_request_are_leased_in_their_order(make: Make):
    queue = await make()
    made = await queue.produce("a", "b", "c")
    assert [one.id for one in made] == ["0-1", "0-2", "0-3"]
    leased = await queue.lease(3)
    assert texts(leased) == ["a", "b", "c"]
    assert [one.id for one in leased] == ["0-1", "0-2", "0-3"]


async def test_items_of_requests_one_after_the_other_are_leased_in_their_order(make: Make):
    queue = await make()
    for text in ("first", "second", "third"):
        await queue.produce(text, text + " again")
    assert texts(await queue.lease(6)) == [
        "first", "first again", "second", "second again", "third", "third again",
    ]  # fmt: skip


async def test_an_item_arrives_with_everything_that_its_producer_gave(make: Make):
    queue = await make()
    item = Item(
        payload=b"\x00\xff work",
        kind="email",
        encoding="application/json",
        reference="order-17",
        attributes={"trace": "00-1", "empty": ""},
        priority=-3,
        group="customers/7",
        key="k",
        lease_timeout=span(40),
        max_attempts=9,
    )
    await queue.produce(item)
    assert (await queue.lease_one()).item == item


async def test_a_field_of_a_later_version_of_the_protocol_is_passed_on(make: Make):
    queue = await make()
    item = Item(payload=b"p")
    item.MergeFromString(b"\xf2\x1f\x05later")
    await queue.produce(item)
    arrived = await queue.lease_one()
    assert arrived.item.SerializeToString() == item.SerializeToString()


async def test_an_item_may_be_empty(make: Make):
    queue = await make()
    await queue.produce("", Item())
    assert texts(await queue.lease(2)) == ["", ""]


async def test_a_payload_of_the_greatest_size_arrives_whole(make: Make):
    queue = await make()
    payload = bytes(range(256)) * 4096
    await queue.produce(Item(payload=payload))
    assert (await queue.lease_one()).item.payload == payload


async def test_a_request_of_the_most_items_is_stored_whole(make: Make):
    queue = await make()
    made = await queue.produce(*map(str, range(1_000)))
    assert [one.id for one in made] == [f"0-{number + 1}" for number in range(1_000)]
    assert await queue.counts() == {"ready": 1_000}


async def test_the_answer_says_that_items_are_on_disk(make: Make):
    queue = await make()
    assert (await queue.produce_reply("a")).durable


async def test_items_have_the_time_of_their_produce(make: Make):
    queue = await make()
    before_s = time.time()
    await queue.produce("a")
    assert before_s - 0.5 <= (await queue.lease_one()).produced_at_s <= time.time() + 0.5


async def test_a_refused_request_stores_nothing(make: Make):
    queue = await make()
    said = await refusal(queue.produce(Item(payload=b"good"), Item(kind="k" * 256)))
    assert said.facts == ("LIMIT_EXCEEDED", "items[1].kind", "255 characters", "256 characters")
    assert await queue.counts("ready", "produced") == {"ready": 0, "produced": 0}


async def test_requests_without_identity_that_are_sent_twice_are_stored_twice(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.produce("a")
    assert texts(await queue.lease(2)) == ["a", "a"]


# -- the identity of a producer


async def test_a_repeated_request_gets_the_first_answer_and_stores_nothing(make: Make):
    queue = await make()
    me = make.producer()
    first = await queue.produce("a", "b", producer_id=me, sequence=1)
    again = await queue.produce("a", "b", producer_id=me, sequence=1)
    assert [one.id for one in again] == [one.id for one in first]
    assert not any(one.repeated for one in first)
    assert all(one.repeated for one in again)
    assert await queue.counts("ready", "duplicates") == {"ready": 2, "duplicates": 2}


async def test_a_repeat_after_the_item_was_completed_stores_nothing(make: Make):
    queue = await make()
    me = make.producer()
    first = await queue.produce("a", producer_id=me, sequence=1)
    await queue.complete(await queue.lease_one())
    again = await queue.produce("a", producer_id=me, sequence=1)
    assert [one.id for one in again] == [one.id for one in first]
    assert await queue.counts() == {}


async def test_a_repeat_counts_by_its_number_whatever_its_items_are(make: Make):
    queue = await make()
    me = make.producer()
    await queue.produce("a", producer_id=me, sequence=1)
    [again] = await queue.produce("other", producer_id=me, sequence=1)
    assert again.repeated
    assert texts(await queue.lease(1)) == ["a"]


async def test_an_old_number_is_answered_as_it_was_at_first(make: Make):
    queue = await make()
    me = make.producer()
    made = [await queue.produce(str(n), producer_id=me, sequence=n) for n in range(1, 6)]
    for number in (1, 3, 5):
        again = await queue.produce(str(number), producer_id=me, sequence=number)
        assert [one.id for one in again] == [one.id for one in made[number - 1]]
    assert await queue.counts() == {"ready": 5}


async def test_two_producers_with_the_same_numbers_do_not_meet(make: Make):
    queue = await make()
    await queue.produce("a", producer_id=make.producer(), sequence=1)
    await queue.produce("b", producer_id=make.producer(), sequence=1)
    assert texts(await queue.lease(2)) == ["a", "b"]


async def test_a_producer_has_numbers_of_its_own_in_each_queue(make: Make):
    one, other = await make(), await make()
    me = make.producer()
    await one.produce("a", producer_id=me, sequence=1)
    await other.produce("b", producer_id=me, sequence=1)
    assert texts(await other.lease(1)) == ["b"]


async def test_repeats_at_the_same_time_store_one_item(make: Make):
    queue = await make()
    me = make.producer()
    answers = await asyncio.gather(
        *(queue.produce("a", producer_id=me, sequence=1) for _ in range(8))
    )
    assert len({one.id for [one] in answers}) == 1
    assert sum(not one.repeated for [one] in answers) == 1
    assert await queue.counts() == {"ready": 1}


async def test_a_producer_without_order_may_skip_numbers(make: Make):
    queue = await make()
    me = make.producer()
    for number in (1, 5, 3):
        await queue.produce(str(number), producer_id=me, sequence=number)
    assert texts(await queue.lease(3)) == ["1", "5", "3"]


async def test_an_ordered_producer_that_skips_a_number_learns_which_one_is_next(make: Make):
    queue = await make()
    me = make.producer()
    await queue.produce("1", producer_id=me, sequence=1, ordered=True)
    said = await refusal(queue.produce("3", producer_id=me, sequence=3, ordered=True))
    assert (said.code, said.limit) == ("SEQUENCE_GAP", "2")
    await queue.produce("2", producer_id=me, sequence=2, ordered=True)
    await queue.produce("3", producer_id=me, sequence=3, ordered=True)
    assert texts(await queue.lease(3)) == ["1", "2", "3"]


async def test_a_repeat_of_an_ordered_producer_gets_the_first_answer(make: Make):
    queue = await make()
    me = make.producer()
    first = await queue.produce("1", producer_id=me, sequence=1, ordered=True)
    again = await queue.produce("1", producer_id=me, sequence=1, ordered=True)
    assert [one.id for one in again] == [one.id for one in first]


async def test_items_of_an_ordered_producer_are_in_one_of_many_partitions(make: Make):
    queue = await make(partitions=4)
    me = make.producer()
    made = [await queue.produce("x", producer_id=me, sequence=n, ordered=True) for n in range(1, 9)]
    assert len({one.id.partition("-")[0] for [one] in made}) == 1


async def test_a_producer_without_order_uses_all_partitions(make: Make):
    queue = await make(partitions=4)
    me = make.producer()
    made = [await queue.produce("x", producer_id=me, sequence=n) for n in range(1, 9)]
    assert len({one.id.partition("-")[0] for [one] in made}) == 4


async def test_a_repeat_meets_its_first_attempt_in_a_queue_of_many_partitions(make: Make):
    queue = await make(partitions=5)
    me = make.producer()
    for number in range(1, 11):
        first = await queue.produce("x", producer_id=me, sequence=number)
        again = await queue.produce("x", producer_id=me, sequence=number)
        assert [one.id for one in again] == [one.id for one in first]
    assert (await queue.stats()).ready == 10


async def test_a_repeat_meets_its_first_attempt_after_the_number_of_partitions_changed(make: Make):
    queue = await make(partitions=2)
    me = make.producer()
    first = await queue.produce("x", producer_id=me, sequence=1)
    await queue.update(partitions=3)
    again = await queue.produce("x", producer_id=me, sequence=1)
    assert [one.id for one in again] == [one.id for one in first]
    assert (await queue.stats()).ready == 1


async def test_a_producer_that_is_a_week_old_and_unknown_is_refused(make: Make):
    queue = await make()
    long_ago_ms = int(time.time() * 1000) - 8 * 24 * 3_600_000
    me = long_ago_ms.to_bytes(6, "big") + make.producer()[6:]
    said = await refusal(queue.produce("a", producer_id=me, sequence=1))
    assert said.code == "PRODUCER_EXPIRED"
    assert await queue.counts() == {}


async def test_a_producer_from_the_far_future_is_refused(make: Make):
    queue = await make()
    ahead_ms = int(time.time() * 1000) + 8 * 24 * 3_600_000
    me = ahead_ms.to_bytes(6, "big") + make.producer()[6:]
    said = await refusal(queue.produce("a", producer_id=me, sequence=1))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "producer_id")


async def test_a_full_queue_refuses_and_takes_items_when_there_is_room(make: Make):
    queue = await make(partition_items_max=2)
    await queue.produce("a", "b")
    said = await refusal(queue.produce("more"))
    assert said.facts == ("QUEUE_FULL", "items", "2", "3")
    assert said.retriable
    await queue.complete(await queue.lease_one())
    await queue.produce("more")
    assert await queue.counts() == {"ready": 2}


async def test_a_request_that_does_not_fit_is_refused_whole(make: Make):
    queue = await make(partition_items_max=2)
    said = await refusal(queue.produce("a", "b", "c"))
    assert said.code == "QUEUE_FULL"
    assert await queue.counts() == {}


async def test_leased_and_scheduled_items_count_for_the_limit_of_a_queue(make: Make):
    queue = await make(partition_items_max=2)
    await queue.produce("a", Item(payload=b"b", enqueue_at=soon(3600)))
    await queue.lease(1)
    assert (await refusal(queue.produce("c"))).code == "QUEUE_FULL"
