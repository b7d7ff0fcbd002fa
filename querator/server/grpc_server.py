"""The gRPC server of a node: its address, transport limits, and drain.

`stop` is a drain. Health reports NOT_SERVING. Streams answer the requests that they have read and
end with UNAVAILABLE, so that clients continue with another node. Unary calls finish. Calls that
have not ended when the grace period is over are cancelled.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import grpc
from grpc_health.v1 import (  # type: ignore[import-untyped]
    health,
    health_pb2,
    health_pb2_grpc,
)
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from querator import telemetry
from querator.config import ListenError, check_listening
from querator.model import limits
from querator.server.calls.admin_calls import AdminCalls
from querator.server.calls.batch_stream import BatchStream
from querator.server.calls.browse_stream import BrowseStream
from querator.server.calls.call_counts import CallCounts
from querator.server.calls.cluster_calls import ClusterCalls
from querator.server.calls.execution_calls import execution_calls, streamed_calls
from querator.server.calls.execution_stream import ExecutionStream
from querator.server.calls.grpc_calls import Context, LiveCalls, Unary, answering
from querator.server.calls.lease_stream import LeaseStream
from querator.server.calls.produce_stream import ProduceStream
from querator.server.calls.queue_calls import queue_calls
from querator.server.calls.reader_calls import reader_calls
from querator.server.calls.streams import LiveStream, Streams
from querator.server.calls.transaction_calls import transaction_calls
from querator.server.incoming import Incoming
from querator.server.link.forwarding import Forwarding
from querator.server.link.node_calls import NodeCalls
from querator.service.admin_service import AdminService
from querator.service.cluster_service import ClusterService
from querator.service.queue_service import QueueService
from querator.service.reading.readers import ReaderService
from querator.v1 import (
    admin_service_pb2,
    cluster_service_pb2,
    execution_service_pb2,
    node_service_pb2,
    queue_service_pb2,
    reader_service_pb2,
    transaction_service_pb2,
)
from querator.wire.field_checks import DEFAULT_LIMITS, RequestLimits

QUEUE_SERVICE = queue_service_pb2.DESCRIPTOR.services_by_name["QueueService"].full_name
READER_SERVICE = reader_service_pb2.DESCRIPTOR.services_by_name["ReaderService"].full_name
NODE_SERVICE = node_service_pb2.DESCRIPTOR.services_by_name["NodeService"].full_name
ADMIN_SERVICE = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
TRANSACTION_SERVICE = transaction_service_pb2.DESCRIPTOR.services_by_name[
    "TransactionService"
].full_name
EXECUTION_SERVICE = execution_service_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name
CLUSTER_SERVICE = cluster_service_pb2.DESCRIPTOR.services_by_name["ClusterService"].full_name
_SERVICES = (
    QUEUE_SERVICE,
    EXECUTION_SERVICE,
    TRANSACTION_SERVICE,
    READER_SERVICE,
    ADMIN_SERVICE,
    CLUSTER_SERVICE,
    health.SERVICE_NAME,
    reflection.SERVICE_NAME,
)

_HEALTH_OF = (
    "", QUEUE_SERVICE, READER_SERVICE, TRANSACTION_SERVICE, ADMIN_SERVICE, CLUSTER_SERVICE,
)  # fmt: skip
_SERVING = health_pb2.HealthCheckResponse.SERVING
_KEEPALIVE_MS = 20_000
_KEEPALIVE_ANSWER_MS = 10_000
_CLIENT_PING_MS_MIN = 500
_CONNECTION_STREAMS_MAX = 1_000
_LAST_BYTES_S = 0.25
_QUIET_S = 0.1
"""Without a call for this long, no client expects an answer of the draining node."""
_REFUSING_S = 0.5
"""Limit of the time for which the node refuses clients that keep calling."""
_UNWINDING_S = 5.0
"""Limit of the time that handlers may take to end after gRPC has cancelled them."""

_OPTIONS = (
    # Two servers on one port would share its connections at random.
    ("grpc.so_reuseport", 0),
    # Bounds the memory of one message: the largest request, what another node puts around it, and
    # what gathers beside it. `wire.field_checks` refuses smaller requests, with an explanation.
    ("grpc.max_receive_message_length", limits.REQUEST_BYTES_CAP + 2 * limits.MIB),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", _CONNECTION_STREAMS_MAX),
    # Detects a client that has vanished without closing its connection. gRPC also pings to measure
    # the link, and sends no keepalive while it waits for that answer: a minute, if not limited.
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_ANSWER_MS),
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_ANSWER_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", _CLIENT_PING_MS_MIN),
)

_log = telemetry.logger(__name__)


class GrpcServer:
    """Serves the services on `listen` (HOST:PORT; port 0 takes any free one)."""

    def __init__(
        self,
        queue_service: QueueService,
        admin_service: AdminService,
        cluster_service: ClusterService | None = None,
        *,
        listen: str,
        readers: ReaderService | None = None,
        request_limits: RequestLimits = DEFAULT_LIMITS,
        forwarding: Forwarding | None = None,
        credentials: grpc.ServerCredentials | None = None,
        connections_max: int = limits.CONNECTIONS_MAX,
    ) -> None:
        """`forwarding` None: a single node, without NodeService. `credentials` None: without TLS.
        The server ends connections beyond `connections_max`.
        """
        self._credentials = credentials
        self._connections_max = connections_max
        self._forwarding = forwarding
        self._queue_service = queue_service
        self._admin_service = admin_service
        self._cluster_service = cluster_service
        self._listen = listen
        self._readers = readers
        self._limits = request_limits
        self._calls = LiveCalls()
        self._streams = Streams(self._calls)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    @property
    def counts(self) -> CallCounts:
        return self._calls.counts

    @property
    def incoming(self) -> Incoming:
        return self._calls.incoming

    async def start(self) -> str:
        """Listens and serves. Returns the address with its real port. Raises `ListenError`."""
        assert self._server is None, "started once"
        most = ("grpc.max_allowed_incoming_connections", self._connections_max)
        server = grpc.aio.server(options=(*_OPTIONS, most))
        queue_handlers = self._unary(queue_calls(self._queue_service, self._limits))
        queue_handlers["ProduceStream"] = self._stream("ProduceStream", self._produce_stream)
        queue_handlers["LeaseStream"] = self._stream("LeaseStream", self._lease_stream)
        queue_handlers["Browse"] = grpc.unary_stream_rpc_method_handler(
            self._streams.handler("Browse", self._browse_stream)
        )
        transaction_handlers = self._unary(transaction_calls(self._queue_service, self._limits))
        execution_handlers = self._unary(execution_calls(self._queue_service, self._limits))
        execution_handlers["ExecutionStream"] = self._stream(
            "ExecutionStream", self._execution_stream
        )
        reader_handlers = {}
        if self._readers is not None:
            reader_handlers = self._unary(reader_calls(self._readers))
            reader_handlers["ReadBatch"] = grpc.unary_stream_rpc_method_handler(
                self._streams.handler("ReadBatch", self._batch_stream)
            )
        admin_handlers = self._unary(AdminCalls(self._admin_service).by_method())
        cluster_handlers = {}
        if self._cluster_service is not None:
            cluster_handlers = self._unary(ClusterCalls(self._cluster_service).by_method())
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(QUEUE_SERVICE, queue_handlers),
                grpc.method_handlers_generic_handler(EXECUTION_SERVICE, execution_handlers),
                grpc.method_handlers_generic_handler(TRANSACTION_SERVICE, transaction_handlers),
                grpc.method_handlers_generic_handler(READER_SERVICE, reader_handlers),
                grpc.method_handlers_generic_handler(ADMIN_SERVICE, admin_handlers),
                grpc.method_handlers_generic_handler(CLUSTER_SERVICE, cluster_handlers),
            )
        )
        if self._forwarding is not None:
            link = {"Link": self._stream("Link", self._node_calls)}
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(NODE_SERVICE, link),)
            )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(_SERVICES, server)
        try:
            port = self._add_port(server)
        except RuntimeError as error:
            # gRPC does not say why; a socket does.
            await asyncio.to_thread(check_listening, {"listen": self._listen})
            raise ListenError(f"listen: cannot listen on {self._listen}: {error}") from error
        self._server = server
        await server.start()
        self.incoming.start(self._listen.rpartition(":")[0], port)
        for service in _HEALTH_OF:
            await self._health.set(service, _SERVING)
        address = f"{self._listen.rpartition(':')[0]}:{port}"
        _log.info("grpc.listening", address=address)
        return address

    async def wants_no_clients(self) -> None:
        """Reports NOT_SERVING to health checks. Calls are still served."""
        for service in _HEALTH_OF:
            await self._health.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)

    def _add_port(self, server: grpc.aio.Server) -> int:
        if self._credentials is None:
            return server.add_insecure_port(self._listen)
        return server.add_secure_port(self._listen, self._credentials)

    async def stop(self, grace_s: float) -> None:
        """Drains for at most `grace_s`, then cancels the remaining calls. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        await self._health.enter_graceful_shutdown()
        self._calls.draining = True
        self._streams.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._calls.idle()
        # A call that gRPC has accepted ends with CANCELLED, without a reason, if no handler answers
        # it. So clients that keep calling are refused first, and continue with another node.
        await self._calls.quiet(_QUIET_S, most_s=min(grace_s, _REFUSING_S))
        # The remaining calls send their last bytes, watch health for ever, or have used up their
        # grace. Never two stops at a time: grpc.aio frees the server under the second one.
        await server.stop(min(grace_s, _LAST_BYTES_S))
        # gRPC cancels the handlers without waiting for them; the caller closes what they use.
        try:
            async with asyncio.timeout(_UNWINDING_S):
                await self._calls.idle()
        except TimeoutError:
            _log.warning("grpc.handlers_still_running", waited_s=_UNWINDING_S)
        await self.incoming.stop()
        _log.info("grpc.stopped")

    def _browse_stream(self, context: Context, _: str, request: object) -> BrowseStream:
        assert isinstance(request, bytes)
        return BrowseStream(context, request, self._queue_service)

    def _batch_stream(self, context: Context, _: str, request: object) -> BatchStream:
        assert isinstance(request, bytes)
        assert self._readers is not None
        return BatchStream(context, request, self._readers)

    def _produce_stream(self, context: Context, request_id: str, _: object) -> ProduceStream:
        return ProduceStream(
            context=context,
            request_id=request_id,
            service=self._queue_service,
            request_limits=self._limits,
            counts=self._calls.counts,
            messages=self.incoming.messages_of(context.peer()),
        )

    def _lease_stream(self, context: Context, request_id: str, _: object) -> LeaseStream:
        messages = self.incoming.messages_of(context.peer())
        return LeaseStream(
            context=context,
            request_id=request_id,
            service=self._queue_service,
            counts=self._calls.counts,
            messages=messages,
            request_limits=self._limits,
        )

    def _execution_stream(self, context: Context, request_id: str, _: object) -> ExecutionStream:
        return ExecutionStream(
            context=context,
            request_id=request_id,
            handlers=streamed_calls(self._queue_service, self._limits),
            counts=self._calls.counts,
            messages=self.incoming.messages_of(context.peer()),
        )

    def _node_calls(self, context: Context, request_id: str, _: object) -> NodeCalls:
        exchange = self._queue_service.exchange
        assert exchange is not None
        assert self._forwarding is not None
        messages = self.incoming.messages_of(context.peer())
        return NodeCalls(context, request_id, exchange, self._forwarding, messages)

    def _stream(
        self, method: str, make: Callable[[Context, str, object], LiveStream]
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return grpc.stream_stream_rpc_method_handler(self._streams.handler(method, make))

    def _unary(
        self, calls: Mapping[str, Unary]
    ) -> "dict[str, grpc.RpcMethodHandler[bytes, bytes]]":
        """Handlers without serializers: requests and answers are bytes."""
        return {
            method: grpc.unary_unary_rpc_method_handler(answering(method, work, self._calls))
            for method, work in calls.items()
        }
