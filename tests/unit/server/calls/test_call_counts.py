"""Outcomes of calls are counted where the calls end, on every way to end."""

from typing import Any

import grpc
import pytest

from querator.v1 import items_pb2, queue_service_pb2
from tests.unit.server.fake_service import FakeService, running_server

NAMED = [queue_service_pb2.LeaseItems(lease_id="a.0.1")]
ITEMS = [items_pb2.Item(payload=b"work")]


def produce(queue: str) -> queue_service_pb2.ProduceRequest:
    return queue_service_pb2.ProduceRequest(queue=queue, items=ITEMS)


async def refused(call: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await call


async def test_unary_calls_by_method_and_code() -> None:
    async with running_server() as there:
        await there.stub.Produce(produce("q"))
        await there.stub.Produce(produce("q"))
        await refused(there.stub.Produce(produce("full")))
        await refused(there.stub.Produce(produce("broken")))
        lease = queue_service_pb2.LeaseRequest(queue="q", client_id="c", max_items=1)
        await there.stub.Lease(lease)
        counts = there.server.counts
        assert counts.calls() == {
            ("Produce", "OK"): 2,
            ("Produce", "QUEUE_FULL"): 1,
            ("Produce", "INTERNAL"): 1,
            ("Lease", "OK"): 1,
        }
        lasted = counts.lasted_us()
        assert lasted.keys() == {"Produce"}, "how long a lease waits is its caller's choice"
        assert lasted["Produce"].count == 4
        assert lasted["Produce"].total > 0


async def test_a_caller_that_goes_away() -> None:
    service = FakeService()
    service.gate.clear()
    async with running_server(service) as there:
        call = there.stub.Produce(produce("q"))
        await service.changes.until(lambda: service.changes.counts["taken"] == 1)
        call.cancel()
        await service.changes.until(lambda: service.changes.counts["cancelled"] == 1)
        # This call is answered on the same loop, after the end of the cancelled handler.
        await there.stub.Produce(produce("open"))
        assert there.server.counts.calls()["Produce", "CANCELLED"] == 1


async def test_requests_of_produce_streams_and_the_streams_themselves() -> None:
    async with running_server() as there:
        counts = there.server.counts
        call = there.stub.ProduceStream()
        for number, queue in enumerate(("q", "q", "full", "no such name")):
            await call.write(
                queue_service_pb2.ProduceStreamRequest(
                    request_number=number, produce=produce(queue)
                )
            )
        for _ in range(4):
            await call.read()
        assert counts.open_streams() == {"ProduceStream": 1}
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await call.code()
        assert counts.calls() == {
            ("ProduceStream/Produce", "OK"): 2,
            ("ProduceStream/Produce", "QUEUE_FULL"): 1,
            ("ProduceStream/Produce", "INVALID_ARGUMENT"): 1,
            ("ProduceStream", "OK"): 1,
        }
        assert counts.lasted_us().keys() == {"ProduceStream/Produce"}
        assert counts.open_streams() == {"ProduceStream": 0}


async def test_requests_of_lease_streams_and_a_refused_stream() -> None:
    frame = queue_service_pb2.LeaseStreamRequest
    async with running_server() as there:
        counts = there.server.counts
        call = there.stub.LeaseStream()
        subscribe = queue_service_pb2.Subscribe(queue="q", client_id="c")
        await call.write(frame(request_number=0, subscribe=subscribe))
        complete = queue_service_pb2.CompleteRequest(leases=NAMED)
        await call.write(frame(request_number=1, complete=complete))
        broken = queue_service_pb2.CompleteRequest(leases=NAMED, all_or_nothing=True)
        await call.write(frame(request_number=2, complete=broken))
        retry = queue_service_pb2.RetryRequest(leases=NAMED)
        await call.write(frame(request_number=3, retry=retry))
        await call.write(frame(request_number=4, complete=queue_service_pb2.CompleteRequest()))
        for _ in range(5):
            await call.read()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await call.code()
        subscribe = queue_service_pb2.Subscribe(queue="full", client_id="c")
        call = there.stub.LeaseStream()
        await call.write(frame(request_number=0, subscribe=subscribe))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert counts.calls() == {
            ("LeaseStream/Complete", "OK"): 1,
            ("LeaseStream/Complete", "INTERNAL"): 1,
            ("LeaseStream/Retry", "OK"): 1,
            ("LeaseStream/Frame", "INVALID_ARGUMENT"): 1,
            ("LeaseStream", "OK"): 1,
            ("LeaseStream", "QUEUE_FULL"): 1,
        }
        assert counts.open_streams() == {"LeaseStream": 0}
