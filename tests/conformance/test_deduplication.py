"""Deduplication by `dedup_key`."""

from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import refusal, soon, span, texts


def item(text: str, dedup_key: str, **fields: object) -> Item:
    return Item(payload=text.encode(), dedup_key=dedup_key, **fields)  # type: ignore[arg-type]


async def test_a_second_item_with_the_key_is_not_stored_and_the_first_is_named(make: Make):
    queue = await make()
    [first] = await queue.produce(item("a", "k"))
    [second] = await queue.produce(item("b", "k"))
    assert (second.id, second.duplicate) == (first.id, True)
    assert not first.duplicate
    assert texts(await queue.lease(1)) == ["a"]
    assert await queue.counts() == {"leased": 1}


async def test_items_with_other_keys_and_without_a_key_are_stored(make: Make):
    queue = await make()
    await queue.produce(item("a", "k"), item("b", "l"), "c", "d")
    assert await queue.counts() == {"ready": 4}


async def test_two_items_of_one_request_with_the_same_key_are_one(make: Make):
    queue = await make()
    first, second, other = await queue.produce(item("a", "k"), item("b", "k"), item("c", "l"))
    assert (second.duplicate, second.id) == (True, first.id)
    assert not other.duplicate
    assert texts(await queue.lease(2)) == ["a", "c"]


async def test_a_request_with_some_known_keys_stores_the_others_in_order(make: Make):
    queue = await make()
    await queue.produce(item("old", "k"))
    made = await queue.produce(item("1", "x"), item("2", "k"), item("3", "y"))
    assert [one.duplicate for one in made] == [False, True, False]
    assert texts(await queue.lease(3)) == ["old", "1", "3"]


async def test_a_request_of_known_keys_alone_stores_nothing(make: Make):
    queue = await make()
    await queue.produce(item("a", "k"), item("b", "l"))
    made = await queue.produce(item("b", "l"), item("a", "k"))
    assert [one.duplicate for one in made] == [True, True]
    assert await queue.counts("ready", "duplicates") == {"ready": 2, "duplicates": 2}


async def test_the_key_is_known_while_the_item_is_leased(make: Make):
    queue = await make()
    await queue.produce(item("a", "k"))
    await queue.lease(1)
    [again] = await queue.produce(item("b", "k"))
    assert again.duplicate


async def test_the_key_is_known_after_the_item_was_completed(make: Make):
    queue = await make()
    [first] = await queue.produce(item("a", "k"))
    await queue.complete(await queue.lease_one())
    [again] = await queue.produce(item("b", "k"))
    assert (again.duplicate, again.id) == (True, first.id)


async def test_the_key_is_known_after_the_item_was_cancelled(make: Make):
    queue = await make()
    [first] = await queue.produce(item("a", "k"))
    await queue.cancel(first.id)
    [again] = await queue.produce(item("b", "k"))
    assert again.duplicate


async def test_the_key_is_known_after_the_item_died(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(item("a", "k"))
    await queue.reject(await queue.lease_one())
    [again] = await queue.produce(item("b", "k"))
    assert again.duplicate


async def test_the_key_of_a_scheduled_item_is_known(make: Make):
    queue = await make()
    await queue.produce(item("a", "k", enqueue_at=soon(3600)))
    [again] = await queue.produce(item("b", "k"))
    assert again.duplicate
    assert await queue.counts() == {"scheduled": 1}


async def test_a_key_is_forgotten_after_the_window(make: Make):
    queue = await make(dedup_window=span(1))
    [first] = await queue.produce(item("a", "k"))
    await queue.lease(1)
    await queue.elapse(1.2)
    [again] = await queue.produce(item("b", "k"))
    assert not again.duplicate
    assert again.id != first.id


async def test_a_window_of_nothing_remembers_no_key(make: Make):
    queue = await make(dedup_window=span(0))
    await queue.produce(item("a", "k"))
    [again] = await queue.produce(item("b", "k"))
    assert not again.duplicate
    assert await queue.counts() == {"ready": 2}


async def test_each_queue_has_keys_of_its_own(make: Make):
    one, other = await make(), await make()
    await one.produce(item("a", "k"))
    [there] = await other.produce(item("b", "k"))
    assert not there.duplicate


async def test_a_key_is_found_in_a_queue_of_many_partitions(make: Make):
    queue = await make(partitions=5)
    keys = [f"key-{number}" for number in range(40)]
    made = await queue.produce(*(item("first", key) for key in keys))
    assert len({one.id.partition("-")[0] for one in made}) == 5
    again = await queue.produce(*(item("second", key) for key in keys))
    assert [one.id for one in again] == [one.id for one in made]
    assert all(one.duplicate for one in again)
    assert (await queue.stats()).ready == 40


async def test_a_key_is_found_after_the_number_of_partitions_changed(make: Make):
    queue = await make(partitions=1)
    keys = [f"key-{number}" for number in range(20)]
    made = await queue.produce(*(item("first", key) for key in keys))
    await queue.update(partitions=3)
    again = await queue.produce(*(item("second", key) for key in keys))
    assert [one.id for one in again] == [one.id for one in made]
    assert all(one.duplicate for one in again)


async def test_items_with_one_ordering_key_are_compared_by_their_dedup_keys(make: Make):
    queue = await make(partitions=3)
    await queue.produce(item("a", "d1", key="customer"), item("b", "d2", key="customer"))
    [again] = await queue.produce(item("c", "d1", key="customer"))
    assert again.duplicate
    assert (await queue.stats()).ready == 2


async def test_a_dedup_key_of_more_than_512_bytes_is_refused(make: Make):
    queue = await make()
    await queue.produce(item("a", "é" * 256))
    said = await refusal(queue.produce(item("a", "é" * 256 + "x")))
    assert said.facts == ("LIMIT_EXCEEDED", "items[0].dedup_key", "512 bytes", "513 bytes")
