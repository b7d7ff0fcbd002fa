"""The guarantees of each SDK call, against a real node."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from querator import Client, Node
from querator.client import Consumer, Item, ItemId, ItemState, LeaseRef
from querator.client.errors import (
    ErrorCode,
    LeaseLost,
    LimitExceeded,
    QueueDeleting,
    QueueExists,
    QueueFull,
    QueueNotFound,
    VersionConflict,
)
from querator.client.values import DeadReason
from querator.model import limits

WAIT = timedelta(seconds=20)
IDLE = timedelta(milliseconds=300)


async def test_queues_are_made_listed_changed_and_deleted(client: Client):
    made = await client.create_queue("a", partitions=2, lease_timeout=timedelta(seconds=7))
    assert (made.created, made.state, made.partitions) == (True, "active", 2)
    assert made.lease_timeout == timedelta(seconds=7)
    again = await client.create_queue("a", partitions=2, lease_timeout=timedelta(seconds=7))
    assert not again.created
    with pytest.raises(QueueExists, match="partitions is 2, not 3"):
        await client.create_queue("a", partitions=3)
    kept = await client.create_queue("a", partitions=3, if_exists="keep")
    assert (kept.partitions, kept.created) == (2, False)
    assert (await client.create_queue("b", description="second", if_exists="keep")).created
    assert [queue.name async for queue in client.list_queues()] == ["a", "b", "dead"]
    changed = await client.update_queue("a", max_attempts=3, expected_version=1)
    assert (changed.max_attempts, changed.lease_timeout) == (3, timedelta(seconds=7))
    with pytest.raises(VersionConflict):
        await client.update_queue("a", max_attempts=4, expected_version=1)
    with pytest.raises(TypeError, match="no such queue setting: colour"):
        await client.update_queue("a", colour="blue")  # type: ignore[call-arg]
    await client.delete_queue("b")
    with pytest.raises((QueueNotFound, QueueDeleting)):
        await client.produce("b", b"x")
    with pytest.raises(QueueNotFound) as caught:
        await client.produce("never", b"x")
    assert caught.value.request_id


async def test_a_program_that_creates_its_queue_runs_again_after_an_operator_changed_it(
    client: Client,
):
    await client.create_queue("mail", partitions=2)
    await client.update_queue("mail", max_attempts=5)
    again = await client.create_queue("mail", partitions=2)
    assert (again.created, again.max_attempts) == (False, 5)
    assert not (await client.create_queue("mail")).created
    with pytest.raises(QueueExists, match="max_attempts is 5, not 0"):
        await client.create_queue("mail", max_attempts=0)


async def test_an_item_of_a_queue_without_settings_ends_in_the_default_dead_queue(client: Client):
    made = await client.create_queue("mail")
    assert (made.max_attempts, made.dead_queue) == (limits.ATTEMPTS_DEFAULT, "dead")
    await client.produce("mail", b"poison")
    attempts = 0
    while items := await client.lease("mail", wait=IDLE):
        [item] = items
        attempts += 1
        assert item.attempt == attempts
        await item.retry(error="no such mailbox")
    assert attempts == limits.ATTEMPTS_DEFAULT
    [letter] = [letter async for letter in client.dead_letters("mail")]
    assert letter.dead_letter is not None
    assert (letter.dead_letter.reason, letter.item.payload) == (DeadReason.ATTEMPTS, b"poison")
    assert (await client.get_queue("dead")).max_attempts == 0, "letters are not dropped"
    assert await client.redrive("mail") == 1
    [again] = await client.lease("mail", wait=WAIT)
    assert (again.payload, again.attempt) == (b"poison", 1)
    await again.complete()


async def test_a_queue_can_do_without_a_dead_queue_and_get_it_back(client: Client):
    made = await client.create_queue("mail", dead_queue="", max_attempts=0)
    assert (made.max_attempts, made.dead_queue) == (0, "")
    assert [queue.name async for queue in client.list_queues()] == ["mail"]
    changed = await client.update_queue("mail", dead_queue=None, max_attempts=None)
    assert (changed.max_attempts, changed.dead_queue) == (limits.ATTEMPTS_DEFAULT, "dead")


async def test_an_item_arrives_as_it_was_produced(client: Client):
    await client.create_queue("q")
    sent = Item(
        "bonjour",
        kind="greeting",
        encoding="text/plain",
        reference="r-1",
        attributes={"lang": "fr"},
        priority=-4,
        group="g",
        key="k",
        lease_timeout=timedelta(seconds=9),
    )
    (stored,) = await client.produce("q", sent)
    (item,) = await client.lease("q", wait=WAIT)
    assert (item.id, item.payload, item.attempt) == (stored.id, b"bonjour", 1)
    assert (item.kind, item.encoding, item.reference) == ("greeting", "text/plain", "r-1")
    assert (item.group, item.key, item.priority) == ("g", "k", -4)
    assert item.attributes == {"lang": "fr"}
    assert timedelta(seconds=5) < item.remaining <= timedelta(seconds=9)
    assert abs(item.deadline - datetime.now(UTC)) < timedelta(seconds=60)
    assert (item.queue, item.dead_letter, item.errors) == ("q", None, ())
    await item.extend(timedelta(seconds=100))
    assert item.remaining > timedelta(seconds=50)
    await item.complete()
    stats = await client.stats("q")
    assert (stats.total.completed, stats.total.bytes, stats.durable) == (1, 0, False)


async def test_leasing_an_empty_queue_waits_no_longer_than_told(client: Client):
    await client.create_queue("q")
    assert await client.lease("q") == []
    assert await client.lease("q", wait=timedelta(milliseconds=50)) == []
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.lease("q", wait=WAIT))
        await asyncio.sleep(0)
        await client.produce("q", b"x")
    assert [item.payload for item in waiting.result()] == [b"x"]


async def test_settling_by_name(client: Client):
    await client.create_queue("q")
    await client.produce("q", *(b"%d" % n for n in range(6)))
    items = await client.lease("q", max_items=6)
    lease = items[0].lease_id
    shown = [one async for one in client.peek("q", state=ItemState.LEASED)]
    assert {(one.lease_id, one.client_id, one.deadline) for one in shown} == {
        (lease, client.client_id, items[0].deadline)
    }
    (outcome,) = await client.complete("q", LeaseRef(lease, (items[0].id, str(items[2].id))))
    assert (outcome.done, outcome.lost) == ((1, 3), ())
    (outcome,) = await client.complete("q", LeaseRef(lease, (1,)))
    assert (outcome.done, outcome.repeated) == ((), (1,))
    await client.retry("q", items[1], error="again")
    assert items[1].settled
    with pytest.raises(LeaseLost):
        await client.complete("q", LeaseRef(lease, (2,)))
    (outcome,) = await client.complete("q", LeaseRef(lease, (2, 4)), check=False)
    assert (outcome.done, outcome.lost, outcome.error) == ((4,), (2,), ErrorCode.LEASE_LOST)
    (extended,) = await client.extend("q", lease, lease_timeout=timedelta(minutes=5))
    assert extended.remaining > timedelta(minutes=4)
    assert len(await client.extend("q")) == 1
    await client.complete("q", lease)
    with pytest.raises(LeaseLost):
        await client.extend("q", lease)
    (again,) = await client.lease("q", max_items=10)
    assert (again.payload, again.attempt, again.errors) == (b"1", 2, ("again",))


async def test_a_lease_without_its_items_is_lost_aloud(client: Client):
    await client.create_queue("q")
    (stored,) = await client.produce("q", b"x")
    (item,) = await client.lease("q")
    (outcome,) = await client.complete("q", item.lease_id)
    assert (outcome.done, outcome.error) == ((stored.seq,), None)
    (outcome,) = await client.complete("q", item.batch)
    assert (outcome.repeated, outcome.error) == ((stored.seq,), None)
    with pytest.raises(LeaseLost):
        await client.retry("q", item.lease_id)
    never = item.lease_id.rpartition(".")[0] + ".7fff"
    with pytest.raises(LeaseLost):
        await client.complete("q", never)
    (outcome,) = await client.complete("q", never, check=False)
    assert (outcome.done, outcome.lost, outcome.error) == ((), (), ErrorCode.LEASE_LOST)


async def test_a_settled_batch_does_not_stand_for_the_rest_of_its_lease(client: Client):
    await client.create_queue("q")
    await client.produce("q", b"a")
    await client.produce("q", b"b")
    first, second = await client.lease("q", max_items=2)
    assert (first.lease_id, first.batch is second.batch) == (second.lease_id, False)
    await client.complete("q", first.batch)
    (outcome,) = await client.complete("q", first.batch)
    assert outcome.repeated == (first.id.seq,)
    await second.release()


async def test_a_lapsed_lease_is_lost_to_its_holder(client: Client):
    await client.create_queue("q", lease_timeout=timedelta(seconds=1))
    await client.produce("q", b"x")
    (slow,) = await client.lease("q", wait=WAIT)
    (quick,) = await client.lease("q", wait=WAIT)
    assert (quick.id, quick.attempt) == (slow.id, 2)
    with pytest.raises(LeaseLost) as caught:
        await slow.complete()
    assert caught.value.items == (slow.id,)
    assert slow.remaining == timedelta(0)
    await quick.complete()


async def test_a_consumer_keeps_its_leases_as_long_as_it_lives(client: Client):
    await client.create_queue("q", lease_timeout=timedelta(seconds=1))
    await client.produce("q", b"slow", b"other")
    async with client.consumer("q") as consumer:
        item, other = await anext(consumer), await anext(consumer)
        assert await client.lease("q", wait=timedelta(seconds=2.5)) == []
        await item.complete()
    (released,) = await client.lease("q", wait=WAIT)
    assert (released.id, released.attempt) == (other.id, 1)


async def test_later_rejected_and_dead(client: Client):
    await client.create_queue("dead")
    await client.create_queue("q", dead_queue="dead", max_attempts=2)
    await client.produce("q", b"reject", b"exhaust", Item(b"delayed", delay=timedelta(days=1)))
    async with client.consumer("q", idle_timeout=IDLE) as consumer:
        async for item in consumer:
            if item.payload == b"reject":
                await item.reject("not mine")
            else:
                await item.retry(error=f"attempt {item.attempt}")
    (scheduled,) = [item async for item in client.peek("q")]
    assert (scheduled.item.payload, scheduled.state) == (b"delayed", ItemState.SCHEDULED)
    assert scheduled.due_at is not None
    letters = {letter.item.payload: letter async for letter in client.dead_letters("q")}
    rejected, exhausted = letters[b"reject"].dead_letter, letters[b"exhaust"].dead_letter
    assert rejected is not None
    assert exhausted is not None
    assert (rejected.reason, rejected.errors) == (DeadReason.REJECTED, ("not mine",))
    assert (exhausted.reason, exhausted.attempts) == (DeadReason.ATTEMPTS, 2)
    assert exhausted.errors == ("attempt 1", "attempt 2")
    assert exhausted.origin_id == ItemId(0, 2)
    assert await client.redrive("q", [letters[b"reject"].id]) == 1
    (back,) = await client.lease("q", wait=WAIT)
    assert (back.payload, back.attempt) == (b"reject", 1)
    assert [letter.item.payload async for letter in client.dead_letters("q", limit=5)] == [
        b"exhaust"
    ]


async def test_pages_are_followed_to_their_limit(client: Client):
    await client.create_queue("q", partitions=3)
    async with client.producer("q", ordered=False, batch_items=10) as producer:
        await producer.produce_many(b"%d" % n for n in range(250))
    assert len([item async for item in client.peek("q")]) == 250
    assert len([item async for item in client.peek("q", limit=120)]) == 120
    assert [item async for item in client.peek("q", state=ItemState.LEASED)] == []


async def test_an_ordered_producer_is_in_one_partition_and_an_unordered_one_in_all(
    client: Client,
):
    await client.create_queue("q", partitions=4)
    async with client.producer("q", batch_items=5) as producer:
        stored = await producer.produce_many(b"%d" % n for n in range(100))
    assert len({item.partition for item in stored}) == 1
    assert [item.seq for item in stored] == sorted(item.seq for item in stored)
    async with client.producer("q", batch_items=5, ordered=False) as producer:
        stored = await producer.produce_many(b"%d" % n for n in range(100))
    assert len({item.partition for item in stored}) == 4


async def test_items_of_one_key_are_in_one_partition_in_order(client: Client):
    await client.create_queue("q", partitions=4)
    keys = [f"k{number % 7}" for number in range(210)]
    items = [Item(b"%d" % number, key=key) for number, key in enumerate(keys)]
    async with client.producer("q", batch_items=20) as producer:
        stored = [*await producer.produce_many(items[:70])]
        for item in items[70:140]:
            await producer.submit(item)
        await producer.produce(b"without")
        await client.update_queue("q", partitions=3)
        stored += [await producer.produce(item) for item in items[140:]]
    # By key and number of partitions.
    placed = {(key, place < 70) for place, key in enumerate(keys)}
    found = {(keys[place if place < 70 else place + 70], place < 70): item.partition
             for place, item in enumerate(stored)}  # fmt: skip
    assert set(found) == placed
    assert set(found.values()) == {0, 1, 2, 3}
    for place, item in enumerate(stored):
        key = keys[place if place < 70 else place + 70]
        assert item.partition == found[key, place < 70]
    leased: dict[tuple[int, str], list[int]] = {}
    async with client.consumer("q") as consumer:
        for _ in range(211):
            held = await anext(consumer)
            if held.key:
                leased.setdefault((held.id.partition, held.key), []).append(int(held.payload))
            held.complete()
    assert sum(map(len, leased.values())) == 210
    assert all(numbers == sorted(numbers) for numbers in leased.values())


async def test_a_dedup_key_is_stored_once(client: Client):
    await client.create_queue("q", partitions=2)
    (first,) = await client.produce("q", Item(b"one", dedup_key="k"))
    async with client.producer("q", ordered=False) as producer:
        again, other = await producer.produce_many(
            [Item(b"two", dedup_key="k"), Item(b"three", dedup_key="l")]
        )
    assert (again.id, again.duplicate, other.duplicate) == (first.id, True, False)
    assert (await client.stats("q")).total.ready == 2


async def test_limits_are_refused_by_name_and_value_and_disturb_nobody(client: Client):
    await client.create_queue("q", partition_items_max=50)
    big = b"x" * (limits.PAYLOAD_BYTES_MAX + 1)
    async with client.producer("q") as producer:
        results = await asyncio.gather(
            producer.produce(b"a"),
            producer.produce(big),
            producer.produce(b"b"),
            return_exceptions=True,
        )
    assert isinstance(results[1], LimitExceeded)
    assert "payload" in results[1].field
    assert str(limits.PAYLOAD_BYTES_MAX) in results[1].limit
    assert [item.payload for item in await client.lease("q", max_items=9)] == [b"a", b"b"]


async def test_a_full_queue_says_so_after_the_request_timeout(node: Node):
    async with Client(node.address, request_timeout=timedelta(seconds=0.3)) as client:
        await client.create_queue("q", partition_items_max=3)
        async with client.producer("q") as producer:
            await producer.produce_many([b"x"] * 3)
            with pytest.raises(QueueFull):
                await producer.produce(b"y")
            with pytest.raises(QueueFull):
                await client.produce("q", b"y")
            (item,) = await client.lease("q", wait=WAIT)
            await item.complete()
            assert (await producer.produce(b"z")).seq > 3


async def test_many_producers_and_consumers_share_the_work_without_loss(client: Client):
    await client.create_queue("q", partitions=3)
    total = 3_000
    seen: set[bytes] = set()
    consumers: list[Consumer] = []

    async def produce(start: int) -> None:
        async with client.producer("q", batch_items=20) as producer:
            for n in range(start, start + total // 3):
                await producer.submit(b"%d" % n)

    async def consume() -> None:
        async with client.consumer("q", prefetch_items=50, idle_timeout=WAIT) as consumer:
            consumers.append(consumer)
            async for item in consumer:
                assert item.payload not in seen
                seen.add(item.payload)
                if int(item.payload) % 100 == 0 and item.attempt == 1:
                    seen.discard(item.payload)
                    await item.retry()
                else:
                    item.complete()
                if len(seen) == total:
                    for each in consumers:
                        each.stop()

    async with asyncio.TaskGroup() as tasks:
        for start in range(0, total, total // 3):
            tasks.create_task(produce(start))
            tasks.create_task(consume())
    stats = (await client.stats("q")).total
    assert len(seen) == total
    assert (stats.completed, stats.ready, stats.leased) == (total, 0, 0)
    assert stats.retried == total // 100


async def test_a_node_ends_while_clients_work(client: Client, node: Node):
    await client.create_queue("q")
    async with Client(node.address, request_timeout=timedelta(seconds=0.5)) as other:
        async with other.consumer("q") as consumer, other.producer("q") as producer:
            await producer.produce(b"x")
            assert (await anext(consumer)).payload == b"x"


async def test_large_items_stay_within_the_bytes_that_a_consumer_holds(client: Client):
    await client.create_queue("q")
    payloads = [bytes([n]) * 700_000 for n in range(20)]
    async with client.producer("q") as producer:
        await producer.produce_many(payloads)
    got = []
    async with client.consumer("q", prefetch_bytes=4 * limits.MIB, idle_timeout=IDLE) as consumer:
        held = [await anext(consumer) for _ in range(5)]
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
        for item in held:
            got.append(item.payload)
            await item.complete()
        async for item in consumer:
            got.append(item.payload)
            await item.complete()
    assert got == payloads
