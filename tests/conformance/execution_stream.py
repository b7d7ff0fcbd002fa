"""Calls about executions as frames of an ExecutionStream, with the methods of the generated stub.

What the stream does not carry is a unary call.
"""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import grpc

from querator.v1 import execution_service_pb2 as v1
from tests.conformance.stubs import Node, refusal, refusal_of_frame

if TYPE_CHECKING:
    from querator.v1.execution_service_pb2_grpc import ExecutionServiceAsyncStub

_FIELDS = {
    "StartExecution": "start",
    "LeaseActivations": "lease",
    "RecordProgress": "record",
    "SignalExecution": "signal",
    "ResolvePromise": "resolve",
    "GetExecution": "get",
    "WaitExecutions": "wait",
    "ReadJournal": "journal",
    "Extend": "extend",
    "WaitArrivals": "arrivals",
}


class StreamedExecutions:
    """One ExecutionStream, opened by the first call."""

    def __init__(self, node: Node) -> None:
        self._stub: ExecutionServiceAsyncStub = node.executions
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0

    def __getattr__(self, method: str) -> Any:
        field = _FIELDS.get(method)
        if field is None:
            return getattr(self._stub, method)

        def call(request: Any, timeout: float) -> Awaitable[Any]:
            return self._ask(timeout, **{field: request})

        return call

    async def _ask(self, seconds: float, **request: Any) -> Any:
        if self._reader is None or self._reader.done():
            self._call = self._stub.ExecutionStream()
            self._reader = asyncio.get_running_loop().create_task(self._read())
        self._number += 1
        number = self._number
        answered = self._answers[number] = asyncio.get_running_loop().create_future()
        call = v1.ExecutionCall(number=number, timeout_ms=round(seconds * 1000), **request)
        async with self._writing:
            await self._call.write(v1.ExecutionStreamRequest(calls=[call]))
        try:
            async with asyncio.timeout(seconds):
                answer: v1.ExecutionAnswer = await answered
        except asyncio.CancelledError:
            async with self._writing:
                await self._call.write(v1.ExecutionStreamRequest(given_up=[number]))
            raise
        if answer.HasField("error"):
            raise refusal_of_frame(answer.error)
        kind = answer.WhichOneof("answer")
        assert kind is not None
        return getattr(answer, kind)

    async def _read(self) -> None:
        ending: Exception = ConnectionError("the server has ended the stream")
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                for one in frame.answers:
                    waiting = self._answers.pop(one.number)
                    if not waiting.done():
                        waiting.set_result(one)
        except grpc.aio.AioRpcError as error:
            ending = refusal(error)
        finally:
            waiting_for, self._answers = self._answers, {}
            for waiting in waiting_for.values():
                if not waiting.done():
                    waiting.set_exception(ending)

    async def close(self) -> None:
        if self._reader is not None:
            self._call.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
