"""Locks and semaphores, against a node in memory: exclusion, waits, blocks, loss, permits."""

import asyncio
import copy
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any

import pytest
import uuid_utils

from querator import Client, Holding, Item, Semaphore, SyncNode
from querator.client.errors import (
    LeaseLost,
    LockLost,
    LockMismatch,
    LockTimeout,
    QueueNotFound,
    RequestError,
    Unavailable,
    VersionConflict,
)
from querator.client.locks.tokens import TOKEN_KEY, TOKEN_KIND
from querator.model.routing import SLOTS, partition_of_key, slot_of_key
from tests.clients.fault_proxy import FaultProxy

NOW = timedelta(0)
WAIT = timedelta(seconds=20)
SHORT = timedelta(seconds=2)


@pytest.fixture
def namespace() -> str:
    return f"test-{uuid_utils.uuid7().hex[-12:]}"


@pytest.fixture
async def client(querator_session_node: SyncNode, namespace: str) -> AsyncIterator[Client]:
    async with Client(querator_session_node.address, namespace=namespace, client_id="one") as made:
        yield made


@pytest.fixture
async def other(querator_session_node: SyncNode, namespace: str) -> AsyncIterator[Client]:
    async with Client(querator_session_node.address, namespace=namespace, client_id="two") as made:
        yield made


def begun(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """A task, which the test awaits."""
    return asyncio.get_running_loop().create_task(work)


async def take_away(client: Client, queue: str) -> None:
    """Ends all leases of a lock's queue, as an operator can."""
    leases = [lease.lease_id async for lease in client.list_leases(queue)]
    await client.release_leases(queue, *leases)


async def test_one_client_at_a_time_holds_a_lock(client: Client, other: Client):
    async with client.lock("a") as first:
        assert (first.held, first.lost, first.name, first.holder) == (True, False, "a", "one")
        first.check()
        held_by = await other.lock("a").holder()
        assert held_by is not None
        assert (held_by.holder, held_by.token) == ("one", first.token)
        assert held_by.since < held_by.deadline
        with pytest.raises(LockTimeout, match="lock a was not free in time"):
            await other.lock("a").acquire(timeout=NOW)
        waiting = begun(other.lock("a", holder="night shift").acquire())
        await asyncio.sleep(0)
        assert not waiting.done()
    assert (first.held, first.lost, first.remaining) == (False, False, NOW)
    second = await waiting
    assert second.token > first.token
    assert second.holder == "night shift"
    assert [one.holder for one in await client.lock("a").holders()] == ["night shift"]
    await second.release()
    await second.release()
    assert await client.lock("a").holder() is None
    with pytest.raises(RuntimeError, match="lock a was released"):
        second.check()


async def test_names_of_locks_and_semaphores_are_apart(client: Client):
    async with client.lock("x"), client.semaphore("x", 2), client.lock("y"):
        names = [queue.name async for queue in client.list_queues()]
    assert names == ["lock.x", "lock.y", "semaphore.x"]


async def test_a_lock_that_was_never_used_is_free(client: Client):
    assert await client.lock("a").holder() is None
    assert await client.semaphore("a", 2).holders() == []


async def test_an_object_has_one_block_at_a_time(client: Client):
    lock = client.lock("a")
    async with lock:
        with pytest.raises(RuntimeError, match="is in a block already"):
            async with lock:
                pass
    async with lock as again:
        assert again.held


async def test_the_block_is_cancelled_when_the_lock_is_lost(client: Client, other: Client):
    held: list[Holding] = []

    async def work() -> None:
        async with client.lock("a", lease_timeout=SHORT) as holding:
            await take_away(other, "lock.a")
            try:
                await asyncio.sleep(60)
            finally:
                held.append(holding)

    with pytest.raises(LockLost, match="was ended by hand") as caught:
        await work()
    (holding,) = held
    assert (caught.value.name, caught.value.token) == ("a", holding.token)
    assert (holding.held, holding.lost) == (False, True)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
    with pytest.raises(LockLost):
        holding.check()
    with pytest.raises(LockLost):
        await holding.release()
    async with other.lock("a", timeout=WAIT) as later:
        assert later.token > holding.token


async def test_until_lost_returns_at_the_loss(client: Client, other: Client):
    holding = await client.lock("a", lease_timeout=SHORT).acquire()
    waiting = begun(holding.until_lost())
    await take_away(other, "lock.a")
    async with asyncio.timeout(20):
        await waiting
        await holding.until_lost()


async def test_a_loss_that_nothing_has_noticed_is_raised_at_the_end(client: Client, other: Client):
    async def work() -> None:
        async with client.lock("a"):
            await take_away(other, "lock.a")

    with pytest.raises(LockLost, match="ended by others"):
        await work()


async def test_the_error_of_a_block_comes_before_its_loss(client: Client, other: Client):
    async def unaware() -> None:
        async with client.lock("a"):
            await take_away(other, "lock.a")
            raise ZeroDivisionError

    async def cancelled() -> None:
        async with client.lock("a", lease_timeout=SHORT) as holding:
            await take_away(other, "lock.a")
            try:
                await holding.until_lost()
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    for work in (unaware, cancelled):
        with pytest.raises(ZeroDivisionError):
            await work()


async def test_a_cancellation_from_elsewhere_stays_one(client: Client, other: Client):
    inside = asyncio.Event()

    async def work() -> None:
        async with client.lock("a"):
            inside.set()
            await asyncio.sleep(60)

    task = begun(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with other.lock("a", timeout=WAIT):
        pass

    async def limited() -> None:
        async with asyncio.timeout(0.05), client.lock("a"):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError) as caught:
        await limited()
    assert not isinstance(caught.value, LockTimeout)


async def test_a_wait_that_is_cancelled_leaves_nothing_leased(client: Client, other: Client):
    lock = client.lock("a")
    for _ in range(10):
        held = await lock.acquire()
        waiting = [begun(other.lock("a").acquire()) for _ in range(5)]
        await asyncio.sleep(0.01)
        # The token is free at the same time as the calls are cancelled.
        releasing = begun(held.release())
        for one in waiting:
            one.cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        await releasing
        for each in found:
            if isinstance(each, Holding):
                await each.release()
    async with lock as last:
        assert last.held


async def test_a_client_that_closes_gives_back_what_it_holds(
    querator_session_node: SyncNode, namespace: str, other: Client
):
    async with Client(querator_session_node.address, namespace=namespace) as closing:
        holding = await closing.lock("a").acquire()
        assert holding.held
    assert holding.lost
    with pytest.raises(LockLost, match="its client was closed"):
        holding.check()
    async with other.lock("a", timeout=WAIT) as later:
        assert later.token > holding.token


async def test_a_client_that_closes_ends_the_calls_that_wait(
    querator_session_node: SyncNode, namespace: str, other: Client
):
    async with other.lock("a"):
        async with Client(querator_session_node.address, namespace=namespace) as closing:
            waiting = begun(closing.lock("a").acquire())
            await asyncio.sleep(0.05)
        with pytest.raises(Unavailable, match="the client is closed"):
            await waiting
    async with other.lock("a", timeout=WAIT) as again:
        assert again.held


async def test_a_deleted_queue_ends_the_lock_and_is_made_again(client: Client, other: Client):
    tokens: list[int] = []

    async def work() -> None:
        async with client.lock("a", lease_timeout=SHORT) as holding:
            tokens.append(holding.token)
            await other.delete_queue("lock.a")
            await asyncio.sleep(60)

    for _ in range(3):
        with pytest.raises(LockLost, match=r"its queue is gone|has ended"):
            await work()
    assert tokens == sorted(set(tokens))
    async with client.lock("a") as last:
        assert last.token > tokens[-1]


async def test_tokens_that_were_purged_are_made_again(client: Client, other: Client):
    semaphore = client.semaphore("s", 3)
    one = await semaphore.acquire()
    assert (await other.purge("semaphore.s")).removed == 2
    for _ in range(2):
        await semaphore.acquire(timeout=WAIT)
    with pytest.raises(LockTimeout):
        # There are as many tokens as permits, also after the purge.
        await semaphore.acquire(timeout=NOW)
    assert len(await semaphore.holders()) == 3
    assert one.held
    await one.release()
    assert (await other.stats("semaphore.s")).total.ready == 1


async def test_a_purge_does_not_leave_waiting_calls_behind(client: Client, other: Client):
    held = await client.lock("a").acquire()
    waiting = begun(other.lock("a").acquire())
    await asyncio.sleep(0.01)
    (lease,) = [lease.lease_id async for lease in client.list_leases("lock.a")]
    await client.complete("lock.a", lease)
    async with asyncio.timeout(20):
        assert (await waiting).token > held.token


async def test_clients_that_make_a_semaphore_at_once_make_it_once(
    querator_session_node: SyncNode, namespace: str
):
    clients = [Client(querator_session_node.address, namespace=namespace) for _ in range(8)]
    made = await asyncio.gather(
        *(client.semaphore("s", 5).acquire(timeout=NOW) for client in clients),
        return_exceptions=True,
    )
    held = [one for one in made if not isinstance(one, BaseException)]
    assert all(isinstance(one, LockTimeout) for one in made if isinstance(one, BaseException))
    assert len(await clients[0].semaphore("s", 5).holders()) == len(held) <= 5
    stats = (await clients[0].stats("semaphore.s")).total
    assert stats.ready + stats.leased == 5
    for client in clients:
        await client.close()


async def test_a_client_that_died_while_it_made_a_lock(client: Client):
    await client.create_queue(
        "lock.a", max_attempts=0, dead_queue="", dedup_until="done", partition_items_max=1
    )
    async with client.lock("a", timeout=NOW) as holding:
        assert holding.held


@pytest.mark.parametrize("seconds", [0, 20])
async def test_queues_that_are_none_of_a_lock_are_refused(client: Client, seconds: int):
    await client.create_queue("lock.a", dead_queue="", partition_items_max=1)
    with pytest.raises(LockMismatch, match="its max_attempts is 20, and must be none"):
        await client.lock("a").acquire(timeout=timedelta(seconds=seconds))
    await client.lock("b").acquire()
    await client.update_queue("lock.b", expire_timeout=timedelta(days=1))
    with pytest.raises(LockMismatch, match="its expire_timeout is 1 day"):
        await client.lock("b").acquire(timeout=NOW)


async def test_items_that_are_no_tokens_are_refused(client: Client):
    async with client.lock("a"):
        await client.update_queue("lock.a", partition_items_max=2)
        await client.produce("lock.a", b"work")
    await client.update_queue("lock.a", partition_items_max=1)
    held = await client.lock("a").acquire()
    with pytest.raises(LockMismatch, match="items that are no tokens of a lock"):
        await client.lock("a").acquire()
    assert held.held


async def test_a_semaphore_has_as_many_holders_as_permits(client: Client, other: Client):
    at_work = most = done = 0

    async def work(semaphore: Semaphore) -> None:
        nonlocal at_work, most, done
        for _ in range(5):
            async with semaphore:
                at_work += 1
                most = max(most, at_work)
                await asyncio.sleep(0.001)
                at_work -= 1
                done += 1

    async with asyncio.TaskGroup() as tasks:
        for worker in range(8):
            chosen = (client, other)[worker % 2]
            tasks.create_task(work(chosen.semaphore("s", 3)))
    assert done == 40
    assert most <= 3


async def test_a_semaphore_gets_more_and_fewer_permits(client: Client, other: Client):
    semaphore = client.semaphore("s", 2)
    held = [await semaphore.acquire() for _ in range(2)]
    with pytest.raises(LockTimeout):
        await semaphore.acquire(timeout=NOW)
    await semaphore.resize(4)
    assert semaphore.permits == 4
    held += [await semaphore.acquire(timeout=NOW) for _ in range(2)]
    with pytest.raises(LockMismatch, match="has 4 permits, and not 2"):
        await other.semaphore("s", 2).acquire()
    fewer = begun(semaphore.resize(1))
    await asyncio.sleep(0.05)
    assert not fewer.done()
    for one in held[:3]:
        assert one.held
        await one.release()
    async with asyncio.timeout(20):
        await fewer
    with pytest.raises(LockTimeout):
        await other.semaphore("s", 1).acquire(timeout=NOW)
    await held[3].release()
    async with other.semaphore("s", 1, timeout=WAIT):
        with pytest.raises(LockTimeout):
            await semaphore.acquire(timeout=NOW)
    # The dedup keys of the tokens that stayed have gaps, which are filled.
    await semaphore.resize(3)
    assert (await client.stats("semaphore.s")).total.ready == 3


async def test_bad_arguments_are_refused(client: Client):
    for name in ("", "a/b", "ä"):
        with pytest.raises(ValueError, match="name"):
            client.lock(name)
    with pytest.raises(ValueError, match=r"name.*255"):
        client.lock("a" * 251)
    for permits in (0, 1_001):
        with pytest.raises(ValueError, match=f"permits is {permits}; it must be from 1 to 1000"):
            client.semaphore("s", permits)
    for seconds in (1, 86_401):
        with pytest.raises(ValueError, match=r"lease_timeout is .* it must be from 0:00:02 to 1 d"):
            client.lock("a", lease_timeout=timedelta(seconds=seconds))
    with pytest.raises(ValueError, match="timeout is -1 day"):
        client.lock("a", timeout=timedelta(seconds=-1))
    with pytest.raises(ValueError, match="timeout is -1 day"):
        await client.lock("a").acquire(timeout=timedelta(seconds=-1))
    with pytest.raises(ValueError, match="holder has 129 characters; at most 128"):
        client.lock("a", holder="x" * 129)
    with pytest.raises(TypeError, match="a lock has one permit, not 2"):
        await client.lock("a").resize(2)
    with pytest.raises(TypeError, match="permits is '2'"):
        client.semaphore("s", "2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="permits is 0"):
        await client.semaphore("s", 1).resize(0)


async def test_two_programs_do_not_resize_at_once(client: Client, other: Client):
    semaphore = client.semaphore("s", 2)
    await semaphore.acquire()
    ended = await asyncio.gather(
        semaphore.resize(3), other.semaphore("s", 2).resize(4), return_exceptions=True
    )
    assert all(one is None or isinstance(one, VersionConflict | LockMismatch) for one in ended)
    assert None in ended
    info = await client.get_queue("semaphore.s")
    stats = (await client.stats("semaphore.s")).total
    assert stats.ready + stats.leased <= info.partition_items_max


async def test_a_release_by_someone_else_is_refused(client: Client, other: Client):
    holding = await client.lock("a").acquire()
    (lease,) = [lease async for lease in client.list_leases("lock.a")]
    await take_away(other, "lock.a")
    theirs = await other.lock("a").acquire()
    with pytest.raises(LeaseLost):
        await client.retry("lock.a", lease.lease_id)
    with pytest.raises(LockLost):
        await holding.release()
    assert theirs.held
    theirs.check()


async def test_the_lock_is_lost_in_time_when_no_node_is_reached(
    querator_session_node: SyncNode, namespace: str, other: Client
):
    async with (
        FaultProxy.to(querator_session_node.address) as proxy,
        Client(proxy.address, namespace=namespace, request_timeout=WAIT) as cut,
    ):
        held: list[Holding] = []

        async def work() -> None:
            async with cut.lock("a", lease_timeout=SHORT) as holding:
                held.append(holding)
                proxy.forth.block()
                # Until it is lost, no other client can have it.
                while holding.held:
                    assert await other.lock("a").holder() is not None
                    await asyncio.sleep(0.02)
                await asyncio.sleep(60)

        with pytest.raises(LockLost, match="was not extended in time"):
            await work()
        (holding,) = held
        async with other.lock("a", timeout=WAIT) as later:
            assert later.token > holding.token


def test_tokens_of_all_locks_are_in_the_first_partition():
    assert slot_of_key(TOKEN_KEY.encode()) == 0
    counts = (1, 2, 3, 7, 16, 1_000, SLOTS)
    assert {partition_of_key(TOKEN_KEY.encode(), count) for count in counts} == {0}


async def test_the_fencing_token_grows_while_the_partitions_change(client: Client):
    tokens = []
    for partitions in (1, 4, 2, 1):
        async with client.lock("a") as holding:
            tokens.append(holding.token)
        # All tokens are made again, with these partitions.
        await client.update_queue("lock.a", partitions=partitions)
        await client.purge("lock.a")
        async with client.lock("a") as holding:
            tokens.append(holding.token)
            (token,) = [item async for item in client.peek("lock.a")]
            assert (token.id.partition, token.item.kind) == (0, TOKEN_KIND)
    assert tokens == sorted(set(tokens))


async def test_a_token_does_not_die_by_attempts(client: Client, other: Client):
    async with client.lock("a"):
        await client.update_queue("lock.a", max_attempts=2)
    for _ in range(4):
        (item,) = await other.lease("lock.a", wait=WAIT)
        item.retry(error="not this time")
        await other.stats("lock.a")
    (token,) = [item async for item in client.peek("lock.a")]
    assert token.attempt >= 3


async def test_errors_can_be_sent_to_other_processes():
    for error in (LockLost("a", 7, "why"), LockTimeout("a")):
        again = copy.deepcopy(error)
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


async def test_a_release_that_no_node_answers(querator_session_node: SyncNode, namespace: str):
    async with (
        FaultProxy.to(querator_session_node.address) as proxy,
        Client(proxy.address, namespace=namespace, request_timeout=timedelta(seconds=0.5)) as cut,
    ):
        await cut.create_queue("other")
        holding = await cut.lock("a").acquire()
        proxy.forth.block()
        with pytest.raises(RequestError):
            await holding.release()
        assert not holding.held
        with pytest.raises((RequestError, QueueNotFound)):
            await cut.produce("other", Item(b"x"))
