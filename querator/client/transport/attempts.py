"""How a request is repeated within its time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from querator.client.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    ErrorCode,
    OutcomeUnknown,
    RequestError,
    make_error,
)
from querator.client.transport.backoff import Backoff

R = TypeVar("R")

LEAST_SECONDS = 0.05
"""A request is not sent again with less time than this left: it would hardly be answered, and what
was certainly refused would become an outcome that nobody knows.
"""

REFUSAL_SECONDS_MOST = 2.5
"""The same, to a node whose last refusal took its time: as long as that, and this at most. One that
is cut off from the others waits two seconds before it says so.
"""


async def repeated(
    attempt: Callable[[float], Awaitable[R | RequestError]],
    *,
    seconds: float,
    hopeless: Callable[[RequestError, float], bool],
    elsewhere: Callable[[RequestError], bool] = lambda _: False,
    repeatable: bool = True,
    telling: tuple[type[RequestError], ...] = (),
) -> R:
    """What `attempt(seconds left)` returns, repeated while that can help and `seconds` have not
    passed. `hopeless(error, seconds waited)` ends it before; `elsewhere(error)`: another node may
    do better, without a pause.

    Raises the last refusal (that nobody answers, or not in time, says least), or `OutcomeUnknown`
    when some attempt may have been executed, which tells of the last refusal as well, and has it as
    its cause. A refusal of a repeat is no answer to the attempt before it, unless it is one of
    `telling`: those say what became of any attempt. That a request is malformed always does.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadline = started + seconds
    backoff = Backoff()
    unknown: RequestError | None = None
    refusal: RequestError | None = None
    left = seconds
    while True:
        sent = loop.time()
        error = await attempt(left)
        if not isinstance(error, RequestError):
            return error
        if isinstance(error, OutcomeUnknown):
            unknown = error
        elif not isinstance(error, ConnectionFailed) and not (refusal and _says_little(error)):
            refusal = error
        moves = elsewhere(error)
        waiting = 0.0 if moves else backoff.next(at_least_ms=error.retry_delay_ms)
        now = loop.time()
        took = 0.0 if moves else min(now - sent, REFUSAL_SECONDS_MOST)
        if (
            not (error.retriable or moves)
            or now + waiting + max(LEAST_SECONDS, took) >= deadline
            or hopeless(error, now + waiting - started)
            or (unknown is not None and not repeatable)
        ):
            if unknown is None or is_malformed(error) or isinstance(error, telling):
                raise refusal or error
            raise with_reason(unknown, refusal) from refusal
        await asyncio.sleep(waiting)
        left = deadline - loop.time()
        if left < LEAST_SECONDS:
            # The loop was late.
            raise (refusal or error) if unknown is None else with_reason(unknown, refusal)


def is_malformed(error: RequestError) -> bool:
    """Whether the same request is refused at each attempt, before it is carried out."""
    return error.code in (ErrorCode.INVALID_ARGUMENT, ErrorCode.LIMIT_EXCEEDED)


def with_reason(unknown: RequestError, refusal: RequestError | None) -> RequestError:
    """The error of a request whose outcome is not known, with why other attempts were refused."""
    if refusal is None or _says_little(refusal):
        return unknown
    return make_error(
        unknown.code,
        f"{unknown.message}; besides that: {refusal.message}",
        field=unknown.field,
        limit=unknown.limit,
        value=unknown.value,
        request_id=unknown.request_id,
    )


def _says_little(error: RequestError) -> bool:
    """Whether no node has said it."""
    own = isinstance(error, DeadlineExceeded) and not error.request_id
    return own or isinstance(error, ConnectionFailed)
