"""Events on real nodes: both clients, the command line, restarts and changes of a queue; and a
follower that is killed, while leaders are killed.
"""

import asyncio
import contextlib
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client, EventPosition, Events, Item, QueueEvent
from querator.client import SyncClient
from querator.errors import (
    EventsGone,
    EventsOff,
    InvalidArgument,
    LimitExceeded,
    QueueDeleting,
    QueueNotFound,
)
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ok, run, server

pytestmark = pytest.mark.timeout(180)

HOUR = timedelta(hours=1)
WAIT = timedelta(seconds=60)
SHORT = timedelta(seconds=1)

FOLLOWER = """
import asyncio
import sys
from pathlib import Path

from querator import Client


async def main():
    address, saved, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    positions = saved.read_text().split() if saved.exists() else []
    async with Client(address) as client:
        follow = len(sys.argv) < 5
        async with client.events("q", positions=positions, follow=follow) as events:
            with out.open("a") as lines:
                async for event in events:
                    ids = ",".join(map(str, event.item_ids))
                    # The line is there before the position: a killed follower repeats its last one.
                    line = f"{event.partition} {event.position} {event.kind} {ids}\\n"
                    lines.write(line)
                    lines.flush()
                    new = saved.with_suffix(".new")
                    new.write_text("\\n".join(map(str, events.positions)))
                    new.replace(saved)


asyncio.run(main())
"""


async def now(client: Client, queue: str = "q", **options: object) -> list[QueueEvent]:
    async with client.events(queue, follow=False, **options) as events:  # type: ignore[arg-type]
        return await _rest(events)


async def test_a_follower_by_both_clients_and_across_a_restart(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", partitions=1, events_retention=HOUR)
            await client.produce("q", *map(str, range(20)))
            async with client.events("q") as events, asyncio.timeout(60):
                seen = Counter[str]()
                while seen["produced"] < 20:
                    event = await anext(events)
                    seen[event.kind] += event.count or 1
                [item] = await client.lease("q", wait=WAIT)
                await item.complete()
                further: list[QueueEvent] = []
                while not further or further[-1].kind != "completed":
                    further.append(await anext(events))
                leased, completed = further
                assert (leased.kind, completed.kind) == ("leased", "completed")
                assert leased.item_ids == completed.item_ids == (item.id,)
                assert leased.client_id == client.client_id
                assert leased.lease_id == completed.lease_id
                assert completed.produced_at is not None
                assert completed.next == EventPosition(
                    leased.partition, leased.feed, leased.position + 2
                )
                saved = events.positions
            assert await now(client, positions=saved) == []
            await asyncio.to_thread(_blocking, node.address, saved)
        await node.kill()
        await node.start()
        async with Client(node.address) as client:
            await client.produce("q", "late")
            texts = [str(one) for one in saved]
            found = await now(client, positions=texts, kinds=["produced"])
            assert sum(one.count for one in found) == 2
            assert len(await now(client, start="end")) == 0


def _blocking(address: str, saved: tuple[EventPosition, ...]) -> None:
    with SyncClient(address) as client:
        client.produce("q", "sync")
        with client.events("q", positions=saved) as events:
            event = next(iter(events))
            assert (event.kind, event.count) == ("produced", 1)
            assert event.next in events.positions


async def test_what_is_refused(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("plain")
        with pytest.raises(EventsOff, match="queue plain records no events"):
            await now(client, "plain")
        with pytest.raises(QueueNotFound):
            await now(client, "nothing")
        with pytest.raises(LimitExceeded, match="events_retention"):
            await client.create_queue("q", events_retention=timedelta(seconds=59))
        await client.create_queue("q", events_retention=HOUR)
        with pytest.raises(InvalidArgument, match="the next event will be at 2"):
            await now(client, positions=[EventPosition(0, 0, 9)])
        with pytest.raises(EventsGone, match="created again"):
            await now(client, positions=[EventPosition(0, 999, 1)])
        with pytest.raises(EventsGone, match="left the queue"):
            await now(client, positions=["7:9.1"])
        with pytest.raises(InvalidArgument, match="'burnt' is not a kind"):
            client.events("q", kinds=["burnt"])  # type: ignore[list-item]
        with pytest.raises(InvalidArgument, match="there twice"):
            client.events("q", positions=["0:9.1", "0:9.2"])
        with pytest.raises(ValueError, match="is not a position"):
            client.events("q", positions=["0-1"])


async def test_a_follower_sees_changes_of_the_queue_and_its_end(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q", partitions=1, events_retention=HOUR)
        found: list[QueueEvent] = []
        async with client.events("q") as events, asyncio.timeout(60):
            await client.update_queue("q", lease_paused=True)
            await client.update_queue("q", partitions=3)
            for number in range(12):
                await client.produce("q", Item(str(number), group=f"g{number}"))
            while sum(one.count for one in found) < 12:
                found.append(await anext(events))
            assert {one.partition for one in found if one.kind == "produced"} == {0, 1, 2}
            kinds = [one.kind for one in found if not one.partition]
            assert kinds.index("started") < kinds.index("paused") < kinds.index("resized")
            assert [one.part for one in found if one.kind == "paused"] == ["leases"]
            assert {one.partitions for one in found if one.kind == "resized"} >= {3}
            # Partitions that are new begin at 1.
            for number in range(3):
                positions = [one.position for one in found if one.partition == number]
                assert positions == list(range(1, len(positions) + 1))
            await client.delete_queue("q")
            with pytest.raises((QueueDeleting, QueueNotFound)):
                await _rest(events)


async def _rest(events: Events) -> list[QueueEvent]:
    return [event async for event in events]


async def test_by_the_command_line(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        await ok(node, "queue", "create", "q", "--partitions", "1", "--events-retention", "1h")
        assert "events" in await ok(node, "queue", "info", "q")
        await ok(node, "produce", "q", "a")
        shown = await ok(node, "events", "q")
        assert [line.split()[1:3] for line in shown.splitlines()] == [
            ["0:1", "started"], ["0:2", "produced"],
        ]  # fmt: skip
        assert shown.splitlines()[1].endswith("0-1")
        file = str(tmp_path / "positions")
        lines = (await ok(node, "events", "q", "--positions", file, "--output", "json")).split("\n")
        assert [msgspec.json.decode(line)["kind"] for line in lines if line] == [
            "started",
            "produced",
        ]
        assert await ok(node, "events", "q", "--positions", file) == ""
        leased = msgspec.json.decode(await ok(node, "lease", "q", "--output", "json"))
        await ok(node, "retry", "q", leased["lease_id"], "--dead")
        [line] = (
            await ok(node, "events", "q", "--positions", file, "--kind", "dead", "--output", "json")
        ).splitlines()
        dead = msgspec.json.decode(line)
        assert (dead["items"], dead["reason"], dead["attempt"]) == (1, "rejected", 1)
        after = await ok(node, "events", "q", "--from", dead["next"], "--output", "json")
        assert [msgspec.json.decode(line)["kind"] for line in after.splitlines()] == ["moved"]
        shown = await ok(node, "events", "q", "--follow", "--kind", "moved", "--limit", "1")
        assert "moved" in shown
        assert await ok(node, "events", "q", "--from", "end") == ""
        for arguments, words in (
            (("--from", "0-1"), "is not a position"),
            (("--from", "end", "--from", "0:1.1"), "takes one of first and end"),
            (("--from", "0:1.1", "--positions", file), "exclude each other"),
        ):
            code, _, error = await run("events", "q", *arguments, "--address", node.address)
            assert (code, words in error) == (2, True), error
        await asyncio.to_thread(Path(file).write_text, "nonsense")
        code, _, error = await run("events", "q", "--positions", file, "--address", node.address)
        assert code == 1
        assert "is not a position" in error


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def test_nothing_is_missing_or_twice_although_followers_and_leaders_are_killed(
    tmp_path: Path,
):
    saved, out = tmp_path / "positions", tmp_path / "lines"
    async with process_cluster(tmp_path) as cluster, contextlib.AsyncExitStack() as at_the_end:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue(
                "q", partitions=2, replicas=3, events_retention=HOUR, lease_timeout=3 * SHORT
            )

            async def follow(*words: str) -> asyncio.subprocess.Process:
                started = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", FOLLOWER, ",".join(addresses), str(saved), str(out),
                    *words,
                )  # fmt: skip
                at_the_end.callback(_kill, started)
                return started

            async def work(rounds: int) -> set[str]:
                done: set[str] = set()
                for _ in range(rounds):
                    produced = await client.produce("q", *["x"] * 5)
                    done |= {str(one.id) for one in produced}
                    for item in await client.lease("q", max_items=5, wait=WAIT):
                        await item.complete()
                return done

            follower = await follow()
            ids = await work(10)
            for _ in range(2):
                follower.kill()
                await follower.wait()
                view = await cluster.until(
                    lambda view: all(one["leader"] for one in view["partitions"])
                )
                victim = next(
                    str(one["leader"]) for one in view["partitions"] if one["queue"] == "q"
                )
                await cluster[victim].kill()
                ids |= await work(5)
                follower = await follow()
                ids |= await work(5)
                await cluster[victim].start()
            # Items of a lease whose answer was lost come back when it lapses.
            async with asyncio.timeout(60):
                while (total := (await client.stats("q")).total).ready or total.leased:
                    for item in await client.lease("q", max_items=100, wait=SHORT):
                        await item.complete()
            whole = await now(client)
            follower.kill()
            await follower.wait()
            last = await follow("to the end")
            assert await last.wait() == 0
    lines = out.read_text().splitlines()
    told = [line.split(" ") for line in lines]
    wanted = {
        (one.partition, one.position): (one.kind, ",".join(map(str, one.item_ids))) for one in whole
    }
    # A follower that is killed before it has saved its position repeats one event.
    assert len(lines) <= len(wanted) + 3
    assert {(int(one[0]), int(one[1])): (one[2], one[3]) for one in told} == wanted
    for partition in range(2):
        positions = [int(one[1]) for one in told if int(one[0]) == partition]
        assert positions == sorted(positions)
        assert set(positions) == set(range(1, max(positions) + 1))
    for kind in ("produced", "completed"):
        items = Counter(
            item for name, text in wanted.values() if name == kind for item in text.split(",")
        )
        assert set(items.values()) == {1}
        assert set(items) >= ids if kind == "produced" else set(items) == ids
