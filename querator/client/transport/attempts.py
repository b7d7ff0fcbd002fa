"""Repetition of one request within its timeout."""

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
"""A request is not sent again with less than this time left. It would hardly be answered, and a
certain refusal would become an unknown outcome.
"""

REFUSAL_SECONDS_MOST = 2.5
"""Upper bound of the same limit for a node whose last refusal took long: the limit is then that
duration. A node that is cut off from the others waits two seconds before it refuses.
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
    """Returns what `attempt(seconds left)` returns. Repeats it while the error is retriable and
    `seconds` have not passed. `hopeless(error, seconds waited)`: whether to give up before.
    `elsewhere(error)`: whether another node may succeed; then there is no pause.

    Raises the last refusal; one by a node takes precedence over a missing answer. If an attempt may
    have been executed, raises `OutcomeUnknown` with the last refusal in its message and as its
    cause. The refusal of a repeat is no answer to the attempt before it, unless its class is one of
    `telling`, which hold for all attempts. A refusal as malformed always does.
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
    """Whether the same request is refused at each attempt, before it is executed."""
    return error.code in (ErrorCode.INVALID_ARGUMENT, ErrorCode.LIMIT_EXCEEDED)


def with_reason(unknown: RequestError, refusal: RequestError | None) -> RequestError:
    """Adds to an unknown outcome the reason why other attempts were refused."""
    if refusal is None or _says_little(refusal):
        return unknown
    return make_error(
        unknown.code,
        f"{unknown.message}; then: {refusal.message}",
        field=unknown.field,
        limit=unknown.limit,
        value=unknown.value,
        request_id=unknown.request_id,
    )


def _says_little(error: RequestError) -> bool:
    """Whether the error was made by this client, not by a node."""
    own = isinstance(error, DeadlineExceeded) and not error.request_id
    return own or isinstance(error, ConnectionFailed)
