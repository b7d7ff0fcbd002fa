"""`link_wire.Wire` over gRPC."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import grpc.aio

from querator.model.limits import FORWARD_BYTES_MAX, MIB
from querator.server.link.link_wire import Connect, Wire, WireBroken
from querator.v1 import node_service_pb2, node_service_pb2_grpc
from querator.wire.tls import Tls, open_channel

NewestTls = Callable[[], Awaitable[Tls]]
"""Returns the newest TLS settings for a new connection."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    # The largest lease, and the answers in the same frame.
    ("grpc.max_receive_message_length", FORWARD_BYTES_MAX + 32 * MIB),
    ("grpc.max_send_message_length", -1),
    # A node that vanishes is detected about as soon as in the raft package. The first timeout
    # applies only to pings that begin as keepalives. gRPC also pings to measure the link, and sends
    # no other ping while it waits a minute for that answer.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

_Call = grpc.aio.StreamStreamCall[node_service_pb2.LinkRequest, node_service_pb2.LinkResponse]
T = TypeVar("T")


class GrpcWire:
    def __init__(self, call: _Call) -> None:
        self._call = call

    async def write(self, request: node_service_pb2.LinkRequest) -> None:
        await _unbroken(self._call.write(request))

    async def read(self) -> node_service_pb2.LinkResponse | None:
        response = await _unbroken(self._call.read())
        return response if isinstance(response, node_service_pb2.LinkResponse) else None

    async def done_writing(self) -> None:
        await _unbroken(self._call.done_writing())


def grpc_connect(tls: NewestTls | None) -> Connect:
    """Connects by gRPC; `tls` None: without TLS."""

    @asynccontextmanager
    async def connect(address: str) -> AsyncIterator[Wire]:
        newest = None if tls is None else await tls()
        async with open_channel(address, newest, _OPTIONS) as channel:
            call: _Call = node_service_pb2_grpc.NodeServiceStub(channel).Link()
            try:
                yield GrpcWire(call)
            finally:
                call.cancel()

    return connect


async def _unbroken(waiting: Awaitable[T]) -> T:
    try:
        return await waiting
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        raise WireBroken(str(error)) from error
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        raise WireBroken("the call was cut") from None


def _is_cancelled() -> bool:
    """Whether the task itself is cancelled. gRPC reports a cut call by cancelling the waiting
    coroutine.
    """
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())
