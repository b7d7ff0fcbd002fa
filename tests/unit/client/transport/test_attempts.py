"""Repeats of a request within its time."""

import asyncio
import time

import pytest

from querator.client.errors import (
    DeadlineExceeded,
    LeaseEnded,
    OutcomeUnknown,
    RequestError,
    Unavailable,
    make_error,
)
from querator.client.transport.attempts import LEAST_SECONDS, repeated
from querator.model.errors import ErrorCode


async def test_a_refusal_stays_one_when_the_loop_is_late():
    """No attempt begins after the deadline: it would end with an unknown outcome."""
    given: list[float] = []

    async def attempt(left: float) -> RequestError:
        given.append(left)
        # Other work holds the loop past the deadline while the next attempt waits.
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


def cut_off() -> RequestError:
    return make_error(
        ErrorCode.UNAVAILABLE, "q/0 has no leader", retry_delay_ms=1, request_id="of a node"
    )


async def ended(*attempts: RequestError) -> RequestError:
    """The error of a call whose attempts end with these errors. No time is left after the last."""
    left = list(attempts)

    async def attempt(seconds: float) -> RequestError:
        return left.pop(0)

    with pytest.raises(RequestError) as caught:
        await repeated(attempt, seconds=60, hopeless=lambda error, waited: not left)
    return caught.value


async def test_why_there_was_no_answer_is_told_with_it():
    silent = make_error(ErrorCode.OUTCOME_UNKNOWN, "no answer", retry_delay_ms=1)
    late = make_error(ErrorCode.DEADLINE_EXCEEDED, "no answer in time", retry_delay_ms=1)
    error = await ended(cut_off(), late)
    assert isinstance(error, Unavailable)
    assert error.message == "q/0 has no leader"
    error = await ended(cut_off(), silent)
    assert isinstance(error, OutcomeUnknown)
    assert error.message == "no answer; then: q/0 has no leader"
    assert (await ended(silent)).message == "no answer"
    assert (await ended(late, silent)).message == "no answer"
    assert isinstance(await ended(late), DeadlineExceeded)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_EXPIRED,
        ErrorCode.QUEUE_NOT_FOUND,
        ErrorCode.READER_FENCED,
        ErrorCode.VERSION_CONFLICT,
        ErrorCode.STORAGE_FAILED,
    ],
)
async def test_a_refusal_does_not_tell_what_became_of_an_attempt_before(code):
    silent = make_error(ErrorCode.OUTCOME_UNKNOWN, "no answer", retry_delay_ms=1)
    refused = make_error(code, "the repeat is refused", request_id="of a node")
    error = await ended(silent, refused)
    assert isinstance(error, OutcomeUnknown)
    assert error.message == "no answer; then: the repeat is refused"
    assert error.__cause__ is refused


@pytest.mark.parametrize("code", [ErrorCode.INVALID_ARGUMENT, ErrorCode.LIMIT_EXCEEDED])
async def test_a_malformed_request_was_refused_each_time(code):
    silent = make_error(ErrorCode.OUTCOME_UNKNOWN, "no answer", retry_delay_ms=1)
    assert (await ended(silent, make_error(code, "malformed", request_id="x"))).code is code


async def test_a_refusal_that_tells_of_the_attempt_before_is_the_answer():
    answers = [
        make_error(ErrorCode.OUTCOME_UNKNOWN, "no answer", retry_delay_ms=1),
        make_error(ErrorCode.LEASE_ENDED, "the lease has ended", request_id="of a node"),
    ]

    async def attempt(left: float) -> RequestError:
        return answers.pop(0)

    with pytest.raises(LeaseEnded):
        await repeated(
            attempt, seconds=60, hopeless=lambda error, waited: False, telling=(LeaseEnded,)
        )


async def test_what_takes_its_time_to_be_refused_is_not_sent_without_that_time():
    given: list[float] = []

    async def attempt(left: float) -> RequestError:
        given.append(left)
        await asyncio.sleep(0.2)
        return cut_off()

    with pytest.raises(Unavailable, match="has no leader"):
        await repeated(attempt, seconds=0.5, hopeless=lambda error, waited: False)
    assert given
    assert min(given) >= 0.2


async def test_another_node_may_be_faster():
    nodes = iter(("slow", "other"))

    async def attempt(left: float) -> str | RequestError:
        if next(nodes) == "other":
            return "answered"
        await asyncio.sleep(1.0)
        return cut_off()

    answer = await repeated(
        attempt,
        seconds=1.9,
        hopeless=lambda error, waited: False,
        elsewhere=lambda error: True,
    )
    assert answer == "answered"
