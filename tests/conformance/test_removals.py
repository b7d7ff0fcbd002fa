"""Purge and cancel: what is removed, and what stays."""

from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import DONE, refusal, soon, texts


def later(text: str) -> Item:
    return Item(payload=text.encode(), enqueue_at=soon(3600))


async def test_a_cancelled_item_is_never_leased(make: Make):
    queue = await make()
    made = await queue.produce(*"abc")
    done = await queue.cancel(made[1].id)
    assert (done.cancelled, list(done.not_waiting)) == (1, [])
    assert texts(await queue.lease(2)) == ["a", "c"]
    assert await queue.counts() == {"leased": 2}


async def test_a_scheduled_item_may_be_cancelled(make: Make):
    queue = await make()
    [made] = await queue.produce(later("a"))
    assert (await queue.cancel(made.id)).cancelled == 1
    assert await queue.counts() == {}


async def test_a_cancel_that_is_repeated_removes_nothing_more(make: Make):
    queue = await make()
    [made, _] = await queue.produce("a", "b")
    await queue.cancel(made.id)
    again = await queue.cancel(made.id)
    assert (again.cancelled, list(again.not_waiting)) == (0, [made.id])
    assert (await queue.stats()).cancelled == 1


async def test_a_leased_item_is_not_cancelled_and_is_named(make: Make):
    queue = await make()
    [made] = await queue.produce("a")
    item = await queue.lease_one()
    done = await queue.cancel(made.id, "0-999")
    assert (done.cancelled, sorted(done.not_waiting)) == (0, sorted([made.id, "0-999"]))
    assert await queue.complete(item) == [DONE]


async def test_items_of_many_partitions_are_cancelled_in_one_call(make: Make):
    queue = await make(partitions=3)
    made = await queue.produce(*(Item(key=f"k{number}") for number in range(30)))
    assert len({one.id.partition("-")[0] for one in made}) == 3
    assert (await queue.cancel(*(one.id for one in made[:20]))).cancelled == 20
    assert (await queue.stats()).ready == 10


async def test_a_cancel_of_a_partition_that_the_queue_does_not_have_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.cancel("7-1"))
    assert (said.field, said.value) == ("item_ids[0]", "7-1")


async def test_a_cancel_of_nothing_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.cancel())
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "item_ids")


async def test_a_cancel_of_more_than_1000_items_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.cancel(*["0-1"] * 1_001))
    assert said.facts == ("LIMIT_EXCEEDED", "item_ids", "1000 items", "1001 items")


async def test_cancelled_items_are_no_dead_letters(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    [made] = await queue.produce("a")
    await queue.cancel(made.id)
    assert await queue.counts("dead", "dropped", "completed") == {
        "dead": 0, "dropped": 0, "completed": 0,
    }  # fmt: skip
    assert await queue.dead_letters(0) == []


# -- purge


async def test_a_purge_removes_all_items_that_wait(make: Make):
    queue = await make(partitions=2)
    for number in range(20):
        await queue.produce(Item(payload=b"ready", key=str(number)))
    await queue.produce(later("scheduled"))
    done = await queue.purge()
    assert (done.removed, done.next_page_token) == (21, "")
    assert await queue.counts() == {}
    assert (await queue.stats()).cancelled == 21


async def test_a_purge_leaves_leased_items_and_says_so(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    item = await queue.lease_one()
    done = await queue.purge()
    assert (done.removed, done.leased) == (2, 1)
    assert await queue.retry(item) == [DONE]
    assert texts(await queue.lease(1)) == ["a"]


async def test_a_purge_may_leave_scheduled_items(make: Make):
    queue = await make()
    await queue.produce("ready", later("scheduled"))
    done = await queue.purge(keep_scheduled=True)
    assert (done.removed, done.scheduled) == (1, 1)
    assert await queue.counts() == {"scheduled": 1}


async def test_a_dry_run_of_a_purge_counts_and_removes_nothing(make: Make):
    queue = await make()
    await queue.produce("ready", later("scheduled"))
    assert (await queue.purge(dry_run=True)).removed == 2
    assert await queue.counts() == {"ready": 1, "scheduled": 1}


async def test_items_that_are_produced_after_a_purge_stay(make: Make):
    queue = await make()
    await queue.produce("before")
    await queue.purge()
    await queue.produce("after")
    assert (await queue.purge(dry_run=True)).removed == 1
    assert texts(await queue.lease(1)) == ["after"]


async def test_a_purge_of_an_empty_queue_removes_nothing(make: Make):
    queue = await make()
    assert (await queue.purge()).removed == 0


async def test_a_purge_of_a_dead_queue_removes_the_letters_of_all_queues(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce("a", "b")
    await queue.reject(*await queue.lease(2))
    await queue.dead_letters(2)
    assert (await dead.purge()).removed == 2
    assert await queue.dead_letters(0) == []
    assert await queue.redrive() == 0


async def test_a_purge_with_a_token_that_is_none_is_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    said = await refusal(queue.purge(page_token="what?"))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "page_token")
    assert await queue.counts() == {"ready": 1}
