"""Limits of leases in the SDK: settings that are wrong are named before anything is sent."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from querator import FairGroup, RateLimit
from querator.client import LimitStats
from querator.client.admin import settings_message
from querator.client.groups import group_messages, group_settings
from querator.client.limits import limit_stats, rate_limit
from querator.v1 import admin_service_pb2 as pb


def test_settings_survive_the_way_there_and_back():
    rate = RateLimit(10, timedelta(minutes=1), 3)
    assert rate_limit(settings_message({"rate_limit": rate}), "rate_limit") == rate
    for name in ("group_rate_limit", "key_rate_limit"):
        assert rate_limit(settings_message({name: rate}), name) == rate
    [group] = group_messages([FairGroup("eu", rate_limit=rate)])
    assert group_settings(group) == FairGroup("eu", rate_limit=rate)
    assert settings_message({"lease_limit": 7}).lease_limit == 7


def test_none_is_no_limit():
    message = settings_message({"rate_limit": None})
    assert not message.HasField("rate_limit")
    assert rate_limit(message, "rate_limit") is None
    assert limit_stats(pb.PartitionStats()) is None


def test_what_limits_permit():
    stats = pb.PartitionStats(limits=pb.LimitStats(tokens=1, burst=2, lease_limit=3))
    assert limit_stats(stats) == LimitStats(1, 2, None, 3)
    stats.limits.next_at.CopyFrom(Timestamp(seconds=4))
    assert limit_stats(stats) == LimitStats(1, 2, datetime.fromtimestamp(4, UTC), 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"items": 0}, "rate_limit.items is 0; it must be from 1 to 1000000"),
        ({"burst": -1}, "rate_limit.burst is -1; it must be from 0 to 1000000"),
        ({"interval": timedelta(milliseconds=999)}, "rate_limit.interval is 0:00:00.999000; it"),
        ({"interval": timedelta(days=2)}, "rate_limit.interval is 2 days, 0:00:00; it must be"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, Any], says: str):
    rate = RateLimit(**({"items": 1} | changes))
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        settings_message({"rate_limit": rate})


def test_the_rate_of_a_group_is_named():
    with pytest.raises(ValueError, match=r"groups\[0\]\.rate_limit\.items is 0; it must be from 1"):
        group_messages([FairGroup("eu", rate_limit=RateLimit(0))])
    with pytest.raises(TypeError, match="key_rate_limit is 3; it must be a RateLimit"):
        settings_message({"key_rate_limit": 3})


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        (10, "rate_limit is 10; it must be a RateLimit"),
        (RateLimit(0.5), "rate_limit.items"),  # type: ignore[arg-type]
        (RateLimit(1, 60), "rate_limit.interval"),  # type: ignore[arg-type]
    ],
)
def test_values_of_other_types_are_named(rate: Any, says: str):
    with pytest.raises(TypeError, match=says):
        settings_message({"rate_limit": rate})
