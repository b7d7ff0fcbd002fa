"""Dedup keys that count until their item is done."""

from querator.v1.admin_service_pb2 import DEDUP_UNTIL_DONE, DEDUP_UNTIL_WINDOW
from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import Produced, Queue, refusal, soon, span, texts


def keyed(text: str, dedup_key: str = "k", **fields: object) -> Item:
    return Item(payload=text.encode(), dedup_key=dedup_key, **fields)  # type: ignore[arg-type]


async def unique(make: Make, **settings: object) -> Queue:
    """A queue in which keys count until their items are done; dead letters are dropped."""
    given: dict[str, object] = {"dedup_until": DEDUP_UNTIL_DONE, "dead_queue": "", **settings}
    return await make(**given)  # type: ignore[arg-type]


async def again(queue: Queue, dedup_key: str = "k") -> Produced:
    [made] = await queue.produce(keyed("again", dedup_key))
    return made


# -- the key counts


async def test_a_key_counts_while_its_item_is_ready(make: Make):
    queue = await unique(make)
    [first] = await queue.produce(keyed("a"))
    second = await again(queue)
    assert (second.duplicate, second.id) == (True, first.id)
    assert await queue.counts() == {"ready": 1}


async def test_a_key_counts_while_its_item_is_leased(make: Make):
    queue = await unique(make)
    await queue.produce(keyed("a"))
    await queue.lease(1)
    assert (await again(queue)).duplicate
    assert await queue.counts() == {"leased": 1}


async def test_a_key_counts_while_its_item_is_scheduled(make: Make):
    queue = await unique(make)
    await queue.produce(keyed("a", enqueue_at=soon(3600)))
    assert (await again(queue)).duplicate
    assert await queue.counts() == {"scheduled": 1}


async def test_a_key_counts_while_its_item_waits_for_a_retry(make: Make):
    queue = await unique(make)
    await queue.produce(keyed("a"))
    await queue.retry(await queue.lease_one(), at=soon(3600))
    assert (await again(queue)).duplicate


async def test_a_key_counts_after_a_retry_that_is_ready_at_once(make: Make):
    queue = await unique(make)
    [first] = await queue.produce(keyed("a"))
    await queue.retry(await queue.lease_one())
    assert (await again(queue)).id == first.id


async def test_a_key_counts_after_a_release(make: Make):
    queue = await unique(make)
    await queue.produce(keyed("a"))
    await queue.release(await queue.lease_one())
    assert (await again(queue)).duplicate


async def test_a_key_counts_after_a_lapse(make: Make):
    queue = await unique(make, lease_timeout=span(1))
    await queue.produce(keyed("a"))
    await queue.lease(1)
    await queue.until(lapsed=1, ready=1)
    assert (await again(queue)).duplicate


async def test_a_key_counts_after_a_change_of_priority_and_of_time(make: Make):
    queue = await unique(make)
    [made] = await queue.produce(keyed("a", enqueue_at=soon(3600)))
    await queue.prioritize(made.id, priority=3)
    await queue.reschedule(made.id, run_now=True)
    assert (await again(queue)).id == made.id


async def test_the_window_of_the_queue_does_not_matter_for_such_a_key(make: Make):
    queue = await unique(make, dedup_window=span(0))
    await queue.produce(keyed("a"))
    await queue.lease(1)
    await queue.elapse(0.3)
    assert (await again(queue)).duplicate


async def test_two_items_of_one_request_with_such_a_key_are_one(make: Make):
    queue = await unique(make)
    first, second, other = await queue.produce(keyed("a"), keyed("b"), keyed("c", "l"))
    assert [one.duplicate for one in (first, second, other)] == [False, True, False]
    assert texts(await queue.lease(2)) == ["a", "c"]


async def test_such_keys_are_found_in_a_queue_of_many_partitions(make: Make):
    queue = await unique(make, partitions=4)
    keys = [f"key-{number}" for number in range(24)]
    made = await queue.produce(*(keyed("a", key) for key in keys))
    repeated = await queue.produce(*(keyed("b", key) for key in keys))
    assert [one.id for one in repeated] == [one.id for one in made]
    assert (await queue.stats()).ready == 24


async def test_such_a_key_counts_after_the_number_of_partitions_changed(make: Make):
    queue = await unique(make, partitions=1)
    keys = [f"key-{number}" for number in range(12)]
    made = await queue.produce(*(keyed("a", key) for key in keys))
    await queue.update(partitions=3)
    repeated = await queue.produce(*(keyed("b", key) for key in keys))
    assert [one.id for one in repeated] == [one.id for one in made]


# -- the key is free


async def test_a_key_is_free_when_its_item_is_completed(make: Make):
    queue = await unique(make)
    [first] = await queue.produce(keyed("a"))
    await queue.complete(await queue.lease_one())
    second = await again(queue)
    assert not second.duplicate
    assert second.id != first.id


async def test_the_same_work_may_be_done_many_times_one_after_the_other(make: Make):
    queue = await unique(make)
    for number in range(5):
        [made] = await queue.produce(keyed(str(number)))
        assert not made.duplicate
        assert (await again(queue)).duplicate
        await queue.complete(await queue.lease_one())
    assert await queue.counts("completed", "duplicates") == {"completed": 5, "duplicates": 5}


async def test_a_key_is_free_when_its_item_is_rejected(make: Make):
    queue = await unique(make)
    await queue.produce(keyed("a"))
    await queue.reject(await queue.lease_one())
    assert not (await again(queue)).duplicate


async def test_a_key_is_free_when_its_item_has_no_attempts_left(make: Make):
    queue = await unique(make, max_attempts=1)
    await queue.produce(keyed("a"))
    await queue.retry(await queue.lease_one())
    assert not (await again(queue)).duplicate


async def test_a_key_is_free_when_its_item_expires(make: Make):
    queue = await unique(make)
    await queue.produce(keyed("a", expire_timeout=span(0.2)))
    await queue.until(expired=1)
    assert not (await again(queue)).duplicate


async def test_a_key_is_free_when_its_item_is_cancelled(make: Make):
    queue = await unique(make)
    [made] = await queue.produce(keyed("a"))
    await queue.cancel(made.id)
    assert not (await again(queue)).duplicate


async def test_a_key_is_free_when_its_scheduled_item_is_cancelled(make: Make):
    queue = await unique(make)
    [made] = await queue.produce(keyed("a", enqueue_at=soon(3600)))
    await queue.reschedule(made.id, cancel=True)
    assert not (await again(queue)).duplicate


async def test_keys_are_free_when_their_queue_is_purged(make: Make):
    queue = await unique(make)
    await queue.produce(*(keyed("a", f"key-{number}") for number in range(20)))
    await queue.purge()
    made = await queue.produce(*(keyed("b", f"key-{number}") for number in range(20)))
    assert not any(one.duplicate for one in made)


async def test_a_key_of_one_item_does_not_become_free_by_another(make: Make):
    queue = await unique(make)
    await queue.produce(keyed("a", "k"), keyed("b", "l"))
    await queue.complete(await queue.lease_one())
    assert not (await again(queue, "k")).duplicate
    assert (await again(queue, "l")).duplicate


async def test_a_key_that_moved_to_another_partition_is_free_when_its_item_is_done(make: Make):
    queue = await unique(make, partitions=1)
    keys = [f"key-{number}" for number in range(12)]
    await queue.produce(*(keyed("a", key) for key in keys))
    await queue.update(partitions=3)
    await queue.complete(*await queue.lease(12))
    made = await queue.produce(*(keyed("b", key) for key in keys))
    assert not any(one.duplicate for one in made)


async def test_a_dead_letter_has_no_key_in_its_queue(make: Make):
    dead = await make()
    queue = await unique(make, dead_queue=dead.name)
    await queue.produce(keyed("a"))
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    assert not (await again(queue)).duplicate


async def test_a_redriven_item_is_stored_whatever_waits_in_its_queue(make: Make):
    dead = await make()
    queue = await unique(make, dead_queue=dead.name)
    await queue.produce(keyed("dead"))
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    await queue.produce(keyed("waits"))
    assert await queue.redrive() == 1
    assert texts(await queue.lease(2)) == ["waits", "dead"]


async def test_a_redriven_item_has_no_key(make: Make):
    dead = await make()
    queue = await unique(make, dead_queue=dead.name)
    await queue.produce(keyed("a"))
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    await queue.redrive()
    await queue.until(ready=1)
    assert not (await again(queue)).duplicate
    assert await queue.counts() == {"ready": 2}


# -- with other means, and when the setting changes


async def test_a_request_that_is_repeated_by_its_producer_after_its_item_was_done_stores_nothing(
    make: Make,
):
    queue = await unique(make)
    me = make.producer()
    [first] = await queue.produce(keyed("a"), producer_id=me, sequence=1)
    await queue.complete(await queue.lease_one())
    [repeated] = await queue.produce(keyed("a"), producer_id=me, sequence=1)
    assert (repeated.repeated, repeated.id) == (True, first.id)
    assert await queue.counts() == {}


async def test_keys_count_in_the_window_unless_a_queue_says_otherwise(make: Make):
    queue = await make()
    assert (await queue.get()).settings.dedup_until == DEDUP_UNTIL_WINDOW
    await queue.produce(keyed("a"))
    await queue.complete(await queue.lease_one())
    assert (await again(queue)).duplicate


async def test_a_key_that_is_known_keeps_its_window_when_the_setting_changes(make: Make):
    queue = await make(dead_queue="")
    await queue.produce(keyed("a", "before"))
    await queue.update(dedup_until=DEDUP_UNTIL_DONE)
    await queue.produce(keyed("b", "after"))
    await queue.complete(*await queue.lease(2))
    assert (await again(queue, "before")).duplicate
    assert not (await again(queue, "after")).duplicate


async def test_a_key_that_counts_until_its_item_is_done_does_so_when_the_setting_changes(
    make: Make,
):
    queue = await unique(make)
    await queue.produce(keyed("a"))
    await queue.update(dedup_until=DEDUP_UNTIL_WINDOW)
    await queue.complete(await queue.lease_one())
    assert not (await again(queue)).duplicate


async def test_an_unknown_end_of_keys_is_refused(make: Make):
    queue = make.queue()
    said = await refusal(queue.create(dedup_until=77))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "settings.dedup_until")
    assert said.value == "77"
