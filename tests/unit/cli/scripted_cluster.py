"""A server whose calls give the messages that a test has set, and a terminal for commands."""

import io
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click
import grpc
import pytest
from google.protobuf.message import Message
from grpc_status import rpc_status  # type: ignore[import-untyped]

from querator.cli import querator
from querator.model.errors import QueratorError
from querator.model.executions import RecordKind, encode_path
from querator.v1 import admin_service_pb2 as pb
from querator.v1 import execution_service_pb2
from querator.wire.errors import error_status

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Answer = Message | QueratorError | Callable[[bytes], Message | QueratorError]


class ScriptedCluster(grpc.GenericRpcHandler):
    """`answers`: name of a method → its answer, or a function of the request's bytes. `streams`:
    name of a method → the messages that its stream begins with. It ends when the client ends it.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.streams: dict[str, Sequence[Message]] = {}
        self.address = ""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        if name in self.streams:
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, _: self._stream(self.streams[name], requests)
            )
        if name not in self.answers:
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(self.answers[name], request, context)
        )

    def _stream(self, messages: Sequence[Message], requests: Iterator[bytes]) -> Iterator[bytes]:
        next(requests)
        yield from (message.SerializeToString() for message in messages)
        with suppress(grpc.RpcError):
            for _ in requests:
                pass

    def _answer(self, answer: Answer, request: bytes, context: grpc.ServicerContext) -> bytes:
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, QueratorError):
            context.abort_with_status(rpc_status.to_status(error_status(answer, request_id="")))
        return answer.SerializeToString()


def scripted_counts(
    due: Mapping[datetime, int], *, first: datetime | None = None
) -> Callable[[bytes], Message]:
    """The answers to CountScheduledItems of a queue. `due`: number of items by due time. `first`:
    the due time of an earlier item of another kind.
    """

    def answer(data: bytes) -> pb.CountScheduledItemsResponse:
        request = pb.CountScheduledItemsRequest.FromString(data)
        interval = request.interval.ToTimedelta()
        begin = first or min(due, default=_EPOCH)
        begin = _EPOCH + (begin - _EPOCH) // interval * interval
        if request.HasField("due_from"):
            begin = request.due_from.ToDatetime(UTC)
        end = begin + 1_000 * interval
        if request.HasField("due_until"):
            assert request.due_until.ToDatetime(UTC) <= end, "more than 1,000 intervals"
            end = request.due_until.ToDatetime(UTC)
        response = pb.CountScheduledItemsResponse()
        buckets: Counter[datetime] = Counter()
        for at, items in due.items():
            if at < begin:
                response.before += items
            elif at >= end:
                response.after += items
            else:
                response.total += items
                buckets[begin + (at - begin) // interval * interval] += items
        for starts_at, items in sorted(buckets.items()):
            response.buckets.add(items=items).starts_at.FromDatetime(starts_at)
        return response

    return answer


_NOON_MS = 1_893_412_800_000
"""2029-12-31T12:00:00Z"""


def scripted_execution(
    end: RecordKind | None = RecordKind.COMPLETED, payload: bytes = b'"sent"', **changes: Any
) -> execution_service_pb2.GetExecutionResponse:
    """An execution that has ended with such a record; None: it is parked."""
    states: dict[RecordKind | None, int] = {
        None: execution_service_pb2.EXECUTION_STATE_PARKED,
        RecordKind.COMPLETED: execution_service_pb2.EXECUTION_STATE_COMPLETED,
        RecordKind.FAILED: execution_service_pb2.EXECUTION_STATE_FAILED,
        RecordKind.CANCELLED: execution_service_pb2.EXECUTION_STATE_CANCELLED,
        RecordKind.TERMINATED: execution_service_pb2.EXECUTION_STATE_TERMINATED,
    }
    values: dict[str, Any] = {
        "id": "order-17", "function": "checkout", "version": "1", "run": 1, "state": states[end],
        "partition": 3, "records": 9, "journal_bytes": 1_500,
    }  # fmt: skip
    response = execution_service_pb2.GetExecutionResponse(
        execution=execution_service_pb2.Execution(**(values | changes))
    )
    response.execution.created_at.FromMilliseconds(_NOON_MS)
    if end is not None:
        response.execution.closed_at.FromMilliseconds(_NOON_MS + 60_000)
        response.end.CopyFrom(_record(8, end, payload=payload))
    return response


def scripted_journal() -> execution_service_pb2.ReadJournalResponse:
    """A journal with values of many kinds."""
    declined = b'{"type":"shop.errors.Declined","text":"the card is not valid"}'
    again = b'[1,%d,{"type":"builtins.ConnectionError","text":"no answer"}]' % (_NOON_MS + 5_000)
    site = {"site": "shop/checkout.py:41"}
    return execution_service_pb2.ReadJournalResponse(
        records=[
            _record(0, RecordKind.STARTED, payload=b'[["order-17",["book"]],{"gift":true}]'),
            _record(1, RecordKind.STEP_DONE, 1, name="reserve", payload=b'{"left":3}', **site),
            _record(2, RecordKind.ATTEMPT_FAILED, 2, name="charge", payload=again, **site),
            _record(3, RecordKind.TIMER_FIRED, 2, 1),
            _record(4, RecordKind.STEP_FAILED, 2, name="charge", payload=declined, after=3, **site),
            _record(5, RecordKind.SIGNAL, name="photo", payload=b"\xff\x00" * 512),
            _record(6, RecordKind.STEP_DONE, 3, 1, name="tell", payload=b"null", after=5, **site),
            _record(7, RecordKind.CANCEL, name="cancel", payload=b"sold out"),
            _record(8, RecordKind.CANCELLED, payload=b"sold out", after=7),
        ]
    )


def _record(index: int, kind: RecordKind, *path: int, **values: Any) -> Any:
    return execution_service_pb2.JournalRecord(
        index=index, kind=execution_service_pb2.RecordKind.ValueType(kind),
        path=encode_path(path), at_ms=_NOON_MS + index * 1_000, **values,
    )  # fmt: skip


@contextmanager
def scripted_cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((cluster,))
    cluster.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield cluster
    finally:
        server.stop(None).wait()


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(
    monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], *, columns: int, color: bool = False
) -> tuple[int, str]:
    """Runs a command; returns its exit code, and what it writes to a terminal of this width."""
    code = 0

    def run() -> None:
        nonlocal code
        code = querator.main(list(arguments), prog_name="querator", standalone_mode=False) or 0

    text = written(monkeypatch, run, columns=columns, color=color)
    return code, text


def written(
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[], None],
    *,
    columns: int,
    color: bool = False,
) -> str:
    """What `work` writes to a terminal of this width."""
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "xterm-256color")
        if color:
            patch.delenv("NO_COLOR", raising=False)
        else:
            patch.setenv("NO_COLOR", "1")
        with click.Context(querator, terminal_width=columns):
            work()
    return terminal.getvalue()
