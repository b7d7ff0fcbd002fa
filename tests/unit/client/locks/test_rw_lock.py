"""Read-write locks: readers together, a writer alone, and no reader overtakes a waiting writer."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any

import pytest
import uuid_utils

from querator import Client, RwLock, SyncClient, SyncNode
from querator.client.errors import LockLost, LockMismatch, LockTimeout

NOW = timedelta(0)
SOON = timedelta(milliseconds=100)
WAIT = timedelta(seconds=20)
READERS = 4


@pytest.fixture
async def client(querator_session_node: SyncNode) -> AsyncIterator[Client]:
    namespace = f"test-{uuid_utils.uuid7().hex[-12:]}"
    async with Client(querator_session_node.address, namespace=namespace) as made:
        yield made


def begun(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """A task, which the test awaits."""
    return asyncio.get_running_loop().create_task(work)


async def until_all_are_taken(lock: RwLock) -> None:
    """Until a writer that waits has all tokens but those of readers."""
    async with asyncio.timeout(20):
        while len(await lock.holders()) < READERS:  # noqa: ASYNC110 - the server has no event
            await asyncio.sleep(0.01)


async def test_readers_share_and_a_writer_is_alone(client: Client):
    lock = client.rw_lock("a", readers=READERS)
    assert (lock.name, lock.readers, lock.queue) == ("a", READERS, "rwlock.a")
    readers = [await lock.acquire_read() for _ in range(READERS)]
    with pytest.raises(LockTimeout):
        await lock.acquire_read(timeout=SOON)
    with pytest.raises(LockTimeout):
        await lock.acquire_write(timeout=SOON)
    assert len(await lock.holders()) == READERS
    for reader in readers:
        reader.check()
        await reader.release()
    async with lock.write(timeout=WAIT) as writing:
        assert writing.token > max(reader.token for reader in readers)
        with pytest.raises(LockTimeout):
            await lock.acquire_read(timeout=SOON)
        with pytest.raises(LockTimeout):
            await lock.acquire_write(timeout=SOON)
    async with lock.read(timeout=WAIT) as later, lock.read(timeout=WAIT):
        assert later.token > writing.token
    assert await lock.holders() == []
    stats = (await client.stats("rwlock.a")).total
    assert (stats.ready, stats.leased) == (READERS, 0)


async def test_readers_wait_behind_a_writer_that_waits(client: Client):
    lock = client.rw_lock("a", readers=READERS)
    order: list[str] = []

    async def write() -> None:
        async with lock.write():
            order.append("writer")

    async def read() -> None:
        async with lock.read():
            order.append("reader")

    first = await lock.acquire_read()
    writing = begun(write())
    await until_all_are_taken(lock)
    reading = [begun(read()) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert order == []
    await first.release()
    async with asyncio.timeout(20):
        await asyncio.gather(writing, *reading)
    assert order == ["writer", "reader", "reader", "reader"]


async def test_a_mix_of_readers_and_writers(client: Client):
    lock = client.rw_lock("a", readers=READERS)
    reading = writing = done = 0

    async def read() -> None:
        nonlocal reading, done
        for _ in range(5):
            async with lock.read():
                reading += 1
                assert (writing, reading <= READERS) == (0, True)
                await asyncio.sleep(0.001)
                reading -= 1
                done += 1

    async def write() -> None:
        nonlocal writing, done
        for _ in range(3):
            async with lock.write():
                writing += 1
                assert (writing, reading) == (1, 0)
                await asyncio.sleep(0.001)
                writing -= 1
                done += 1

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(read())
        for _ in range(2):
            tasks.create_task(write())
    assert done == 26


async def test_a_writer_that_gives_up_leaves_nothing_leased(client: Client):
    lock = client.rw_lock("a", readers=READERS)
    async with lock.read():
        writing = begun(lock.acquire_write())
        await until_all_are_taken(lock)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        held = [await lock.acquire_read(timeout=WAIT) for _ in range(READERS - 1)]
    for one in held:
        await one.release()
    async with lock.write(timeout=WAIT) as last:
        assert last.held


async def test_the_block_of_a_writer_is_cancelled(client: Client):
    lock = client.rw_lock("a", readers=READERS, lease_timeout=timedelta(seconds=2))

    async def write() -> None:
        async with lock.write():
            leases = [one.lease_id async for one in client.list_leases("rwlock.a")]
            # One of its tokens is enough.
            await client.release_leases("rwlock.a", leases[-1])
            await asyncio.sleep(60)

    with pytest.raises(LockLost):
        await write()


async def test_programs_must_agree_on_the_number_of_readers(client: Client):
    async with client.rw_lock("a", readers=2).read():
        with pytest.raises(LockMismatch, match="has 2 permits, and not 3"):
            await client.rw_lock("a", readers=3).acquire_write()
    with pytest.raises(ValueError, match="permits is 0"):
        client.rw_lock("a", readers=0)


def test_the_same_for_threads(querator_session_client: SyncClient):
    lock = querator_session_client.rw_lock("a", readers=2)
    assert (lock.name, lock.readers) == ("a", 2)
    with lock.read() as one, lock.read() as two:
        assert {found.token for found in lock.holders()} == {one.token, two.token}
        with pytest.raises(LockTimeout):
            lock.acquire_write(timeout=NOW)
        two.release()

    def fails() -> None:
        with lock.write():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with lock.write(timeout=WAIT) as writing:
        leases = [lease.lease_id for lease in querator_session_client.list_leases("rwlock.a")]
        writing.check()
    assert len(leases) in (1, 2)
    with pytest.raises(RuntimeError, match="was released"):
        writing.check()
