"""Results of items on real nodes: both clients, streams, the command line, restarts; and workers
and the leader that are killed while producers wait.
"""

import asyncio
import contextlib
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client, Item
from querator.client import SyncClient
from querator.errors import (
    InvalidArgument,
    ItemDied,
    ItemRemoved,
    LimitExceeded,
    ResultNotKept,
    ResultTimeout,
)
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ServerProcess, ok, run, server

pytestmark = pytest.mark.timeout(180)

WAIT = timedelta(seconds=60)
AT_ONCE = timedelta(0)
SHORT = timedelta(milliseconds=200)
FULL = b"x" * 1_048_576

WORKER = """
import asyncio
import sys

from querator import Client


async def main():
    async with Client(sys.argv[1]) as client:
        async with client.consumer("q") as consumer:
            async for item in consumer:
                if item.payload == b"refuse":
                    item.reject("refused")
                else:
                    item.complete(result=item.payload.upper())


asyncio.run(main())
"""


async def answer(client: Client, queue: str) -> None:
    """A consumer that does what the payload of an item says."""
    async with client.consumer(queue) as consumer:
        async for item in consumer:
            match item.text().split():
                case ["echo", text]:
                    item.complete(result=text.encode())
                case ["full"]:
                    item.complete(result=FULL)
                case ["nothing"]:
                    item.complete()
                case ["die", reason]:
                    item.reject(reason)
                case _:
                    # It stays leased.
                    continue


async def test_request_and_reply_by_both_clients_and_across_a_restart(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client, asyncio.TaskGroup() as tasks:
            await client.create_queue("q", partitions=2)
            working = tasks.create_task(answer(client, "q"))
            assert await client.produce_and_wait("q", "echo hello") == b"hello"
            assert await client.produce_and_wait("q", b"nothing") == b""
            assert await client.produce_and_wait("q", Item("full", priority=3)) == FULL
            with pytest.raises(ItemDied, match=r"died after 1 attempts \(rejected\): bounced") as e:
                await client.produce_and_wait("q", "die bounced")
            assert (e.value.error, e.value.attempts, e.value.reason.name) == (
                "bounced", 1, "REJECTED",
            )  # fmt: skip
            found = await client.produce_and_wait_all(
                "q", *(f"echo {number}" for number in range(300)), "die no"
            )
            assert [one.data for one in found[:-1]] == [b"%d" % number for number in range(300)]
            assert (found[-1].outcome, found[-1].error) == ("dead", "no")
            with pytest.raises(ResultTimeout) as late:
                await client.produce_and_wait("q", "leave", timeout=SHORT)
            assert isinstance(late.value, TimeoutError)
            left = late.value.item_id
            # A large result is not in one reply with all others.
            full = await client.produce_and_wait_all("q", *["full"] * 7)
            assert all(one.value() == FULL for one in full)
            await asyncio.to_thread(_blocking, node.address)
            working.cancel()
        await node.kill()
        await node.start()
        async with Client(node.address) as client:
            assert await client.result("q", found[17].id) == b"17"
            with pytest.raises(ItemDied, match="no"):
                await client.result("q", str(found[-1].id), timeout=AT_ONCE)
            [waiting] = await client.results("q", [left], timeout=AT_ONCE)
            assert (waiting.outcome, waiting.ended_at) == ("waiting", None)
            with pytest.raises(ResultTimeout):
                waiting.value()


def _blocking(address: str) -> None:
    with SyncClient(address) as client:
        assert client.produce_and_wait("q", "echo sync") == b"sync"
        [one] = client.produce_and_wait_all("q", "echo again", timeout=WAIT)
        assert client.result("q", one.id) == b"again"
        assert [two.value() for two in client.results("q", [one.id])] == [b"again"]
        client.create_queue("sync", partitions=1)
        [produced] = client.produce("sync", Item(b"x", keep_result=timedelta(minutes=1)))
        [item] = client.lease("sync", wait=WAIT)
        assert item.item.keep_result == timedelta(minutes=1)
        item.complete(result=b"by hand")
        assert client.result("sync", produced.id) == b"by hand"


async def test_what_has_no_result(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("q", partitions=1, dedup_until="done")
        [plain, asked] = await client.produce("q", b"plain", Item(b"a", keep_result=WAIT))
        with pytest.raises(ResultNotKept, match="produced without keep_result"):
            await client.result("q", plain.id)
        with pytest.raises(ResultNotKept, match="has no such item"):
            await client.result("q", "0-99")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_removed(client, str(asked.id)))
            await client.purge("q")
        assert str(asked.id) in str(waiting.result())
        with pytest.raises(InvalidArgument, match="REPLACE") as refused:
            await client.produce_and_wait("q", Item("a", dedup_key="k", on_duplicate="replace"))
        assert refused.value.field == "items[0].keep_result"
        with pytest.raises(LimitExceeded, match="3600000 ms"):
            await client.produce("q", Item(b"a", keep_result=timedelta(hours=2)))
        await client.produce("q", Item(b"a", keep_result=WAIT))
        [item] = await client.lease("q", wait=WAIT)
        with pytest.raises(InvalidArgument, match="a follow-up") as refused:
            await item.complete(follow_ups={"q": Item(b"b", keep_result=WAIT)})
        assert refused.value.field == "follow_ups[0].items[0].keep_result"
        with pytest.raises(ValueError, match="a result has at most 1048576"):
            item.complete(result=FULL + b"x")
        with pytest.raises(ValueError, match="either result or follow_ups"):
            item.complete(result=b"x", follow_ups={"q": b"y"})
        # A duplicate waits for the first item of its dedup key.
        await item.complete(result=b"late")
        first = Item(b"a", dedup_key="d", keep_result=WAIT)
        await client.produce("q", first)
        async with asyncio.TaskGroup() as tasks:
            second = tasks.create_task(client.produce_and_wait("q", first, timeout=WAIT))
            [item] = await client.lease("q", wait=WAIT)
            [outcome] = await client.complete("q", item, result=b"shared")
            assert outcome.done
        assert second.result() == b"shared"


async def _removed(client: Client, item_id: str) -> ItemRemoved:
    with pytest.raises(ItemRemoved) as removed:
        await client.result("q", item_id, timeout=WAIT)
    return removed.value


async def test_by_the_command_line(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        await ok(node, "queue", "create", "q", "--partitions", "1")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(ok(node, "produce", "q", "hello", "--wait", "60s"))
            leased = await _lease(node)
            named = ("q", leased["lease_id"], leased["id"])
            await ok(node, "complete", *named, "--result", "done")
        assert waiting.result() == "done\n"
        assert await ok(node, "result", "q", "0-1") == "done\n"
        item_id = (await ok(node, "produce", "q", "a", "--keep-result", "5m")).strip()
        code, out, error = await run("result", "q", item_id, "--address", node.address)
        assert (code, out) == (1, "")
        assert f"Item {item_id} has not ended in time" in error
        leased = await _lease(node)
        (tmp_path / "answer").write_bytes(b"\xff\0")
        file = ("--result-file", str(tmp_path / "answer"))
        await ok(node, "complete", "q", leased["lease_id"], leased["id"], *file)
        line = await ok(node, "result", "q", item_id, "--output", "json")
        shown = msgspec.json.decode(line)
        assert (shown["outcome"], shown["data"], shown["data_base64"]) == (
            "completed",
            None,
            "/wA=",
        )
        await ok(node, "produce", "q", "b", "--keep-result", "5m")
        leased = await _lease(node)
        await ok(node, "retry", "q", leased["lease_id"], "--dead", "--error", "bounced")
        code, out, error = await run("result", "q", leased["id"], "--address", node.address)
        assert code == 1
        assert "(rejected): bounced" in error


async def _lease(node: ServerProcess) -> dict[str, str]:
    line = await ok(node, "lease", "q", "--wait", "60s", "--output", "json")
    leased: dict[str, str] = msgspec.json.decode(line)
    return leased


async def test_each_request_is_answered_once_although_workers_and_the_leader_are_killed(
    tmp_path: Path,
):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue(
                "q", partitions=2, replicas=3, lease_timeout=timedelta(seconds=3)
            )
            requests = [b"refuse" if not n % 10 else b"request %d" % n for n in range(60)]
            answers: dict[int, object] = {}
            some = asyncio.Event()

            async def ask(number: int) -> None:
                # Not all at once, so that the nodes die between them.
                await asyncio.sleep(number * 0.05)
                try:
                    got: object = await client.produce_and_wait("q", requests[number], timeout=WAIT)
                except ItemDied as died:
                    got = died.error
                assert number not in answers
                answers[number] = got
                if len(answers) > 10:
                    some.set()

            workers = [await _worker(addresses) for _ in range(2)]
            async with asyncio.TaskGroup() as tasks:
                for number in range(len(requests)):
                    tasks.create_task(ask(number))
                await some.wait()
                view = await cluster.until(
                    lambda view: all(one["leader"] for one in view["partitions"])
                )
                victim = next(
                    str(one["leader"]) for one in view["partitions"] if one["queue"] == "q"
                )
                workers[0].kill()
                await cluster[victim].kill()
                workers.append(await _worker(addresses))
                await cluster[victim].start()
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    worker.kill()
                await worker.wait()
        assert answers == {
            number: "refused" if request == b"refuse" else request.upper()
            for number, request in enumerate(requests)
        }


async def _worker(addresses: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, ",".join(addresses))
