"""A lock that is held, by the clock of its holder: it ends before the server gives it away."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from querator import SyncClient, SyncLock, SyncNode
from querator.client import clock
from querator.client.errors import LockLost, LockMismatch, LockTimeout
from querator.client.locks.fencing import fencing_token
from querator.client.locks.token_lease import valid_seconds
from querator.testing import FrozenClock

SECOND = timedelta(seconds=1)
LEASE = timedelta(hours=1)
"""So long that no extension comes by itself."""
NOW = timedelta(0)
WAIT = timedelta(seconds=20)


@pytest.fixture
def other(querator_clock: FrozenClock, querator_node: SyncNode) -> Iterator[SyncClient]:
    with querator_node.client(client_id="other") as client:
        yield client


@pytest.fixture
def lock(querator_clock: FrozenClock, querator_client: SyncClient) -> SyncLock:
    return querator_client.lock("a", lease_timeout=LEASE)


def test_the_holder_stops_before_the_server_gives_the_lock_away(
    querator_clock: FrozenClock, lock: SyncLock, other: SyncClient
):
    holding = lock.acquire()
    valid = timedelta(seconds=valid_seconds(LEASE.total_seconds()))
    assert valid < LEASE - timedelta(milliseconds=500)
    assert holding.remaining == pytest.approx(valid, abs=timedelta(milliseconds=1))
    querator_clock.skip(valid - SECOND)
    assert (holding.held, holding.lost) == (True, False)
    holding.check()
    querator_clock.skip(2 * SECOND)
    # As after a pause of the process: nothing has run here since.
    assert (holding.held, holding.lost, holding.remaining) == (False, True, NOW)
    with pytest.raises(LockLost, match="was not extended in time"):
        holding.check()
    with pytest.raises(LockTimeout):
        other.lock("a").acquire(timeout=NOW)
    with pytest.raises(LockLost):
        holding.release()
    querator_clock.skip(LEASE - valid)
    later = other.lock("a").acquire(timeout=WAIT)
    assert later.token > holding.token
    with pytest.raises(LockLost):
        holding.release()
    assert later.held


def test_a_lock_that_waited_long_counts_from_its_extension(
    querator_clock: FrozenClock, lock: SyncLock, other: SyncClient
):
    first = other.lock("a", lease_timeout=LEASE).acquire()
    querator_clock.skip(LEASE / 4)
    first.release()
    with lock as holding:
        assert holding.remaining > LEASE * 0.9


def test_the_block_of_a_thread_raises_at_its_end(
    querator_clock: FrozenClock, lock: SyncLock, other: SyncClient
):
    done = []

    def work() -> None:
        with lock as holding:
            querator_clock.skip(LEASE)
            assert holding.lost
            assert holding.until_lost()
            done.append("all steps")

    with pytest.raises(LockLost, match="lock a is lost: its lease was not extended in time"):
        work()
    assert done == ["all steps"]

    def fails() -> None:
        with lock:
            querator_clock.skip(LEASE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with lock as holding:
        assert not holding.until_lost(NOW)
    assert lock.holder() is None


def test_the_sync_client_has_the_same_locks(querator_session_client: SyncClient):
    client = querator_session_client
    with client.lock("a", holder="me") as holding:
        holding.check()
        holder = client.lock("a").holder()
        assert holder is not None
        assert (holder.holder, holder.token) == ("me", holding.token)
        assert (holding.name, holding.holder) == ("a", "me")
        with pytest.raises(LockTimeout), client.lock("a", timeout=NOW):
            pass
        assert repr(holding) == f"<SyncHolding of 'a', token {holding.token}, held>"
    assert repr(holding) == f"<SyncHolding of 'a', token {holding.token}, released>"
    with pytest.raises(RuntimeError, match="was released"):
        holding.check()
    semaphore = client.semaphore("s", 2)
    assert (semaphore.name, semaphore.queue, semaphore.permits) == ("s", "semaphore.s", 2)
    with semaphore as one, client.semaphore("s", 2) as two:
        assert [found.token for found in semaphore.holders()] == [one.token, two.token]
        with pytest.raises(RuntimeError, match="s is in a block already"), semaphore:
            pass
    semaphore.resize(3)
    assert semaphore.permits == 3
    with pytest.raises(LockMismatch, match="has 3 permits, and not 2"):
        client.semaphore("s", 2).acquire(timeout=NOW)
    held = semaphore.acquire(timeout=NOW)
    (lease,) = client.list_leases("semaphore.s")
    client.release_leases("semaphore.s", lease.lease_id)
    with pytest.raises(LockLost, match="ended by others"):
        held.release()


def test_fencing_tokens_are_ordered_by_group_and_number():
    leases = ("1.0.1", "1.0.2", "1.0.ff", "2.0.1", "10.0.1", "7fffff.0.ffffffffff")
    tokens = list(map(fencing_token, leases))
    assert tokens == sorted(set(tokens))
    assert (tokens[0], tokens[-1]) == (2**40 + 1, 2**63 - 1)
    for lease in ("800000.0.1", "1.0.10000000000"):
        with pytest.raises(OverflowError, match="has no fencing token"):
            fencing_token(lease)


def test_the_clock_of_locks_does_not_go_back(querator_clock: FrozenClock):
    before = clock.elapsed()
    querator_clock.skip(LEASE)
    assert clock.elapsed() - before == pytest.approx(LEASE.total_seconds())


def test_the_shortest_lease_leaves_time_for_an_extension():
    assert valid_seconds(2.0) > 2 * 2.0 / 3
