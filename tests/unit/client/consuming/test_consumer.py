"""The consumer against `FakeNode`."""

import asyncio
from datetime import timedelta

import pytest

from querator.client import Client, LeasedItem, UndecodablePayload
from querator.client.consuming import settling
from querator.client.consuming.subscribing import Subscribing
from querator.client.errors import LeaseLost, LimitExceeded, Unavailable
from querator.model import limits
from querator.v1 import queue_service_pb2
from tests.unit.client.fake_node import FakeNode, refusal, until

IDLE = timedelta(milliseconds=200)
WAIT_SECONDS = 20


def _batch(start: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


async def test_items_come_in_order_and_are_completed():
    async with FakeNode.running() as node, Client(node.address, client_id="me") as client:
        await node.make_ready(_batch(0, 3), _batch(3, 2))
        got = []
        async with client.consumer("q", idle_timeout=IDLE) as consumer:
            async for item in consumer:
                got.append((item.payload, str(item.id), item.attempt, item.queue))
                await item.complete()
            assert consumer.held == 0
    assert got == [(b"%d" % n, f"0-{n + 1}", 1, "q") for n in range(5)]
    assert node.subscriptions[0].client_id == "me"
    assert node.half_closed == 1


async def test_retries_that_change_attributes_are_sent_in_bounded_frames():
    """A partition changes the attributes of 1,000 items by one request."""
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(*(_batch(400 * n, 400) for n in range(4)))
        async with client.consumer("q", prefetch_items=2_000) as consumer:
            items = [await anext(consumer) for _ in range(1_600)]
            changed = {"page": "7"}
            await asyncio.gather(*(item.retry(attributes=changed) for item in items))
    retries = [frame.retry for frame in node.settles if frame.HasField("retry")]
    counts = [sum(run.count for one in retry.leases for run in one.ranges) for retry in retries]
    assert sum(counts) == 1_600
    assert max(counts) <= 1_000
    assert all(dict(retry.attributes.values) == changed for retry in retries)


async def test_results_are_sent_in_bounded_frames():
    """A complete carries at most 2 MiB of results, and at most 1,000 of them."""
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 5), *(_batch(5 + 400 * n, 400) for n in range(3)))
        async with client.consumer("q", prefetch_items=2_000) as consumer:
            items = [await anext(consumer) for _ in range(1_205)]
            large = b"x" * (900 * 1024)
            await asyncio.gather(*(item.complete(result=large) for item in items[:5]))
            await asyncio.gather(*(item.complete(result=b"small") for item in items[5:]))
    completes = [frame.complete for frame in node.settles]
    sizes = [sum(len(one.data) for one in complete.results) for complete in completes]
    counts = [len(complete.results) for complete in completes]
    assert sizes[:3] == [2 * len(large), 2 * len(large), len(large)]
    assert sum(counts) == 1_205
    assert max(counts) <= 1_000
    for complete in completes:
        runs = [run for one in complete.leases for run in one.ranges]
        seqs = {seq for run in runs for seq in range(run.first_seq, run.first_seq + run.count)}
        assert {one.seq for one in complete.results} == seqs


async def test_what_is_held_never_exceeds_the_prefetch():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(*(_batch(n, 1) for n in range(50)))
        async with client.consumer("q", prefetch_items=4, idle_timeout=IDLE) as consumer:
            held: list[LeasedItem] = []
            async for item in consumer:
                held.append(item)
                assert consumer.held <= 4
            assert len(held) == 4
            for item in held:
                await item.complete()
            assert sum(node.credits) <= 8
            more = [item async for item in consumer]
            assert len(more) == 4


async def test_settles_of_one_moment_share_a_frame():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 10), _batch(10, 10))
        async with client.consumer("q") as consumer:
            items = [await anext(consumer) for _ in range(20)]
            await asyncio.gather(*(item.complete() for item in items[:15]))
            items[15].retry(error="later", delay=timedelta(minutes=1))
            items[16].reject("never")
            items[17].release()
            await consumer.flush()
    complete, *retries = node.settles
    assert [
        (lease.lease_id, [(run.first_seq, run.count) for run in lease.ranges])
        for lease in complete.complete.leases
    ] == [("1.0.1", [(1, 10)]), ("1.0.b", [(11, 5)])]
    later, never, release = (frame.retry for frame in retries)
    assert later.error == "later"
    assert later.HasField("retry_at")
    assert later.count_attempt
    assert (never.dead, never.error) == (True, "never")
    assert not release.count_attempt
    assert not release.HasField("retry_at")


async def test_whole_batches_take_one_settle_each():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(*(_batch(n, 100) for n in range(0, 1000, 100)))
        payloads = []
        async with client.consumer("q", idle_timeout=IDLE) as consumer:
            async for batch in consumer.batches():
                payloads += batch.payloads()
                await batch.complete()
    assert payloads == _batch(0, 1000)
    assert len(node.settles) == 10


async def test_a_batch_completes_what_is_left_of_it():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 5))
        async with client.consumer("q") as consumer:
            async for batch in consumer.batches():
                await batch[1].retry()
                await batch[3].reject()
                await batch.complete()
                break
            with pytest.raises(RuntimeError, match="settled already"):
                batch.complete()
            with pytest.raises(RuntimeError, match="settled already"):
                batch[0].retry()
    (lease,) = node.settles[-1].complete.leases
    assert [(run.first_seq, run.count) for run in lease.ranges] == [(1, 1), (3, 1), (5, 1)]


async def test_a_lost_lease_is_told_to_the_items_that_are_lost():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 3))
        node.lost = {2}
        async with client.consumer("q") as consumer:
            items = [await anext(consumer) for _ in range(3)]
            first, second, third = await asyncio.gather(
                *(item.complete() for item in items), return_exceptions=True
            )
    assert first is None
    assert third is None
    assert isinstance(second, LeaseLost)
    assert second.items == (items[1].id,)


async def test_settles_survive_their_connection():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 4))
        async with client.consumer("q") as consumer:
            items = [await anext(consumer) for _ in range(4)]
            node.cut_answers = 2
            await asyncio.gather(*(item.complete() for item in items[:3]))
            await node.make_ready(_batch(4, 1))
            assert (await anext(consumer)).payload == b"4"
            await items[3].complete()
    assert len(node.subscriptions) == 3
    said = [frame.complete.leases[0].ranges[0].count for frame in node.settles[:3]]
    assert said == [3, 3, 3]


async def test_the_next_stream_says_which_leases_are_held():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(*(_batch(n, 1) for n in range(5)))
        async with client.consumer("q") as consumer:
            items = [await anext(consumer) for _ in range(5)]
            await items[0].complete()
            node.cut_answers = 1
            confirmed = items[1].complete()
            items[2].retry()
            await confirmed
            await consumer.flush()
            node.cut_answers = 1
            await items[3].complete()
        first, second, third = node.subscriptions
    assert len(first.consumer_id) == 16
    assert {each.consumer_id for each in node.subscriptions} == {first.consumer_id}
    assert [each.stream_number for each in node.subscriptions] == [1, 2, 3]
    assert list(first.held_lease_ids) == []
    assert list(second.held_lease_ids) == ["1.0.2", "1.0.3", "1.0.4", "1.0.5"]
    assert list(third.held_lease_ids) == ["1.0.4", "1.0.5"]


async def test_settles_that_are_still_gathered_hold_their_leases(monkeypatch):
    monkeypatch.setattr(settling, "LINGER_SECONDS", 60.0)
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(*(_batch(n, 1) for n in range(3)))
        async with client.consumer("q") as consumer:
            first, second, _ = [await anext(consumer) for _ in range(3)]
            node.cut_answers = 1
            on_its_way = first.complete()
            await asyncio.sleep(0)
            # The second settle waits for the first one's answer, which arrives on the next stream.
            await asyncio.gather(on_its_way, second.complete())
    assert [list(each.held_lease_ids) for each in node.subscriptions] == [
        [],
        ["1.0.1", "1.0.2", "1.0.3"],
    ]


async def test_two_consumers_of_one_client_have_different_names():
    async with FakeNode.running() as node, Client(node.address) as client:
        for _ in range(2):
            async with client.consumer("q") as consumer:
                await node.make_ready(_batch(0, 1))
                await (await anext(consumer)).complete()
        first, second = node.subscriptions
    assert first.client_id == second.client_id
    assert first.consumer_id != second.consumer_id


def test_leases_beyond_what_can_be_said_are_left_alone(monkeypatch):
    monkeypatch.setattr(limits, "STREAM_LEASES_MAX", 2)
    subscribing = Subscribing(queue_service_pb2.Subscribe(queue="q", client_id="me"))

    def said(number: int, held: set[str]) -> queue_service_pb2.Subscribe:
        frame = subscribing.frame(number, held)
        return queue_service_pb2.LeaseStreamRequest.FromString(frame).subscribe

    assert said(1, set()).stream_number == 1
    full = said(2, {"1.0.2", "1.0.1"})
    assert (full.stream_number, list(full.held_lease_ids)) == (2, ["1.0.1", "1.0.2"])
    over = said(3, {"1.0.1", "1.0.2", "1.0.3"})
    assert (over.consumer_id, over.stream_number, list(over.held_lease_ids)) == ("", 0, [])


async def test_a_broken_stream_that_releases_takes_its_items_with_it():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 2), _batch(2, 2))
        async with client.consumer("q", release_on_disconnect=True, prefetch_items=4) as consumer:
            first = await anext(consumer)
            # Items that have not arrived when the stream breaks arrive on the next one.
            await until(lambda: consumer.held == 4)
            node.cut_answers = 1
            node.lost = {1, 2, 3, 4}
            with pytest.raises(LeaseLost):
                await first.complete()
            await node.make_ready(_batch(4, 1))
            assert (await anext(consumer)).payload == b"4"
            assert consumer.held == 1


async def test_run_completes_retries_and_releases():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 6))
        told = []

        async def handler(item: LeasedItem) -> None:
            if item.payload == b"1":
                raise ValueError("no")
            if item.payload == b"2":
                await item.reject("own way")

        async with client.consumer("q", prefetch_items=10, idle_timeout=IDLE) as consumer:
            await consumer.run(
                handler, concurrency=3, on_error=lambda item, error: told.append((item.id, error))
            )
    retries = [frame.retry for frame in node.settles if frame.HasField("retry")]
    assert sorted((retry.error, retry.dead) for retry in retries) == [
        ("ValueError: no", False),
        ("own way", True),
    ]
    completed = [
        run.first_seq + n
        for frame in node.settles
        for lease in frame.complete.leases
        for run in lease.ranges
        for n in range(run.count)
    ]
    assert sorted(completed) == [1, 4, 5, 6]
    assert [(str(item), type(error)) for item, error in told] == [("0-2", ValueError)]


async def test_the_items_of_one_delivery_are_handled_side_by_side():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 5))
        everybody = asyncio.Barrier(5)

        async def handler(item: LeasedItem) -> None:
            await everybody.wait()
            consumer.stop()

        async with client.consumer("q") as consumer, asyncio.timeout(WAIT_SECONDS):
            await consumer.run(handler, concurrency=5)
            assert consumer.held == 0


async def test_one_reader_is_not_idle_while_others_are_served(monkeypatch):
    loop, passed = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed)
    async with FakeNode.running() as node, Client(node.address) as client:
        handled: asyncio.Queue[bytes] = asyncio.Queue()
        everybody = asyncio.Barrier(3)

        async def handler(item: LeasedItem) -> None:
            if item.payload >= b"4":
                await everybody.wait()
            handled.put_nowait(item.payload)

        idle = timedelta(seconds=WAIT_SECONDS)
        async with (
            client.consumer("q", idle_timeout=idle) as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(consumer.run(handler, concurrency=3))
            for n in range(4):
                await node.make_ready(_batch(n, 1))
                assert await handled.get() == b"%d" % n
                passed += 0.6 * WAIT_SECONDS
            await node.make_ready(_batch(4, 3))
            async with asyncio.timeout(WAIT_SECONDS):
                assert {await handled.get() for _ in range(3)} == {b"4", b"5", b"6"}
            consumer.stop()


async def test_a_cancelled_run_gives_its_items_back_and_leaves_nothing_behind():
    before = asyncio.all_tasks()
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 3))
        started = asyncio.Event()

        async def handler(item: LeasedItem) -> None:
            started.set()
            await asyncio.Event().wait()

        async def work() -> None:
            async with client.consumer("q", prefetch_items=10) as consumer:
                await consumer.run(handler, concurrency=1)

        task = asyncio.get_running_loop().create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    released = [frame.retry for frame in node.settles]
    assert [retry.count_attempt for retry in released] == [False]
    assert node.half_closed == 1
    assert asyncio.all_tasks() == before


async def test_stop_ends_all_iterations():
    async with FakeNode.running() as node, Client(node.address) as client:
        async with client.consumer("q") as consumer:
            await node.make_ready(_batch(0, 1))
            await anext(consumer)

            async def iterate() -> int:
                return len([item async for item in consumer])

            async with asyncio.TaskGroup() as tasks:
                waiting = [tasks.create_task(iterate()) for _ in range(3)]
                await asyncio.sleep(0)
                consumer.stop()
            assert [task.result() for task in waiting] == [0, 0, 0]


async def test_a_stop_ends_the_deliveries_before_it_releases_items():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 3))
        async with client.consumer("q") as consumer:
            item = await anext(consumer)
            consumer.stop()
            await item.complete()
            await consumer.flush()
            # Leased to this consumer if the node had credit left.
            await node.make_ready(_batch(0, 2))
            assert consumer.held == 0
        assert node.ended_deliveries == 1
        assert [batch for batch in node.ready] == [_batch(0, 2)]
    assert len(node.settles) == 2


async def test_a_node_that_does_not_know_the_end_of_deliveries_keeps_the_stream():
    async with FakeNode.running() as node, Client(node.address) as client:
        node.knows_end_deliveries = False
        await node.make_ready(_batch(0, 1))
        async with client.consumer("q") as consumer:
            item = await anext(consumer)
            consumer.stop()
            await item.complete()
        assert node.half_closed == 1


async def test_closing_the_client_ends_its_consumers():
    async with FakeNode.running() as node:
        client = Client(node.address)
        async with client.consumer("q") as consumer:
            await node.make_ready(_batch(0, 1))
            item = await anext(consumer)
            await client.close()
            with pytest.raises(Unavailable, match="closed"):
                await anext(consumer)
            with pytest.raises(Unavailable, match="closed"):
                await item.complete()


async def test_what_comes_too_late_is_given_back_instead_of_handed_out():
    async with FakeNode.running() as node, Client(node.address) as client:
        node.lease_timeout_seconds = 0
        await node.make_ready(_batch(0, 3))
        async with client.consumer("q", auto_extend=False, idle_timeout=IDLE) as consumer:
            assert [item async for item in consumer] == []
            assert consumer.held == 0
    (release,) = (frame.retry for frame in node.settles)
    assert not release.count_attempt
    assert [(run.first_seq, run.count) for run in release.leases[0].ranges] == [(1, 3)]


async def test_a_batch_is_not_handed_out_in_both_ways():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready(_batch(0, 2))
        async with client.consumer("q") as consumer:
            await anext(consumer)
            with pytest.raises(RuntimeError, match="item by item"):
                await anext(consumer.batches())


async def test_payloads_are_decoded_or_named():
    async with FakeNode.running() as node, Client(node.address) as client:
        await node.make_ready([b'{"to": "ada", "n": 1}', "Grüße".encode(), b"\xff"])
        async with client.consumer("q") as consumer:
            order, text, junk = [await anext(consumer) for _ in range(3)]
    assert order.json() == {"to": "ada", "n": 1}
    assert text.text() == "Grüße"
    with pytest.raises(UndecodablePayload, match=r"item 0-3 \(1 bytes\) is not UTF-8"):
        junk.text()
    for item in (text, junk):
        with pytest.raises(UndecodablePayload, match=f"item {item.id} .* is not JSON"):
            item.json()


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"max_items": -1}, "max_items", "max_items is -1; it must be from 1 to 1000"),
        ({"max_items": 2**40}, "max_items", "it must be from 1 to 1000"),
        ({"max_bytes": -1}, "max_bytes", "max_bytes is -1; it must be from 0 to "),
        ({"wait": timedelta.max}, "wait", "wait is .*; it must be from 0:00:00 to 0:15:00"),
        ({"wait": -IDLE}, "wait", "wait is -1 day, .*; it must be from"),
        ({"lease_timeout": timedelta.max}, "lease_timeout", "lease_timeout is .*; at most 1 day"),
    ],
)
async def test_limits_of_a_lease_call_are_named(options, field, words):
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(LimitExceeded, match=words) as refused:
            await client.lease("q", **options)
        assert refused.value.field == field


async def test_a_consumer_says_that_its_settles_wait_and_that_they_are_executed(
    caplog: pytest.LogCaptureFixture,
):
    refused = refusal("UNAVAILABLE")
    refused.message = "partition 0 of queue q has no leader (b, c unreachable); not executed"
    async with FakeNode.running() as node, Client(node.address) as client:
        node.settle_refusals.extend((refused, None, refused, None))
        await node.make_ready([b"a", b"b"])
        async with client.consumer("q") as consumer:
            for _ in range(2):
                await (await anext(consumer)).complete()
    lines = [one.getMessage() for one in caplog.records if "querator" in one.name]
    # The second refusal comes too soon after the first one for a line of its own.
    assert lines == [f"Waiting: {refused.message}", "Requests are executed again"]


async def test_a_node_that_a_consumer_leaves_is_no_lost_connection(
    caplog: pytest.LogCaptureFixture,
):
    """Each refused settle made two lines: the connection was lost, and there again."""
    refused = refusal("UNAVAILABLE")
    refused.message = "partition 0 of queue q has no leader (b, c unreachable); not executed"
    async with FakeNode.running() as one, FakeNode.running() as other:
        async with Client(f"{one.address},{other.address}") as client:
            for node in (one, other):
                node.settle_refusals.append(refused)
                await node.make_ready([b"a"])
            async with client.consumer("q") as consumer:
                await (await anext(consumer)).complete()
    lines = [one.getMessage() for one in caplog.records if "querator" in one.name]
    assert lines[0] == f"Waiting: {refused.message}"
    assert not [line for line in lines if "onnect" in line]
