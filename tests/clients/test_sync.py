"""The client for programs without an event loop, against a server in a process of its own."""

import asyncio
import os
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from querator import SyncClient
from querator.client import Item, LeaseRef
from querator.client.errors import ConnectionFailed, LeaseLost, QueratorError, QueueNotFound
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
        [once] = client.lease("q", complete_on_delivery=True)
        assert once.settled
        with pytest.raises(RuntimeError, match="settled"):
            once.complete()
        [chosen] = client.lease("q", item_ids=[f"{once.id.partition}-{once.id.seq + 9}"])
        assert chosen.id.seq == once.id.seq + 9
        chosen.release()
        with client.consumer("q", idle_timeout=IDLE) as consumer:
            for _, item in zip(range(50), consumer, strict=False):
                item.complete()
        with client.consumer("q", idle_timeout=IDLE) as consumer:
            for batch in consumer.batches():
                batch.complete()
        assert [(item.errors, item.attempt) for item in client.peek("q")] == [(("later",), 1)]
        found = client.get_item("q", second.id)
        assert found is not None
        assert found.item.payload == b"b"
        assert client.get_item("q", first.id) is None
        assert [item.id for item in client.get_items("q", ["0-1", second.id])] == [second.id]
        assert [*client.peek("q", after=second.id)] == []
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


_IN_A_LOOP = """
import asyncio, sys
from querator import SyncClient

async def main():
    client = SyncClient(sys.argv[1])
    client.create_queue("q")
    print([queue.name for queue in client.list_queues()])
    client.close()
    with SyncClient(sys.argv[1]) as client:
        client.produce("q", b"a")

asyncio.run(main())
"""


async def test_a_client_is_used_and_closed_within_a_running_event_loop(address: str):
    # As in a notebook: the calls block the loop, and otherwise work. A process of its own, because
    # the tests allow no blocking call on a loop.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", _IN_A_LOOP, address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, out, err.decode()) == (0, b"['dead', 'q']\n", "")


async def test_a_refusal_shows_few_frames_of_the_client(address: str):
    await asyncio.to_thread(_be_refused, address)


def _be_refused(address: str) -> None:
    wrong: Any = 3
    with SyncClient(address) as client:
        for call in (
            lambda: client.get_queue("none"),
            lambda: client.produce("none", b"a"),
            lambda: client.create_queue("q", lease_timeout=wrong),
            lambda: client.lease("none", max_items=-1),
            lambda: next(client.peek("none")),
        ):
            with pytest.raises((QueratorError, TypeError, ValueError)) as refused:
                call()
            frames = traceback.extract_tb(refused.value.__traceback__)
            ours = [frame for frame in frames if f"querator{os.sep}client" in frame.filename]
            assert len(ours) <= 3, refused.value
            assert refused.value.__cause__ is None


async def test_an_exception_of_the_programs_own_keeps_its_frames(address: str):
    await asyncio.to_thread(_fail_while_producing, address)


def _fail_while_producing(address: str) -> None:
    def items() -> Iterator[bytes]:
        yield b"a"
        raise LookupError("no more")

    with SyncClient(address) as client:
        client.create_queue("q")
        with client.producer("q") as producer, pytest.raises(LookupError) as failed:
            producer.produce_many(items())
    assert traceback.extract_tb(failed.value.__traceback__)[-1].name == "items"


async def test_a_call_on_the_clients_own_thread_is_refused(address: str):
    await asyncio.to_thread(_produce_while_producing, address)


def _produce_while_producing(address: str) -> None:
    with SyncClient(address) as client:
        client.create_queue("q")

        def items() -> Iterator[bytes]:
            yield b"a"
            client.produce("q", b"b")

        with client.producer("q") as producer, pytest.raises(RuntimeError, match="own thread"):
            producer.produce_many(items())
