"""The life of a queue: create, delete, and create again under the same name."""

import asyncio

from tests.conformance.door import Refused
from tests.conformance.make import Make
from tests.conformance.queues import LOST, Queue, looks, refusal, texts


async def test_a_queue_that_was_created_takes_items_at_once(make: Make):
    queue = make.queue()
    assert (await queue.create()).created
    await queue.produce("a")
    assert texts(await queue.lease(1)) == ["a"]


async def test_a_queue_that_exists_with_the_same_settings_may_be_created_again(make: Make):
    queue = await make(max_attempts=3)
    await queue.produce("a")
    again = await queue.create(max_attempts=3)
    assert not again.created
    assert await queue.counts() == {"ready": 1}


async def test_settings_that_a_creation_leaves_out_are_not_compared(make: Make):
    queue = await make(max_attempts=3, description="mail")
    assert not (await queue.create()).created
    assert (await queue.get()).settings.description == "mail"


async def test_a_creation_with_other_settings_is_refused(make: Make):
    queue = await make(max_attempts=3)
    said = await refusal(queue.create(max_attempts=4))
    assert (said.code, said.retriable) == ("QUEUE_EXISTS", False)
    assert (await queue.get()).settings.max_attempts == 3


async def test_creations_at_the_same_time_make_one_queue(make: Make):
    queue = make.queue()
    answers = await asyncio.gather(*(queue.create() for _ in range(6)))
    assert sum(answer.created for answer in answers) == 1
    assert len({answer.queue.id for answer in answers}) == 1


async def test_the_settings_of_a_queue_have_their_defaults(make: Make):
    settings = (await (await make()).get()).settings
    assert settings.partitions == 1
    assert settings.lease_timeout.seconds == 30
    assert settings.max_attempts == 20
    assert settings.dead_queue == "dead"
    assert settings.dedup_window.seconds == 3_600
    assert settings.retry_delay.ToMilliseconds() == 0
    assert settings.replicas == 0, "as many as there are nodes, three at most"


async def test_a_queue_without_partitions_gets_one(make: Make):
    queue = await make(partitions=0)
    assert (await queue.get()).settings.partitions == 1
    await queue.produce("a")
    assert await queue.counts() == {"ready": 1}


async def test_queues_of_two_namespaces_with_one_name_do_not_meet(make: Make):
    one = await make(namespace=make.name(), dead_queue="")
    other = make.queue(one.name, make.name())
    await other.create(dead_queue="")
    await one.produce("one")
    await other.produce("other")
    assert texts(await one.lease(1)) == ["one"]
    assert texts(await other.lease(1)) == ["other"]


async def test_a_namespace_that_does_not_exist_is_named(make: Make):
    said = await refusal(make.queue(namespace=make.name()).stats())
    assert said.code == "NAMESPACE_NOT_FOUND"


async def test_calls_of_a_queue_that_does_not_exist_are_refused(make: Make):
    queue = make.queue()
    other = await make()
    await other.produce("a")
    item = await other.lease_one()
    for call in (
        queue.produce("a"), queue.lease(1), queue.complete(item), queue.retry(item),
        queue.extend(item.lease_id), queue.get(), queue.stats(), queue.peek(),
        queue.update(description="d"), queue.delete(), queue.purge(),
    ):  # fmt: skip
        assert (await refusal(call)).code == "QUEUE_NOT_FOUND"


async def test_a_deleted_queue_takes_no_items(make: Make):
    queue = await make()
    await queue.delete()
    assert (await refusal(queue.produce("a"))).code in ("QUEUE_NOT_FOUND", "QUEUE_DELETING")


async def test_a_lease_of_a_deleted_queue_is_refused(make: Make):
    queue = await make()
    await queue.produce("a")
    await queue.delete()
    assert (await refusal(queue.lease(1))).code in ("QUEUE_NOT_FOUND", "QUEUE_DELETING")


async def test_a_delete_ends_the_calls_of_consumers_that_wait(make: Make):
    queue = await make()
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(refusal(queue.lease(1, client=f"c{n}"))) for n in range(3)]
        await queue.delete()
    codes = {one.result().code for one in waiting}
    assert codes <= {"QUEUE_DELETING", "QUEUE_NOT_FOUND"}


async def test_a_queue_that_is_created_again_is_empty_and_another_one(make: Make):
    queue = await make(max_attempts=3)
    await queue.produce("old")
    before = (await queue.get()).id
    await queue.delete()
    await recreate(queue)
    assert (await queue.get()).id != before
    assert (await queue.get()).settings.max_attempts == 20
    assert await queue.counts() == {}
    await queue.produce("new")
    assert texts(await queue.lease(1)) == ["new"]


async def test_a_lease_of_the_old_queue_does_not_reach_an_item_of_the_next(make: Make):
    queue = await make()
    await queue.produce("old")
    old = await queue.lease_one()
    await queue.delete()
    await recreate(queue)
    await queue.produce("new")
    new = await queue.lease_one()
    assert new.id == old.id
    assert await queue.complete(old) == [LOST]
    assert await queue.retry(old) == [LOST]
    assert await queue.counts() == {"leased": 1}


async def test_a_producer_of_the_old_queue_stores_its_items_in_the_next(make: Make):
    queue = await make()
    me = make.producer()
    await queue.produce("old", producer_id=me, sequence=1)
    await queue.delete()
    await recreate(queue)
    [made] = await queue.produce("again", producer_id=me, sequence=1)
    assert not made.repeated
    assert await queue.counts() == {"ready": 1}


async def test_a_dead_queue_in_use_is_not_deleted(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    said = await refusal(dead.delete())
    assert said.code == "QUEUE_IN_USE"
    await queue.delete()
    await dead.delete()
    assert (await refusal(dead.produce("a"))).code in ("QUEUE_NOT_FOUND", "QUEUE_DELETING")


async def test_dead_letters_outlive_their_queue(make: Make):
    dead = await make()
    queue = await make(dead_queue=dead.name)
    await queue.produce("a")
    await queue.reject(await queue.lease_one())
    await queue.dead_letters(1)
    await queue.delete()
    assert texts(await dead.lease(1)) == ["a"]


async def test_a_delete_of_one_queue_leaves_the_others(make: Make):
    one, other = await make(), await make()
    await one.produce("one")
    await other.produce("other")
    await one.delete()
    assert texts(await other.lease(1)) == ["other"]


async def test_a_full_list_of_queues_has_each_once(make: Make):
    namespace = make.name()
    queues = [await make(namespace=namespace, dead_queue="") for _ in range(5)]
    assert await make.names(namespace, page_size=2) == sorted(queue.name for queue in queues)


async def test_a_deleted_queue_leaves_the_list(make: Make):
    namespace = make.name()
    one, other = [await make(namespace=namespace, dead_queue="") for _ in range(2)]
    await one.delete()
    names: list[str] = []
    async for _ in looks():
        names = await make.names(namespace)
        if names == [other.name]:
            break
    assert names == [other.name]


async def recreate(queue: Queue) -> None:
    """Creates the queue again, as soon as its data is removed."""
    async for _ in looks():
        try:
            created = (await queue.create()).created
        except Refused as refused:
            if refused.code != "QUEUE_DELETING":
                raise
        else:
            assert created
            return
    raise AssertionError("the queue is still being deleted")
