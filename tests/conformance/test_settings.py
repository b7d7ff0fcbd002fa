"""Settings that change while items are there."""

import time

from querator.v1.items_pb2 import Item
from tests.conformance.make import Make
from tests.conformance.queues import DONE, refusal, soon, span, texts


async def test_a_new_lease_timeout_holds_for_new_leases_alone(make: Make):
    queue = await make(lease_timeout=span(60))
    await queue.produce("a", "b")
    await queue.lease(1)
    await queue.update(lease_timeout=span(600))
    assert 598 < (await queue.lease_one()).remaining_s <= 600
    ends = [one.deadline.ToMilliseconds() / 1000 - time.time() for one in await queue.peek()]
    assert ends[0] < 61
    assert ends[1] > 590


async def test_a_lower_limit_of_attempts_holds_for_items_that_are_there(make: Make):
    queue = await make(max_attempts=10, dead_queue="")
    await queue.produce("a")
    for _ in range(3):
        await queue.retry(await queue.lease_one())
    await queue.update(max_attempts=4)
    assert (await queue.lease_one()).attempt == 4
    [held] = await queue.peek()
    assert held.lease_id
    assert await queue.counts("leased", "dead") == {"leased": 1, "dead": 0}


async def test_an_item_on_an_attempt_beyond_the_lowered_limit_dies_when_it_fails(make: Make):
    queue = await make(max_attempts=10, dead_queue="")
    await queue.produce("a")
    for _ in range(3):
        await queue.retry(await queue.lease_one())
    item = await queue.lease_one()
    await queue.update(max_attempts=2)
    assert await queue.retry(item) == [DONE]
    assert await queue.counts("ready", "dead") == {"ready": 0, "dead": 1}


async def test_a_leased_item_is_completed_though_the_limit_was_lowered_meanwhile(make: Make):
    queue = await make(max_attempts=10, dead_queue="")
    await queue.produce("a")
    await queue.retry(await queue.lease_one())
    item = await queue.lease_one()
    await queue.update(max_attempts=1)
    assert await queue.complete(item) == [DONE]


async def test_a_higher_limit_of_attempts_holds_for_items_that_are_there(make: Make):
    queue = await make(max_attempts=1, dead_queue="")
    await queue.produce("a")
    item = await queue.lease_one()
    await queue.update(max_attempts=3)
    await queue.retry(item)
    assert (await queue.lease_one()).attempt == 2


async def test_a_dead_queue_that_is_added_gets_the_next_dead_letters(make: Make):
    dead = await make()
    queue = await make(dead_queue="")
    await queue.produce("a", "b")
    await queue.reject(await queue.lease_one())
    await queue.update(dead_queue=dead.name)
    await queue.reject(await queue.lease_one())
    assert texts(await dead.lease(1)) == ["b"]
    assert await queue.counts("dead", "dropped") == {"dead": 2, "dropped": 1}


async def test_a_dead_queue_that_is_changed_takes_effect_at_once(make: Make):
    first, second = await make(), await make()
    queue = await make(dead_queue=first.name)
    await queue.produce("a", "b")
    await queue.reject(await queue.lease_one())
    await first.lease(1)
    await queue.update(dead_queue=second.name)
    await queue.reject(await queue.lease_one())
    assert texts(await second.lease(1)) == ["b"]
    assert (await first.stats()).moved_in == 1


async def test_a_dead_queue_that_is_removed_gets_no_more_letters(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce("a")
    await queue.update(dead_queue="")
    await queue.reject(await queue.lease_one())
    assert await queue.counts("dead", "dropped", "moving") == {
        "dead": 1, "dropped": 1, "moving": 0,
    }  # fmt: skip
    assert (await dead.stats()).moved_in == 0


async def test_a_lowered_limit_of_items_refuses_more_and_keeps_what_is_there(make: Make):
    queue = await make()
    await queue.produce(*"abc")
    await queue.update(partition_items_max=2)
    assert (await refusal(queue.produce("d"))).code == "QUEUE_FULL"
    assert texts(await queue.lease(3)) == ["a", "b", "c"]


async def test_a_raised_limit_of_items_takes_more_at_once(make: Make):
    queue = await make(partition_items_max=1)
    await queue.produce("a")
    assert (await refusal(queue.produce("b"))).code == "QUEUE_FULL"
    await queue.update(partition_items_max=0)
    await queue.produce("b")
    assert await queue.counts() == {"ready": 2}


async def test_only_what_is_named_is_changed(make: Make):
    queue = await make(max_attempts=7, description="mail", lease_timeout=span(50))
    await queue.update(max_attempts=9)
    settings = (await queue.get()).settings
    assert (settings.max_attempts, settings.description) == (9, "mail")
    assert settings.lease_timeout.seconds == 50


async def test_each_change_makes_another_version(make: Make):
    queue = await make()
    before = (await queue.get()).settings_version
    after = (await queue.update(description="one")).settings_version
    assert after == before + 1
    assert (await queue.get()).settings_version == after


async def test_a_change_of_an_old_version_is_refused_and_changes_nothing(make: Make):
    queue = await make()
    version = (await queue.get()).settings_version
    await queue.update(description="first", expected_version=version)
    said = await refusal(queue.update(description="second", expected_version=version))
    assert said.code == "VERSION_CONFLICT"
    assert (await queue.get()).settings.description == "first"


async def test_a_change_of_nothing_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.update())
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "update_mask")


async def test_a_setting_that_is_none_is_refused_by_name(make: Make):
    queue = await make()
    said = await refusal(queue.update_paths("colour"))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "update_mask.paths[0]")
    assert said.value == "colour"


async def test_a_change_that_is_refused_changes_none_of_its_settings(make: Make):
    queue = await make(description="before")
    said = await refusal(queue.update(description="after", lease_timeout=span(0.5)))
    assert said.facts == ("LIMIT_EXCEEDED", "settings.lease_timeout", "1000 ms", "500 ms")
    assert (await queue.get()).settings.description == "before"


async def test_a_raised_number_of_partitions_keeps_all_items(make: Make):
    queue = await make(partitions=1)
    await queue.produce(*map(str, range(30)))
    await queue.update(partitions=4)
    for number in range(30, 40):
        await queue.produce(str(number))
    taken = await queue.lease(40)
    assert sorted(texts(taken), key=int) == [str(number) for number in range(40)]


async def test_a_lowered_number_of_partitions_keeps_all_items(make: Make):
    queue = await make(partitions=3)
    await queue.produce(*(Item(payload=b"%d" % n, key=f"k{n}") for n in range(30)))
    await queue.update(partitions=1)
    assert (await queue.get()).settings.partitions == 1
    made = await queue.produce("new")
    assert made[0].id.startswith("0-")
    taken = await queue.lease(31)
    assert sorted(texts(taken)) == sorted([*map(str, range(30)), "new"])


async def test_a_lease_of_a_partition_that_closes_may_be_completed(make: Make):
    queue = await make(partitions=3)
    await queue.produce(*(Item(payload=b"x", key=f"k{n}") for n in range(30)))
    taken = await queue.lease(30)
    await queue.update(partitions=1)
    assert await queue.complete(*taken) == [DONE] * 30
    assert await queue.counts() == {}


async def test_scheduled_items_of_a_partition_that_closes_come_at_their_time(make: Make):
    queue = await make(partitions=3)
    due = soon(1)
    await queue.produce(*(Item(payload=b"x", key=f"k{n}", enqueue_at=due) for n in range(12)))
    await queue.update(partitions=1)
    assert len(await queue.lease(12)) == 12


async def test_a_number_of_partitions_beyond_the_limit_is_refused(make: Make):
    queue = await make()
    said = await refusal(queue.update(partitions=1_025))
    assert said.facts == ("LIMIT_EXCEEDED", "settings.partitions", "1024", "1025")
    assert (await queue.get()).settings.partitions == 1


async def test_a_shorter_memory_of_dedup_keys_holds_for_keys_that_are_known(make: Make):
    queue = await make()
    await queue.produce(Item(payload=b"a", dedup_key="k"))
    await queue.lease(1)
    await queue.update(dedup_window=span(1))
    await queue.elapse(1.3)
    [again] = await queue.produce(Item(payload=b"b", dedup_key="k"))
    assert not again.duplicate
