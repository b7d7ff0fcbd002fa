"""Unary calls: bytes in and out, deadlines, and the answers to failures."""

import asyncio
import socket
import time
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]
    reflection_pb2,
    reflection_pb2_grpc,
)
from grpc_status import rpc_status  # type: ignore[import-untyped]
from structlog.testing import CapturingLogger

from querator.config import ListenError
from querator.model import limits
from querator.server.grpc_server import ADMIN_SERVICE, QUEUE_SERVICE, GrpcServer
from querator.v1 import items_pb2, queue_service_pb2, queue_service_pb2_grpc
from tests.unit.server.fake_service import FakeService, RunningServer, running_server


def produce(queue: str = "q", **fields: Any) -> queue_service_pb2.ProduceRequest:
    return queue_service_pb2.ProduceRequest(
        queue=queue, items=[items_pb2.Item(payload=b"work")], **fields
    )


async def test_every_call_arrives_and_is_answered() -> None:
    async with running_server() as there:
        stub = there.stub
        produced = await stub.Produce(produce())
        assert (produced.batches[0].first_seq, produced.batches[0].count) == (17, 1)
        lease = queue_service_pb2.LeaseRequest(queue="q", client_id="c", max_items=1)
        leased = await stub.Lease(lease)
        assert leased.batches[0].items[0].payload == b"work"
        named = [queue_service_pb2.LeaseItems(lease_id="a.0.1")]
        complete = queue_service_pb2.CompleteRequest(queue="q", leases=named)
        assert (await stub.Complete(complete)).outcomes[0].lease_id == "a.0.1"
        retry = queue_service_pb2.RetryRequest(queue="q", leases=named)
        assert (await stub.Retry(retry)).outcomes[0].lease_id == "a.0.1"
        extend = queue_service_pb2.ExtendRequest(queue="q", lease_ids=["a.0.1"])
        assert (await stub.Extend(extend)).outcomes[0].lease_id == "a.0.1"
        assert [type(call).__name__ for call in there.service.calls] == [
            "ProduceCall", "LeaseCall", "CompleteCall", "RetryCall", "ExtendCall"
        ]  # fmt: skip


async def test_the_earlier_of_both_deadlines_counts() -> None:
    async with running_server() as there:
        await there.stub.Produce(produce())
        await there.stub.Produce(produce(), timeout=600)
        await there.stub.Produce(produce(request_timeout=Duration(seconds=30)), timeout=600)
        await there.stub.Produce(produce(request_timeout=Duration(seconds=700)), timeout=600)
        none, client, field, both = (call.timeout_ms for call in there.service.calls)
        assert none == 0
        assert 590_000 < client < 610_000
        assert field == 30_000
        assert 590_000 < both < 610_000


async def test_a_lease_waits_less_than_its_client() -> None:
    async with running_server() as there:
        lease = queue_service_pb2.LeaseRequest(
            queue="q", client_id="c", max_items=1, wait_timeout=Duration(seconds=60)
        )
        await there.stub.Lease(lease)
        await there.stub.Lease(lease, timeout=20)
        await there.stub.Lease(lease, timeout=600)
        assert there.service.calls[0].wait_ms == there.service.calls[2].wait_ms == 60_000
        assert 10_000 < there.service.calls[1].wait_ms < 25_000


async def test_a_refusal_has_status_and_details() -> None:
    async with running_server() as there:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await there.stub.Produce(produce("full"))
    error = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "full"
    details = rpc_status.from_call(error).details
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert details[0].Unpack(info)
    assert (info.reason, info.metadata["limit"]) == ("QUEUE_FULL", "5 items")
    assert details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 250


async def test_a_malformed_request_names_the_field() -> None:
    async with running_server() as there:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await there.stub.Produce(produce("no such name"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    request = error_details_pb2.BadRequest()
    assert rpc_status.from_call(caught.value).details[1].Unpack(request)
    assert request.field_violations[0].field == "queue"


async def test_a_defect_shows_nothing_but_an_id_that_the_log_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr("querator.server.calls.grpc_calls._log", log)
    async with running_server() as there:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await there.stub.Produce(produce("broken"))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(caught.value).details[0].Unpack(info)
    assert "secret" not in str(caught.value)
    failed = [call for call in log.calls if call.method_name == "error"]
    assert [call.kwargs["request_id"] for call in failed] == [info.metadata["request_id"]]
    assert isinstance(failed[0].kwargs["exc_info"], RuntimeError)


async def test_bytes_that_are_no_request_are_an_invalid_argument() -> None:
    async with running_server() as there:
        for method in ("Produce", "Lease", "Complete", "Retry", "Extend"):
            call: Any = there.channel.unary_unary(f"/{QUEUE_SERVICE}/{method}")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"\xff\xff")
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        call = there.channel.unary_unary(f"/{ADMIN_SERVICE}/CreateQueue")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not there.service.calls


async def test_a_message_over_the_cap_is_refused_by_the_transport() -> None:
    async with running_server() as there:
        request = queue_service_pb2.ProduceRequest(queue="q")
        request.items.add(payload=bytes(limits.REQUEST_BYTES_CAP + 2 * limits.MIB))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await there.stub.Produce(request)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not there.service.calls
        await there.stub.Produce(produce())


async def test_a_client_that_gives_up_cancels_its_wait() -> None:
    service = FakeService()
    service.gate.clear()
    async with running_server(service) as there:
        call = there.stub.Produce(produce())
        await service.changes.until(lambda: service.changes.counts["taken"] == 1)
        call.cancel()
        await service.changes.until(lambda: service.changes.counts["cancelled"] == 1)


async def test_a_port_in_use_is_said_clearly() -> None:
    async with running_server() as there:
        other = GrpcServer(None, None, listen=there.address)  # type: ignore[arg-type]
        with pytest.raises(ListenError, match=there.address):
            await other.start()
        await other.stop(0)


async def test_connections_beyond_the_limit_are_ended() -> None:
    async with running_server(connections_max=3) as there:
        host, _, port = there.address.rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        for reader, _writer in opened:
            assert await reader.read(1), "the settings of HTTP/2"
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read(1) == b""
        # A closed connection makes space for another one.
        for _reader, one in (*opened, (reader, writer)):
            one.close()
            await one.wait_closed()
        produced = await there.stub.Produce(produce(), wait_for_ready=True)
        assert produced.batches[0].count == 1


async def health(there: RunningServer, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(there.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def test_health_by_service_and_not_serving_while_draining() -> None:
    service = FakeService()
    service.gate.clear()
    async with running_server(service) as there:
        for name in ("", QUEUE_SERVICE, ADMIN_SERVICE):
            assert await health(there, name) == health_pb2.HealthCheckResponse.SERVING
        watch = health_pb2_grpc.HealthStub(there.channel).Watch(
            health_pb2.HealthCheckRequest(service=QUEUE_SERVICE)
        )
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        call = asyncio.ensure_future(there.stub.Produce(produce()))  # noqa: TID251 - awaited
        await service.changes.until(lambda: service.changes.counts["taken"] == 1)
        async with asyncio.TaskGroup() as tasks:
            # The grace is far longer than a test may take: a watcher does not delay the drain.
            stopping = tasks.create_task(there.server.stop(3_600))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await there.stub.Produce(produce())
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert not stopping.done()
            service.gate.set()
            assert (await call).batches


@pytest.mark.parametrize("stall_s", [0, 0.3], ids=["", "the loop stalls"])
async def test_who_calls_a_node_that_drains_is_told_why(stall_s: float) -> None:
    """gRPC itself cancels received calls without a reason when the server stops. Calls that arrive
    while the loop stalls are served before the drain checks for quiet.
    """
    async with running_server() as there:

        async def until_refused() -> grpc.aio.AioRpcError:
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(there.address, options=options) as channel:
                stub = queue_service_pb2_grpc.QueueServiceStub(channel)
                await calling.wait()
                while True:
                    try:
                        await stub.Produce(produce())
                    except grpc.aio.AioRpcError as error:
                        return error

        calling = asyncio.Barrier(11)
        async with asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(until_refused()) for _ in range(10)]
            await calling.wait()
            await there.service.changes.until(lambda: there.service.changes.counts["taken"] > 100)
            tasks.create_task(there.server.stop(3))
            asyncio.get_running_loop().call_later(0, time.sleep, stall_s)
        for client in clients:
            status = rpc_status.from_call(client.result())
            assert status is not None, client.result()
            assert client.result().code() is grpc.StatusCode.UNAVAILABLE


async def test_reflection_lists_the_services() -> None:
    async with running_server() as there:
        stub = reflection_pb2_grpc.ServerReflectionStub(there.channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
        await call.done_writing()
        assert {QUEUE_SERVICE, ADMIN_SERVICE, "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 1_000, bytes(range(256)) * 40,
     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1_000, b"\x16\x03\x01\x02\x00\x01"],
    ids=["HTTP/1", "zeros", "noise", "broken HTTP/2", "TLS"],
)  # fmt: skip
async def test_garbage_on_the_port_harms_nobody_else(garbage: bytes) -> None:
    async with running_server() as there:
        host, _, port = there.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(garbage)
            await there.stub.Produce(produce())
        await there.stub.Produce(produce())
