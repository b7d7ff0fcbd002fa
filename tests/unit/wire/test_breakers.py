"""Breakers: bad settings are refused by name, limit and value; states; calls by hand."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from querator.model.calls import BreakerCounts, SetBreakerCall
from querator.model.errors import ErrorCode, QueratorError
from querator.model.queues import BreakerSettings, BreakerState
from querator.v1 import admin_service_pb2 as pb
from querator.wire import breakers, queues

DAY_S = 86_400


def create(**breaker: Any) -> queues.CreateQueueCall:
    settings = pb.QueueSettings(breaker=pb.BreakerSettings(**breaker))
    request = pb.CreateQueueRequest(queue="mail", settings=settings)
    return queues.parse_create_queue(request.SerializeToString())


def test_unset_fields_have_their_defaults():
    call = create()
    assert call.settings.breaker == BreakerSettings(50, 20, 60_000, 30_000, 3)
    assert call.given == ("breaker",)


def test_a_queue_has_no_breaker_unless_it_says_so():
    request = pb.CreateQueueRequest(queue="mail")
    assert queues.parse_create_queue(request.SerializeToString()).settings.breaker is None
    update = pb.UpdateQueueRequest(queue="mail")
    update.update_mask.paths.append("breaker")
    call = queues.parse_update_queue(update.SerializeToString())
    assert (call.mask, call.settings.breaker) == (("breaker",), None)


@pytest.mark.parametrize(
    ("given", "field", "limit", "value"),
    [
        ({"failure_percent": 0}, "failure_percent", "1", "0"),
        ({"failure_percent": 101}, "failure_percent", "100", "101"),
        ({"outcomes_min": 0}, "outcomes_min", "1", "0"),
        ({"outcomes_min": 1_000_001}, "outcomes_min", "1000000", "1000001"),
        ({"window": Duration()}, "window", "1000 ms", "0 ms"),
        ({"window": Duration(seconds=DAY_S + 1)}, "window", "86400000 ms", "86401000 ms"),
        ({"open_time": Duration(nanos=999_000_000)}, "open_time", "1000 ms", "999 ms"),
        ({"open_time": Duration(seconds=DAY_S + 1)}, "open_time", "86400000 ms", "86401000 ms"),
        ({"probes": 0}, "probes", "1", "0"),
        ({"probes": 1_001}, "probes", "1000", "1001"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(
    given: dict[str, Any], field: str, limit: str, value: str
):
    with pytest.raises(QueratorError) as caught:
        create(**given)
    error = caught.value
    assert error.code is ErrorCode.LIMIT_EXCEEDED
    assert (error.field, error.limit, error.value) == (f"settings.breaker.{field}", limit, value)


def test_a_negative_window_is_refused_by_name():
    with pytest.raises(QueratorError) as caught:
        create(window=Duration(seconds=-1))
    assert (caught.value.field, caught.value.code) == (
        "settings.breaker.window", ErrorCode.INVALID_ARGUMENT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "opens"), [(pb.BREAKER_STATE_OPEN, True), (pb.BREAKER_STATE_CLOSED, False)]
)
def test_a_breaker_is_set_by_hand(state: pb.BreakerState.ValueType, opens: bool):
    request = pb.SetBreakerRequest(queue="mail", state=state)
    call = breakers.parse_set_breaker(request.SerializeToString(), timeout_ms=7)
    assert call == SetBreakerCall("default", "mail", opens, 7)


@pytest.mark.parametrize("state", [0, pb.BREAKER_STATE_HALF_OPEN, 9])
def test_other_states_cannot_be_set(state: int):
    request = pb.SetBreakerRequest(queue="mail")
    request.state = pb.BreakerState.ValueType(state)
    with pytest.raises(QueratorError) as caught:
        breakers.parse_set_breaker(request.SerializeToString())
    error = caught.value
    assert (error.code, error.field, error.value) == (
        ErrorCode.INVALID_ARGUMENT, "state", str(state),
    )  # fmt: skip
    assert "must be OPEN or CLOSED" in error.message


def test_the_state_as_a_message():
    counts = BreakerCounts(BreakerState.OPEN, 1_000, 31_000, 20, 11, 0, probing=False)
    message = breakers.breaker_stats_message(counts)
    assert (message.state, message.outcomes, message.failures) == (pb.BREAKER_STATE_OPEN, 20, 11)
    assert (message.since.ToMilliseconds(), message.until.ToMilliseconds()) == (1_000, 31_000)
    counts = BreakerCounts(BreakerState.HALF_OPEN, 1_000, 0, 20, 11, 2, probing=True)
    message = breakers.breaker_stats_message(counts)
    assert (message.HasField("until"), message.probes_passed, message.probing) == (False, 2, True)


def test_how_many_changed():
    assert pb.SetBreakerResponse.FromString(breakers.encode_set_breaker(3)).changed == 3
