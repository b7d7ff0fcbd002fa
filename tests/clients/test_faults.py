"""The SDK through cut connections and restarts: nothing lost, twice, or out of order."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from querator import Client, Node
from querator.client import Consumer
from querator.client.errors import LeaseLost, OutcomeUnknown
from tests.clients.fault_proxy import FaultProxy
from tests.integration.processes import server

SHORT = timedelta(seconds=1.5)
LAPSE = timedelta(seconds=4)


def _payloads(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("ordered", [True, False])
async def test_cut_connections_neither_lose_nor_repeat_what_is_produced(node: Node, ordered: bool):
    async with FaultProxy.to(node.address) as proxy, Client(proxy.address) as client:
        await client.create_queue("q", partitions=2)
        payloads = _payloads(3_000)
        async with client.producer("q", ordered=ordered, batch_items=7) as producer:
            for sent_bytes in (1, 2_000, 5_000, 9_000, 20_000):
                proxy.cut_after(sent_bytes)
                part, payloads = payloads[:300], payloads[300:]
                await producer.produce_many(part)
            proxy.hold_answers()
            rest = asyncio.get_running_loop().create_task(producer.produce_many(payloads))
            await _until_ready(node, 1_600)
            proxy.cut()
            proxy.resume_answers()
            stored = await rest
        assert any(item.repeated for item in stored)
        # How items are batched decides whether enough is sent to reach the last cut.
        assert proxy.connections > 4
        seen = [item.item.payload async for item in client.peek("q")]
    if ordered:
        assert seen == _payloads(3_000)
    else:
        assert sorted(seen) == sorted(_payloads(3_000))


async def _until_ready(node: Node, items: int) -> None:
    """Waits, past the proxy, until `items` items are there."""
    async with Client(node.address) as direct:
        async with direct.consumer("q", prefetch_items=1) as consumer:
            while (await direct.stats("q")).total.ready < items:
                await (await anext(consumer)).release()


async def test_cut_connections_neither_lose_nor_repeat_what_is_consumed(node: Node):
    async with FaultProxy.to(node.address) as proxy, Client(proxy.address) as client:
        # Items in flight to a cut stream have no consumer, and lapse.
        await client.create_queue("q", lease_timeout=timedelta(seconds=1))
        async with client.producer("q") as producer:
            await producer.produce_many(_payloads(1_000))
        given: list[tuple[bytes, asyncio.Future[None]]] = []
        async with client.consumer("q", prefetch_items=50, idle_timeout=LAPSE) as consumer:
            async for item in consumer:
                given.append((item.payload, item.complete()))
                if len(given) in (1, 77, 400, 900):
                    proxy.cut()
                if len(given) % 25 == 0:
                    await asyncio.wait((given[-1][1],))
        # A lease may lapse before its complete is repeated; then the item comes again.
        completed = [payload for payload, future in given if not _is_lost(future)]
        stats = (await client.stats("q")).total
    assert sorted(completed) == sorted(_payloads(1_000))
    assert (stats.completed, stats.ready, stats.leased) == (1_000, 0, 0)


def _is_lost(future: "asyncio.Future[None]") -> bool:
    error = future.exception()
    assert error is None or isinstance(error, LeaseLost)
    return error is not None


async def test_leases_of_a_broken_stream_are_kept_by_the_consumer(node: Node):
    async with FaultProxy.to(node.address) as proxy, Client(proxy.address) as client:
        await client.create_queue("q", lease_timeout=timedelta(seconds=3))
        await client.produce("q", b"long work", b"waiting")
        async with client.consumer("q") as consumer:
            item = await anext(consumer)
            proxy.cut()
            async with Client(node.address) as other:
                assert await other.lease("q", wait=timedelta(seconds=5)) == []
            await item.complete()
            assert (await anext(consumer)).payload == b"waiting"
        async with Client(node.address) as other:
            (released,) = await other.lease("q", wait=timedelta(seconds=1))
            assert (released.payload, released.attempt) == (b"waiting", 1)


async def test_a_consumer_that_releases_on_disconnect_loses_its_leases_at_once(node: Node):
    async with FaultProxy.to(node.address) as proxy, Client(proxy.address) as client:
        await client.create_queue("q")
        await client.produce("q", b"x")
        async with client.consumer("q", release_on_disconnect=True) as consumer:
            item = await anext(consumer)
            proxy.cut()
            again = await anext(consumer)
            assert (again.id, again.payload) == (item.id, b"x")
            with pytest.raises(LeaseLost):
                await item.complete()
            await again.complete()


async def test_no_answer_in_time_is_an_unknown_outcome_and_the_next_call_works(node: Node):
    async with Client(node.address) as patient:
        # On a slow disk, creating a queue takes longer than `SHORT`.
        await patient.create_queue("q")
    async with (
        FaultProxy.to(node.address) as proxy,
        Client(proxy.address, request_timeout=SHORT) as client,
    ):
        async with client.producer("q") as producer:
            await producer.produce(b"a")
            proxy.hold_answers()
            with pytest.raises(OutcomeUnknown):
                await producer.produce(b"b")
            with pytest.raises(OutcomeUnknown):
                await client.produce("q", b"c")
            proxy.cut()
            proxy.resume_answers()
            await producer.produce(b"d")
        seen = [item.item.payload async for item in client.peek("q")]
    assert [payload for payload in seen if payload in (b"a", b"d")] == [b"a", b"d"]
    assert len(seen) == len(set(seen))


async def test_cancelling_everything_leaves_nothing_behind(node: Node):
    before = asyncio.all_tasks()
    async with FaultProxy.to(node.address) as proxy:
        async with Client(proxy.address) as client:
            await client.create_queue("q")
            started = asyncio.Event()

            async def work() -> None:
                async with client.producer("q", max_in_flight=1, batch_items=1) as producer:
                    async with client.consumer("q") as consumer:
                        await producer.produce(b"x")
                        proxy.hold_answers()
                        async with asyncio.TaskGroup() as tasks:
                            for _ in range(10):
                                tasks.create_task(producer.produce(b"y"))
                            tasks.create_task(_drain(consumer))
                            started.set()

            task = asyncio.get_running_loop().create_task(work())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.cut()
            proxy.resume_answers()
        left = {task for task in asyncio.all_tasks() - before if _is_of_the_sdk(task)}
        assert left == set()


def _is_of_the_sdk(task: "asyncio.Task[object]") -> bool:
    return "/querator/client/" in repr(task)


async def _drain(consumer: Consumer) -> None:
    async for item in consumer:
        await item.complete()


async def test_a_killed_server_comes_back_and_pending_work_goes_on(tmp_path: Path):
    async with server(tmp_path / "data") as process, Client(process.address) as client:
        await client.create_queue("q", lease_timeout=timedelta(seconds=2))
        payloads, seen = _payloads(2_000), set[bytes]()
        quarter, half, all_seen = asyncio.Event(), asyncio.Event(), asyncio.Event()
        events = {500: quarter, 1_000: half, 2_000: all_seen}

        async def produce() -> None:
            async with client.producer("q", batch_items=10, max_in_flight=8) as producer:
                for start in range(0, len(payloads), 200):
                    await producer.produce_many(payloads[start : start + 200])

        async def consume() -> None:
            async with client.consumer("q") as consumer:
                async for item in consumer:
                    try:
                        await item.complete()
                    except LeaseLost:
                        # The lease lapsed while the server was away, and the item comes again.
                        continue
                    assert item.payload not in seen
                    seen.add(item.payload)
                    if len(seen) in events:
                        events[len(seen)].set()
                    if all_seen.is_set():
                        return

        async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            tasks.create_task(consume())
            for reached in (quarter, half):
                await reached.wait()
                await process.kill()
                await process.start()
            await all_seen.wait()
        stats = (await client.stats("q")).total
        assert (stats.produced, stats.completed, stats.ready) == (2_000, 2_000, 0)
