"""The counts of `make due`: order within a partition, lateness, repeated deliveries."""

import pytest

from scripts.bench.due import Deliveries, percentile


def test_items_of_one_partition_must_come_by_time():
    deliveries = Deliveries([1000, 2000, 3000])
    deliveries.deliver(1, 0, 2001)
    deliveries.deliver(0, 0, 2002)
    deliveries.deliver(2, 0, 3001)
    assert deliveries.out_of_order == 1
    assert deliveries.lateness_ms == [1, 1002, 1]


def test_partitions_have_no_common_order():
    deliveries = Deliveries([1000, 2000])
    deliveries.deliver(1, 0, 2001)
    deliveries.deliver(0, 1, 2002)
    assert deliveries.out_of_order == 0


def test_items_of_one_time_have_any_order():
    deliveries = Deliveries([1000, 1000])
    deliveries.deliver(1, 0, 1001)
    deliveries.deliver(0, 0, 1001)
    assert deliveries.out_of_order == 0


def test_a_repeated_delivery_counts_apart_and_missing_items_are_counted():
    deliveries = Deliveries([1000, 2000])
    deliveries.deliver(0, 0, 1001)
    deliveries.deliver(0, 0, 9000)
    assert (deliveries.again, deliveries.missing, deliveries.lateness_ms) == (1, 1, [1])


def test_an_item_that_comes_before_its_time_is_counted():
    deliveries = Deliveries([1000])
    deliveries.deliver(0, 0, 999.5)
    assert deliveries.early == 1


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_percentile_is_one_of_the_values(share: float, value: float):
    assert percentile([float(one) for one in range(100, 0, -1)], share) == value
