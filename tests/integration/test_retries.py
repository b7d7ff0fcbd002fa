"""What a retry changes, on real nodes: unary calls and streams, both clients, the command line,
dead letters, restarts, a leader that is killed, and partitions that come and go.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client
from querator.client import Item, LeasedItem, RetryPolicy, SyncClient
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ok, run, server

pytestmark = pytest.mark.timeout(180)

WAIT = timedelta(seconds=30)
IDLE = timedelta(seconds=1)
ITEMS = 60


async def test_attributes_by_calls_streams_both_clients_and_the_command_line(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", partitions=1)
            await client.produce("q", Item("a", attributes={"trace": "t", "page": "1"}), "b")
            async with client.consumer("q", idle_timeout=IDLE) as consumer:
                [first, second] = [await anext(consumer) for _ in range(2)]
                await asyncio.gather(
                    first.retry(attributes={**first.attributes, "page": "2"}),
                    second.release(),
                )
                again = {item.text(): item async for item in consumer}
                assert again["a"].attributes == {"trace": "t", "page": "2"}
                assert again["a"].item.attributes == {"trace": "t", "page": "1"}
                assert again["b"].attributes == {}
                await again["a"].release()
                await again["b"].complete()
            [shown] = [item async for item in client.peek("q")]
            assert (shown.attributes["page"], shown.item.attributes["page"]) == ("2", "1")
        await node.kill()
        await node.start()
        await asyncio.to_thread(_blocking, node.address)
        [line] = (await ok(node, "lease", "q", "--output", "json")).splitlines()
        leased = msgspec.json.decode(line)
        assert (leased["attributes"], leased["item"]["attributes"]["page"]) == ({"page": "3"}, "1")
        await ok(
            node, "retry", "q", leased["lease_id"], "--attribute", "relay=b", "--attribute", "n="
        )
        [line] = (await ok(node, "peek", "q", "--output", "json")).splitlines()
        assert msgspec.json.decode(line)["attributes"] == {"relay": "b", "n": ""}
        [line] = (await ok(node, "lease", "q", "--output", "json")).splitlines()
        await ok(node, "retry", "q", msgspec.json.decode(line)["lease_id"], "--no-attributes")
        [line] = (await ok(node, "peek", "q", "--output", "json")).splitlines()
        assert msgspec.json.decode(line)["attributes"] == {}
        code, _, error = await run(
            "retry", "q", leased["lease_id"], "--attribute", f"n={'x' * 8192}",
            "--address", node.address,
        )  # fmt: skip
        assert code == 2
        assert "--attribute has 8193 bytes of names and values; at most 8192." in error


def _blocking(address: str) -> None:
    with SyncClient(address) as client:
        [item] = client.lease("q", wait=WAIT)
        assert item.attributes == {"trace": "t", "page": "2"}
        item.retry(attributes={"page": "3"})


async def test_attributes_go_with_dead_letters_and_return(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("gone", partitions=1)
        await client.create_queue("q", partitions=1, max_attempts=1, dead_queue="gone")
        await client.produce("q", Item("a", attributes={"page": "1"}))
        [item] = await client.lease("q", wait=WAIT)
        await item.retry(error="slow", attributes={"page": "2"})
        [letter] = await client.lease("gone", wait=WAIT)
        assert letter.dead_letter is not None
        assert (letter.dead_letter.errors, letter.attributes) == (("slow",), {"page": "2"})
        await letter.retry(attributes={"page": "3"})
        [shown] = [one async for one in client.dead_letters("q")]
        assert (shown.attributes, shown.item.attributes) == ({"page": "3"}, {"page": "1"})
        assert await client.redrive("q") == 1
        [back] = await client.lease("q", wait=WAIT)
        assert (back.attempt, back.attributes, back.dead_letter) == (1, {"page": "3"}, None)


async def test_what_items_say_about_retries(tmp_path: Path):
    hour = timedelta(hours=1)
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("gone", partitions=1)
            await client.create_queue(
                "q", partitions=1, max_attempts=9, retry_delay=hour, dead_queue="gone"
            )
            at_once = RetryPolicy(timedelta(0))
            await client.produce(
                "q", Item("once", max_attempts=1), Item("soon", max_attempts=3, retry=at_once), "a"
            )
            async with client.producer("q") as producer:
                await producer.produce(Item("streamed", retry=at_once))
        await node.kill()
        await node.start()
        await asyncio.to_thread(_fail_all, node.address)
        async with Client(node.address) as client:
            [letter] = await client.lease("gone", wait=WAIT)
            assert (letter.text(), letter.max_attempts) == ("once", None)
            assert letter.item.max_attempts == 1
            again = await client.lease("q", max_items=9, wait=WAIT)
            assert {(item.text(), item.attempt) for item in again} == {("soon", 2), ("streamed", 2)}
            assert {item.text(): item.item.retry for item in again} == {
                "soon": at_once, "streamed": at_once,
            }  # fmt: skip
            await client.retry("q", *again)
            assert await client.redrive("q", [letter.id]) == 0
            await letter.release()
            assert await client.redrive("q", [letter.id]) == 1
            async with client.consumer("q", idle_timeout=IDLE) as consumer:
                async for item in consumer:
                    item.retry(error="again")
            attempts = {
                one.item.payload: one.dead_letter.attempts
                async for one in client.dead_letters("q")
                if one.dead_letter
            }
            assert attempts == {b"once": 1, b"soon": 3, b"streamed": 9}
        await ok(
            node, "produce", "q", "by hand", "--max-attempts", "4", "--retry-delay", "5s",
            "--retry-backoff", "linear", "--no-retry-jitter", "--priority", "-1",
        )  # fmt: skip
        [line] = (await ok(node, "lease", "q", "--output", "json")).splitlines()
        item = msgspec.json.decode(line)["item"]
        assert item["max_attempts"] == 4
        assert item["retry"] == {
            "delay_ms": 5_000, "delay_max_ms": 3_600_000, "backoff": "linear", "jitter": False,
        }  # fmt: skip
        for options, words in (
            (["--retry-backoff", "fixed"], "--retry-backoff needs --retry-delay."),
            (["--retry-delay", "50ms"], "--retry-delay is 50ms; it must be 0 or at least 100ms."),
            (["--max-attempts", "70000"], "'70000' is not a whole number from 0 to 65535"),
        ):
            code, _, error = await run("produce", "q", "x", *options, "--address", node.address)
            assert code == 2
            assert words in error


def _fail_all(address: str) -> None:
    with SyncClient(address) as client:
        items = client.lease("q", max_items=9, wait=WAIT)
        assert {item.text(): item.max_attempts for item in items} == {
            "once": 1, "soon": 3, "a": None, "streamed": None,
        }  # fmt: skip
        for item in items:
            item.retry(error="no address")


async def taken(client: Client, number: int) -> list[LeasedItem]:
    items: list[LeasedItem] = []
    while len(items) < number:
        batch = await client.lease("q", max_items=number - len(items), wait=WAIT)
        assert batch, f"{len(items)} of {number} items"
        items += batch
    return items


async def test_attributes_on_three_nodes_with_a_killed_leader_and_fewer_partitions(tmp_path: Path):
    items = [Item(str(number), attributes={"n": str(number)}) for number in range(ITEMS)]
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue("q", partitions=3, replicas=3)
            async with client.producer("q", ordered=False, batch_items=7) as producer:
                await producer.produce_many(items)
            leased = await taken(client, ITEMS)
            view = await cluster.until(
                lambda view: all(one["leader"] for one in view["partitions"])
            )
            victim = next(
                str(one["leader"])
                for one in view["partitions"]
                if one["queue"] == "q" and one["partition"] == 2
            )
            chosen = [item for item in leased if int(item.text()) % 3 == 0]
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(client.retry("q", *chosen, attributes={"again": "yes"}))
                tasks.create_task(cluster[victim].kill())
            others = [item for item in leased if int(item.text()) % 3]
            await client.retry("q", *others)
            await client.update_queue("q", partitions=2)
            again = await taken(client, ITEMS)
            assert {int(item.text()): item.attributes for item in again} == {
                number: {"n": str(number)} if number % 3 else {"again": "yes"}
                for number in range(ITEMS)
            }
            await client.complete("q", *again)
            await cluster[victim].start()
            assert (await client.stats("q")).total.completed == ITEMS
