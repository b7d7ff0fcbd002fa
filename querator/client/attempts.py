"""How a request is repeated within its time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from querator.client.backoff import Backoff
from querator.client.errors import ConnectionFailed, OutcomeUnknown, RequestError

R = TypeVar("R")

LEAST_SECONDS = 0.05
"""A request is not sent again with less time than this left: it would hardly be answered, and what
was certainly refused would become an outcome that nobody knows.
"""


async def repeated(
    attempt: Callable[[float], Awaitable[R | RequestError]],
    *,
    seconds: float,
    hopeless: Callable[[RequestError, float], bool],
    elsewhere: Callable[[RequestError], bool] = lambda _: False,
    repeatable: bool = True,
) -> R:
    """What `attempt(seconds left)` returns, repeated while that can help and `seconds` have not
    passed. `hopeless(error, seconds waited)` ends it before; `elsewhere(error)`: another node may
    do better, without a pause.

    Raises the last refusal (that nobody answers says least), or `OutcomeUnknown` when some attempt
    may have been executed.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadline = started + seconds
    backoff = Backoff()
    unknown: RequestError | None = None
    refusal: RequestError | None = None
    left = seconds
    while True:
        error = await attempt(left)
        if not isinstance(error, RequestError):
            return error
        if isinstance(error, OutcomeUnknown):
            unknown = error
        elif not isinstance(error, ConnectionFailed):
            refusal = error
        moves = elsewhere(error)
        waiting = 0.0 if moves else backoff.next(at_least_ms=error.retry_delay_ms)
        now = loop.time()
        if (
            not (error.retriable or moves)
            or now + waiting + LEAST_SECONDS >= deadline
            or hopeless(error, now + waiting - started)
            or (unknown is not None and not repeatable)
        ):
            if unknown is not None and error.retriable:
                raise unknown
            raise refusal or error
        await asyncio.sleep(waiting)
        left = deadline - loop.time()
        if left < LEAST_SECONDS:
            # The loop was late.
            raise unknown or refusal or error
