"""Limits of leases: bad settings are refused by name, limit and value."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from querator.model.calls import LimitCounts
from querator.model.errors import ErrorCode, QueratorError
from querator.model.queues import RateSettings
from querator.v1 import admin_service_pb2 as pb
from querator.wire import limits, queues


def create(**settings: Any) -> queues.CreateQueueCall:
    request = pb.CreateQueueRequest(queue="mail", settings=pb.QueueSettings(**settings))
    return queues.parse_create_queue(request.SerializeToString())


def test_unset_fields_have_their_defaults():
    call = create(rate_limit=pb.RateLimit(items=7))
    assert call.settings.rate_limit == RateSettings(7, 1_000, 0)
    assert call.given == ("rate_limit",)
    assert create().settings.rate_limit is None
    assert create().settings.lease_limit == 0


def test_an_update_removes_the_limits():
    update = pb.UpdateQueueRequest(queue="mail")
    update.update_mask.paths.extend(["rate_limit", "lease_limit"])
    call = queues.parse_update_queue(update.SerializeToString())
    assert call.mask == ("rate_limit", "lease_limit")
    assert (call.settings.rate_limit, call.settings.lease_limit) == (None, 0)


@pytest.mark.parametrize(
    ("given", "field", "limit", "value"),
    [
        ({"items": 0}, "items", "1", "0"),
        ({"items": 1_000_001}, "items", "1000000", "1000001"),
        ({"items": 1, "interval": Duration()}, "interval", "1000 ms", "0 ms"),
        ({"items": 1, "interval": Duration(seconds=86_401)}, "interval", "86400000 ms",
         "86401000 ms"),
        ({"items": 1, "burst": 1_000_001}, "burst", "1000000", "1000001"),
    ],
)  # fmt: skip
def test_rates_out_of_range_are_refused_by_name(
    given: dict[str, Any], field: str, limit: str, value: str
):
    with pytest.raises(QueratorError) as caught:
        create(rate_limit=pb.RateLimit(**given))
    error = caught.value
    assert error.code is ErrorCode.LIMIT_EXCEEDED
    assert (error.field, error.limit, error.value) == (
        f"settings.rate_limit.{field}", limit, value,
    )  # fmt: skip


def test_a_lease_limit_out_of_range_is_refused_by_name():
    with pytest.raises(QueratorError) as caught:
        create(lease_limit=1_000_001)
    error = caught.value
    assert (error.field, error.limit, error.value) == (
        "settings.lease_limit", "1000000", "1000001",
    )  # fmt: skip


def test_what_limits_permit_as_a_message():
    message = limits.limit_stats_message(LimitCounts(3, 5, 7_000, 9))
    assert (message.tokens, message.burst, message.lease_limit) == (3, 5, 9)
    assert message.next_at.ToMilliseconds() == 7_000
    assert not limits.limit_stats_message(LimitCounts(0, 0, 0, 9)).HasField("next_at")
