"""The assertions of `querator.testing`: what they wait for, and what they say."""

import asyncio
import threading
from datetime import timedelta

import pytest

from querator import SyncClient
from querator.client import DeadReason, Item, LeasedItem, SyncLeasedItem
from querator.client.errors import QueueNotFound
from querator.testing import (
    FrozenClock,
    assert_completed,
    assert_dead,
    assert_empty,
    dead_letters,
    drain,
    work,
)
from querator.worker import WorkerResult

AT_ONCE = timedelta(0)


@pytest.fixture
def client(querator_session_client: SyncClient) -> SyncClient:
    client = querator_session_client
    client.create_queue("dead")
    client.create_queue("q", max_attempts=1, dead_queue="dead")
    return client


def test_a_wrong_type_is_named(client: SyncClient):
    with pytest.raises(TypeError, match=r"^within is 1; it must be a timedelta"):
        assert_completed(client, "q", 0, within=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^client is 'q'; it must be a SyncClient"):
        drain("q", "q")  # type: ignore[arg-type]


def test_drain_completes_what_is_ready(client: SyncClient):
    client.produce("q", *(b"%d" % n for n in range(150)), Item(b"later", delay=timedelta(hours=1)))
    assert [item.payload for item in drain(client, "q", limit=2)] == [b"0", b"1"]
    assert len(drain(client, "q")) == 148
    assert drain(client, "q") == []
    assert_completed(client, "q", 150)


def test_assert_completed_waits(client: SyncClient):
    client.produce("q", b"x")
    (item,) = client.lease("q")
    completing = threading.Timer(0.1, item.complete)
    completing.start()
    assert_completed(client, "q", 1)
    completing.join()


def test_assert_completed_says_what_is_there(client: SyncClient):
    client.produce("q", b"x", b"y")
    drain(client, "q", limit=1)
    with pytest.raises(AssertionError, match="2 completed expected; it has completed 1 of 2"):
        assert_completed(client, "q", 2, within=AT_ONCE)


def test_a_count_that_is_too_high_is_not_waited_for(client: SyncClient):
    client.produce("q", b"x", b"y")
    drain(client, "q")
    with pytest.raises(AssertionError, match="1 completed expected"):
        assert_completed(client, "q", 1, within=timedelta(hours=1))


def test_assert_empty_counts_every_item_that_is_left(client: SyncClient):
    assert_empty(client, "q")
    client.produce("q", Item(b"later", delay=timedelta(hours=1)))
    with pytest.raises(AssertionError, match=r"no item expected.* scheduled 1"):
        assert_empty(client, "q", within=AT_ONCE)


def test_assert_dead_knows_reasons(client: SyncClient):
    client.produce("q", b"a", b"b")
    first, second = client.lease("q", max_items=2)
    client.retry("q", first, dead=True, error="no address")
    client.retry("q", second, error="the attempts are used up")
    assert_dead(client, "q", 2)
    assert_dead(client, "q", 1, reason=DeadReason.REJECTED)
    assert_dead(client, "q", 1, reason="attempts")
    with pytest.raises(AssertionError, match="2 dead letters with the reason REJECTED expected"):
        assert_dead(client, "q", 2, reason=DeadReason.REJECTED, within=AT_ONCE)
    reasons = [item.dead_letter.errors for item in dead_letters(client, "q") if item.dead_letter]
    assert sorted(reasons) == [("no address",), ("the attempts are used up",)]


def test_a_queue_that_does_not_exist_is_an_error(client: SyncClient):
    with pytest.raises(QueueNotFound, match="nowhere"):
        assert_empty(client, "nowhere")


def test_work_handles_what_is_ready_and_the_clock_brings_the_rest(
    querator_clock: FrozenClock, querator_client: SyncClient
):
    client = querator_client
    client.create_queue("q")
    client.produce("q", b"good", b"bad")
    attempts: list[tuple[bytes, int]] = []

    def handle(item: SyncLeasedItem) -> None:
        attempts.append((item.payload, item.attempt))
        if item.payload == b"bad" and item.attempt == 1:
            raise OSError("no network")

    options = {"retry_first": timedelta(hours=1), "retry_most": timedelta(hours=1)}
    assert work(client, "q", handle, **options) == WorkerResult(completed=1, retried=1)
    assert work(client, "q", handle, **options) == WorkerResult()
    querator_clock.skip(timedelta(hours=1))
    assert work(client, "q", handle, **options) == WorkerResult(completed=1)
    assert sorted(attempts) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]
    assert_completed(client, "q", 2)
    assert_empty(client, "q")


async def test_work_may_be_called_in_an_async_test(client: SyncClient):
    async def handle(item: LeasedItem) -> None: ...

    await asyncio.to_thread(client.produce, "q", b"x")
    assert await asyncio.to_thread(work, client, "q", handle) == WorkerResult(completed=1)
