"""Keyed queues on real nodes: items of a key come one after the other, whatever fails."""

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from querator import Client, Item, errors
from querator.client import LeasedItem
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ok, server

pytestmark = pytest.mark.timeout(180)

WAIT = timedelta(seconds=30)


def items(keys: int, of_each: int) -> list[Item]:
    return [
        Item(f"{key} {number}", key=f"key {key}", reference=f"{number}")
        for number in range(of_each)
        for key in range(keys)
    ]


def shown(leased: list[LeasedItem]) -> list[str]:
    return [item.text() for item in leased]


async def test_one_of_a_key_at_a_time_after_a_kill_too(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            info = await client.create_queue("q", kind="keyed")
            assert (info.kind, info.key_leased_max, info.key_retry_blocks) == ("keyed", 1, True)
            await client.produce("q", *items(3, 3), Item("no key"), Item("nor this one"))
            leased = await client.lease("q", max_items=10)
            leased.sort(key=lambda item: item.text())
            assert shown(leased) == ["0 0", "1 0", "2 0", "no key", "nor this one"]
            await client.complete("q", *leased[3:])
        await node.kill()
        await node.start()
        async with Client(node.address) as client:
            assert await client.lease("q", max_items=10) == []
            waits = asyncio.get_running_loop().create_task(
                client.lease("q", max_items=10, wait=WAIT)
            )
            await client.retry("q", leased[0])
            [again] = await waits
            assert (again.text(), again.attempt) == ("0 0", 2)
            await client.retry("q", leased[1], delay=timedelta(hours=1))
            await client.complete("q", leased[2], again)
            assert shown(await client.lease("q", max_items=10)) == ["0 1", "2 1"]
            waiting = [one async for one in client.peek("q") if one.item.key == "key 1"]
            assert [one.state.name for one in waiting] == ["SCHEDULED", "READY", "READY"]
            # An operator skips the item that keeps the others back.
            waits = asyncio.get_running_loop().create_task(
                client.lease("q", max_items=10, wait=WAIT)
            )
            [stuck] = [one async for one in client.list_keys("q", blocked=True)]
            assert (stuck.key, stuck.waiting, stuck.head) == ("key 1", 3, waiting[0].id)
            view = await ok(node, "key", "list", "q", "--blocked", "--output", "json")
            assert f'"head":"{stuck.head}"' in view.replace(" ", "")
            assert await client.skip_key("q", "key 1", waiting[0].id)
            assert shown(await waits) == ["1 1"]


async def test_several_of_a_key_together_and_retries_that_step_aside(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q", kind="keyed", key_leased_max=2, key_retry_blocks=False)
        await client.produce("q", *items(1, 5))
        leased = await client.lease("q", max_items=10)
        assert shown(leased) == ["0 0", "0 1"]
        assert await client.lease("q", max_items=10) == []
        await client.retry("q", leased[0], delay=timedelta(hours=1))
        assert await client.lease("q", max_items=10) == []
        await client.complete("q", leased[1])
        assert shown(await client.lease("q", max_items=10)) == ["0 2", "0 3"]


async def test_settings_are_refused_by_name(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        shown = await ok(node, "queue", "create", "q", "--kind", "keyed", "--key-max", "3")
        assert "leased per key" in shown
        with pytest.raises(errors.InvalidArgument) as refused:
            await client.update_queue("q", group_leased_max=3)
        assert refused.value.field == "settings.group_leased_max"
        with pytest.raises(errors.InvalidArgument) as plain:
            await client.create_queue("plain", key_leased_max=2)
        assert plain.value.field == "settings.key_leased_max"
        changed = await ok(node, "queue", "update", "q", "--no-key-retry-blocks")
        assert "keeps back nothing" in changed
        await client.create_queue("other")
        await client.produce("other", Item("a", key="k"), Item("b", key="k"))
        both = await client.lease("other", max_items=2)
        assert len(both) == 2, "a plain queue may lease several items of a key"


async def test_on_three_nodes_with_a_killed_leader_and_another_number_of_partitions(
    tmp_path: Path,
):
    """A consumer fails and retries. No item comes before an earlier one of its key is done."""
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue("q", kind="keyed", partitions=3, replicas=3)
            async with client.producer("q", ordered=False, batch_items=20) as producer:
                for number in range(12):
                    await producer.produce_many(items(20, 12)[number * 20 : number * 20 + 20])
                    await producer.flush()
            done: Counter[str] = Counter()

            async def consume(until: int) -> None:
                while done.total() < until:
                    leased = await client.lease("q", max_items=7, wait=timedelta(seconds=2))
                    for item in leased:
                        key = item.item.key
                        assert item.reference == str(done[key]), f"{key}: {done}"
                        if item.attempt == 1 and int(item.reference) % 5 == 0:
                            await client.retry("q", item)
                            continue
                        await client.complete("q", item)
                        done[key] += 1

            await consume(60)
            view = await cluster.until(
                lambda view: all(one["leader"] for one in view["partitions"])
            )
            victim = next(
                str(one["leader"])
                for one in view["partitions"]
                if one["queue"] == "q" and one["partition"] == 0
            )
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(consume(120))
                tasks.create_task(cluster[victim].kill())
            await client.update_queue("q", partitions=5)
            await consume(180)
            await client.update_queue("q", partitions=2)
            await consume(240)
            assert done == Counter({f"key {key}": 12 for key in range(20)})
            await cluster[victim].start()
