"""A partition's parts of the limits of its queue."""

from hypothesis import given
from hypothesis import strategies as st

from querator.model.lease_limits import LeaseLimits, limits_of, part_of
from querator.model.limits import PARTITIONS_MAX, RATE_BURST_MS_MIN
from querator.model.queues import QueueSettings, RateSettings


def test_a_queue_without_limits_has_none():
    assert limits_of(QueueSettings(), 0, 1) is None


def test_one_partition_has_the_limits_of_the_queue():
    settings = QueueSettings(rate_limit=RateSettings(100, 1_000, 30), lease_limit=7)
    assert limits_of(settings, 0, 1) == LeaseLimits(100, 1_000, 30, 7)


def test_partitions_share_the_rate_and_the_numbers():
    settings = QueueSettings(rate_limit=RateSettings(10, 1_000, 5), lease_limit=7, partitions=4)
    parts = [limits_of(settings, partition, 4) for partition in range(4)]
    assert parts == [LeaseLimits(10, 4_000, *one) for one in ((2, 2), (1, 2), (1, 2), (1, 1))]


def test_a_bucket_holds_the_tokens_of_a_short_time():
    settings = QueueSettings(rate_limit=RateSettings(1_000, 1_000, 1))
    assert limits_of(settings, 0, 1) == LeaseLimits(1_000, 1_000, RATE_BURST_MS_MIN)


def test_without_a_burst_a_bucket_holds_the_tokens_of_a_second():
    settings = QueueSettings(rate_limit=RateSettings(1_000, 2_000))
    assert limits_of(settings, 0, 1) == LeaseLimits(1_000, 2_000, 500)
    assert limits_of(settings, 3, 7) == LeaseLimits(1_000, 14_000, 72)


def test_a_lease_limit_alone_is_no_bucket():
    assert limits_of(QueueSettings(lease_limit=3), 0, 1) == LeaseLimits(leased_max=3)


@given(st.integers(1, 1_000_000), st.integers(1, PARTITIONS_MAX))
def test_all_parts_are_the_number_or_each_is_one(number: int, partitions: int):
    parts = [part_of(number, partition, partitions) for partition in range(partitions)]
    assert sum(parts) == max(number, partitions)
    assert max(parts) - min(parts) <= 1
