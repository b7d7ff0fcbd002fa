"""What becomes of an item when its handler raises."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from querator import HandlerTimeout, Reject, Retry, UndecodablePayload
from querator.client.consuming.policy import FailurePolicy, RetryDelays

SECOND = timedelta(seconds=1)


def rejects(policy: FailurePolicy, error: Exception) -> bool:
    return policy.decide(error, 1).rejects


def test_every_exception_is_retried_by_default():
    policy = FailurePolicy()
    chosen = policy.decide(ValueError("no address"), 1)
    assert (chosen.rejects, chosen.reason) == (False, "ValueError: no address")
    assert not chosen.deliberate
    assert not rejects(policy, UndecodablePayload("x"))
    assert not policy.may_reject


def test_exceptions_are_rejected_by_their_class():
    policy = FailurePolicy(reject_on=[LookupError])
    assert rejects(policy, KeyError("x"))
    assert not rejects(policy, ValueError("x"))
    assert policy.may_reject


def test_only_named_exceptions_are_retried_if_there_are_any():
    policy = FailurePolicy(retry_on=[OSError])
    assert not rejects(policy, TimeoutError("x"))
    assert rejects(policy, ValueError("x"))
    assert policy.may_reject


def test_the_nearest_class_counts():
    policy = FailurePolicy(retry_on=[OSError], reject_on=[FileNotFoundError])
    assert rejects(policy, FileNotFoundError("x"))
    assert not rejects(policy, PermissionError("x"))
    policy = FailurePolicy(reject_on=[Exception], retry_on=[ConnectionError])
    assert not rejects(policy, ConnectionResetError("x"))
    assert rejects(policy, KeyError("x"))


def test_undecodable_payloads_are_rejected_when_asked():
    policy = FailurePolicy(on_undecodable="reject")
    assert rejects(policy, UndecodablePayload("x"))
    assert not rejects(policy, ValueError("x"))


def test_delays_double_up_to_a_limit():
    growing = RetryDelays(SECOND, 10 * SECOND)
    for attempt, whole in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (1_000, 10)):
        delays = [growing.of(attempt).total_seconds() for _ in range(50)]
        assert whole / 2 <= min(delays) <= max(delays) <= whole


def test_delays_of_days_do_not_overflow():
    days = timedelta(days=400)
    for attempt in (1, 2, 30, 10**9):
        assert days / 2 <= RetryDelays(days, 2 * days).of(attempt) <= 2 * days
    assert RetryDelays(timedelta(0), days).of(10**9) == timedelta(0)


def test_a_timeout_of_a_handler_retries_unless_it_is_named():
    late = HandlerTimeout("handler did not end within 30 s")
    for policy in (FailurePolicy(retry_on=[KeyError]), FailurePolicy(reject_on=[OSError])):
        chosen = policy.decide(late, 1)
        assert (chosen.rejects, chosen.reason) == (False, "handler did not end within 30 s")
    assert rejects(FailurePolicy(reject_on=[HandlerTimeout]), late)


def test_a_handler_decides_by_what_it_raises():
    policy = FailurePolicy(reject_on=[Exception], retry_first=SECOND)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    chosen = policy.decide(Retry("busy", delay=3 * SECOND, count_attempt=False), 9)
    assert chosen == (False, "busy", 3 * SECOND, None, False, None, None, True, False)
    assert policy.decide(Retry(clear_checkpoint=True), 1).clear_checkpoint
    assert policy.decide(Retry(at=at), 1)[:4] == (False, "", None, at)
    assert policy.decide(Retry(priority=-3), 1).priority == -3
    assert policy.decide(Retry(attributes={"page": "7"}), 1).attributes == {"page": "7"}
    grown = policy.decide(Retry("busy"), 3).delay
    assert grown is not None
    assert 2 * SECOND <= grown <= 4 * SECOND
    assert policy.decide(Reject("no address"), 1)[:2] == (True, "no address")


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"reject_on": [KeyboardInterrupt]}, TypeError, "reject_on has .*KeyboardInterrupt"),
        ({"retry_on": ["ValueError"]}, TypeError, "retry_on has 'ValueError'"),
        (
            {"retry_on": OSError},
            TypeError,
            "retry_on is <class 'OSError'>; it must be a list of classes of exceptions",
        ),
        ({"reject_on": "OSError"}, TypeError, "reject_on is 'OSError'; it must be a list"),
        ({"retry_on": [KeyError], "reject_on": [KeyError]}, ValueError, "KeyError is in retry_on"),
        ({"on_undecodable": "drop"}, ValueError, "on_undecodable is 'drop'"),
        ({"retry_first": -SECOND}, ValueError, "must not be negative"),
        ({"retry_first": 2 * SECOND, "retry_most": SECOND}, ValueError, "less than retry_first"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], kind: type, words: str):
    with pytest.raises(kind, match=words):
        FailurePolicy(**options)


def test_the_queue_decides_when_no_delay_is_given():
    policy = FailurePolicy(retry_first=None)
    chosen = policy.decide(ValueError("x"), 3)
    assert (chosen.delay, chosen.at, chosen.when) == (None, None, "when its queue says")
    asked = policy.decide(Retry("busy"), 3)
    assert (asked.delay, asked.at) == (None, None)
    assert policy.decide(Retry(delay=SECOND), 3).delay == SECOND
