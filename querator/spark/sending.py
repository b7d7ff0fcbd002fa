"""Requests from a task to the nodes: of bounded size, and several of them in flight.

Any node accepts a request: it divides the items by partition and forwards the parts to their
leaders. Tasks begin with different nodes. A request that failed goes to the next node, until the
time that the user allows has passed.
"""

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from querator.client.errors import InvalidArgument, LimitExceeded, NotFound, RequestError
from querator.client.items import ITEMS_FIELD
from querator.client.transport.rpc_errors import from_rpc
from querator.model.limits import REQUEST_ITEMS_MAX
from querator.spark.options import Target
from querator.spark.row_words import described
from querator.spark.rpc import Cluster, Patience, did_you_mean
from querator.v1 import admin_service_pb2, admin_service_pb2_grpc, items_pb2
from querator.v1 import transaction_service_pb2 as pb
from querator.v1.transaction_service_pb2_grpc import TransactionServiceStub
from querator.wire.fields import next_field

CALL_SECONDS: Final = 30.0
"""Time limit of one attempt of a call: as long as a commit waits for its decision."""
REQUEST_BYTES: Final = 2 * 1024 * 1024
"""The largest size of a request, unless a single item is larger."""
WINDOW: Final = 4
"""Unanswered requests of a task."""
STAGE: Final = "/querator.v1.TransactionService/Stage"
PRODUCE: Final = "/querator.v1.QueueService/Produce"
_FIELD: Final = re.compile(r"items\[(\d+)\]\.(\w+)(?:\.\w+)*")
_WHOLE: Final = ("", "request")
"""Fields of errors about the size of a whole request: gRPC's, and the node's."""
_COLUMNS: Final = {"payload": "value", "attributes": "headers", "dedup_key": "dedupe_key"}
"""Names of columns that differ from the protocol's field."""

A = TypeVar("A", bound=Message, covariant=True)


class ReplyMessage(Protocol[A]):
    """A message type."""

    def FromString(self, data: bytes, /) -> A: ...


class RowRefused(InvalidArgument):
    """The queue refuses a row; the message names its column, its number, limit and value."""


_senders: "dict[tuple[int, Target], Sender]" = {}


def sender(target: Target) -> "Sender":
    """The connections of this process to a cluster, for writes. Raises TlsError."""
    key = os.getpid(), target
    if key not in _senders:
        _senders[key] = Sender(target)
    return _senders[key]


class Sender(Cluster):
    """Calls that change something. Each may be repeated as it is, except a produce without dedupe
    keys. Every method raises RequestError and Unreachable.
    """

    def queue(
        self, namespace: str, queue: str, *, retry_seconds: float
    ) -> admin_service_pb2.QueueSettings:
        """Settings of a queue."""
        request = admin_service_pb2.GetQueueRequest(namespace=namespace, queue=queue)

        def ask(channel: grpc.Channel) -> admin_service_pb2.GetQueueResponse:
            stub = admin_service_pb2_grpc.AdminServiceStub(channel)
            return stub.GetQueue(request, timeout=CALL_SECONDS)

        return self._anywhere(ask, retry_seconds).queue.settings

    def totals(
        self, namespace: str, queue: str, producer: str, *, retry_seconds: float
    ) -> pb.GetTxnProducerResponse:
        """The queue's counts of a producer's batches."""
        request = pb.GetTxnProducerRequest(namespace=namespace, queue=queue, producer=producer)

        def ask(channel: grpc.Channel) -> pb.GetTxnProducerResponse:
            return TransactionServiceStub(channel).GetTxnProducer(request, timeout=CALL_SECONDS)

        return self._anywhere(ask, retry_seconds)

    def redrive(
        self, namespace: str, queue: str, item_ids: Sequence[str], *, retry_seconds: float
    ) -> tuple[int, int]:
        """The number of dead letters that the last attempt has moved, and the number of attempts. A
        letter that is already on its way is neither moved nor counted again.
        """
        attempts = 0
        request = admin_service_pb2.RedriveDeadLettersRequest(
            namespace=namespace, queue=queue, item_ids=item_ids
        )

        def ask(channel: grpc.Channel) -> admin_service_pb2.RedriveDeadLettersResponse:
            nonlocal attempts
            attempts += 1
            stub = admin_service_pb2_grpc.AdminServiceStub(channel)
            return stub.RedriveDeadLetters(request, timeout=CALL_SECONDS)

        return self._anywhere(ask, retry_seconds).redriven, attempts

    def commit(self, request: pb.CommitTxnRequest, *, retry_seconds: float) -> pb.CommitTxnResponse:
        def ask(channel: grpc.Channel) -> pb.CommitTxnResponse:
            return TransactionServiceStub(channel).CommitTxn(request, timeout=CALL_SECONDS)

        return self._anywhere(ask, retry_seconds)

    def abort(self, request: pb.AbortTxnRequest, *, retry_seconds: float) -> None:
        def ask(channel: grpc.Channel) -> pb.AbortTxnResponse:
            return TransactionServiceStub(channel).AbortTxn(request, timeout=CALL_SECONDS)

        self._anywhere(ask, retry_seconds)

    def give_up(
        self, namespace: str, queue: str, producer: str, batch: int, *, retry_seconds: float
    ) -> None:
        """For a failed write whose name is used once: drops what is staged, and commits the batch
        without items. Tasks that have not ended yet then stage nothing more, and what they have
        staged since the abort is dropped within a minute.
        """
        abort = pb.AbortTxnRequest(namespace=namespace, queue=queue, producer=producer, batch=batch)
        commit = pb.CommitTxnRequest(
            namespace=namespace, queue=queue, producer=producer, batch=batch
        )
        self.abort(abort, retry_seconds=retry_seconds)
        self.commit(commit, retry_seconds=retry_seconds)

    def send(
        self,
        path: str,
        requests: Iterable["BulkRequest"],
        answer: ReplyMessage[A],
        *,
        first: int,
        window: int,
        retry_seconds: float,
    ) -> Iterator[A]:
        """Answers in the order of the requests. The next request is taken when fewer than `window`
        requests are unanswered. `first` is the task's number. Raises RowRefused.
        """
        flying: deque[_Flight] = deque()
        try:
            for request in requests:
                if len(flying) >= window:
                    yield answer.FromString(self._land(flying[0], retry_seconds))
                    flying.popleft()
                flight = _Flight(path, request, first)
                self._launch(flight)
                flying.append(flight)
            while flying:
                yield answer.FromString(self._land(flying[0], retry_seconds))
                flying.popleft()
        finally:
            for flight in flying:
                flight.call.cancel()

    def _launch(self, flight: "_Flight") -> None:
        flight.address = self._endpoints[flight.way % len(self._endpoints)]
        call: Any = self._channel(flight.address).unary_unary(flight.path)
        flight.call = call.future(flight.request.data, timeout=CALL_SECONDS)

    def _land(self, flight: "_Flight", retry_seconds: float) -> bytes:
        patience = Patience(retry_seconds)
        tried: dict[str, str] = {}
        while True:
            try:
                data: bytes = flight.call.result()
                return data
            except grpc.RpcError as raw:
                known: Any = raw
                error = from_rpc(known, address=flight.address, changes=True)
            _name_row(error, flight.request)
            tried[flight.address] = error.message
            self._wait(error, patience, tried, None)
            flight.way += 1
            self._launch(flight)


class BulkRequest:
    """Bytes of a request, and the rows in it, numbered from the start of the task."""

    __slots__ = ("data", "rows")

    def __init__(self, data: bytes, rows: Sequence[int]) -> None:
        self.data = data
        self.rows = rows

    def item(self, index: int) -> items_pb2.Item:
        """An item of the request, which is a StageRequest or a ProduceRequest."""
        place = start = end = 0
        for _ in range(index + 1):
            number = 0
            while number != ITEMS_FIELD:
                number, _, start, end = next_field(self.data, place, len(self.data))
                place = end
        return items_pb2.Item.FromString(self.data[start:end])


class _Flight:
    """An unanswered request. `way` selects the endpoint that it goes to."""

    __slots__ = ("address", "call", "path", "request", "way")

    def __init__(self, path: str, request: BulkRequest, way: int) -> None:
        self.path = path
        self.request = request
        self.way = way
        self.address = ""
        self.call: Any = None


def cut(items: list[bytes], rows: Sequence[int]) -> Iterator[tuple[list[bytes], Sequence[int]]]:
    """The items and their rows, in parts that fit into a request."""
    start = size = 0
    for at, item in enumerate(items):
        if at > start and (at - start == REQUEST_ITEMS_MAX or size + len(item) > REQUEST_BYTES):
            yield items[start:at], rows[start:at]
            start, size = at, 0
        size += len(item)
    if items:
        yield items[start:], rows[start:]


def by_partition(
    items: list[bytes], rows: Sequence[int], partitions: list[int | None] | None
) -> Iterator[tuple[int | None, list[bytes], Sequence[int]]]:
    """Items by the requested partition, in their order."""
    if partitions is None:
        yield None, items, rows
        return
    order = sorted(range(len(items)), key=lambda at: -1 if (p := partitions[at]) is None else p)
    for partition, places in groupby(order, key=partitions.__getitem__):
        chosen = list(places)
        yield partition, [items[at] for at in chosen], [rows[at] for at in chosen]


def _name_row(error: RequestError, request: BulkRequest) -> None:
    """Raises RowRefused for an error in one item, in the terms of the frame."""
    found = _FIELD.fullmatch(error.field)
    if found is not None and isinstance(error, InvalidArgument):
        row, column = request.rows[int(found[1])], _COLUMNS.get(found[2], found[2])
        why = f"for its column {column}: {error.message}"
        why += f" (limit {error.limit}, value {error.value})" if error.limit else ""
    elif len(request.rows) == 1 and isinstance(error, LimitExceeded) and error.field in _WHOLE:
        row, column = request.rows[0], ""
        why = f"for its {len(request.data):,} bytes, of all columns together: {error.message}"
    else:
        return
    item = request.item(request.rows.index(row))
    shown = described({"value": item.payload, "key": item.key, "reference": item.reference})
    raise RowRefused(
        error.code,
        f"row {row} of this task ({shown}) is refused {why}; filter such rows out, or shorten "
        "them, before the write",
        field=column,
        limit=error.limit,
        value=error.value,
        request_id=error.request_id,
    ) from None


def with_way_out(error: NotFound, *, target: Target, namespace: str, queue: str) -> NotFound:
    meant = did_you_mean(error, target, namespace, queue)
    endpoints = ",".join(target.endpoints)
    error.message = (
        f"{error.message} (cluster at {endpoints}); nothing was written{meant} Check the options "
        f"queue, namespace and endpoint, or make it with `querator queue create {queue}`"
    )
    return error
