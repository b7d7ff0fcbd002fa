"""Limits of leases: how many items of a queue are leased in a time, and at a time."""

import asyncio

from querator.v1 import admin_service_pb2 as admin
from querator.v1.admin_service_pb2 import LimitStats, RateLimit
from querator.v1.items_pb2 import Item
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import DONE, Queue, refusal, span, texts
from tests.conformance.stubs import answer

SHORT_S = 0.2
"""How long what must not end is left to itself."""


def rate(items: int, interval_s: float, burst: int = 0) -> RateLimit:
    return RateLimit(items=items, interval=span(interval_s), burst=burst)


HOURLY = rate(1, 3600, burst=2)
"""Two items at once, and none later in the test."""


def of_group(group: str, text: str) -> Item:
    return Item(payload=text.encode(), group=group)


async def limits(queue: Queue) -> list[LimitStats]:
    return [one.limits for one in (await queue.all_stats()).partitions]


# --- in a time -------------------------------------------------------------------------------


async def test_the_burst_is_leased_and_the_rest_waits(make: Make):
    queue = await make(rate_limit=HOURLY)
    await queue.produce("a", "b", "c")
    assert texts(await queue.lease(2)) == ["a", "b"]
    await queue.lease_nothing()
    [found] = await limits(queue)
    assert (found.tokens, found.burst) == (0, 2)
    assert found.HasField("next_at")


async def test_a_consumer_that_waits_gets_an_item_when_its_token_comes(make: Make):
    queue = await make(rate_limit=rate(2, 1, burst=1))
    await queue.produce("a", "b", "c")
    assert [(await queue.lease_one()).text for _ in range(3)] == ["a", "b", "c"]


async def test_items_that_come_back_need_another_token(make: Make):
    queue = await make(rate_limit=HOURLY)
    await queue.produce("a", "b")
    items = await queue.lease(2)
    await queue.release(items[0])
    await queue.retry(items[1])
    await queue.until(ready=2)
    await queue.lease_nothing()


async def test_what_is_leased_can_be_settled_without_tokens(make: Make):
    queue = await make(rate_limit=HOURLY)
    await queue.produce("a", "b", "c")
    items = await queue.lease(2)
    await queue.extend(items[0].lease_id, timeout_s=600)
    assert await queue.complete(*items) == [DONE, DONE]


async def test_a_higher_rate_lets_consumers_that_wait_continue(make: Make):
    queue = await make(rate_limit=HOURLY)
    await queue.produce("a", "b", "c")
    await queue.lease(2)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await asyncio.sleep(SHORT_S)
        assert not waiting.done()
        await queue.update(rate_limit=rate(10, 1))
    assert waiting.result().text == "c"


async def test_a_removed_rate_lets_consumers_that_wait_continue(make: Make):
    queue = await make(rate_limit=HOURLY)
    await queue.produce("a", "b", "c")
    await queue.lease(2)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one())
        await asyncio.sleep(SHORT_S)
        await queue.update_paths("rate_limit")
    assert waiting.result().text == "c"
    assert not (await queue.get()).settings.HasField("rate_limit")


async def test_other_changes_give_no_tokens(make: Make):
    queue = await make(rate_limit=HOURLY)
    await queue.produce("a", "b", "c")
    await queue.lease(2)
    await queue.update(max_attempts=9)
    await queue.lease_nothing()


async def test_partitions_share_the_rate(make: Make):
    queue = await make(rate_limit=rate(1, 3600, burst=4), partitions=2)
    assert [one.burst for one in await limits(queue)] == [2, 2]


async def test_added_partitions_share_the_rate(make: Make):
    queue = await make(rate_limit=rate(1, 3600, burst=4))
    await queue.update(partitions=3)
    assert [one.burst for one in await limits(queue)] == [2, 1, 1]


# --- at a time -------------------------------------------------------------------------------


async def test_no_more_items_are_leased_at_a_time(make: Make):
    queue = await make(lease_limit=2)
    await queue.produce("a", "b", "c", "d")
    items = await queue.lease(2)
    await queue.lease_nothing()
    await queue.complete(items[0])
    assert (await queue.lease_one()).text == "c"
    await queue.lease_nothing()


async def test_a_consumer_that_waits_gets_an_item_when_a_lease_ends(make: Make):
    queue = await make(lease_limit=1)
    await queue.produce("a", "b")
    await queue.lease_one(timeout_s=1)
    assert (await queue.lease_one()).text in ("a", "b")


async def test_released_and_retried_items_free_their_places(make: Make):
    queue = await make(lease_limit=2)
    await queue.produce("a", "b")
    items = await queue.lease(2)
    await queue.release(items[0])
    await queue.retry(items[1])
    await queue.until(ready=2)
    assert sorted(texts(await queue.lease(2))) == ["a", "b"]


async def test_leases_above_a_lower_limit_continue(make: Make):
    queue = await make(lease_limit=3)
    await queue.produce("a", "b", "c", "d")
    items = await queue.lease(3)
    await queue.update(lease_limit=1)
    assert await queue.complete(items[0]) == [DONE]
    await queue.lease_nothing()
    assert await queue.complete(*items[1:]) == [DONE, DONE]
    assert (await queue.lease_one()).text == "d"


async def test_a_removed_limit_lets_consumers_continue(make: Make):
    queue = await make(lease_limit=1)
    await queue.produce("a", "b", "c")
    await queue.lease_one()
    await queue.update(lease_limit=0)
    assert texts(await queue.lease(2)) == ["b", "c"]


async def test_partitions_share_the_limit_of_leased_items(make: Make):
    queue = await make(lease_limit=5, partitions=3)
    assert [one.lease_limit for one in await limits(queue)] == [2, 2, 1]


# --- groups and keys -------------------------------------------------------------------------


async def test_each_group_has_a_rate(make: Make):
    queue = await make(kind=admin.QUEUE_KIND_FAIR, group_rate_limit=HOURLY)
    await queue.produce(*(of_group("a", text) for text in "abc"), of_group("b", "d"))
    assert sorted(texts(await queue.lease(3))) == ["a", "b", "d"]
    await queue.lease_nothing()
    request = admin.ListGroupsRequest(queue=queue.name)
    reply = await answer(make.nodes[0].admin.ListGroups(request, timeout=CALL_S))
    [waits] = [one for one in reply.groups if one.group == "a"]
    assert (waits.ready, waits.HasField("next_at")) == (1, True)


async def test_a_group_may_have_a_rate_of_its_own(make: Make):
    groups = [admin.GroupSettings(path="a", rate_limit=rate(1, 3600, burst=1))]
    queue = await make(kind=admin.QUEUE_KIND_FAIR, groups=groups)
    await queue.produce(*(of_group("a", text) for text in "ab"), of_group("b", "c"))
    assert sorted(texts(await queue.lease(2))) == ["a", "c"]
    await queue.lease_nothing()
    await queue.update(groups=[])
    assert (await queue.lease_one()).text == "b"


async def test_each_key_has_a_rate(make: Make):
    queue = await make(kind=admin.QUEUE_KIND_KEYED, key_rate_limit=rate(1, 3600, burst=1))
    await queue.produce(*(Item(payload=text.encode(), key=text[0]) for text in ("a1", "a2", "b1")))
    items = await queue.lease(2)
    assert sorted(texts(items)) == ["a1", "b1"]
    await queue.complete(*items)
    await queue.lease_nothing()
    await queue.update_paths("key_rate_limit")
    assert (await queue.lease_one()).text == "a2"


async def test_an_empty_group_keeps_its_tokens(make: Make):
    queue = await make(kind=admin.QUEUE_KIND_FAIR, group_rate_limit=rate(1, 3600, burst=1))
    await queue.produce(of_group("a", "a"))
    await queue.complete(await queue.lease_one())
    await queue.produce(of_group("a", "b"), of_group("b", "c"))
    assert (await queue.lease_one()).text == "c"
    await queue.lease_nothing()


async def test_a_group_that_waits_is_leased_when_its_tokens_come(make: Make):
    queue = await make(kind=admin.QUEUE_KIND_FAIR, group_rate_limit=rate(2, 1, burst=1))
    await queue.produce(*(of_group("a", text) for text in "abc"))
    assert [(await queue.lease_one()).text for _ in range(3)] == ["a", "b", "c"]


async def test_rates_of_groups_and_keys_need_such_a_queue(make: Make):
    for field in ("group_rate_limit", "key_rate_limit"):
        refused = await refusal(make.queue().create(**{field: rate(1, 1)}))
        assert (refused.code, refused.field) == ("INVALID_ARGUMENT", f"settings.{field}")


# --- refusals --------------------------------------------------------------------------------


async def test_a_limit_below_the_number_of_partitions_is_refused(make: Make):
    queue = make.queue()
    refused = await refusal(queue.create(lease_limit=2, partitions=3))
    assert (refused.code, refused.field, refused.limit, refused.value) == (
        "INVALID_ARGUMENT", "settings.lease_limit", "3", "2",
    )  # fmt: skip


async def test_more_partitions_than_the_limit_are_refused(make: Make):
    queue = await make(lease_limit=2)
    refused = await refusal(queue.update(partitions=3))
    assert (refused.code, refused.field, refused.limit, refused.value) == (
        "INVALID_ARGUMENT", "settings.lease_limit", "3", "2",
    )  # fmt: skip


async def test_limits_out_of_range_are_refused_by_name(make: Make):
    queue = make.queue()
    for wrong, field, limit, value in (
        (rate(0, 1), "items", "1", "0"),
        (rate(1_000_001, 1), "items", "1000000", "1000001"),
        (rate(1, 0.5), "interval", "1000 ms", "500 ms"),
        (rate(1, 90_000), "interval", "86400000 ms", "90000000 ms"),
        (rate(1, 1, burst=1_000_001), "burst", "1000000", "1000001"),
    ):
        refused = await refusal(queue.create(rate_limit=wrong))
        assert (refused.code, refused.field, refused.limit, refused.value) == (
            "LIMIT_EXCEEDED", f"settings.rate_limit.{field}", limit, value,
        )  # fmt: skip
    refused = await refusal(queue.create(lease_limit=1_000_001))
    assert (refused.field, refused.limit, refused.value) == (
        "settings.lease_limit", "1000000", "1000001",
    )  # fmt: skip
