"""Checkpoints on real nodes: both clients, streams, the command line, dead letters, restarts; and a
worker and the leader that are killed at the same time.
"""

import asyncio
import contextlib
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from querator import Client
from querator.client import SyncClient
from querator.errors import LeaseLost
from tests.integration.process_cluster import process_cluster
from tests.integration.processes import ServerProcess, ok, run, server

pytestmark = pytest.mark.timeout(180)

WAIT = timedelta(seconds=30)
IDLE = timedelta(seconds=1)
FULL = b"x" * 65_536

WORKER = """
import asyncio
import sys

from querator import Client


async def main():
    async with Client(sys.argv[1]) as client:
        async with client.consumer("q") as consumer:
            item = await anext(consumer)
            step = int(item.checkpoint or b"0")
            print("begun", step, flush=True)
            while True:
                step += 1
                await item.save_checkpoint(b"%d" % step)
                print("saved", step, flush=True)


asyncio.run(main())
"""


async def test_by_calls_streams_both_clients_and_across_a_restart(tmp_path: Path):
    async with server(tmp_path / "data") as node:
        async with Client(node.address) as client:
            await client.create_queue("q", partitions=1)
            await client.produce("q", "a", "b")
            async with client.consumer("q", idle_timeout=IDLE) as consumer:
                [first, second] = [await anext(consumer) for _ in range(2)]
                assert (first.checkpoint, second.checkpoint) == (b"", b"")
                await first.save_checkpoint(b"page 1")
                await asyncio.gather(first.save_checkpoint(b"page 2"), second.save_checkpoint(FULL))
                assert first.checkpoint == b"page 2"
                with pytest.raises(ValueError, match="data has 65537 bytes"):
                    await first.save_checkpoint(FULL + b"x")
                await asyncio.gather(first.retry(), second.retry(clear_checkpoint=True))
                with pytest.raises(LeaseLost):
                    await first.save_checkpoint(b"too late")
                again = {item.text(): item async for item in consumer}
                assert (again["a"].checkpoint, again["b"].checkpoint) == (b"page 2", b"")
                await again["a"].release()
                await again["b"].complete()
            [shown] = [item async for item in client.peek("q")]
            assert shown.checkpoint_bytes == 6
            assert (await client.stats("q")).total.checkpoint_bytes == 6
        await node.kill()
        await node.start()
        await asyncio.to_thread(_blocking, node.address)
        async with Client(node.address) as client:
            [item] = await client.lease("q", wait=WAIT)
            assert item.checkpoint == b"page 3"
            outcome = await client.save_checkpoint("q", item.lease_id, str(item.id), b"by id")
            assert outcome.remaining
            with pytest.raises(LeaseLost):
                await client.save_checkpoint("q", item.lease_id, "0-99", b"another's")
            await item.release()
        await _by_hand(node, tmp_path)


async def _by_hand(node: ServerProcess, home: Path) -> None:
    [line] = (await ok(node, "lease", "q", "--output", "json")).splitlines()
    leased = msgspec.json.decode(line)
    assert (leased["checkpoint"], leased["checkpoint_base64"]) == ("by id", None)
    named = ("q", leased["lease_id"], leased["id"])
    said = await ok(node, "checkpoint", *named, "page 7", "--lease-timeout", "10m")
    assert said.startswith("6 bytes saved. The lease ends in ")
    (home / "progress").write_bytes(b"\xff\0")
    await ok(node, "checkpoint", *named, "--file", str(home / "progress"))
    [line] = (await ok(node, "peek", "q", "--output", "json")).splitlines()
    assert msgspec.json.decode(line)["checkpoint_bytes"] == 2
    await ok(node, "retry", "q", leased["lease_id"], "--clear-checkpoint")
    code, _, error = await run("checkpoint", *named, "late", "--address", node.address)
    assert code == 3
    assert "LEASE_LOST" in error
    [line] = (await ok(node, "lease", "q", "--output", "json")).splitlines()
    assert msgspec.json.decode(line)["checkpoint"] == ""


def _blocking(address: str) -> None:
    with SyncClient(address) as client:
        [item] = client.lease("q", wait=WAIT)
        assert item.checkpoint == b"page 2"
        item.save_checkpoint(b"page 3", timedelta(minutes=1))
        assert item.remaining > timedelta(seconds=45)
        item.retry()


async def test_they_go_with_dead_letters_and_return(tmp_path: Path):
    async with server(tmp_path / "data") as node, Client(node.address) as client:
        await client.create_queue("gone", partitions=1)
        await client.create_queue("q", partitions=1, max_attempts=1, dead_queue="gone")
        await client.produce("q", "a")
        [item] = await client.lease("q", wait=WAIT)
        await item.save_checkpoint(FULL)
        await item.retry(error="slow")
        [letter] = await client.lease("gone", wait=WAIT)
        assert letter.checkpoint == FULL
        await letter.release()
        [shown] = [one async for one in client.dead_letters("q")]
        assert shown.checkpoint_bytes == len(FULL)
        assert await client.redrive("q") == 1
        [back] = await client.lease("q", wait=WAIT)
        assert (back.attempt, back.checkpoint, back.dead_letter) == (1, FULL, None)
        await back.complete()
        total = (await client.stats("gone")).total
        assert (total.checkpoint_bytes, total.ready) == (0, 0)


async def _read(worker: asyncio.subprocess.Process, steps: list[int], enough: asyncio.Event):
    assert worker.stdout is not None
    async for line in worker.stdout:
        steps.append(int(line.split()[1]))
        if len(steps) > 20:
            enough.set()


async def test_what_was_saved_outlives_the_worker_and_the_leader(tmp_path: Path):
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=timedelta(minutes=1)) as client:
            await client.create_queue(
                "q", partitions=1, replicas=3, lease_timeout=timedelta(seconds=3)
            )
            await client.produce("q", "a long one")
            known = 0
            for _ in range(2):
                worker = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", WORKER, ",".join(addresses),
                    stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
                steps: list[int] = []
                enough = asyncio.Event()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_read(worker, steps, enough))
                    await enough.wait()
                    view = await cluster.until(
                        lambda view: all(one["leader"] for one in view["partitions"])
                    )
                    victim = next(
                        str(one["leader"]) for one in view["partitions"] if one["queue"] == "q"
                    )
                    with contextlib.suppress(ProcessLookupError):
                        worker.kill()
                    await cluster[victim].kill()
                await worker.wait()
                # The first line is where the worker began.
                assert steps[0] >= known
                known = steps[-1]
                await cluster[victim].start()
            [item] = await client.lease("q", wait=WAIT)
            # The last save may be durable without its answer.
            assert int(item.checkpoint) in (known, known + 1)
            await item.complete()
