"""One connection to a node: unary calls that are repeated within their timeout, and streams.

Two clients share nothing, not even gRPC's connections. Every request that changes something carries
an identity, so it may be repeated when its outcome is not known. A request that must not be
repeated is called with `repeatable=False`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from querator.client.errors import AddressFault, ConnectionFailed, ErrorCode, RequestError
from querator.client.errors import make_error as make
from querator.client.transport import forking
from querator.client.transport.attempts import repeated
from querator.client.transport.diagnosis import Diagnosis
from querator.client.transport.rpc_errors import connection_failed, fault_from_text, from_rpc
from querator.client.transport.streamed_calls import StreamedCalls, StreamRefusal
from querator.model import limits
from querator.v1 import (
    admin_service_pb2_grpc,
    cluster_service_pb2_grpc,
    execution_service_pb2_grpc,
    queue_service_pb2_grpc,
    reader_service_pb2_grpc,
    transaction_service_pb2_grpc,
)
from querator.wire.tls import Tls, open_channel

R = TypeVar("R")

REQUEST_SECONDS = 30.0
CONNECT_SECONDS = 5.0

_SERVICE = "/querator.v1.QueueService/"
_EXECUTIONS = "/querator.v1.ExecutionService/"
# A node that vanished is noticed after the sum of the two. This holds also while gRPC waits for the
# answer to a ping of its bandwidth estimation, during which it sends no other ping.
_KEEPALIVE_MS = 1_000
_KEEPALIVE_TIMEOUT_MS = 2_000
# A reply has at most REPLY_BYTES_MAX of items, and small fields around them.
_RECEIVE_BYTES_MAX = limits.REPLY_BYTES_MAX + limits.MIB

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", _RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # Pings only while a call is open: an idle client is no load.
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # This client has its own retries and backoff: gRPC need not wait up to 2 min.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    # Nodes are reached directly, not through a web proxy that the environment names.
    ("grpc.enable_http_proxy", 0),
)


ExecutionCallKind = Literal[
    "start", "lease", "record", "signal", "resolve", "get", "wait", "journal", "extend", "arrivals"
]
"""The fields of an ExecutionCall."""
EXECUTION_METHODS: Final[dict[ExecutionCallKind, str]] = {
    "start": "StartExecution",
    "lease": "LeaseActivations",
    "record": "RecordProgress",
    "signal": "SignalExecution",
    "resolve": "ResolvePromise",
    "get": "GetExecution",
    "wait": "WaitExecutions",
    "journal": "ReadJournal",
    "extend": "Extend",
    "arrivals": "WaitArrivals",
}


def _same(data: bytes) -> bytes:
    return data


class Connection:
    """A connection to the node at `address` (`host:port`). `connect_timeout`: seconds after which a
    node that has never answered is given up. Once it has answered, calls wait for it until their
    own timeout.
    """

    def __init__(
        self,
        address: str,
        *,
        request_timeout: float = REQUEST_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
        tls: Tls | None = None,
    ) -> None:
        self.address = address
        self._request_timeout = request_timeout
        self._connect_timeout = connect_timeout
        self._reached = False
        self._closed = False
        self._stood = False
        self._diagnosis = Diagnosis(address, tls)
        with forking.opening():
            self._channel = open_channel(address, tls, CHANNEL_OPTIONS)
        self.queues = queue_service_pb2_grpc.QueueServiceStub(self._channel)
        self.readers = reader_service_pb2_grpc.ReaderServiceStub(self._channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(self._channel)
        self.transactions = transaction_service_pb2_grpc.TransactionServiceStub(self._channel)
        self.executions = execution_service_pb2_grpc.ExecutionServiceStub(self._channel)
        self.cluster = cluster_service_pb2_grpc.ClusterServiceStub(self._channel)
        # Bytes in, bytes out: the frames are joined from encoded bytes.
        self.produce_bytes = self._channel.unary_unary(
            f"{_SERVICE}Produce", request_serializer=_same, response_deserializer=_same
        )
        self._streams = {
            name: self._channel.stream_stream(
                f"{_SERVICE}{name}", request_serializer=_same, response_deserializer=_same
            )
            for name in ("ProduceStream", "LeaseStream")
        }
        execution_stream = self._channel.stream_stream(
            f"{_EXECUTIONS}ExecutionStream",
            request_serializer=_same,
            response_deserializer=_same,
        )
        self._streamed = StreamedCalls(execution_stream)

    @property
    def closed(self) -> bool:
        return self._closed

    async def close(self, grace: float | None = None) -> None:
        """Ends open calls after `grace` seconds; their callers get `OutcomeUnknown`."""
        self._closed = True
        await self._streamed.close(grace)
        await self._channel.close(grace)

    @property
    def lost(self) -> bool:
        """Whether the connection stood and was lost."""
        return self._stood and self._channel.get_state() is not grpc.ChannelConnectivity.READY

    @property
    def connected(self) -> bool:
        """Whether the connection stands, so that frames are sent at once. If not, this call starts
        connecting.
        """
        state = self._channel.get_state(try_to_connect=True)
        self._stood = self._stood or state is grpc.ChannelConnectivity.READY
        return state is grpc.ChannelConnectivity.READY

    @property
    def fault(self) -> AddressFault | None:
        """Why there is no connection, as far as it is known."""
        return self._diagnosis.fault

    async def connect(self, seconds: float) -> bool:
        """Connects; returns whether that succeeded within `seconds`. Returns False as soon as the
        attempt has failed.
        """
        try:
            async with asyncio.timeout(seconds):
                while not self.connected:
                    state = self._channel.get_state()
                    if self._closed or state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        self._diagnosis.failed()
                        return False
                    await self._channel.wait_for_state_change(state)
        except TimeoutError:
            self._diagnosis.failed()
            return False
        return True

    def not_connected(self, error: ConnectionFailed) -> None:
        """Records that a call or stream had no connection, and begins to look for the cause."""
        self._diagnosis.failed(error)

    async def explained(self, error: ConnectionFailed, *, patient: bool) -> AddressFault:
        """Why there is no connection. `patient`: waits for a probe that runs."""
        if patient:
            await self._diagnosis.settle()
        said = next((one for one in error.faults if one.address == self.address), None)
        return self.fault or said or fault_from_text(self.address, "")

    async def examined(self, error: RequestError) -> AddressFault | None:
        """Why the node has not answered a call, at this moment. None: a connection can be made, or
        the cause is not found.
        """
        return await self._diagnosis.examine(error if isinstance(error, ConnectionFailed) else None)

    async def call_execution(
        self, kind: ExecutionCallKind, request: Message, seconds: float, *, waits: bool = False
    ) -> Any:
        """A call of ExecutionService: on the stream of this connection, if it takes the call.
        `waits`: whether it may take minutes.
        """
        if self._streamed.takes(request, waits=waits):
            try:
                return await self._streamed.call(kind, request, seconds, waits=waits)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
        stub: Any = self.queues if kind == "extend" else self.executions
        return await getattr(stub, EXECUTION_METHODS[kind])(request, timeout=seconds)

    def open_stream(self, name: str) -> "grpc.aio.StreamStreamCall[bytes, bytes]":
        self.check_open()
        return self._streams[name]()

    def check_open(self) -> None:
        if self._closed:
            raise make(ErrorCode.UNAVAILABLE, "the client is closed")

    def hopeless(self, error: RequestError, waited: float) -> bool:
        """Whether to give up, `waited` seconds after the first try: the node has never answered,
        and there was enough time, or more time does not help.
        """
        if self._reached or not isinstance(error, ConnectionFailed):
            return False
        return waited >= self._connect_timeout or self.wrong

    @property
    def wrong(self) -> bool:
        """Whether no connection can be made until a setting is changed."""
        return self.fault is not None and self.fault.kind.certain

    async def call(
        self,
        send: Callable[[float], Awaitable[R]],
        *,
        seconds: float | None = None,
        changes: bool = True,
        repeatable: bool = True,
    ) -> R:
        """Returns what `send(seconds left)` returns. Repeats it while the error is retriable and
        `seconds` (default: the client's request timeout) have not passed.

        Raises the last refusal, or `OutcomeUnknown` when an attempt may have been executed.
        """
        try:
            return await repeated(
                lambda left: self.attempt(send, left, changes),
                seconds=self._request_timeout if seconds is None else seconds,
                hopeless=self.hopeless,
                repeatable=repeatable,
            )
        except ConnectionFailed as error:
            fault = await self.explained(error, patient=not self._reached)
            raise connection_failed((fault,)) from None

    async def attempt(
        self, send: Callable[[float], Awaitable[R]], seconds: float, changes: bool
    ) -> R | RequestError:
        """Returns what `send(seconds)` returns, or the error. `changes`: whether the call may have
        changed something when its outcome is not known. Raises RequestError when this connection is
        closed.
        """
        self.check_open()
        try:
            answer = await send(max(seconds, 0.001))
        except StreamRefusal as refusal:
            self._answered()
            return refusal.error
        except grpc.aio.AioRpcError as raw:
            error = from_rpc(raw, address=self.address, changes=changes)
            if isinstance(error, ConnectionFailed):
                self.not_connected(error)
            else:
                self._answered()
            return error
        except asyncio.CancelledError:
            self._raise_if_cut()
            raise
        self._answered()
        return answer

    def _answered(self) -> None:
        self._reached = True
        self._diagnosis.succeeded()

    def _raise_if_cut(self) -> None:
        """Raises `OutcomeUnknown` if gRPC has cancelled the call because the channel was closed.
        Only a cancellation of the task itself may propagate.
        """
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if self._closed and (task is None or not task.cancelling()):
            raise make(
                ErrorCode.OUTCOME_UNKNOWN, "the client was closed before the answer came"
            ) from None
