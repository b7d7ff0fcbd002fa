"""The time of a partition in its workers."""

from types import SimpleNamespace

import pytest

from querator.durable import partition_clock
from querator.durable.partition_clock import PartitionClock

START_MS = 1_900_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its `seconds` are those of the monotonic clock."""
    clock = SimpleNamespace(seconds=500.0)
    clock.monotonic = lambda: clock.seconds
    monkeypatch.setattr(partition_clock, "time", clock)
    return clock


def test_the_time_passes_by_the_monotonic_clock(clock):
    time = PartitionClock()
    time.heard(START_MS)
    clock.seconds += 1.5
    assert time.now_ms() == START_MS + 1_500
    assert time.at_ms(503.0) == START_MS + 3_000


def test_an_answer_that_came_late_does_not_put_the_time_back(clock):
    time = PartitionClock()
    time.heard(START_MS)
    clock.seconds += 10
    time.heard(START_MS + 7_000)
    assert time.now_ms() == START_MS + 10_000


def test_a_later_answer_puts_right_what_was_heard_late(clock):
    """The worker was frozen when the first one came."""
    time = PartitionClock()
    time.heard(START_MS - 8_000)
    clock.seconds += 1
    assert time.now_ms() == START_MS - 7_000
    time.heard(START_MS + 1_000)
    assert time.now_ms() == START_MS + 1_000
