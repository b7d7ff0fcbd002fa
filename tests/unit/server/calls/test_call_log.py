"""The log level debug has one line for each unary call and each stream."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import grpc
import msgspec
import pytest

from querator import telemetry
from querator.v1 import items_pb2, queue_service_pb2
from tests.unit.server.fake_service import running_server


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()  # noqa: TID251 - set_up changes the standard library's logger
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    telemetry.set_up(format_="json", level="debug", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def calls(stream: io.StringIO) -> list[dict[str, Any]]:
    said = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    return [line for line in said if line["event"] == "grpc.call"]


async def test_method_code_duration_and_id(lines: io.StringIO) -> None:
    items = [items_pb2.Item(payload=b"secret")]
    async with running_server() as there:
        await there.stub.Produce(queue_service_pb2.ProduceRequest(queue="q", items=items))
        with pytest.raises(grpc.aio.AioRpcError):
            await there.stub.Produce(queue_service_pb2.ProduceRequest(queue="full", items=items))
        stream = there.stub.ProduceStream()
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        await stream.code()
    said = calls(lines)
    assert [(line["method"], line["code"]) for line in said] == [
        ("Produce", "OK"),
        ("Produce", "QUEUE_FULL"),
        ("ProduceStream", "OK"),
    ]
    assert all(line["duration_ms"] >= 0 for line in said)
    assert len({line["request_id"] for line in said}) == 3
    assert "secret" not in lines.getvalue()
