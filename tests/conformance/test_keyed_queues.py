"""Keyed queues: items of one key strictly in order and one at a time."""

import asyncio

from querator.v1.admin_service_pb2 import (
    QUEUE_KIND_KEYED,
    QUEUE_KIND_PLAIN,
    KeyStats,
    ListKeysRequest,
    SkipKeyRequest,
)
from querator.v1.items_pb2 import Item
from tests.conformance.door import CALL_S
from tests.conformance.make import Make
from tests.conformance.queues import DONE, Queue, refusal, soon, span, texts
from tests.conformance.stubs import answer


def of(key: str, text: str, **fields: object) -> Item:
    return Item(payload=text.encode(), key=key, **fields)  # type: ignore[arg-type]


async def keyed(make: Make, **settings: object) -> Queue:
    given: dict[str, object] = {"kind": QUEUE_KIND_KEYED, **settings}
    return await make(**given)  # type: ignore[arg-type]


async def test_the_second_item_of_a_key_waits_until_the_first_is_completed(make: Make):
    queue = await keyed(make)
    await queue.produce(of("k", "1"), of("k", "2"), of("other", "3"))
    first, other = await queue.lease(2)
    assert texts([first, other]) == ["1", "3"]
    await queue.complete(first)
    assert texts(await queue.lease(1)) == ["2"]


async def test_items_of_different_keys_are_leased_together(make: Make):
    queue = await keyed(make)
    await queue.produce(*(of(f"k{n}", str(n)) for n in range(10)))
    assert texts(await queue.lease(10)) == [str(n) for n in range(10)]


async def test_items_without_a_key_are_leased_as_in_a_plain_queue(make: Make):
    queue = await keyed(make)
    await queue.produce("a", "b", "c")
    assert texts(await queue.lease(3)) == ["a", "b", "c"]


async def test_a_caller_that_waits_gets_the_next_item_of_a_key_when_one_is_done(make: Make):
    queue = await keyed(make)
    await queue.produce(of("k", "1"), of("k", "2"))
    first = await queue.lease_one()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(queue.lease_one(client="other"))
        assert await queue.complete(first) == [DONE]
    assert waiting.result().text == "2"


async def test_a_retried_item_stays_at_the_head_of_its_key(make: Make):
    queue = await keyed(make)
    await queue.produce(of("k", "1"), of("k", "2"))
    await queue.retry(await queue.lease_one())
    again = await queue.lease_one()
    assert (again.text, again.attempt) == ("1", 2)


async def test_a_released_item_stays_at_the_head_of_its_key(make: Make):
    queue = await keyed(make)
    await queue.produce(of("k", "1"), of("k", "2"))
    await queue.release(await queue.lease_one())
    again = await queue.lease_one()
    assert (again.text, again.attempt) == ("1", 1)


async def test_a_lapsed_item_stays_at_the_head_of_its_key(make: Make):
    queue = await keyed(make, lease_timeout=span(1))
    await queue.produce(of("k", "1"), of("k", "2"))
    await queue.lease(1)
    again = await queue.lease_one(client="other", timeout_s=60)
    assert (again.text, again.attempt) == ("1", 2)


async def test_a_later_retry_keeps_back_its_key_and_no_other(make: Make):
    queue = await keyed(make)
    await queue.produce(of("k", "1"), of("k", "2"), of("other", "3"))
    first = await queue.lease_one()
    await queue.retry(first, at=soon(0.6))
    assert texts(await queue.lease(1)) == ["3"]
    again = await queue.lease_one()
    assert again.text == "1"
    await queue.complete(again)
    assert texts(await queue.lease(1)) == ["2"]


async def test_a_later_retry_steps_aside_where_the_queue_says_so(make: Make):
    queue = await keyed(make, key_retry_blocks=False)
    await queue.produce(of("k", "1"), of("k", "2"))
    await queue.retry(await queue.lease_one(), at=soon(3600))
    assert texts(await queue.lease(1)) == ["2"]


async def test_the_next_item_of_a_key_follows_a_dead_one(make: Make):
    queue = await keyed(make, dead_queue="")
    await queue.produce(of("k", "1"), of("k", "2"))
    await queue.reject(await queue.lease_one())
    assert texts(await queue.lease(1)) == ["2"]


async def test_an_operator_skips_the_head_of_a_stuck_key(make: Make):
    queue = await keyed(make)
    stuck, _ = await queue.produce(of("k", "1"), of("k", "2"))
    await queue.retry(await queue.lease_one(), at=soon(3600), error="busy")
    assert (await queue.cancel(stuck.id)).cancelled == 1
    assert texts(await queue.lease(1)) == ["2"]


async def test_some_items_of_a_key_are_leased_together_where_the_queue_says_so(make: Make):
    queue = await keyed(make, key_leased_max=3)
    await queue.produce(*(of("k", str(n)) for n in range(5)), of("other", "x"))
    taken = [item.text for item in await queue.lease(4) if item.item.key == "k"]
    assert taken == ["0", "1", "2"]


async def test_the_order_of_each_key_holds_over_many_partitions(make: Make):
    queue = await keyed(make, partitions=3)
    keys = [f"k{n}" for n in range(6)]
    for number in range(3):
        await queue.produce(*(of(key, str(number)) for key in keys))
    order: dict[str, list[str]] = {key: [] for key in keys}
    for _ in range(18):
        item = await queue.lease_one()
        order[item.item.key].append(item.text)
        await queue.complete(item)
    assert order == {key: ["0", "1", "2"] for key in keys}


async def test_many_consumers_never_have_two_items_of_one_key(make: Make):
    queue = await keyed(make)
    await queue.produce(*(of(f"k{n % 4}", str(n)) for n in range(20)))
    held: set[str] = set()

    async def work(client: str) -> None:
        for _ in range(5):
            item = await queue.lease_one(client=client)
            assert item.item.key not in held
            held.add(item.item.key)
            await queue.stats()
            held.remove(item.item.key)
            await queue.complete(item)

    await asyncio.gather(*(work(f"c{n}") for n in range(4)))
    assert await queue.counts("completed", "retried") == {"completed": 20, "retried": 0}


async def test_a_change_of_priority_is_refused_in_a_keyed_queue(make: Make):
    queue = await keyed(make)
    [made] = await queue.produce(of("k", "1"))
    said = await refusal(queue.prioritize(made.id, priority=1))
    assert said.code == "INVALID_ARGUMENT"


async def test_the_kind_of_a_queue_cannot_be_changed(make: Make):
    queue = await keyed(make)
    said = await refusal(queue.update(kind=QUEUE_KIND_PLAIN))
    assert said.field == "settings.kind"
    assert (await queue.get()).settings.kind == QUEUE_KIND_KEYED


async def test_a_number_of_leased_items_of_a_key_is_refused_on_a_plain_queue(make: Make):
    said = await refusal(make.queue().create(key_leased_max=2))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "settings.key_leased_max")


async def listed(make: Make, queue: Queue, *, blocked: bool) -> list[KeyStats]:
    request = ListKeysRequest(queue=queue.name, blocked=blocked)
    reply = await answer(make.nodes[0].admin.ListKeys(request, timeout=CALL_S))
    return list(reply.keys)


async def skip(make: Make, queue: Queue, key: str, item_id: str, *, dead: bool = False) -> bool:
    request = SkipKeyRequest(queue=queue.name, key=key, item_id=item_id, dead=dead)
    return (await answer(make.nodes[0].admin.SkipKey(request, timeout=CALL_S))).skipped


async def test_a_key_that_is_stuck_is_listed_and_skipped(make: Make):
    queue = await keyed(make)
    await queue.produce(of("k", "1"), of("k", "2"), of("other", "3"))
    first = await queue.lease_one()
    await queue.retry(first, at=soon(600))
    await queue.complete(await queue.lease_one())
    [stuck] = await listed(make, queue, blocked=True)
    assert (stuck.key, stuck.waiting, stuck.leased, stuck.head_attempts) == ("k", 2, 0, 1)
    assert (stuck.head_item_id, stuck.HasField("blocked_until")) == (first.id, True)
    assert await skip(make, queue, "k", stuck.head_item_id)
    assert not await skip(make, queue, "k", stuck.head_item_id), "a repeat takes no other item"
    assert texts(await queue.lease(1)) == ["2"]
    assert await queue.counts("cancelled") == {"cancelled": 1}


async def test_an_item_that_is_leased_is_not_skipped(make: Make):
    queue = await keyed(make)
    await queue.produce(of("k", "1"))
    first = await queue.lease_one()
    assert not await skip(make, queue, "k", first.id)
    assert await queue.complete(first) == [DONE]


async def test_an_item_is_not_skipped_to_a_dead_queue_that_is_not_there(make: Make):
    queue = await keyed(make, dead_queue="")
    [made] = await queue.produce(of("k", "1"))
    said = await refusal(skip(make, queue, "k", made.id, dead=True))
    assert (said.code, said.field) == ("INVALID_ARGUMENT", "dead")
    assert texts(await queue.lease(1)) == ["1"]
