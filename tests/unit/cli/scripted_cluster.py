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
from querator.v1 import admin_service_pb2 as pb
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
