"""The end of calls: the only place where an exception becomes a gRPC status with details.

A `QueratorError` is an answer. Any other exception is a defect: the client receives INTERNAL with a
request id and no internals, and the log has the same id with the traceback.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol, TypeAlias, TypeVar

import grpc
import msgspec
import uuid_utils

from querator import telemetry
from querator.model import limits
from querator.model.calls import (
    BrowseCall,
    CompleteCall,
    ExtendCall,
    LeaseCall,
    ProduceCall,
    RetryCall,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.event_calls import ReadEventsCall
from querator.model.execution_calls import (
    ArriveCall,
    NewsCall,
    ProgressCall,
    PublishedCall,
    RewindCall,
    StartCall,
    WaitExecutionsCall,
)
from querator.model.reader_calls import (
    AdvanceReaderCall,
    OpenReaderCall,
    ReadBatchCall,
    ReleaseReaderCall,
)
from querator.model.result_calls import WaitResultsCall
from querator.model.txn_calls import AbortCall, CommitCall, StageCall
from querator.server.calls.call_counts import CANCELLED, OK, CallCounts
from querator.server.incoming import Incoming
from querator.service.admission import CONNECTION
from querator.wire.errors import error_status

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Unary: TypeAlias = "Callable[[bytes, Context], Awaitable[bytes]]"
T = TypeVar(
    "T",
    ProduceCall,
    CompleteCall,
    RetryCall,
    ExtendCall,
    OpenReaderCall,
    AdvanceReaderCall,
    ReleaseReaderCall,
    StageCall,
    CommitCall,
    AbortCall,
    BrowseCall,
    ReadBatchCall,
    StartCall,
    RewindCall,
    ProgressCall,
    ArriveCall,
)
W = TypeVar(
    "W",
    LeaseCall,
    AdvanceReaderCall,
    WaitResultsCall,
    WaitExecutionsCall,
    NewsCall,
    PublishedCall,
    ReadEventsCall,
)

_DETAILS_KEY = "grpc-status-details-bin"
# An empty answer must be sent before the caller's deadline; else the outcome of its lease request
# is unknown.
_ANSWER_MARGIN_MS = 100
# A refusal must be sent in time, also on a busy machine; else the caller sees only a time-out.
_REASON_MARGIN_MS = 250
# Interval of the checks whether calls still arrive at a draining node.
_LOOK_S = 0.01

DRAINING = QueratorError(ErrorCode.UNAVAILABLE, "the node is shutting down; use another node")

_log = telemetry.logger(__name__)
_debugs = telemetry.debugs(__name__)
_start = uuid_utils.uuid7().hex[:20]
_numbers = itertools.count(1)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_request_id() -> str:
    """Unique over restarts and nodes, with high probability."""
    return f"{_start}-{next(_numbers):x}"


def refusal_of(error: Exception, *, request_id: str, method: str) -> QueratorError:
    """The answer to the client for `error`. An error that is not a refusal is logged."""
    if isinstance(error, QueratorError):
        if error.code is ErrorCode.INTERNAL:
            _log.error("grpc.failed", method=method, request_id=request_id, exc_info=error)
        return error
    _log.error("grpc.failed", method=method, request_id=request_id, exc_info=error)
    return QueratorError(
        ErrorCode.INTERNAL, f"a defect in Querator; the node's log has it as {request_id}"
    )


def log_call(method: str, code: str, began_s: float, request_id: str) -> None:
    """Logs one line, at debug, for each unary call and each stream that has ended."""
    if _debugs():
        duration_ms = round((time.perf_counter() - began_s) * 1000, 3)
        _log.debug(
            "grpc.call", method=method, code=code, duration_ms=duration_ms, request_id=request_id
        )


def log_broken(method: str, request_id: str) -> None:
    """Logs that the transport of a stream failed: the client has disconnected."""
    _log.debug("grpc.stream_broken", method=method, request_id=request_id)


async def abort(context: Context, error: QueratorError, *, request_id: str) -> NoReturn:
    """Ends the call with the status of `error`."""
    status = error_status(error, request_id=request_id)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    await context.abort(code, status.message, ((_DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("abort returned")


class LiveCalls:
    """Counts the running calls, so that a drain knows when all have ended. `counts` has their
    outcomes. `incoming` is informed of each complete message.

    The drain sets `draining`: then no more calls are accepted.
    """

    def __init__(self) -> None:
        self.counts = CallCounts()
        self.incoming = Incoming()
        self.draining = False
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._refused = 0

    def refused(self) -> None:
        """A call has come although the node is draining."""
        self._refused += 1

    async def quiet(self, quiet_s: float, *, most_s: float) -> None:
        """Returns when no call has come for `quiet_s`, or after `most_s`.

        Both times are counted in checks. A blocked event loop accepts waiting calls only when it
        continues, so the time for which it was blocked does not count as quiet.
        """
        quiet = looks = 0
        while quiet < quiet_s / _LOOK_S and looks < most_s / _LOOK_S:
            before = self._refused
            await asyncio.sleep(_LOOK_S)
            looks += 1
            quiet = quiet + 1 if self._refused == before else 0

    def __enter__(self) -> None:
        self._count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def idle(self) -> None:
        await self._idle.wait()


def answering(method: str, work: Unary, live: LiveCalls) -> Unary:
    """Wraps `work` as a handler that answers its failures with a status."""
    counts = live.counts

    async def handle(data: bytes, context: Context) -> bytes:
        request_id = new_request_id()
        began_s = time.perf_counter()
        peer = context.peer()
        CONNECTION.set(peer)
        live.incoming.got(peer, len(data))
        if live.draining:
            live.refused()
            counts.refused(method, DRAINING, began_s)
            await abort(context, DRAINING, request_id=request_id)
        with live:
            try:
                answer = await work(data, context)
            except Exception as error:  # noqa: BLE001 - the top of the call's task
                refusal = refusal_of(error, request_id=request_id, method=method)
            except asyncio.CancelledError:
                counts.ended(method, CANCELLED, began_s)
                log_call(method, CANCELLED, began_s, request_id)
                raise
            else:
                counts.ended(method, OK, began_s)
                log_call(method, OK, began_s, request_id)
                return answer
            counts.refused(method, refusal, began_s)
            log_call(method, refusal.code.name, began_s, request_id)
            await abort(context, refusal, request_id=request_id)

    return handle


class Timed(Protocol):
    """What knows the deadline of a call: the context of gRPC, or a call on a stream."""

    def time_remaining(self) -> float | None:
        """In seconds; None: it has none."""


TimedCall: TypeAlias = Callable[[bytes, Timed], Awaitable[bytes]]
"""The handler of a unary method, which needs nothing of gRPC."""


def remaining_ms(context: Timed) -> int:
    """Time until the client's deadline, at least 1; 0 when it has none."""
    remaining_s = context.time_remaining()
    if remaining_s is None or math.isinf(remaining_s):
        return 0
    return max(1, min(int(remaining_s * 1000), limits.REQUEST_TIMEOUT_MS_MAX))


def answer_within_ms(context: Timed) -> int:
    """Time until an answer must be sent, so that a refusal reaches the client before its deadline;
    0 when the client has none.
    """
    left_ms = remaining_ms(context)
    return left_ms - min(_REASON_MARGIN_MS, left_ms // 4)


def within_deadline(call: T, context: Timed) -> T:
    """The call with a timeout that ends before the client's deadline."""
    left_ms = answer_within_ms(context)
    if not left_ms or 0 < call.timeout_ms <= left_ms:
        return call
    return msgspec.structs.replace(call, timeout_ms=left_ms)


def waiting_within_deadline(call: W, context: Timed) -> W:
    """The call with a wait that ends before the client's deadline."""
    left_ms = remaining_ms(context)
    if not left_ms or call.wait_ms <= left_ms - _ANSWER_MARGIN_MS:
        return call
    return msgspec.structs.replace(call, wait_ms=max(0, left_ms - _ANSWER_MARGIN_MS))
