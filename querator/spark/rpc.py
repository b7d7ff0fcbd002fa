"""Synchronous calls from Spark's processes directly to the leaders of partitions.

A process opens its channels at its first call and keeps them: Spark forks workers and reuses them,
and a channel does not survive a fork. The nodes at the endpoints name the leader of a partition.
When the leader's address cannot be reached from here, the endpoints themselves are used, because
any node forwards calls. All calls here only read or are safe to repeat. They are therefore repeated
until they succeed, or until no answer has arrived for the time that the user allows.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

import grpc

from querator.client.errors import (
    ConnectionFailed,
    ErrorCode,
    QueueNotFound,
    RequestError,
    make_error,
)
from querator.client.transport.backoff import Backoff
from querator.client.transport.channel import CHANNEL_OPTIONS
from querator.client.transport.probe import probe
from querator.client.transport.rpc_errors import from_rpc
from querator.model.similar_names import NAMES_MAX, similar_names
from querator.spark.answers import MessageType, SplitMessage, parse
from querator.spark.options import Target
from querator.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    queue_service_pb2,
    queue_service_pb2_grpc,
    reader_service_pb2,
    reader_service_pb2_grpc,
)
from querator.wire.tls import RESOLVING, Tls, TlsError

CALL_SECONDS: Final = 15.0
"""Time limit of one attempt of a unary call."""
ROUTING_SECONDS: Final = 2.0
"""Time limit of a request for the leader. If it fails, any node serves the call."""

_NAMES_SECONDS: Final = 5.0
_BROWSE: Final = "/querator.v1.QueueService/Browse"
_READ_BATCH: Final = "/querator.v1.ReaderService/ReadBatch"

_FILES: Final = "options tlsCaFile, tlsCertFile and tlsKeyFile name files on every machine of Spark"

R = TypeVar("R")
_Place = tuple[str, str, int]
"""Namespace, queue and partition."""
_clusters: "dict[tuple[int, Target], Cluster]" = {}


class Unreachable(RuntimeError):
    """No node can be reached from this process; the message names each address tried
    and a remedy.
    """


def cluster(target: Target) -> "Cluster":
    """The connections of this process to a cluster; made at the first call. Raises TlsError."""
    key = os.getpid(), target
    if key not in _clusters:
        _clusters[key] = Cluster(target)
    return _clusters[key]


def did_you_mean(error: RequestError, target: Target, namespace: str, queue: str) -> str:
    """The end of a sentence: `; did you mean orders?` if the error is that the queue is missing,
    and there are similar ones; else a full stop.
    """
    near: list[str] = []
    if isinstance(error, QueueNotFound):
        with suppress(RequestError, Unreachable):
            near = similar_names(queue, cluster(target).queue_names(namespace))
    return f"; did you mean {' or '.join(near)}?" if near else "."


class Cluster:
    """A process's connections to the nodes of a cluster."""

    def __init__(self, target: Target) -> None:
        """Raises TlsError when a file is missing or malformed."""
        self._endpoints = target.endpoints
        self._tls = _tls(target)
        self._channels: dict[str, grpc.Channel] = {}

    # --- calls ---------------------------------------------------------------------------------

    def stats(
        self, namespace: str, queue: str, *, retry_seconds: float
    ) -> admin_service_pb2.GetQueueStatsResponse:
        """Counts and heads of all partitions, which include everything acknowledged before the
        call. Raises RequestError, Unreachable.
        """
        request = admin_service_pb2.GetQueueStatsRequest(namespace=namespace, queue=queue)

        def ask(channel: grpc.Channel) -> admin_service_pb2.GetQueueStatsResponse:
            stub = admin_service_pb2_grpc.AdminServiceStub(channel)
            return stub.GetQueueStats(request, timeout=CALL_SECONDS)

        return self._anywhere(ask, retry_seconds)

    def queue_names(self, namespace: str) -> list[str]:
        """Names of queues of a namespace, up to a page of them. Raises RequestError,
        Unreachable.
        """
        request = admin_service_pb2.ListQueuesRequest(namespace=namespace, page_size=NAMES_MAX)

        def ask(channel: grpc.Channel) -> admin_service_pb2.ListQueuesResponse:
            stub = admin_service_pb2_grpc.AdminServiceStub(channel)
            return stub.ListQueues(request, timeout=_NAMES_SECONDS / len(self._endpoints))

        return [queue.name for queue in self._anywhere(ask, _NAMES_SECONDS).queues]

    def browse(
        self, request: queue_service_pb2.BrowseRequest, *, retry_seconds: float
    ) -> Iterator[SplitMessage[queue_service_pb2.BrowseResponse]]:
        """All answers of a scan, across changes of leaders: after a failure it continues at the
        same position. Closing it cancels the stream. Raises RequestError, Unreachable.
        """
        at = queue_service_pb2.BrowseRequest()
        at.CopyFrom(request)

        def open_stream(channel: grpc.Channel) -> Any:
            call: Any = channel.unary_stream(_BROWSE)
            return call(at.SerializeToString())

        def go_on(response: queue_service_pb2.BrowseResponse) -> bool:
            at.from_seq, at.upto_seq = response.next_seq, response.upto_seq
            return response.next_seq <= response.upto_seq

        place = request.namespace, request.queue, request.partition
        return self._follow(
            open_stream, queue_service_pb2.BrowseResponse, go_on, place, retry_seconds
        )

    def read_batch(
        self, request: reader_service_pb2.ReadBatchRequest, *, retry_seconds: float
    ) -> Iterator[SplitMessage[reader_service_pb2.ReadBatchResponse]]:
        """Like `browse`, for a part of an open batch, whose end `request` names."""
        at = reader_service_pb2.ReadBatchRequest()
        at.CopyFrom(request)

        def open_stream(channel: grpc.Channel) -> Any:
            call: Any = channel.unary_stream(_READ_BATCH)
            return call(at.SerializeToString())

        def go_on(response: reader_service_pb2.ReadBatchResponse) -> bool:
            at.from_index = response.next_index
            return response.next_index < request.upto_index

        place = request.namespace, request.queue, request.partition
        return self._follow(
            open_stream, reader_service_pb2.ReadBatchResponse, go_on, place, retry_seconds
        )

    def open_reader(
        self, request: reader_service_pb2.OpenReaderRequest, *, retry_seconds: float
    ) -> reader_service_pb2.OpenReaderResponse:
        """`request` has a request id, so each attempt opens the same run. Raises RequestError,
        Unreachable.
        """

        def ask(channel: grpc.Channel) -> reader_service_pb2.OpenReaderResponse:
            stub = reader_service_pb2_grpc.ReaderServiceStub(channel)
            return stub.OpenReader(request, timeout=CALL_SECONDS)

        return self._anywhere(ask, retry_seconds)

    def advance_reader(
        self, request: reader_service_pb2.AdvanceReaderRequest, *, retry_seconds: float
    ) -> reader_service_pb2.AdvanceReaderResponse:
        """Raises RequestError, Unreachable."""
        seconds = CALL_SECONDS + request.wait_timeout.ToMilliseconds() / 1000

        def ask(channel: grpc.Channel) -> reader_service_pb2.AdvanceReaderResponse:
            stub = reader_service_pb2_grpc.ReaderServiceStub(channel)
            return stub.AdvanceReader(request, timeout=seconds)

        return self._anywhere(ask, retry_seconds)

    def release_reader(
        self, request: reader_service_pb2.ReleaseReaderRequest, *, retry_seconds: float
    ) -> reader_service_pb2.ReleaseReaderResponse:
        """Releases one batch. The call may be repeated. Raises RequestError, Unreachable."""

        def ask(channel: grpc.Channel) -> reader_service_pb2.ReleaseReaderResponse:
            stub = reader_service_pb2_grpc.ReaderServiceStub(channel)
            return stub.ReleaseReader(request, timeout=CALL_SECONDS)

        return self._anywhere(ask, retry_seconds)

    def _follow(
        self,
        open_stream: Callable[[grpc.Channel], Any],
        kind: MessageType[R],
        go_on: Callable[[R], bool],
        place: _Place,
        retry_seconds: float,
    ) -> Iterator[SplitMessage[R]]:
        """Answers of a stream. `open_stream` begins behind the last answer that `go_on` received;
        `go_on` returns whether there are more.
        """
        patience = Patience(retry_seconds)
        tried: dict[str, str] = {}
        while True:
            address = self._way(place, tried)
            stream = open_stream(self._channel(address))
            try:
                for data in stream:
                    answer = parse(data, kind)
                    yield answer
                    patience.renew()
                    tried.clear()
                    if not go_on(answer.message):
                        return
                raise make_error(ErrorCode.UNAVAILABLE, f"{address} ended a stream before its end")
            except grpc.RpcError as raw:
                error = _error(raw, address)
            except RequestError as early:
                error = early
            finally:
                stream.cancel()
            tried[address] = error.message.rstrip(".")
            self._wait(error, patience, tried, place[2])

    # --- addresses -----------------------------------------------------------------------------

    def _way(self, place: _Place, tried: dict[str, str]) -> str:
        """The leader's address, if it is known and has not failed; else another one."""
        leader = self.leader(*place)
        ways = [leader, *self._endpoints] if leader else list(self._endpoints)
        for address in ways:
            if address not in tried:
                return address
        # All have failed once: the state may have changed since.
        tried.pop(ways[0], None)
        return ways[0]

    def leader(self, namespace: str, queue: str, partition: int) -> str:
        """Address of the node that leads a partition; empty if it is unknown or there is only one
        node.
        """
        asked = queue_service_pb2.GetRoutingRequest(namespace=namespace, queue=queue)

        def ask(channel: grpc.Channel) -> queue_service_pb2.GetRoutingResponse:
            stub = queue_service_pb2_grpc.QueueServiceStub(channel)
            return stub.GetRouting(asked, timeout=ROUTING_SECONDS)

        for address in self._endpoints:
            with suppress(grpc.RpcError):
                routing = ask(self._channel(address))
                if partition >= len(routing.leaders):
                    return ""
                name = routing.leaders[partition]
                addresses = {node.name: node.client_address for node in routing.nodes}
                return addresses.get(name, "") if len(addresses) > 1 else ""
        return ""

    def _anywhere(self, ask: Callable[[grpc.Channel], R], retry_seconds: float) -> R:
        patience = Patience(retry_seconds)
        tried: dict[str, str] = {}
        while True:
            failure: RequestError | None = None
            for address in self._endpoints:
                try:
                    return ask(self._channel(address))
                except grpc.RpcError as raw:
                    failure = _error(raw, address)
                    tried[address] = failure.message.rstrip(".")
                    if not failure.retriable:
                        raise failure from None
            assert failure is not None
            self._wait(failure, patience, tried, None)

    def _wait(
        self,
        error: RequestError,
        patience: "Patience",
        tried: dict[str, str],
        partition: int | None,
    ) -> None:
        """Waits before the next attempt. Raises the error if there is none."""
        unreached = isinstance(error, ConnectionFailed)
        if not error.retriable and not unreached:
            raise error from None
        wrong = unreached and self._is_wrong(patience)
        if not wrong and patience.wait(error.retry_delay_ms):
            return
        if not unreached:
            raise error from None
        what = "the cluster" if partition is None else f"the leader of partition {partition}"
        ways = " ".join(self._cause(address, reason) for address, reason in tried.items())
        raise Unreachable(
            f"{what} cannot be reached from {os.uname().nodename} ({ways}). Executors and driver "
            "need a way to the address that each node advertises (serve --advertise-client), or at "
            f"least to one address of option endpoint; with TLS, {_FILES}"
        )

    def _is_wrong(self, patience: "Patience") -> bool:
        """Whether no endpoint can be connected to until an option is changed. Looks once, unless a
        node has answered before.
        """
        if patience.examined:
            return False
        patience.examined = True
        faults = [probe(address, self._tls) for address in self._endpoints]
        return all(fault is not None and fault.kind.certain for fault in faults)

    def _cause(self, address: str, reason: str) -> str:
        fault = probe(address, self._tls)
        return f"{address}: {reason}." if fault is None else fault.text

    def _channel(self, address: str) -> grpc.Channel:
        channel = self._channels.get(address)
        if channel is None:
            options = [*CHANNEL_OPTIONS, RESOLVING]
            channel = self._channels[address] = (
                grpc.insecure_channel(address, options=options)
                if self._tls is None
                else grpc.secure_channel(address, self._tls.channel_credentials(), options=options)
            )
        return channel


def _tls(target: Target) -> Tls | None:
    if not target.tls:
        return None
    try:
        return Tls.from_files(
            ca=target.tls_ca_file, cert=target.tls_cert_file, key=target.tls_key_file
        )
    except TlsError as error:
        raise TlsError(f"{error}; {_FILES}, and this is {os.uname().nodename}") from None


class Patience:
    """How long attempts continue without success."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.examined = False
        """Whether the cause of missing connections needs not be looked for any more."""
        self._begin()

    def renew(self) -> None:
        """Restarts the time limit after a success."""
        self.examined = True
        self._begin()

    def _begin(self) -> None:
        self._backoff = Backoff()
        self._until = time.monotonic() + self._seconds

    def wait(self, at_least_ms: int | None) -> bool:
        """Waits and returns True if there is time for another attempt."""
        pause = self._backoff.next(at_least_ms=at_least_ms)
        if time.monotonic() + pause >= self._until:
            return False
        time.sleep(pause)
        return True


def _error(raw: grpc.RpcError, address: str) -> RequestError:
    known: Any = raw
    return from_rpc(known, address=address, changes=False)
