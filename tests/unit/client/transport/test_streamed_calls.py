"""Calls about executions of one connection: on its stream, or as gRPC calls."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from querator.client.errors import (
    DeadlineExceeded,
    ExecutionExists,
    OutcomeUnknown,
    RequestError,
    Unavailable,
)
from querator.client.transport import streamed_calls
from querator.client.transport.channel import Connection
from querator.v1 import execution_service_pb2 as v1
from tests.unit.server.calls.test_execution_stream import WAIT_S, Calls
from tests.unit.server.stream_server import stream_server

R = TypeVar("R")

STREAMED = "ExecutionStream/StartExecution"
UNARY = "StartExecution"


def begin(coroutine: Coroutine[Any, Any, R]) -> "asyncio.Task[R]":
    """Runs beside the test, which awaits it."""
    return asyncio.get_running_loop().create_task(coroutine)


async def start(node: Connection, id_: str, seconds: float = WAIT_S) -> Any:
    """The answer, or the error."""
    request = v1.StartExecutionRequest(id=id_)
    return await node.attempt(
        lambda left: node.call_execution("start", request, left), seconds, changes=True
    )


async def test_calls_share_a_stream() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        answers = await asyncio.gather(*(start(node, f"e{number}") for number in range(50)))
        assert not any(answer.attached for answer in answers)
        assert (await start(node, "attached")).attached
        assert there.calls(STREAMED) == 51
        assert there.calls(UNARY) == 0
        assert there.live.counts.open_streams() == {"ExecutionStream": 1}
        await node.close()


async def test_a_refusal_is_the_error_of_its_call() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        refused = await start(node, "refused")
        assert isinstance(refused, ExecutionExists)
        assert (refused.field, refused.value) == ("id", "refused")
        await node.close()


async def test_a_call_that_is_late_ends_alone() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        late = await start(node, "held", seconds=0.05)
        assert isinstance(late, OutcomeUnknown)
        await calls.until_cancelled(1)
        assert not isinstance(await start(node, "new"), RequestError)
        assert there.live.counts.open_streams() == {"ExecutionStream": 1}
        await node.close()


async def test_a_late_read_has_changed_nothing() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        request = v1.WaitExecutionsRequest(ids=["e"])
        late = await node.attempt(
            lambda left: node.call_execution("wait", request, left, waits=True), 0.05, changes=False
        )
        assert isinstance(late, DeadlineExceeded)
        await node.close()


async def test_a_call_that_is_cancelled_is_given_up() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        task = begin(start(node, "held"))
        await calls.until_begun("held")
        task.cancel()
        await calls.until_cancelled(1)
        with pytest.raises(asyncio.CancelledError):
            await task
        await node.close()


async def test_calls_beyond_the_limit_are_grpc_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_calls, "CALLS_MOST", 2)
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        held = [begin(start(node, f"held {number}")) for number in range(2)]
        await calls.until_begun("held 0", "held 1")
        assert not isinstance(await start(node, "new"), RequestError)
        assert there.calls(UNARY) == 1
        calls.go.set()
        await asyncio.gather(*held)
        assert there.calls(STREAMED) == 2
        await node.close()


async def test_waits_beyond_their_limit_are_grpc_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_calls, "WAITS_MOST", 1)
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        request = v1.WaitExecutionsRequest(ids=["e"])
        waits = [begin(node.call_execution("wait", request, WAIT_S, waits=True)) for _ in range(3)]
        async with asyncio.timeout(WAIT_S):
            while calls.begun["held wait"] < 3:
                calls.changed.clear()
                await calls.changed.wait()
        assert not isinstance(await start(node, "new"), RequestError)
        calls.go.set()
        await asyncio.gather(*waits)
        assert there.calls("WaitExecutions") == 2
        assert there.calls("ExecutionStream/WaitExecutions") == 1
        assert there.calls(STREAMED) == 1
        await node.close()


async def test_a_large_request_is_a_grpc_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_calls, "REQUEST_BYTES_MOST", 100)
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        assert not isinstance(await start(node, "e" * 200), RequestError)
        assert (there.calls(UNARY), there.calls(STREAMED)) == (1, 0)
        await node.close()


async def test_an_older_node_gets_grpc_calls() -> None:
    calls = Calls()
    async with stream_server({"StartExecution": calls.start}, has_stream=False) as there:
        node = Connection(there.address)
        answers = await asyncio.gather(*(start(node, f"e{number}") for number in range(10)))
        assert not any(isinstance(answer, RequestError) for answer in answers)
        assert not isinstance(await start(node, "later"), RequestError)
        assert there.calls(UNARY) == 11
        await node.close()


async def test_a_stream_that_breaks_leaves_its_calls_unknown() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        held = begin(start(node, "held"))
        await calls.until_begun("held")
        await there.server.stop(0)
        assert isinstance(await held, OutcomeUnknown)
        await node.close()


async def test_a_drained_node_refuses_what_it_has_not_read() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        held = begin(start(node, "held"))
        await calls.until_begun("held")
        there.live.draining = True
        there.streams.drain()
        calls.go.set()
        assert not isinstance(await held, RequestError), "what was read is answered"
        refused = await start(node, "new")
        assert isinstance(refused, Unavailable)
        assert refused.retriable
        assert not calls.begun["new"]
        await node.close()


async def test_a_node_that_is_not_there_is_no_unknown_outcome() -> None:
    node = Connection("127.0.0.1:1")
    assert isinstance(await start(node, "e"), Unavailable)
    await node.close()


async def test_a_stream_without_calls_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_calls, "IDLE_SECONDS", 0.02)
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        for id_ in ("one", "two"):
            assert not isinstance(await start(node, id_), RequestError)
            async with asyncio.timeout(WAIT_S):
                while there.live.counts.open_streams()["ExecutionStream"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert there.calls("ExecutionStream") == 2
        await node.close()


async def test_a_stream_with_a_call_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_calls, "IDLE_SECONDS", 0.01)
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        held = begin(start(node, "held"))
        await calls.until_begun("held")
        await asyncio.sleep(0.1)
        calls.go.set()
        assert not isinstance(await held, RequestError)
        assert there.calls("ExecutionStream") == 0
        await node.close()


async def test_close_with_grace_waits_for_the_answers() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        held = begin(start(node, "held"))
        await calls.until_begun("held")
        closing = begin(node.close(WAIT_S))
        await asyncio.sleep(0)
        calls.go.set()
        assert not isinstance(await held, RequestError)
        await closing


async def test_close_fails_what_has_no_answer() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        held = begin(start(node, "held"))
        await calls.until_begun("held")
        await node.close()
        assert isinstance(await held, OutcomeUnknown)


async def test_close_fails_a_call_whose_stream_has_not_begun() -> None:
    calls = Calls()
    async with calls.served() as there:
        node = Connection(there.address)
        early = begin(start(node, "early"))
        await asyncio.sleep(0)
        await node.close()
        async with asyncio.timeout(5):
            assert isinstance(await early, OutcomeUnknown)
        assert not calls.begun["early"]
