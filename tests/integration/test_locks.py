"""Locks on real nodes: holders that are stopped, leaders that are killed, and a store that compares
fencing tokens.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from querator import Client, Holding
from querator.errors import LockLost
from tests.integration.lock_holder import LEASE, make_store, write, written
from tests.integration.process_cluster import ProcessCluster, process_cluster
from tests.integration.processes import server

pytestmark = pytest.mark.timeout(180)

WAIT = timedelta(seconds=60)
PERMITS = 3


class HolderProcess:
    """A `lock_holder` program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT.total_seconds()):
            return (await self._process.stdout.readline()).decode().strip()

    async def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        return await self.says()

    async def held(self) -> int:
        """The fencing token, when it holds the lock."""
        word, token = (await self.says()).split()
        assert word == "held"
        return int(token)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def holder(addresses: list[str], store: Path, name: str) -> AsyncIterator[HolderProcess]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.lock_holder",
        ",".join(addresses),
        str(store),
        name,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield HolderProcess(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def leader_of(cluster: ProcessCluster, queue: str) -> str:
    view = await cluster.until(
        lambda view: any(one["queue"] == queue and one["leader"] for one in view["partitions"])
    )
    return next(str(one["leader"]) for one in view["partitions"] if one["queue"] == queue)


async def test_stopped_holders_and_killed_leaders(tmp_path: Path):
    store = tmp_path / "store"
    make_store(store)
    async with process_cluster(tmp_path) as cluster:
        await cluster.start()
        addresses = [member.address for member in cluster.by_name.values()]
        async with Client(addresses, request_timeout=WAIT) as client:
            # Ready with three replicas, so that each leader can be killed.
            await client.lock("store").acquire(timeout=WAIT)
            await client.release_leases(
                "lock.store", *[one.lease_id async for one in client.list_leases("lock.store")]
            )
            async with holder(addresses, store, "first") as first:
                token = await first.held()
                assert await first.ask("write") == "accepted"
                leader = await leader_of(cluster, "lock.store")
                await cluster[leader].kill()
                async with holder(addresses, store, "second") as second:
                    first.stop()
                    # The next leader lets the lease lapse, and the second one gets the lock.
                    assert (later := await second.held()) > token
                    assert await second.ask("write") == "accepted"
                    first.go_on()
                    assert await first.ask("write") == "refused"
                    assert await first.ask("check") == "lost"
                    assert await first.ask("end") == "lost"
                    await cluster[leader].start()
                    assert await second.ask("check") == "held"
                    assert await second.ask("end") == "released"
            async with client.lock("store", timeout=WAIT) as last:
                assert last.token > later
                assert write(store, last.token, "last")
                assert not write(store, later, "second")
            await _a_holder_survives_the_leader(client, cluster)
            await _a_semaphore_while_leaders_are_killed(client, cluster)
    assert written(store) == [(token, "first"), (later, "second"), (last.token, "last")]


async def _a_holder_survives_the_leader(client: Client, cluster: ProcessCluster) -> None:
    """A lease that is longer than an election takes is extended by the next leader."""
    async with client.lock("long", lease_timeout=timedelta(seconds=30), timeout=WAIT) as holding:
        leader = await leader_of(cluster, "lock.long")
        await cluster[leader].kill()
        found = await client.lock("long").holder()
        assert found is not None
        assert found.token == holding.token
        await cluster[leader].start()
        holding.check()


async def _a_semaphore_while_leaders_are_killed(client: Client, cluster: ProcessCluster) -> None:
    inside: set[int] = set()
    held = 0
    over, more = asyncio.Event(), asyncio.Condition()

    async def use(holding: Holding) -> None:
        nonlocal held
        inside.add(holding.token)
        held += 1
        try:
            await asyncio.sleep(0.02)
            # Those that have lost theirs are being cancelled.
            assert len(inside) <= PERMITS
        finally:
            inside.discard(holding.token)

    async def work() -> None:
        semaphore = client.semaphore("s", PERMITS, lease_timeout=LEASE)
        while not over.is_set():
            with suppress(LockLost):
                async with semaphore as holding:
                    await use(holding)
            async with more:
                more.notify_all()

    def enough(before: int) -> bool:
        return held >= before + 4 * PERMITS

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2 * PERMITS):
            tasks.create_task(work())
        for _ in range(2):
            leader = await leader_of(cluster, "semaphore.s")
            await cluster[leader].kill()
            before = held
            async with asyncio.timeout(WAIT.total_seconds()), more:
                await more.wait_for(partial(enough, before))
            await cluster[leader].start()
        over.set()
    stats = (await client.stats("semaphore.s")).total
    assert stats.ready + stats.leased == PERMITS


async def test_the_fencing_token_grows_across_restarts_and_kills_of_a_node(tmp_path: Path):
    tokens = []
    async with server(tmp_path / "data") as node:
        for _ in range(3):
            async with Client(node.address) as client:
                async with client.lock("a", timeout=WAIT) as holding:
                    tokens.append(holding.token)
                await client.delete_queue("lock.a")
                async with client.lock("a", timeout=WAIT) as holding:
                    tokens.append(holding.token)
            await node.kill()
            await node.start()
    assert tokens == sorted(set(tokens))
