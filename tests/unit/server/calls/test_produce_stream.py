"""ProduceStream: answers by number, bounds on unanswered requests, and every way to end."""

import asyncio
from typing import Any

import grpc
import pytest

from querator.model import limits
from querator.server.grpc_server import QUEUE_SERVICE
from querator.v1 import errors_pb2, items_pb2, queue_service_pb2
from tests.unit.server.fake_service import FakeService, RunningServer, running_server


def request(number: int, queue: str = "q", size: int = 4) -> queue_service_pb2.ProduceStreamRequest:
    return queue_service_pb2.ProduceStreamRequest(
        request_number=number,
        produce=queue_service_pb2.ProduceRequest(
            queue=queue, items=[items_pb2.Item(payload=bytes(size))]
        ),
    )


def raw_stream(there: RunningServer) -> Any:
    return there.channel.stream_stream(f"/{QUEUE_SERVICE}/ProduceStream")()


async def read(call: Any) -> queue_service_pb2.ProduceStreamResponse:
    async with asyncio.timeout(20):
        answer = await call.read()
    assert answer is not grpc.aio.EOF
    if isinstance(answer, bytes):
        return queue_service_pb2.ProduceStreamResponse.FromString(answer)
    assert isinstance(answer, queue_service_pb2.ProduceStreamResponse)
    return answer


async def ended(call: Any) -> grpc.StatusCode:
    async with asyncio.timeout(20):
        code: grpc.StatusCode = await call.code()
    return code


async def test_requests_are_answered_by_number() -> None:
    async with running_server() as there:
        call = there.stub.ProduceStream()
        for number in (5, 3, 2**64 - 1, 0):
            await call.write(request(number))
        answers = [await read(call) for _ in range(4)]
        assert {answer.request_number for answer in answers} == {5, 3, 2**64 - 1, 0}
        assert all(answer.produced.batches[0].first_seq == 17 for answer in answers)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await ended(call) is grpc.StatusCode.OK


async def test_a_slow_request_holds_up_no_other() -> None:
    service = FakeService()
    service.gate.clear()
    async with running_server(service) as there:
        call = there.stub.ProduceStream()
        await call.write(request(1))
        await call.write(request(2, "open"))
        assert (await read(call)).request_number == 2
        await call.done_writing()
        service.gate.set()
        assert (await read(call)).request_number == 1
        assert await ended(call) is grpc.StatusCode.OK


async def test_a_refusal_is_an_answer_and_the_stream_goes_on() -> None:
    async with running_server() as there:
        call = there.stub.ProduceStream()
        await call.write(request(1, "full"))
        full = await read(call)
        assert (full.request_number, full.error.code) == (1, errors_pb2.ERROR_CODE_QUEUE_FULL)
        assert full.error.retry_delay.ToMilliseconds() == 250
        await call.write(request(2, "no such name"))
        malformed = await read(call)
        assert (malformed.request_number, malformed.error.field) == (2, "queue")
        await call.write(request(3, "broken"))
        defect = await read(call)
        assert defect.error.code == errors_pb2.ERROR_CODE_INTERNAL
        assert "secret" not in str(defect)
        assert defect.error.request_id in defect.error.message
        await call.write(request(4))
        assert (await read(call)).produced.durable


async def test_so_many_requests_are_unanswered_and_no_more() -> None:
    service = FakeService()
    service.gate.clear()
    most = limits.STREAM_UNANSWERED_MAX
    async with running_server(service) as there:
        call = there.stub.ProduceStream()

        async def send() -> None:
            for number in range(most + 50):
                await call.write(request(number))
            await call.done_writing()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            await service.changes.until(lambda: service.changes.counts["taken"] >= most)
            # Another stream is served meanwhile. The first one stays at its bound.
            other = there.stub.ProduceStream()
            for number in range(20):
                await other.write(request(number, "open"))
                await read(other)
            assert service.changes.counts["taken"] == most + 20
            service.gate.set()
            numbers = {(await read(call)).request_number for _ in range(most + 50)}
        assert numbers == set(range(most + 50))
        assert await ended(call) is grpc.StatusCode.OK


async def test_so_many_bytes_are_unanswered_and_one_request_more() -> None:
    service = FakeService()
    service.gate.clear()
    size = limits.PAYLOAD_BYTES_MAX
    frames = limits.STREAM_UNANSWERED_BYTES_MAX // size + 10
    async with running_server(service) as there:
        call = there.stub.ProduceStream()

        async def send() -> None:
            for number in range(frames):
                await call.write(request(number, size=size))
            await call.done_writing()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            fitting = limits.STREAM_UNANSWERED_BYTES_MAX // size
            await service.changes.until(lambda: service.changes.counts["taken"] >= fitting)
            await there.stub.Produce(request(0, "open").produce)
            assert service.changes.counts["taken"] == fitting + 1
            service.gate.set()
            for _ in range(frames):
                await read(call)
        assert await ended(call) is grpc.StatusCode.OK


async def test_a_client_that_does_not_read_answers_is_not_read_either() -> None:
    async with running_server() as there:
        options = [("grpc.http2.lookahead_bytes", 1_024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(there.address, options=options) as channel:
            call: Any = channel.stream_stream(f"/{QUEUE_SERVICE}/ProduceStream")()

            async def send() -> None:
                data = request(2**63, "no such name").SerializeToString()
                while True:
                    await call.write(data)

            flood = asyncio.create_task(send())  # noqa: TID251 - cancelled below
            other = there.stub.ProduceStream()
            for number in range(200):
                await other.write(request(number))
                assert (await read(other)).request_number == number
            flood.cancel()
            call.cancel()
            await asyncio.wait((flood,))


async def test_a_frame_without_a_number_ends_the_stream_after_the_answers() -> None:
    service = FakeService()
    service.gate.clear()
    async with running_server(service) as there:
        call = raw_stream(there)
        await call.write(request(1).SerializeToString())
        await service.changes.until(lambda: service.changes.counts["taken"] == 1)
        await call.write(b"\xff\xff\xff")
        service.gate.set()
        assert (await read(call)).request_number == 1
        assert await ended(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_malformed_frame_with_a_number_is_answered() -> None:
    async with running_server() as there:
        call = raw_stream(there)
        await call.write(b"\x08\x2a\x12\x32cut off")
        answer = await read(call)
        assert answer.request_number == 42
        assert answer.error.code == errors_pb2.ERROR_CODE_INVALID_ARGUMENT
        await call.write(request(43).SerializeToString())
        assert (await read(call)).produced.durable


async def test_a_vanished_client_leaves_no_waiting_behind() -> None:
    service = FakeService()
    service.gate.clear()
    async with running_server(service) as there:
        call = there.stub.ProduceStream()
        for number in range(3):
            await call.write(request(number))
        await service.changes.until(lambda: service.changes.counts["taken"] == 3)
        call.cancel()
        await service.changes.until(lambda: service.changes.counts["cancelled"] == 3)
        service.gate.set()
        await there.stub.Produce(request(1).produce)


async def test_a_broken_connection_leaves_no_waiting_behind() -> None:
    service = FakeService()
    service.gate.clear()
    async with running_server(service) as there:
        channel = grpc.aio.insecure_channel(there.address)
        call: Any = channel.stream_stream(f"/{QUEUE_SERVICE}/ProduceStream")()
        await call.write(request(1).SerializeToString())
        await service.changes.until(lambda: service.changes.counts["taken"] == 1)
        await channel.close()
        await service.changes.until(lambda: service.changes.counts["cancelled"] == 1)


async def test_a_drain_answers_what_was_read_and_says_why_it_ends() -> None:
    service = FakeService()
    service.gate.clear()
    async with running_server(service) as there:
        call = there.stub.ProduceStream()
        idle = there.stub.ProduceStream()
        await idle.write(request(1, "open"))
        await read(idle)
        await call.write(request(1))
        await service.changes.until(lambda: service.changes.counts["taken"] == 2)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(there.server.stop(20))
            assert await ended(idle) is grpc.StatusCode.UNAVAILABLE
            service.gate.set()
            assert (await read(call)).request_number == 1
            assert await ended(call) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("frames", [0, 1])
async def test_a_half_close_ends_the_stream(frames: int) -> None:
    async with running_server() as there:
        call = there.stub.ProduceStream()
        for number in range(frames):
            await call.write(request(number))
        await call.done_writing()
        for _ in range(frames):
            await read(call)
        assert await ended(call) is grpc.StatusCode.OK
