"""Follow-ups on real nodes: streams and single calls, both clients, queues that are deleted or
full, and chains of queues on three nodes of which leaders are killed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from querator import Client
from querator.client import (
    Consumer,
    DeadReason,
    Item,
    ItemState,
    LeasedItem,
    PeekedItem,
    SyncClient,
)
from querator.errors import (
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    QueueFull,
    QueueNotFound,
)
from tests.integration.process_cluster import ProcessCluster, process_cluster
from tests.integration.processes import server

pytestmark = pytest.mark.timeout(180)

WAIT = timedelta(seconds=30)
IDLE = timedelta(seconds=1)
LOOK_S = 0.05
ITEMS = 300
T = TypeVar("T")


async def texts(client: Client, queue: str) -> list[str]:
    """The items of the queue, without those on their way to another one."""
    return sorted(
        [_text(item) async for item in client.peek(queue) if item.state is not ItemState.MOVING]
    )


def _text(item: PeekedItem) -> str:
    payload = item.item.payload
    return payload if isinstance(payload, str) else payload.decode()


async def arrived(client: Client, queue: str, count: int) -> list[str]:
    """Waits until the queue has this number of items; returns them."""

    async def are_there() -> list[str] | None:
        found = await texts(client, queue)
        return found if len(found) >= count else None

    return await eventually(are_there)


async def eventually(look: Callable[[], Awaitable[T | None]], *, seconds: float = 60) -> T:
    """What `look` returns, once that is not None."""
    async with asyncio.timeout(seconds):
        while True:
            found = await look()
            if found is not None:
                return found
            await asyncio.sleep(LOOK_S)


async def test_by_calls_and_streams_to_several_queues(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("a", partitions=3)
            await client.create_queue("b", partitions=2)
            await client.create_queue("c", partitions=1)
            await client.produce("a", "1")
            [item] = await client.lease("a", wait=WAIT)
            due = datetime.now(UTC) + timedelta(hours=1)
            await item.complete(
                follow_ups={
                    "a": "again",
                    "b": [Item("keyed", key="k"), Item("later", enqueue_at=due)],
                    "c": [b"raw", Item("urgent", priority=-1), Item("once", dedup_key="o")],
                }
            )
            assert await texts(client, "a") == ["again"]
            assert await arrived(client, "b", 2) == ["keyed", "later"]
            assert await arrived(client, "c", 3) == ["once", "raw", "urgent"]
            assert (await client.stats("b")).total.scheduled == 1
            async with client.consumer("a", idle_timeout=IDLE) as consumer:
                item = await anext(consumer)
                await item.retry(error="busy", follow_ups={"c": Item("once", dedup_key="o")})
                item = await anext(consumer)
                await item.reject("no", follow_ups={"c": "rejected"})
            assert "rejected" in await arrived(client, "c", 4)

            async def repeat_is_counted() -> bool | None:
                return True if (await client.stats("c")).total.duplicates else None

            assert await eventually(repeat_is_counted)
        await node.kill()
        await node.start()
        await asyncio.to_thread(_blocking, node.address)


def _blocking(address: str) -> None:
    with SyncClient(address) as client:
        client.produce("a", "sync")
        [item] = client.lease("a", wait=WAIT)
        item.complete(follow_ups={"a": ["x", "y"]})
        [item, _] = client.lease("a", max_items=2, wait=WAIT)
        client.complete("a", item, follow_ups={"a": "z"})
        assert client.stats("a").total.completed == 3


async def test_what_is_refused_leaves_the_item_as_it_is(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("a", partitions=1, partition_items_max=2)
        await client.produce("a", "1", "2")
        async with client.consumer("a", idle_timeout=IDLE) as consumer:
            first, second = [await anext(consumer) for _ in range(2)]
            with pytest.raises(QueueNotFound, match="nothing was settled") as missing:
                await first.complete(follow_ups={"no": "x"})
            assert missing.value.field == "follow_ups[0].queue"
            assert not first.settled
            with pytest.raises(LimitExceeded) as large:
                await first.complete(follow_ups={"a": b"x" * (1 << 20 | 1)})
            assert large.value.field == "follow_ups[0].items[0].payload"
            with pytest.raises(InvalidArgument) as name:
                await first.complete(follow_ups={"a/b": "x"})
            assert name.value.field == "follow_ups[0].queue"
            with pytest.raises(LimitExceeded) as many:
                await client.complete("a", first, second, follow_ups={"a": "x"})
            assert many.value.field == "held"
            assert consumer.held == 2
            await first.complete(follow_ups={"a": "x"})
            lease_id, item_id = second.lease_id, second.id
            await second.complete()
        [left] = await client.lease("a", wait=WAIT)
        assert left.text() == "x"
        with pytest.raises(LeaseLost):
            await client.complete("a", lease_id, follow_ups={"a": "y"})
        assert str(item_id)
        await left.release()
        assert await texts(client, "a") == ["x"]


async def test_a_full_queue_refuses_what_adds_more_than_it_completes(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address, request_timeout=timedelta(seconds=2)) as client:
            await client.create_queue("a", partitions=1, partition_items_max=2)
            await client.produce("a", "1", "2")
            [first, _] = await client.lease("a", max_items=2, wait=WAIT)
            with pytest.raises(QueueFull) as full:
                await first.complete(follow_ups={"a": ["x", "y"]})
            assert full.value.field == "follow_ups"
            await first.complete(follow_ups={"a": "x"})
            assert await texts(client, "a") == ["2", "x"]


async def test_a_full_target_waits_and_a_deleted_one_makes_dead_letters(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("dead", partitions=1)
        await client.create_queue("a", partitions=1, dead_queue="dead")
        await client.create_queue("b", partitions=1, partition_items_max=1)
        await client.produce("b", "first")
        await client.produce("a", "1")
        [item] = await client.lease("a", wait=WAIT)
        await item.complete(follow_ups={"b": ["x", "y"]})
        assert (await client.stats("a")).total.moving == 2
        await (await client.lease("b", wait=WAIT))[0].complete()
        assert await arrived(client, "b", 1) == ["x"]
        await client.delete_queue("b")
        assert await arrived(client, "dead", 1) == ["y"]
        [letter] = [letter async for letter in client.dead_letters("dead")]
        dead_letter = letter.dead_letter
        assert dead_letter is not None
        assert dead_letter.reason is DeadReason.UNDELIVERED
        assert (dead_letter.origin_queue, dead_letter.attempts) == ("b", 0)
        assert dead_letter.errors == ("queue b was deleted before this follow-up of a arrived",)
        await client.create_queue("b", partitions=1, dead_queue="dead")
        assert await client.redrive("b", all_letters=True) == 1
        assert await arrived(client, "b", 1) == ["y"]


async def test_a_chain_over_leader_kills_and_changed_partitions(tmp_path: Path):
    """Each item passes three queues. At the end each is there once."""
    steps = {"a": "b", "b": "c"}

    async def handle(item: LeasedItem) -> None:
        text = item.text()
        following = Item(text, key=str(int(text) % 7))
        await item.complete(follow_ups={steps[item.queue]: following})

    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            for queue in ("a", "b", "c"):
                await client.create_queue(queue, partitions=2, replicas=3)

            async def work(queue: str) -> None:
                async with client.consumer(queue, lease_timeout=timedelta(seconds=5)) as consumer:
                    workers.append(consumer)
                    await consumer.run(handle, concurrency=8)

            workers: list[Consumer] = []
            async with asyncio.TaskGroup() as tasks:
                for queue in steps:
                    tasks.create_task(work(queue))
                async with client.producer("a") as producer:
                    third = ITEMS // 3
                    await producer.produce_many([str(number) for number in range(third)])
                    await kill_leader(cluster, "a")
                    await client.update_queue("b", partitions=3)
                    more = range(third, 2 * third)
                    await producer.produce_many([str(number) for number in more])
                    await kill_leader(cluster, "b")
                    await client.update_queue("b", partitions=1)
                    more = range(2 * third, ITEMS)
                    await producer.produce_many([str(number) for number in more])
                found = await arrived(client, "c", ITEMS)
                for worker in workers:
                    worker.stop()
            assert Counter(found) == Counter(str(number) for number in range(ITEMS))
            assert await texts(client, "a") == await texts(client, "b") == []


async def kill_leader(cluster: ProcessCluster, queue: str) -> None:
    """Kills the node that leads the queue's first partition, and starts it again."""
    view = await cluster.until(lambda view: all(one["leader"] for one in view["partitions"]))
    [leader] = {
        str(part["leader"])
        for part in view["partitions"]
        if (part["queue"], part["partition"]) == (queue, 0)
    }
    await cluster[leader].kill()
    await cluster[leader].start()
