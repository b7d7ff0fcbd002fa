"""The client for programs without an event loop, against a server in a process of its own."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from querator import SyncClient
from querator.client import Item, LeaseRef
from querator.client.errors import ConnectionFailed, LeaseLost, QueueNotFound
from tests.integration.processes import server

IDLE = timedelta(milliseconds=500)
WAIT = timedelta(seconds=20)


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    async with server(tmp_path / "data") as process:
        yield process.address


async def test_everything_works_without_an_event_loop(address: str):
    await asyncio.to_thread(_use_everything, address)


def _use_everything(address: str) -> None:
    with SyncClient(address, client_id="me") as client:
        assert client.create_queue("q", max_attempts=2, dead_queue="").created
        assert client.update_queue("q", description="text").description == "text"
        assert [queue.name for queue in client.list_queues()] == ["q"]
        client.produce("q", b"a", Item("b", kind="k"))
        with client.producer("q") as producer:
            assert producer.produce(b"c").seq == 3
            future = producer.submit(b"d")
            producer.flush()
            assert future.result().seq == 4
            assert len(producer.produce_many(b"%d" % n for n in range(100))) == 100
        first, second, third, fourth = client.lease("q", max_items=4, wait=WAIT)
        assert (second.kind, second.payload, str(second.id)) == ("k", b"b", "0-2")
        first.complete()
        second.retry(delay=timedelta(hours=1), error="later")
        third.extend(timedelta(minutes=2))
        client.complete("q", third, LeaseRef(fourth.lease_id, (fourth.id,)))
        with pytest.raises(LeaseLost):
            client.retry("q", LeaseRef(first.lease_id, (1,)))
        with client.consumer("q", idle_timeout=IDLE) as consumer:
            for _, item in zip(range(50), consumer, strict=False):
                item.complete()
        with client.consumer("q", idle_timeout=IDLE) as consumer:
            for batch in consumer.batches():
                batch.complete()
        assert [(item.errors, item.attempt) for item in client.peek("q")] == [(("later",), 1)]
        stats = client.stats("q").total
        assert (stats.completed, stats.scheduled) == (103, 1)
        with pytest.raises(QueueNotFound):
            client.get_queue("none")
        client.delete_queue("q")


async def test_run_calls_the_handler_on_threads(address: str):
    await asyncio.to_thread(_run_handlers, address)


def _run_handlers(address: str) -> None:
    seen: list[bytes] = []
    failed: list[bytes] = []
    with SyncClient(address) as client:
        client.create_queue("q")
        client.produce("q", *(b"%d" % n for n in range(20)))
        with client.consumer("q", idle_timeout=IDLE) as consumer:

            def handler(item):
                if item.payload == b"7" and item.attempt == 1:
                    raise ValueError("not yet")
                seen.append(item.payload)

            consumer.run(
                handler,
                concurrency=3,
                retry_first=timedelta(0),
                on_error=lambda item, error: failed.append(item.payload),
            )
        assert client.stats("q").total.completed == 20
    assert sorted(seen) == sorted(b"%d" % n for n in range(20))
    assert failed == [b"7"]


def test_nobody_listening_is_told_at_once():
    with SyncClient("127.0.0.1:1", connect_timeout=timedelta(0)) as client:
        with pytest.raises(ConnectionFailed, match=r"refused at 127\.0\.0\.1:1"):
            client.stats("q")
