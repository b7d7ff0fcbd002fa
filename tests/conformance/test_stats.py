"""Statistics: they equal what happened, always."""

import asyncio
import random

from querator.v1.items_pb2 import (
    ITEM_STATE_LEASED,
    ITEM_STATE_READY,
    ITEM_STATE_SCHEDULED,
    Item,
)
from tests.conformance.make import Make
from tests.conformance.queues import Queue, soon, span


async def counted_by_peek(queue: Queue) -> dict[str, int]:
    """The items in each state, counted one by one."""
    names = {ITEM_STATE_READY: "ready", ITEM_STATE_LEASED: "leased",
             ITEM_STATE_SCHEDULED: "scheduled"}  # fmt: skip
    found: dict[str, int] = {}
    for item in await queue.peek(page_size=50):
        found[names[item.state]] = found.get(names[item.state], 0) + 1
    return found


async def test_an_empty_queue_counts_nothing(make: Make):
    queue = await make()
    total = await queue.stats()
    assert (total.produced, total.bytes, total.first_seq) == (0, 0, 0)
    assert not total.HasField("oldest_ready_at")


async def test_each_verb_is_counted(make: Make):
    queue = await make(dead_queue="")
    made = await queue.produce(*map(str, range(10)))
    items = await queue.lease(8)
    await queue.complete(*items[:3])
    await queue.retry(*items[3:5])
    await queue.release(items[5])
    await queue.reject(items[6])
    await queue.cancel(made[9].id)
    assert await queue.counts(
        "produced", "delivered", "completed", "retried", "released", "dead", "dropped",
        "cancelled", "ready", "leased",
    ) == {
        "produced": 10, "delivered": 8, "completed": 3, "retried": 3, "released": 1, "dead": 1,
        "dropped": 1, "cancelled": 1, "ready": 4, "leased": 1,
    }  # fmt: skip


async def test_statistics_equal_a_full_list_after_many_random_operations(make: Make):
    queue = await make(partitions=2, dead_queue="", max_attempts=3)
    chance = random.Random(7)
    held = []
    for number in range(25):
        await queue.produce(
            *(Item(payload=b"x", key=f"{number}-{n}") for n in range(chance.randint(1, 4)))
        )
        held += await queue.lease(1)
        if chance.random() < 0.3:
            await queue.complete(held.pop(chance.randrange(len(held))))
        if held and chance.random() < 0.3:
            await queue.retry(held.pop(chance.randrange(len(held))))
        if held and chance.random() < 0.2:
            await queue.retry(held.pop(chance.randrange(len(held))), at=soon(3600))
        if held and chance.random() < 0.2:
            await queue.release(held.pop(chance.randrange(len(held))))
    counts = await queue.counts()
    assert counts == await counted_by_peek(queue)
    total = await queue.stats()
    assert total.produced == sum(counts.values()) + total.completed + total.dropped
    assert counts["leased"] == len(held)


async def test_the_total_is_the_sum_of_the_partitions(make: Make):
    queue = await make(partitions=4)
    await queue.produce(*(Item(payload=b"x", key=f"k{n}") for n in range(60)))
    await queue.complete(*await queue.lease(17))
    stats = await queue.all_stats()
    assert len(stats.partitions) == 4
    for name in ("ready", "produced", "completed", "bytes", "delivered"):
        assert getattr(stats.total, name) == sum(getattr(one, name) for one in stats.partitions), (
            name
        )


async def test_statistics_show_everything_that_was_acknowledged_before(make: Make):
    queue = await make()
    for number in range(1, 21):
        await queue.produce("x")
        assert (await queue.stats()).produced == number


async def test_the_bytes_of_a_queue_grow_and_fall_with_its_items(make: Make):
    queue = await make()
    await queue.produce(Item(payload=bytes(5_000)), Item(payload=bytes(7_000)))
    assert (await queue.stats()).bytes >= 12_000
    await queue.complete(await queue.lease_one())
    assert 7_000 <= (await queue.stats()).bytes < 12_000
    await queue.complete(await queue.lease_one())
    assert (await queue.stats()).bytes == 0


async def test_the_oldest_ready_item_is_named_by_its_time(make: Make):
    queue = await make()
    await queue.produce("old")
    await queue.produce("new")
    first, second = await queue.peek()
    assert (await queue.stats()).oldest_ready_at == first.produced_at
    await queue.lease(1)
    assert (await queue.stats()).oldest_ready_at == second.produced_at


async def test_the_oldest_lease_is_named_by_its_grant_and_not_by_its_extensions(make: Make):
    queue = await make()
    await queue.produce(*"ab")
    assert not (await queue.stats()).HasField("oldest_lease_at")
    first = await queue.lease_one()
    second = await queue.lease_one()
    granted = [one.leased_at for one in await queue.peek()]
    await queue.extend(first.lease_id)
    assert [one.leased_at for one in await queue.peek()] == granted
    assert (await queue.stats()).oldest_lease_at == granted[0]
    await queue.complete(first)
    assert (await queue.stats()).oldest_lease_at == granted[1]
    await queue.complete(second)
    assert not (await queue.stats()).HasField("oldest_lease_at")


async def test_the_first_and_the_last_sequence_of_a_partition_are_named(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    await queue.complete(await queue.lease_one())
    [one] = (await queue.all_stats()).partitions
    assert (one.first_seq, one.head_seq) == (2, 3)


async def test_counts_hold_while_many_clients_work(make: Make):
    queue = await make(partitions=2)

    async def work(number: int) -> None:
        client = f"c{number}"
        for _ in range(5):
            await queue.produce("x", "y")
            await queue.complete(*await queue.lease(2, client=client))

    await asyncio.gather(*(work(number) for number in range(5)))
    assert await queue.counts("produced", "delivered", "completed", "ready", "leased") == {
        "produced": 50, "delivered": 50, "completed": 50, "ready": 0, "leased": 0,
    }  # fmt: skip


async def test_statistics_that_may_be_old_have_the_form_of_the_others(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.stats()
    stats = await queue.all_stats(stale=True)
    assert stats.queue.name == queue.name
    assert stats.durable


async def test_duplicates_are_counted(make: Make):
    queue = await make()
    await queue.produce(*[Item(payload=b"x", dedup_key="k")] * 3)
    assert await queue.counts("produced", "duplicates") == {"produced": 1, "duplicates": 2}


async def test_moves_are_counted_where_they_begin_and_where_they_end(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce("a", "b")
    await queue.reject(*await queue.lease(2))
    await queue.dead_letters(2)
    await queue.redrive()
    await queue.lease(2)
    assert await queue.counts("moved_in", "moved_out", "produced") == {
        "moved_in": 2, "moved_out": 2, "produced": 2,
    }  # fmt: skip
    assert await dead.counts("moved_in", "moved_out", "produced") == {
        "moved_in": 2, "moved_out": 2, "produced": 0,
    }  # fmt: skip


async def test_expired_items_are_counted_apart_from_rejected_ones(make: Make):
    queue = await make(dead_queue="")
    await queue.produce("rejected")
    await queue.reject(await queue.lease_one())
    await queue.produce(Item(payload=b"expired", expire_timeout=span(0.2)))
    await queue.until(expired=1)
    assert await queue.counts("dead", "expired", "dropped") == {
        "dead": 2, "expired": 1, "dropped": 2,
    }  # fmt: skip
