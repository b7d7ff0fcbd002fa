"""Recurrences on real nodes: each due time has one item, also when leaders are killed."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from querator import Client, SyncClient
from querator.client import Item, LeasedItem
from querator.client.errors import (
    InvalidArgument,
    LimitExceeded,
    RecurrenceExists,
    RecurrenceNotFound,
    VersionConflict,
)
from querator.model.routing import partition_of_key
from tests.integration.process_cluster import ProcessCluster, process_cluster
from tests.integration.processes import run, server

pytestmark = pytest.mark.timeout(180)

SECOND = timedelta(seconds=1)
KILLS = 4


async def collect(client: Client, least: int, queue: str = "q") -> list[LeasedItem]:
    """Leases and completes items until there are `least`."""
    found: list[LeasedItem] = []
    while len(found) < least:
        items = await client.lease(queue, max_items=100, wait=timedelta(seconds=30))
        assert items, f"{len(found)} of {least} items"
        found += items
        await client.complete(queue, *items)
    return found


def due_of(item: LeasedItem) -> datetime:
    return datetime.fromisoformat(item.attributes["recurrence-due-at"])


async def leader_of_first_partition(cluster: ProcessCluster) -> str:
    def leaders(view: dict) -> list[str]:  # type: ignore[type-arg]
        return [
            str(part["leader"])
            for part in view["partitions"]
            if part["queue"] == "q" and part["partition"] == 0 and part["leader"]
        ]

    view = await cluster.until(lambda view: bool(leaders(view)))
    [leader] = leaders(view)
    return leader


async def test_a_node_produces_items_at_each_second_and_continues_after_a_kill(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", partitions=3)
            made = await client.recurrences.create(
                "q", "tick", "{{number}} {{due_at}}", cron="* * * * * *", time_zone="Europe/Berlin"
            )
            assert made.created
            found = await collect(client, 3)
        await node.kill()
        await node.start()
        async with Client(node.address) as client:
            found += await collect(client, 3)
            await client.recurrences.delete("q", "tick")
            found += await client.lease("q", max_items=100)
    texts = [f"{number} {due_of(item):%FT%T}.000Z" for number, item in enumerate(found, 1)]
    assert sorted(item.text() for item in found) == sorted(texts)
    dues = sorted(map(due_of, found))
    assert dues == [dues[0] + number * SECOND for number in range(len(dues))]


async def test_each_due_time_has_one_item_while_leaders_are_killed(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = ",".join(member.address for member in cluster.by_name.values())
        async with Client(addresses) as client:
            await client.create_queue("q", partitions=2)
            begun = datetime.now(UTC)
            await client.recurrences.create(
                "q", "tick", "{{number}}", interval=SECOND, phase=0 * SECOND
            )
            await client.create_queue("keyed", kind="keyed", partitions=2)
            key = next(key for key in "abcdefgh" if partition_of_key(key.encode(), 2))
            await client.recurrences.create(
                "keyed", "tock", Item("{{number}}", key=key), interval=SECOND, phase=0 * SECOND
            )
            found = await collect(client, 2)
            for _ in range(KILLS):
                leader = cluster.by_name[await leader_of_first_partition(cluster)]
                await leader.kill()
                found += await collect(client, 2)
                await leader.start()
                found += await collect(client, 2)
            shown = await client.recurrences.pause("q", "tick")
            while len(found) < shown.fired:
                found += await collect(client, 1)
            keyed = await client.recurrences.pause("keyed", "tock")
            in_turn = await collect(client, keyed.fired, "keyed")
            assert not await client.lease("keyed")
    counts = Counter(map(due_of, found))
    assert max(counts.values()) == 1
    dues = sorted(counts)
    assert dues[0] - begun <= 2 * SECOND
    assert dues == [dues[0] + number * SECOND for number in range(len(dues))]
    assert (shown.missed, shown.skipped) == (0, 0)
    assert sorted(int(item.text()) for item in found) == list(range(1, len(found) + 1))
    assert [int(item.text()) for item in in_turn] == list(range(1, keyed.fired + 1))
    assert {due_of(item) for item in in_turn} >= {*dues[2:]}
    assert (keyed.missed, keyed.last_item) == (0, None)


async def test_operators_change_pause_and_delete_recurrences(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q")
        calls = client.recurrences
        made = await calls.create("q", "daily", "x", cron="@daily", time_zone="Europe/Berlin")
        assert (
            await calls.create("q", "daily", "x", cron="@daily", time_zone="Europe/Berlin")
        ).created is False
        with pytest.raises(RecurrenceExists):
            await calls.create("q", "daily", "y", cron="@daily", time_zone="Europe/Berlin")
        changed = await calls.update("q", "daily", jitter=timedelta(minutes=5), missed_runs="all")
        assert (changed.cron, changed.jitter, changed.revision) == (
            "@daily", timedelta(minutes=5), made.revision + 1,
        )  # fmt: skip
        with pytest.raises(VersionConflict):
            await calls.update("q", "daily", overlap="skip", expected_revision=1)
        changed = await calls.update("q", "daily", interval=timedelta(hours=1))
        assert (changed.cron, changed.time_zone, changed.interval) == ("", "", timedelta(hours=1))
        assert (await calls.pause("q", "daily")).paused
        assert (await calls.resume("q", "daily")).next_due_at is None
        runs = await calls.next("q", "daily", count=3)
        assert [one.due_at - runs[0].due_at for one in runs] == [
            number * timedelta(hours=1) for number in range(3)
        ]
        assert all(run.due_at <= run.fire_at <= run.due_at + timedelta(minutes=5) for run in runs)
        assert [one.name async for one in calls.list("q")] == ["daily"]
        await calls.delete("q", "daily")
        with pytest.raises(RecurrenceNotFound):
            await calls.get("q", "daily")
        with pytest.raises(RecurrenceNotFound):
            await calls.delete("q", "daily")
        with pytest.raises(InvalidArgument, match="never fires"):
            await calls.create("q", "never", "x", cron="0 0 31 2 *")
        with pytest.raises(InvalidArgument, match="Mars/Phobos"):
            await calls.preview(cron="@daily", time_zone="Mars/Phobos")
        with pytest.raises(LimitExceeded, match="interval"):
            await calls.create("q", "fast", "x", interval=timedelta(milliseconds=999))


async def test_a_program_without_an_event_loop_and_the_command_line(tmp_path: Path):
    async with server(tmp_path / "data") as node:

        def calls() -> tuple[bool, list[str], int]:
            with SyncClient(node.address) as client:
                client.create_queue("q")
                made = client.recurrences.create("q", "a", "x", cron="0 9 * * 1-5")
                runs = client.recurrences.preview(
                    cron="30 2 * * *", time_zone="America/New_York",
                    after=datetime(2026, 3, 8, tzinfo=UTC), count=2,
                )  # fmt: skip
                client.recurrences.pause("q", "a")
                client.recurrences.resume("q", "a")
                client.recurrences.update("q", "a", overlap="skip")
                names = [one.name for one in client.recurrences.list("q")]
                assert client.recurrences.get("q", "a").overlap == "skip"
                assert len(client.recurrences.next("q", "a")) == 10
                client.recurrences.delete("q", "a")
                return made.created, names, len(runs)

        assert await asyncio.to_thread(calls) == (True, ["a"], 2)
        at = ("--address", node.address)
        code, _, error = await run("recurring", "create", "q", "b", "x", "--interval", "1s", *at)
        assert (code, error) == (0, "Created b.\n")
        for command in (
            ("show", "q", "b"),
            ("list", "q"),
            ("pause", "q", "b"),
            ("resume", "q", "b"),
            ("update", "q", "b", "--jitter", "1s"),
            ("next", "q", "b"),
            ("next", "@daily", "--timezone", "Europe/Berlin"),
        ):
            code, shown, error = await run("recurring", *command, *at)
            assert (code, error) == (0, "")
            assert shown
        code, _, error = await run("recurring", "delete", "q", "b", "--yes", *at)
        assert (code, error) == (0, "Deleted b.\n")
