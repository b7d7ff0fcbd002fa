"""ExecutionStream: many calls in a frame, answers in any order, calls that are given up, drains."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import grpc

from querator.model import limits
from querator.model.errors import ErrorCode, QueratorError
from querator.server.calls.grpc_calls import Timed, answer_within_ms
from querator.v1 import errors_pb2
from querator.v1 import execution_service_pb2 as v1
from querator.v1.execution_service_pb2_grpc import ExecutionServiceStub
from tests.unit.server.stream_server import StreamServer, stream_server

WAIT_S = 20


class Calls:
    """Handlers that a test decides on. An execution with an id `held…` is answered when `go` is
    set, the others at once.
    """

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun: Counter[str] = Counter()
        self.cancelled: list[str] = []
        self.changed = asyncio.Event()

    async def start(self, data: bytes, _: Timed) -> bytes:
        id_ = v1.StartExecutionRequest.FromString(data).id
        await self._hold(id_)
        if id_ == "refused":
            raise QueratorError(ErrorCode.EXECUTION_EXISTS, "it is there", field="id", value=id_)
        if id_ == "defect":
            raise ZeroDivisionError
        return v1.StartExecutionResponse(attached=id_ == "attached").SerializeToString()

    async def get(self, data: bytes, context: Timed) -> bytes:
        id_ = v1.GetExecutionRequest.FromString(data).id
        within_ms = answer_within_ms(context)
        found = v1.Execution(id=id_, records=within_ms)
        return v1.GetExecutionResponse(execution=found).SerializeToString()

    async def wait(self, data: bytes, _: Timed) -> bytes:
        await self._hold("held wait")
        return b""

    async def _hold(self, id_: str) -> None:
        self.begun[id_] += 1
        self.changed.set()
        if not id_.startswith("held"):
            return
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(id_)
            self.changed.set()
            raise

    async def until_begun(self, *ids: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not all(self.begun[one] for one in ids):
                self.changed.clear()
                await self.changed.wait()

    async def until_cancelled(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.cancelled) < count:
                self.changed.clear()
                await self.changed.wait()

    def served(self) -> Any:
        return stream_server(
            {"StartExecution": self.start, "GetExecution": self.get, "WaitExecutions": self.wait}
        )


class Caller:
    """A stream, and the answers that have come."""

    def __init__(self, there: StreamServer) -> None:
        self._channel = grpc.aio.insecure_channel(there.address)
        self.call: Any = ExecutionServiceStub(self._channel).ExecutionStream()
        self.answers: dict[int, v1.ExecutionAnswer] = {}
        self.frames = 0

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        await self._channel.close()

    async def send(
        self, calls: Iterable[v1.ExecutionCall] = (), given_up: Iterable[int] = ()
    ) -> None:
        await self.call.write(v1.ExecutionStreamRequest(calls=calls, given_up=given_up))

    async def until(self, *numbers: int) -> list[v1.ExecutionAnswer]:
        async with asyncio.timeout(WAIT_S):
            while not all(number in self.answers for number in numbers):
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF
                self.frames += 1
                for one in frame.answers:
                    assert one.number not in self.answers, "one answer for each call"
                    self.answers[one.number] = one
        return [self.answers[number] for number in numbers]


def start(number: int, id_: str) -> v1.ExecutionCall:
    return v1.ExecutionCall(number=number, start=v1.StartExecutionRequest(id=id_))


def get(number: int, id_: str, timeout_ms: int = 0) -> v1.ExecutionCall:
    asked = v1.GetExecutionRequest(id=id_)
    return v1.ExecutionCall(number=number, get=asked, timeout_ms=timeout_ms)


def wait(number: int) -> v1.ExecutionCall:
    return v1.ExecutionCall(number=number, wait=v1.WaitExecutionsRequest(ids=["e"]))


async def test_each_call_of_a_frame_has_its_answer() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([start(7, "attached"), start(3, "new"), get(5, "e")])
        attached, new, found = await caller.until(7, 3, 5)
        assert attached.started.attached
        assert new.WhichOneof("answer") == "started"
        assert not new.started.attached
        assert found.found.execution.id == "e"


async def test_answers_do_not_wait_for_others() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([start(1, "held"), start(2, "new")])
        await caller.until(2)
        assert 1 not in caller.answers
        calls.go.set()
        await caller.until(1)


async def test_answers_that_wait_share_a_frame() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send(start(number, f"held {number}") for number in range(1, 201))
        await calls.until_begun(*(f"held {number}" for number in range(1, 201)))
        calls.go.set()
        await caller.until(*range(1, 201))
        assert caller.frames < 20


async def test_a_refusal_is_the_answer_of_its_call_only() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([start(1, "refused"), start(2, "new")])
        refused, _ = await caller.until(1, 2)
        assert refused.error.code == errors_pb2.ErrorCode.ERROR_CODE_EXECUTION_EXISTS
        assert (refused.error.field, refused.error.value) == ("id", "refused")
        assert refused.error.request_id


async def test_a_defect_is_answered_and_the_stream_continues() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([start(1, "defect")])
        [failed] = await caller.until(1)
        assert failed.error.code == errors_pb2.ErrorCode.ERROR_CODE_INTERNAL
        await caller.send([start(2, "new")])
        await caller.until(2)


async def test_a_call_without_a_request_is_refused_by_its_number() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([v1.ExecutionCall(number=9), start(2, "new")])
        refused, _ = await caller.until(9, 2)
        assert refused.error.code == errors_pb2.ErrorCode.ERROR_CODE_INVALID_ARGUMENT
        assert refused.error.field == "call"


async def test_bytes_that_are_no_frame_end_the_stream() -> None:
    calls = Calls()
    async with calls.served() as there:
        async with grpc.aio.insecure_channel(there.address) as channel:
            method = "/querator.v1.ExecutionService/ExecutionStream"
            call: Any = channel.stream_stream(method)()
            await call.write(b"\x0a\x7fno frame")
            async with asyncio.timeout(WAIT_S):
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_timeout_of_a_call_is_its_deadline() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([get(1, "e"), get(2, "e", timeout_ms=10_000)])
        without, timed = await caller.until(1, 2)
        assert without.found.execution.records == 0
        assert 9_000 < timed.found.execution.records < 10_000


async def test_a_call_that_is_given_up_ends_and_has_no_answer() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([start(1, "held 1"), start(2, "held 2"), start(3, "held 3")])
        await calls.until_begun("held 1", "held 2", "held 3")
        await caller.send(given_up=[1, 3, 99])
        await calls.until_cancelled(2)
        assert sorted(calls.cancelled) == ["held 1", "held 3"]
        calls.go.set()
        await caller.until(2)
        await caller.call.done_writing()
        async with asyncio.timeout(WAIT_S):
            assert await caller.call.code() is grpc.StatusCode.OK
        assert set(caller.answers) == {2}


async def test_a_call_is_given_up_in_its_own_frame() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([start(1, "held")], given_up=[1])
        await caller.send([start(2, "new")])
        await caller.until(2)
        await caller.call.done_writing()
        async with asyncio.timeout(WAIT_S):
            assert await caller.call.code() is grpc.StatusCode.OK


async def test_a_half_closed_stream_answers_what_it_has_read() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([start(1, "held")])
        await calls.until_begun("held")
        await caller.call.done_writing()
        calls.go.set()
        await caller.until(1)
        async with asyncio.timeout(WAIT_S):
            assert await caller.call.code() is grpc.StatusCode.OK


async def test_a_drain_ends_what_waits_and_answers_the_rest() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([start(1, "held"), wait(2)])
        await calls.until_begun("held", "held wait")
        there.streams.drain()
        [waiting] = await caller.until(2)
        assert waiting.error.code == errors_pb2.ErrorCode.ERROR_CODE_UNAVAILABLE
        calls.go.set()
        await caller.until(1)
        async with asyncio.timeout(WAIT_S):
            assert await caller.call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_that_is_cut_ends_its_calls() -> None:
    calls = Calls()
    async with calls.served() as there, Caller(there) as caller:
        await caller.send([start(1, "held 1"), start(2, "held 2")])
        await calls.until_begun("held 1", "held 2")
        caller.call.cancel()
        await calls.until_cancelled(2)


async def test_no_frame_is_read_beyond_the_limit_of_calls() -> None:
    calls = Calls()
    most = limits.EXECUTION_STREAM_CALLS_MAX
    async with calls.served() as there, Caller(there) as caller:
        await caller.send(start(number, f"held {number}") for number in range(1, most + 1))
        await caller.send([start(most + 1, "new")])
        async with asyncio.timeout(WAIT_S):
            while not there.live.incoming.unread:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        assert len(calls.begun) == most
        calls.go.set()
        await caller.until(*range(1, most + 2))
        assert not there.live.incoming.unread
