"""The protocol against a running node, by the generated stubs: no client library in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import uuid_utils
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]

from querator.model import limits
from querator.node import Node
from querator.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    items_pb2,
    queue_service_pb2,
    queue_service_pb2_grpc,
)

Frame = queue_service_pb2.LeaseStreamRequest


class Served:
    """A node with the queue `q`, and both stubs."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address)
        self.queue = queue_service_pb2_grpc.QueueServiceStub(self.channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(self.channel)

    async def produce(self, *payloads: bytes) -> queue_service_pb2.ProduceResponse:
        items = [items_pb2.Item(payload=payload) for payload in payloads]
        return await self.queue.Produce(queue_service_pb2.ProduceRequest(queue="q", items=items))

    async def lease(self, wait_s: int = 20, **fields: Any) -> queue_service_pb2.LeaseResponse:
        request = queue_service_pb2.LeaseRequest(
            queue="q", client_id="c", max_items=100, wait_timeout=Duration(seconds=wait_s), **fields
        )
        return await self.queue.Lease(request)

    async def counts(self) -> admin_service_pb2.PartitionStats:
        request = admin_service_pb2.GetQueueStatsRequest(queue="q")
        return (await self.admin.GetQueueStats(request)).total


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    async with Node(memory=True) as node:
        there = Served(node.address)
        try:
            await there.admin.CreateQueue(admin_service_pb2.CreateQueueRequest(queue="q"))
            yield there
        finally:
            await there.channel.close()


async def read(call: Any) -> Any:
    async with asyncio.timeout(30):
        return await call.read()


async def ended(call: Any) -> grpc.StatusCode:
    async with asyncio.timeout(30):
        code: grpc.StatusCode = await call.code()
    return code


async def opened(there: Served, **fields: Any) -> Any:
    call = there.queue.LeaseStream()
    subscribe = queue_service_pb2.Subscribe(queue="q", client_id="c", **fields)
    await call.write(Frame(request_number=1, subscribe=subscribe))
    answer = await read(call)
    assert answer.subscribed.lease_timeout.seconds == 30
    return call


def refused(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(error).details[0].Unpack(info)
    return info


async def test_an_item_comes_as_it_was_produced_and_goes_when_completed() -> None:
    async with served() as there:
        item = items_pb2.Item(payload=b"p" * 500, kind="k", attributes={"a": "b"}, priority=-4)
        # A field of a later version of the protocol.
        item.MergeFromString(b"\xf2\x1f\x05later")
        request = queue_service_pb2.ProduceRequest(queue="q", items=[item, item])
        produced = await there.queue.Produce(request)
        assert produced.batches[0].count == 2
        leased = (await there.lease()).batches[0]
        assert list(leased.items) == [item, item]
        assert leased.first_seq == produced.batches[0].first_seq
        assert 0 < leased.lease_remaining.ToMilliseconds() <= 30_000
        named = queue_service_pb2.LeaseItems(lease_id=leased.lease_id)
        complete = queue_service_pb2.CompleteRequest(queue="q", leases=[named])
        first = await there.queue.Complete(complete)
        assert [each.count for each in first.outcomes[0].done] == [2]
        counts = await there.counts()
        assert (counts.completed, counts.leased, counts.ready) == (2, 0, 0)


async def test_a_repeat_of_a_producer_gets_the_first_answer() -> None:
    async with served() as there:
        request = queue_service_pb2.ProduceRequest(
            queue="q",
            items=[items_pb2.Item(payload=b"once")],
            producer_id=uuid_utils.uuid7().bytes,
            sequence=1,
        )
        first = await there.queue.Produce(request)
        second = await there.queue.Produce(request)
        assert second.batches[0].first_seq == first.batches[0].first_seq
        assert second.batches[0].repeated_answer
        assert (await there.counts()).ready == 1


async def test_bad_input_is_refused_by_name_and_changes_nothing() -> None:
    async with served() as there:
        big = items_pb2.Item(payload=bytes(limits.PAYLOAD_BYTES_MAX + 1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await there.queue.Produce(queue_service_pb2.ProduceRequest(queue="q", items=[big]))
        facts = refused(caught.value)
        assert facts.reason == "LIMIT_EXCEEDED"
        assert facts.metadata["field"] == "items[0].payload"
        assert facts.metadata["limit"] == "1048576 bytes"
        assert facts.metadata["value"] == "1048577 bytes"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await there.lease(lease_timeout=Duration(seconds=1_000_000))
        assert refused(caught.value).metadata["field"] == "lease_timeout"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await there.queue.Lease(
                queue_service_pb2.LeaseRequest(queue="other", client_id="c", max_items=1)
            )
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert refused(caught.value).reason == "QUEUE_NOT_FOUND"
        counts = await there.counts()
        assert (counts.ready, counts.leased, counts.produced) == (0, 0, 0)


async def test_a_request_of_the_most_items_and_nearly_the_most_bytes_passes() -> None:
    async with served() as there:
        size = limits.REQUEST_BYTES_MAX // limits.REQUEST_ITEMS_MAX - 16
        answer = await there.produce(*[bytes(size)] * limits.REQUEST_ITEMS_MAX)
        assert sum(batch.count for batch in answer.batches) == limits.REQUEST_ITEMS_MAX


async def test_produce_stream_answers_every_number() -> None:
    async with served() as there:
        call = there.queue.ProduceStream()
        for number in range(1, 501):
            item = items_pb2.Item(payload=b"%d" % number)
            produce = queue_service_pb2.ProduceRequest(queue="q", items=[item])
            frame = queue_service_pb2.ProduceStreamRequest(request_number=number, produce=produce)
            await call.write(frame)
        await call.done_writing()
        answers = [await read(call) for _ in range(500)]
        assert sorted(answer.request_number for answer in answers) == list(range(1, 501))
        assert len({answer.produced.batches[0].first_seq for answer in answers}) == 500
        assert await ended(call) is grpc.StatusCode.OK
        assert (await there.counts()).ready == 500


async def test_without_credit_nothing_is_leased_and_with_credit_no_more_than_that() -> None:
    async with served() as there:
        await there.produce(*[b"%d" % n for n in range(20)])
        call = await opened(there)
        assert (await there.counts()).ready == 20
        await call.write(Frame(credit=queue_service_pb2.Credit(items=3)))
        taken = 0
        while taken < 3:
            taken += sum(len(batch.items) for batch in (await read(call)).leased.batches)
        assert taken == 3
        counts = await there.counts()
        assert (counts.ready, counts.leased) == (17, 3)


async def test_settling_on_the_stream_and_half_close_releases_the_rest() -> None:
    async with served() as there:
        await there.produce(*[b"%d" % n for n in range(10)])
        call = await opened(there)
        await call.write(Frame(credit=queue_service_pb2.Credit(items=10)))
        batch = (await read(call)).leased.batches[0]
        assert len(batch.items) == 10
        done = items_pb2.SeqRange(first_seq=batch.first_seq, count=4)
        named = queue_service_pb2.LeaseItems(lease_id=batch.lease_id, ranges=[done])
        complete = queue_service_pb2.CompleteRequest(leases=[named])
        await call.write(Frame(request_number=2, complete=complete))
        await call.done_writing()
        answer = await read(call)
        assert (answer.request_number, list(answer.completed.outcomes[0].done)) == (2, [done])
        assert await ended(call) is grpc.StatusCode.OK
        again = (await there.lease()).batches
        assert sum(len(each.items) for each in again) == 6
        # A polite release gives the attempt back.
        assert {each.attempt for each in again} == {1}


@pytest.mark.parametrize("release", [True, False])
async def test_a_vanished_client(release: bool) -> None:
    async with served() as there:
        await there.produce(b"work")
        channel = grpc.aio.insecure_channel(there.address)
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        call: Any = stub.LeaseStream()
        subscribe = queue_service_pb2.Subscribe(
            queue="q", client_id="gone", release_on_disconnect=release
        )
        await call.write(Frame(subscribe=subscribe))
        await call.write(Frame(credit=queue_service_pb2.Credit(items=1)))
        await read(call)
        held = (await read(call)).leased.batches[0]
        await channel.close()
        if release:
            assert (await there.lease()).batches[0].items[0].payload == b"work"
        else:
            # The lease continues: a caller with its id may still complete.
            named = queue_service_pb2.LeaseItems(lease_id=held.lease_id)
            request = queue_service_pb2.CompleteRequest(queue="q", leases=[named])
            assert (await there.queue.Complete(request)).outcomes[0].done


async def test_a_slow_reader_holds_up_nobody() -> None:
    async with served() as there:
        for _ in range(24):
            await there.produce(bytes(limits.PAYLOAD_BYTES_MAX))
        options = [("grpc.http2.lookahead_bytes", 1_024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(there.address, options=options) as channel:
            slow: Any = queue_service_pb2_grpc.QueueServiceStub(channel).LeaseStream()
            subscribe = queue_service_pb2.Subscribe(
                queue="q", client_id="slow", release_on_disconnect=True
            )
            await slow.write(Frame(subscribe=subscribe))
            await slow.write(Frame(credit=queue_service_pb2.Credit(items=1_000)))
            await read(slow)
            quick = await opened(there)
            await quick.write(Frame(credit=queue_service_pb2.Credit(items=5)))
            taken = 0
            while taken < 5:
                taken += sum(len(batch.items) for batch in (await read(quick)).leased.batches)
            assert taken == 5


async def test_deleting_the_queue_ends_its_streams() -> None:
    async with served() as there:
        call = await opened(there)
        await there.admin.DeleteQueue(admin_service_pb2.DeleteQueueRequest(queue="q"))
        assert await ended(call) in (
            grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.NOT_FOUND,
        )


async def test_stopping_the_node_ends_streams_and_waits() -> None:
    async with Node(memory=True) as node:
        there = Served(node.address)
        await there.admin.CreateQueue(admin_service_pb2.CreateQueueRequest(queue="q"))
        lease_stream = await opened(there)
        produce_stream = there.queue.ProduceStream()
        item = items_pb2.Item(payload=b"last")
        produce = queue_service_pb2.ProduceRequest(queue="q", items=[item])
        frame = queue_service_pb2.ProduceStreamRequest(request_number=1, produce=produce)
        await produce_stream.write(frame)
        assert (await read(produce_stream)).produced.batches
    assert await ended(lease_stream) is grpc.StatusCode.UNAVAILABLE
    assert await ended(produce_stream) is grpc.StatusCode.UNAVAILABLE
    await there.channel.close()


async def test_queues_by_the_admin_service() -> None:
    async with served() as there:
        created = await there.admin.CreateQueue(admin_service_pb2.CreateQueueRequest(queue="q"))
        assert not created.created
        update = admin_service_pb2.UpdateQueueRequest(
            queue="q",
            settings=admin_service_pb2.QueueSettings(
                max_attempts=3, lease_timeout=Duration(seconds=7)
            ),
            update_mask=FieldMask(paths=["lease_timeout"]),
        )
        settings = (await there.admin.UpdateQueue(update)).queue.settings
        assert (settings.lease_timeout.seconds, settings.max_attempts) == (
            7,
            limits.ATTEMPTS_DEFAULT,
        )
        listed = await there.admin.ListQueues(admin_service_pb2.ListQueuesRequest())
        assert [queue.name for queue in listed.queues] == ["dead", "q"]
        await there.produce(b"look")
        peeked = await there.admin.PeekItems(admin_service_pb2.PeekItemsRequest(queue="q"))
        assert [each.item.payload for each in peeked.items] == [b"look"]


async def test_schedules_by_the_admin_service() -> None:
    async with served() as there:
        admin = there.admin
        due_at = Timestamp()
        due_at.GetCurrentTime()
        due_at.seconds += 3_600
        items = [
            items_pb2.Item(payload=b"%d" % n, kind="mail" if n else "", enqueue_at=due_at)
            for n in range(3)
        ]
        produce = queue_service_pb2.ProduceRequest(queue="q", items=items)
        [batch] = (await there.queue.Produce(produce)).batches
        page = await admin.ListScheduledItems(
            admin_service_pb2.ListScheduledItemsRequest(queue="q", kind="mail", page_size=1)
        )
        assert [each.item.payload for each in page.items] == [b"1"]
        assert page.items[0].due_at.seconds == due_at.seconds
        page = await admin.ListScheduledItems(
            admin_service_pb2.ListScheduledItemsRequest(
                queue="q", kind="mail", page_size=1, page_token=page.next_page_token
            )
        )
        assert [each.item.payload for each in page.items] == [b"2"]
        count = admin_service_pb2.CountScheduledItemsRequest(queue="q")
        counts = await admin.CountScheduledItems(count)
        assert (counts.total, [each.items for each in counts.buckets]) == (3, [3])
        ids = [f"0-{batch.first_seq + n}" for n in range(3)]
        change = admin_service_pb2.RescheduleItemsRequest(queue="q", item_ids=ids[:1], run_now=True)
        assert (await admin.RescheduleItems(change)).changed == 1
        change = admin_service_pb2.RescheduleItemsRequest(queue="q", item_ids=ids, cancel=True)
        reply = await admin.RescheduleItems(change)
        assert (reply.changed, list(reply.not_scheduled)) == (2, ids[:1])
        assert (await there.counts()).cancelled == 2
        due_at.FromJsonString("9999-12-31T00:00:00Z")
        change = admin_service_pb2.RescheduleItemsRequest(queue="q", item_ids=ids, due_at=due_at)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.RescheduleItems(change)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "due_at is" in str(caught.value.details())


async def test_random_frames_end_with_a_clear_status_and_harm_nothing() -> None:
    service = queue_service_pb2.DESCRIPTOR.services_by_name["QueueService"].full_name
    async with served() as there:
        for method in ("ProduceStream", "LeaseStream"):
            for garbage in (b"\xff", b"\x08", b"\x12\x7f", bytes(range(200))):
                call: Any = there.channel.stream_stream(f"/{service}/{method}")()
                await call.write(garbage)
                assert await ended(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert (await there.produce(b"fine")).batches
