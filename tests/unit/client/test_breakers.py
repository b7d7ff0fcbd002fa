"""Breakers in the SDK: settings that are wrong are named before anything is sent."""

from datetime import timedelta
from typing import Any

import pytest

from querator import Breaker
from querator.client.admin import settings_message
from querator.client.breakers import breaker_settings, breaker_stats
from querator.v1 import admin_service_pb2 as pb


def test_settings_survive_the_way_there_and_back():
    breaker = Breaker(
        failure_percent=1,
        outcomes_min=2,
        window=timedelta(seconds=3),
        open_time=timedelta(seconds=4),
        probes=5,
    )
    assert breaker_settings(settings_message({"breaker": breaker})) == breaker


def test_none_is_no_breaker():
    message = settings_message({"breaker": None})
    assert not message.HasField("breaker")
    assert breaker_settings(message) is None
    assert breaker_stats(pb.PartitionStats()) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"failure_percent": 0}, "breaker.failure_percent is 0; it must be from 1 to 100"),
        ({"failure_percent": 101}, "breaker.failure_percent is 101; it must be from 1 to 100"),
        ({"outcomes_min": 0}, "breaker.outcomes_min is 0; it must be from 1 to 1000000"),
        ({"probes": 1_001}, "breaker.probes is 1001; it must be from 1 to 1000"),
        ({"window": timedelta(milliseconds=999)}, "breaker.window is 0:00:00.999000; it must be"),
        ({"open_time": timedelta(days=2)}, "breaker.open_time is 2 days, 0:00:00; it must be"),
        ({"open_time": timedelta(seconds=-1)}, "breaker.open_time is -1 day, 23:59:59"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        settings_message({"breaker": Breaker(**changes)})


@pytest.mark.parametrize(
    ("breaker", "says"),
    [
        (True, "breaker is True; it must be a Breaker"),
        (Breaker(failure_percent=0.5), "breaker.failure_percent"),  # type: ignore[arg-type]
        (Breaker(window=60), "breaker.window"),  # type: ignore[arg-type]
    ],
)
def test_values_of_other_types_are_named(breaker: Any, says: str):
    with pytest.raises(TypeError, match=says):
        settings_message({"breaker": breaker})
