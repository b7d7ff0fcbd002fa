"""Items that replace the waiting item of their dedup key, or move its start."""

import pytest

from querator.v1.admin_service_pb2 import DEDUP_UNTIL_DONE, QUEUE_KIND_FAIR, QUEUE_KIND_KEYED
from querator.v1.items_pb2 import (
    ON_DUPLICATE_BUMP,
    ON_DUPLICATE_KEEP,
    ON_DUPLICATE_REPLACE,
    Item,
)
from querator.v1.queue_service_pb2 import FollowUps
from tests.conformance.make import Make
from tests.conformance.queues import DONE, LOST, Produced, Queue, refusal, soon, span, texts

KEEP, REPLACE, BUMP = ON_DUPLICATE_KEEP, ON_DUPLICATE_REPLACE, ON_DUPLICATE_BUMP


def newest(text: str, dedup_key: str = "k", what: int = REPLACE, **fields: object) -> Item:
    return Item(payload=text.encode(), dedup_key=dedup_key, on_duplicate=what, **fields)  # type: ignore[arg-type]


def bumped(text: str, seconds: float, most: float = 3600) -> Item:
    return newest(text, what=BUMP, enqueue_at=soon(seconds), debounce_max=span(most))


async def unique(make: Make, **settings: object) -> Queue:
    """A queue in which keys count until their items are done; dead letters are dropped."""
    given: dict[str, object] = {
        "dedup_until": DEDUP_UNTIL_DONE,
        "dead_queue": "",
        "partitions": 1,
        **settings,
    }
    return await make(**given)  # type: ignore[arg-type]


async def one(queue: Queue, item: Item) -> Produced:
    [made] = await queue.produce(item)
    return made


async def due_in_s(queue: Queue) -> float:
    """In how many seconds the only scheduled item is due, from now on."""
    [item] = await queue.scheduled()
    return item.due_at.ToMilliseconds() / 1000 - soon(0).ToMilliseconds() / 1000


# -- replace


async def test_the_newest_payload_is_leased(make: Make):
    queue = await unique(make)
    for text in ("a", "b", "c"):
        await one(queue, newest(text))
    assert texts(await queue.lease(1)) == ["c"]
    assert await queue.counts() == {"leased": 1}


async def test_the_answer_names_the_stored_and_the_replaced_item(make: Make):
    queue = await unique(make)
    first = await one(queue, newest("a"))
    second = await one(queue, newest("b"))
    assert (first.replaced, second.replaced, second.duplicate) == ("", first.id, False)
    assert second.id != first.id


async def test_a_replaced_item_is_not_found_any_more(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    second = await one(queue, newest("b"))
    assert [f"{item.partition}-{item.seq}" for item in await queue.peek()] == [second.id]


async def test_replaced_items_are_counted(make: Make):
    queue = await unique(make)
    for text in ("a", "b", "c"):
        await one(queue, newest(text))
    assert await queue.counts("produced", "replaced", "duplicates") == {
        "produced": 3, "replaced": 2, "duplicates": 0,
    }  # fmt: skip


async def test_an_item_that_is_replaced_again_and_again_keeps_its_turn(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    await queue.produce("other")
    for text in ("b", "c", "d"):
        await one(queue, newest(text))
    assert texts(await queue.lease(2)) == ["d", "other"]


async def test_an_item_that_did_not_say_so_is_replaced_at_the_tail(make: Make):
    queue = await unique(make)
    await queue.produce(newest("a", what=KEEP), "other")
    await one(queue, newest("b"))
    assert texts(await queue.lease(2)) == ["other", "b"]


async def test_an_item_with_another_priority_is_placed_by_it(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    await queue.produce("other")
    await one(queue, newest("b", priority=5))
    assert texts(await queue.lease(2)) == ["other", "b"]


async def test_a_scheduled_item_leaves_its_due_time(make: Make):
    queue = await unique(make)
    await one(queue, newest("a", enqueue_at=soon(3600)))
    await one(queue, newest("b"))
    assert await queue.counts() == {"scheduled": 1}
    assert 3500 < await due_in_s(queue) <= 3600


async def test_a_scheduled_item_that_was_replaced_comes_at_its_time(make: Make):
    queue = await unique(make)
    await one(queue, newest("a", enqueue_at=soon(1)))
    await one(queue, newest("b"))
    assert texts(await queue.lease(1)) == ["b"]


async def test_an_item_that_waits_for_its_retry_is_replaced_with_all_its_attempts(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    await queue.retry(await queue.lease_one(), at=soon(1), error="it fails")
    await one(queue, newest("b"))
    again = await queue.lease_one()
    assert (again.text, again.attempt, again.errors) == ("b", 1, ())


async def test_other_keys_stay_as_they_are(make: Make):
    queue = await unique(make)
    await queue.produce(newest("a"), newest("b", "other"))
    await one(queue, newest("c"))
    assert texts(await queue.lease(2)) == ["c", "b"]


async def test_items_of_one_request_replace_each_other(make: Make):
    queue = await unique(make)
    made = await queue.produce(newest("a"), newest("b"), newest("c", what=KEEP), newest("d"))
    assert [item.duplicate for item in made] == [False, False, True, False]
    assert (made[1].replaced, made[2].id, made[3].replaced) == (made[0].id, made[1].id, made[1].id)
    assert texts(await queue.lease(1)) == ["d"]


async def test_keep_does_not_replace(make: Make):
    queue = await unique(make)
    first = await one(queue, newest("a"))
    second = await one(queue, newest("b", what=KEEP))
    assert (second.duplicate, second.id, second.replaced) == (True, first.id, "")
    assert texts(await queue.lease(1)) == ["a"]


async def test_a_repeated_request_answers_the_same_and_replaces_nothing(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    identity = {"producer_id": make.producer(), "sequence": 1}
    [first] = await queue.produce(newest("b"), **identity)
    [again] = await queue.produce(newest("b"), **identity)
    assert (again.id, again.replaced, again.repeated) == (first.id, first.replaced, True)
    assert await queue.counts("replaced") == {"replaced": 1}


# -- an item at work


async def test_a_leased_item_is_not_replaced(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    item = await queue.lease_one()
    second = await one(queue, newest("b"))
    assert (second.duplicate, second.replaced) == (False, "")
    assert await queue.complete(item) == [DONE]
    assert texts(await queue.lease(1)) == ["b"]


async def test_the_next_item_replaces_the_one_beside_the_leased_one(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    await queue.lease(1)
    second = await one(queue, newest("b"))
    assert (await one(queue, newest("c"))).replaced == second.id
    assert await queue.counts() == {"leased": 1, "ready": 1}


async def test_keep_is_not_stored_while_the_item_is_leased(make: Make):
    queue = await unique(make)
    first = await one(queue, newest("a"))
    await queue.lease(1)
    second = await one(queue, newest("b", what=KEEP))
    assert (second.duplicate, second.id) == (True, first.id)


async def test_the_end_of_the_leased_item_does_not_free_the_key(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    item = await queue.lease_one()
    second = await one(queue, newest("b"))
    await queue.complete(item)
    third = await one(queue, newest("c", what=KEEP))
    assert (third.duplicate, third.id) == (True, second.id)


async def test_a_failed_item_comes_back_beside_the_one_that_has_its_key(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    item = await queue.lease_one()
    await one(queue, newest("b"))
    await queue.retry(item)
    assert sorted(texts(await queue.lease(2))) == ["a", "b"]


async def test_a_released_item_is_replaced_at_its_place(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    await queue.produce("other")
    await queue.release(await queue.lease_one())
    await one(queue, newest("b"))
    assert texts(await queue.lease(2)) == ["b", "other"]


async def test_the_lease_of_an_item_that_was_replaced_after_its_release_is_lost(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    item = await queue.lease_one()
    await queue.release(item)
    await one(queue, newest("b"))
    assert await queue.complete(item) == [LOST]


# -- bump


async def test_a_bumped_item_starts_later(make: Make):
    queue = await unique(make)
    await one(queue, bumped("a", 600))
    second = await one(queue, bumped("b", 1200))
    assert second.replaced
    assert 1100 < await due_in_s(queue) <= 1200


async def test_a_bumped_item_may_start_earlier(make: Make):
    queue = await unique(make)
    await one(queue, bumped("a", 3000))
    await one(queue, bumped("b", 600))
    assert 500 < await due_in_s(queue) <= 600


async def test_the_newest_payload_comes_when_nothing_has_come_for_a_while(make: Make):
    queue = await unique(make)
    for text in ("a", "b", "c"):
        await one(queue, bumped(text, 1))
    assert texts(await queue.lease(1)) == ["c"]
    assert await queue.counts("produced", "replaced") == {"produced": 3, "replaced": 2}


async def test_a_bumped_item_does_not_start_after_its_limit(make: Make):
    queue = await unique(make)
    await one(queue, bumped("a", 600, most=1000))
    await one(queue, bumped("b", 3000, most=1000))
    assert 900 < await due_in_s(queue) <= 1000


async def test_the_first_item_obeys_its_limit_too(make: Make):
    queue = await unique(make)
    await one(queue, bumped("a", 3000, most=1000))
    assert 900 < await due_in_s(queue) <= 1000


async def test_the_limit_of_a_bump_is_an_hour_unless_given(make: Make):
    queue = await unique(make)
    await one(queue, newest("a", what=BUMP, enqueue_at=soon(7200)))
    assert 3500 < await due_in_s(queue) <= 3600


async def test_an_item_that_is_bumped_for_ever_comes_at_its_limit(make: Make):
    queue = await unique(make)
    await one(queue, bumped("a", 600, most=1))
    await one(queue, bumped("b", 600, most=1))
    assert texts(await queue.lease(1)) == ["b"]


async def test_a_ready_item_is_bumped_to_a_later_time(make: Make):
    queue = await unique(make)
    await one(queue, newest("a"))
    await one(queue, bumped("b", 600))
    assert await queue.counts() == {"scheduled": 1}


async def test_a_bump_beside_a_leased_item_begins_its_own_time(make: Make):
    queue = await unique(make)
    await one(queue, bumped("a", 600, most=1))
    await queue.lease(1)
    await one(queue, bumped("b", 900, most=1000))
    assert await queue.counts() == {"leased": 1, "scheduled": 1}
    assert 800 < await due_in_s(queue) <= 900


# -- queues of other kinds, bounds


async def test_a_full_queue_takes_what_replaces(make: Make):
    queue = await unique(make, partition_items_max=2)
    await queue.produce(newest("a"), "other")
    await one(queue, newest("b"))
    assert (await refusal(queue.produce("more"))).code == "QUEUE_FULL"
    assert (await refusal(queue.produce(newest("c", "unknown")))).code == "QUEUE_FULL"
    assert texts(await queue.lease(2)) == ["b", "other"]


async def test_an_item_of_a_group_leaves_its_place_in_its_group(make: Make):
    queue = await unique(make, kind=QUEUE_KIND_FAIR)
    await one(queue, newest("a", group="eu"))
    await queue.produce(Item(payload=b"other", group="eu"))
    await one(queue, newest("b", group="eu"))
    assert texts(await queue.lease(2)) == ["b", "other"]


async def test_an_item_of_another_group_replaces_and_is_placed_as_a_new_one(make: Make):
    queue = await unique(make, kind=QUEUE_KIND_FAIR)
    first = await one(queue, newest("a", group="eu"))
    await queue.produce(Item(payload=b"other", group="us"))
    assert (await one(queue, newest("b", group="us"))).replaced == first.id
    assert texts(await queue.lease(2)) == ["other", "b"]


async def test_an_item_of_a_key_leaves_its_place_in_its_key(make: Make):
    queue = await unique(make, kind=QUEUE_KIND_KEYED)
    await one(queue, newest("a", key="17"))
    await queue.produce(Item(payload=b"other", key="17"))
    await one(queue, newest("b", key="17"))
    first = await queue.lease_one()
    await queue.complete(first)
    assert [first.text, *texts(await queue.lease(1))] == ["b", "other"]


async def test_an_item_of_a_key_that_replaces_a_leased_one_waits_for_its_end(make: Make):
    queue = await unique(make, kind=QUEUE_KIND_KEYED)
    await one(queue, newest("a", key="17"))
    first = await queue.lease_one()
    await one(queue, newest("b", key="17"))
    assert await queue.counts() == {"leased": 1, "ready": 1}
    await queue.complete(first)
    assert texts(await queue.lease(1)) == ["b"]


async def test_what_replaces_a_retried_item_of_a_key_keeps_back_the_later_ones(make: Make):
    queue = await unique(make, kind=QUEUE_KIND_KEYED)
    await one(queue, newest("a", key="17"))
    await queue.produce(Item(payload=b"later", key="17"))
    await queue.retry(await queue.lease_one(), at=soon(1))
    await one(queue, newest("b", key="17"))
    first = await queue.lease_one()
    await queue.complete(first)
    assert [first.text, *texts(await queue.lease(1))] == ["b", "later"]


# -- what is refused


@pytest.mark.parametrize("what", [REPLACE, BUMP])
async def test_a_queue_whose_keys_count_in_a_window_refuses_it(make: Make, what: int):
    queue = await make()
    refused = await refusal(queue.produce("a", newest("b", what=what, enqueue_at=soon(5))))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "items[1].on_duplicate")
    assert await queue.counts() == {}


async def test_an_item_without_a_dedup_key_is_refused(make: Make):
    queue = await unique(make)
    refused = await refusal(queue.produce(Item(on_duplicate=REPLACE)))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "items[0].on_duplicate")


async def test_a_bump_without_a_start_is_refused(make: Make):
    queue = await unique(make)
    refused = await refusal(queue.produce(newest("a", what=BUMP)))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "items[0].on_duplicate")


async def test_a_limit_without_a_bump_is_refused(make: Make):
    queue = await unique(make)
    refused = await refusal(queue.produce(newest("a", debounce_max=span(60))))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "items[0].debounce_max")


@pytest.mark.parametrize("seconds", [0, 0.999, 604_800.001])
async def test_a_limit_out_of_its_bounds_is_refused(make: Make, seconds: float):
    queue = await unique(make)
    refused = await refusal(queue.produce(bumped("a", 5, most=seconds)))
    assert refused.field == "items[0].debounce_max"


async def test_an_unknown_way_is_refused(make: Make):
    queue = await unique(make)
    refused = await refusal(queue.produce(newest("a", what=9)))
    assert (refused.code, refused.field, refused.value) == (
        "INVALID_ARGUMENT", "items[0].on_duplicate", "9",
    )  # fmt: skip


async def test_a_refused_request_replaces_nothing(make: Make):
    queue = await unique(make, partition_items_max=2)
    first = await one(queue, newest("a"))
    refused = await refusal(queue.produce(newest("b"), newest("c", "l"), newest("d", "m")))
    assert refused.code == "QUEUE_FULL"
    assert [f"{item.partition}-{item.seq}" for item in await queue.peek()] == [first.id]


async def test_a_follow_up_does_not_replace(make: Make):
    queue = await unique(make)
    await queue.produce("a")
    item = await queue.lease_one()
    following = FollowUps(items=[newest("b")])
    refused = await refusal(queue.complete(item, follow_ups=[following]))
    assert refused.field == "follow_ups[0].items[0].on_duplicate"
    assert await queue.complete(item) == [DONE]
