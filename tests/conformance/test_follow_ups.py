"""Follow-ups: items that a complete, a retry or a reject produces in the same step."""

from collections.abc import Sequence

import pytest

from querator.v1.admin_service_pb2 import (
    DEDUP_UNTIL_DONE,
    QUEUE_KIND_FAIR,
    QUEUE_KIND_KEYED,
)
from querator.v1.items_pb2 import Item
from querator.v1.queue_service_pb2 import FollowUps
from tests.conformance.make import Make
from tests.conformance.queues import DONE, LOST, REPEATED, Leased, Queue, refusal, soon, span, texts


def to(queue: Queue | None, *things: str | Item) -> FollowUps:
    """Follow-ups for a queue; None: for that of the request."""
    items = [Item(payload=one.encode()) if isinstance(one, str) else one for one in things]
    return FollowUps(queue="" if queue is None else queue.name, items=items)


async def leased(make: Make, *more: str, **settings: object) -> tuple[Queue, list[Leased]]:
    """A queue of one partition whose items are all leased: "a", and more."""
    given: dict[str, object] = {"partitions": 1, **settings}
    queue = await make(**given)  # type: ignore[arg-type]
    await queue.produce("a", *more)
    return queue, await queue.lease(1 + len(more))


async def follow(queue: Queue, items: Sequence[Leased], *parts: FollowUps) -> list[str]:
    return await queue.complete(*items, follow_ups=parts)


# -- where they go


async def test_a_follow_up_for_the_same_queue_is_ready_when_the_complete_is_answered(make: Make):
    queue, items = await leased(make)
    assert await follow(queue, items, to(None, "b")) == [DONE]
    assert await queue.counts() == {"ready": 1}
    assert texts(await queue.lease(1)) == ["b"]


async def test_a_follow_up_for_another_queue_arrives_there(make: Make):
    queue, items = await leased(make)
    target = await make()
    await follow(queue, items, to(target, "b"))
    assert texts(await target.lease(1)) == ["b"]
    await queue.until(ready=0, leased=0, moving=0)


async def test_one_complete_has_follow_ups_for_several_queues(make: Make):
    queue, items = await leased(make)
    first, second = await make(), await make()
    await follow(queue, items, to(first, "b"), to(second, "c", "d"), to(None, "e"))
    assert texts(await first.lease(1)) == ["b"]
    assert sorted(texts(await second.lease(2))) == ["c", "d"]
    assert texts(await queue.lease(1)) == ["e"]


async def test_follow_ups_for_one_partition_keep_their_order(make: Make):
    queue, items = await leased(make)
    target = await make(partitions=1)
    names = [f"{n:03}" for n in range(200)]
    await follow(queue, items, to(target, *names))
    assert texts(await target.lease(200)) == names


async def test_follow_ups_of_items_arrive_in_the_order_of_their_completes(make: Make):
    queue, items = await leased(make, "b", "c")
    target = await make(partitions=1)
    for item in items:
        await follow(queue, [item], to(target, f"after {item.text}"))
    assert texts(await target.lease(3)) == ["after a", "after b", "after c"]


async def test_several_items_of_a_lease_have_follow_ups_together(make: Make):
    queue, items = await leased(make, "b", "c")
    assert await follow(queue, items, to(None, "d")) == [DONE, DONE, DONE]
    assert texts(await queue.lease(1)) == ["d"]
    assert await queue.counts() == {"leased": 1}


async def test_a_follow_up_may_have_follow_ups(make: Make):
    queue, [item] = await leased(make)
    for text in ("b", "c", "d"):
        await follow(queue, [item], to(None, text))
        item = await queue.lease_one()
        assert item.text == text


async def test_a_waiting_consumer_gets_the_follow_up(make: Make):
    queue, items = await leased(make)
    target = await make()
    await follow(queue, items, to(target, "b"))
    assert (await target.lease_one(client="other")).attempt == 1


# -- what they are


async def test_a_follow_up_keeps_its_fields(make: Make):
    queue, items = await leased(make)
    target = await make()
    sent = Item(
        payload=b"b", kind="k", encoding="e", reference="r", attributes={"x": "y"}, priority=3,
        max_attempts=2,
    )  # fmt: skip
    await follow(queue, items, to(target, sent))
    got = await target.lease_one()
    assert (got.item, got.priority) == (sent, 3)


async def test_follow_ups_are_leased_by_their_priorities(make: Make):
    queue, items = await leased(make)
    late, soon_ = Item(payload=b"late", priority=5), Item(payload=b"soon", priority=-5)
    await follow(queue, items, to(None, late, "b", soon_))
    assert texts(await queue.lease(3)) == ["soon", "b", "late"]


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_follow_up_may_start_later(make: Make, elsewhere: bool):
    queue, items = await leased(make)
    target = await make() if elsewhere else queue
    await follow(queue, items, to(target, Item(payload=b"b", enqueue_at=soon(3600))))
    await target.until(scheduled=1, ready=0)


async def test_a_scheduled_follow_up_comes_at_its_time(make: Make):
    queue, items = await leased(make)
    target = await make()
    await follow(queue, items, to(target, Item(payload=b"b", enqueue_at=soon(1))))
    assert texts(await target.lease(1)) == ["b"]


async def test_a_follow_up_expires_as_it_says(make: Make):
    queue, items = await leased(make)
    target = await make(dead_queue="")
    await follow(queue, items, to(target, Item(payload=b"b", expire_timeout=span(1))))
    await target.until(expired=1, ready=0)


async def test_a_known_follow_up_is_not_stored(make: Make):
    queue, items = await leased(make, "b")
    target = await make()
    for item in items:
        await follow(queue, [item], to(target, Item(payload=b"c", dedup_key="k")))
    await target.until(duplicates=1, ready=1)
    await queue.until(moving=0)


async def test_an_item_may_have_a_follow_up_with_its_own_key(make: Make):
    queue = await make(partitions=1, dedup_until=DEDUP_UNTIL_DONE)
    await queue.produce(Item(payload=b"a", dedup_key="k"))
    item = await queue.lease_one()
    await follow(queue, [item], to(None, Item(payload=b"b", dedup_key="k")))
    assert texts(await queue.lease(1)) == ["b"]


async def test_a_fair_queue_takes_the_follow_ups_of_other_queues(make: Make):
    queue, items = await leased(make)
    target = await make(kind=QUEUE_KIND_FAIR)
    await follow(queue, items, to(target, Item(payload=b"b", group="eu")))
    got = await target.lease_one()
    assert (got.text, got.item.group) == ("b", "eu")


async def test_a_keyed_queue_takes_the_follow_ups_of_other_queues_in_order(make: Make):
    queue, items = await leased(make)
    target = await make(kind=QUEUE_KIND_KEYED)
    sent = [Item(payload=text, key="17") for text in (b"b", b"c")]
    await follow(queue, items, to(target, *sent))
    first = await target.lease_one()
    await target.complete(first)
    assert [first.text, *texts(await target.lease(1))] == ["b", "c"]


# -- exactly once


async def test_a_repeated_complete_adds_nothing(make: Make):
    queue, items = await leased(make)
    await follow(queue, items, to(None, "b"))
    assert await follow(queue, items, to(None, "b")) == [REPEATED]
    assert await queue.counts() == {"ready": 1}


async def test_a_repeated_complete_adds_nothing_in_another_queue(make: Make):
    queue, items = await leased(make)
    target = await make()
    await follow(queue, items, to(target, "b"))
    await follow(queue, items, to(target, "b"))
    await queue.until(moving=0)
    assert await target.counts() == {"ready": 1}


async def test_a_lost_lease_has_no_follow_ups(make: Make):
    queue, items = await leased(make)
    await queue.release(*items)
    assert await follow(queue, items, to(None, "b")) == [LOST]
    assert await queue.counts() == {"ready": 1}


async def test_one_lost_item_keeps_all_from_being_completed(make: Make):
    queue, items = await leased(make, "b")
    await queue.release(items[0])
    assert DONE not in await follow(queue, items, to(None, "c"))
    assert await queue.counts() == {"ready": 1, "leased": 1}


async def test_a_complete_without_follow_ups_does_not_repeat_one_with_them(make: Make):
    queue, items = await leased(make)
    await follow(queue, items, to(None, "b"))
    assert await queue.complete(*items) == [LOST]


async def test_a_complete_with_follow_ups_does_not_repeat_one_without_them(make: Make):
    queue, items = await leased(make)
    await queue.complete(*items)
    assert await follow(queue, items, to(None, "b")) == [LOST]
    assert await queue.counts() == {}


# -- retry and reject


async def test_a_retry_has_follow_ups(make: Make):
    queue, items = await leased(make)
    target = await make()
    assert await queue.retry(*items, follow_ups=[to(target, "b")]) == [DONE]
    assert texts(await target.lease(1)) == ["b"]
    assert (await queue.lease_one()).attempt == 2


async def test_a_retry_for_later_has_follow_ups(make: Make):
    queue, items = await leased(make)
    await queue.retry(*items, at=soon(3600), follow_ups=[to(None, "b")])
    assert await queue.counts() == {"ready": 1, "scheduled": 1}


async def test_a_release_has_follow_ups(make: Make):
    queue, items = await leased(make)
    target = await make()
    await queue.release(*items, follow_ups=[to(target, "b")])
    assert texts(await target.lease(1)) == ["b"]
    assert (await queue.lease_one()).attempt == 1


async def test_a_reject_has_follow_ups(make: Make):
    queue, items = await leased(make, dead_queue="")
    await queue.retry(*items, dead=True, follow_ups=[to(None, "b")])
    assert texts(await queue.lease(1)) == ["b"]
    assert await queue.counts("dead") == {"dead": 1}


# -- what is refused: the item is leased as before


async def test_a_queue_that_does_not_exist_is_refused(make: Make):
    queue, items = await leased(make)
    refused = await refusal(follow(queue, items, to(make.queue(), "b")))
    assert (refused.code, refused.field) == ("QUEUE_NOT_FOUND", "follow_ups[0].queue")
    assert await queue.complete(*items) == [DONE]


async def test_follow_ups_of_two_leases_are_refused(make: Make):
    queue = await make(partitions=1)
    await queue.produce("a", "b")
    items = [await queue.lease_one(), await queue.lease_one()]
    refused = await refusal(follow(queue, items, to(None, "c")))
    assert (refused.code, refused.field, refused.limit) == ("LIMIT_EXCEEDED", "leases", "1 lease")
    assert await queue.complete(*items) == [DONE, DONE]


async def test_settled_items_among_others_are_refused(make: Make):
    queue, items = await leased(make, "b")
    await follow(queue, items[:1], to(None, "c"))
    refused = await refusal(follow(queue, items, to(None, "d")))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "leases")
    assert await follow(queue, items[1:], to(None, "d")) == [DONE]
    assert texts(await queue.lease(2)) == ["c", "d"]


async def test_a_part_without_items_is_refused(make: Make):
    queue, items = await leased(make)
    refused = await refusal(follow(queue, items, to(None)))
    assert refused.field == "follow_ups[0].items"
    assert await queue.complete(*items) == [DONE]


async def test_more_follow_ups_than_a_request_may_have_are_refused(make: Make):
    queue, items = await leased(make)
    refused = await refusal(follow(queue, items, to(None, *["b"] * 1001)))
    assert refused.facts == ("LIMIT_EXCEEDED", "follow_ups", "1000 items", "1001 items")
    assert await queue.complete(*items) == [DONE]


async def test_a_bad_field_of_a_follow_up_is_named(make: Make):
    queue, items = await leased(make)
    refused = await refusal(follow(queue, items, to(None, "b", Item(dedup_key="k" * 513))))
    assert refused.field == "follow_ups[0].items[1].dedup_key"
    assert await queue.complete(*items) == [DONE]


@pytest.mark.parametrize("kind", [QUEUE_KIND_FAIR, QUEUE_KIND_KEYED])
async def test_a_fair_or_keyed_queue_has_none_for_itself(make: Make, kind: int):
    queue, items = await leased(make, kind=kind)
    refused = await refusal(follow(queue, items, to(None, "b")))
    assert (refused.code, refused.field) == ("INVALID_ARGUMENT", "follow_ups")
    target = await make()
    assert await follow(queue, items, to(target, "b")) == [DONE]
    assert texts(await target.lease(1)) == ["b"]


async def test_a_full_queue_takes_as_many_as_are_completed(make: Make):
    queue, items = await leased(make, "b", partition_items_max=2)
    refused = await refusal(follow(queue, items[:1], to(None, "c", "d")))
    assert (refused.code, refused.field) == ("QUEUE_FULL", "follow_ups")
    assert await follow(queue, items[:1], to(None, "c")) == [DONE]
    assert texts(await queue.lease(1)) == ["c"]
