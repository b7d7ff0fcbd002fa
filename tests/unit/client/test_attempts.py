"""How a request is repeated within its time."""

import asyncio
import time

import pytest

from querator.client.attempts import LEAST_SECONDS, repeated
from querator.client.errors import RequestError, Unavailable
from querator.model.errors import ErrorCode


async def test_a_refusal_stays_one_when_the_loop_is_late():
    """Time that has run out is not sent: the answer would be that the outcome is not known."""
    given: list[float] = []

    async def attempt(left: float) -> RequestError:
        given.append(left)
        # Something else holds the loop past the deadline, while the next try waits.
        asyncio.get_running_loop().call_later(0.001, hold)
        return Unavailable(ErrorCode.UNAVAILABLE, "not now", retry_delay_ms=10)

    def hold() -> None:
        started = time.monotonic()
        while time.monotonic() - started < 0.3:
            pass

    with pytest.raises(Unavailable, match="not now"):
        await repeated(attempt, seconds=0.25, hopeless=lambda error, waited: False)
    assert len(given) == 1
    assert min(given) >= LEAST_SECONDS
