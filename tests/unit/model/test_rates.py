"""Rates as moving averages, and the time until waiting items are gone."""

import pytest

from querator.model.rates import ItemRates, Meter, MeteredCounts, drain_ms, summed


def steady(seconds: int, *, came: int, completed: int, left: int) -> Meter:
    """Samples every 5 s of counters that grow by these numbers per second."""
    meter = Meter(MeteredCounts(0, 0, 0), 0.0)
    for now in range(5, seconds + 1, 5):
        meter.sample(MeteredCounts(came * now, completed * now, left * now), float(now))
    return meter


def test_the_first_sample_is_no_rate():
    assert Meter(MeteredCounts(7, 7, 7), 3.0).rates == ()


@pytest.mark.parametrize("seconds", [5, 60, 3_600])
def test_steady_rates_are_right_from_the_second_sample_on(seconds: int):
    for rates in steady(seconds, came=100, completed=40, left=50).rates:
        assert (rates.came, rates.completed, rates.left) == pytest.approx((100, 40, 50))


def test_longer_periods_follow_a_change_more_slowly():
    meter = steady(3_600, came=100, completed=0, left=0)
    for now in range(3_605, 3_665, 5):
        meter.idle(float(now))
    found = [rates.came for rates in meter.rates]
    # After a minute without items: e to the power of -1, -1/5 and -1/15.
    assert found == pytest.approx([36.8, 81.9, 93.6], abs=0.3)


def test_a_late_sample_counts_for_its_whole_time():
    meter = Meter(MeteredCounts(0, 0, 0), 0.0)
    meter.sample(MeteredCounts(600, 0, 0), 60.0)
    assert meter.rates[0].came == pytest.approx(10)
    meter.sample(MeteredCounts(900, 0, 0), 60.0)
    assert meter.rates[0].came == pytest.approx(10)


def test_partitions_without_rates_do_not_count_in_the_sum():
    one = (ItemRates(1, 2, 3), ItemRates(4, 5, 6), ItemRates(7, 8, 9))
    assert summed([one, (), one]) == (
        ItemRates(2, 4, 6),
        ItemRates(8, 10, 12),
        ItemRates(14, 16, 18),
    )
    assert summed([(), ()]) == ()


@pytest.mark.parametrize(
    ("waiting", "came", "left", "expected"),
    [
        (0, 5, 0, 0),
        (100, 0, 10, 10_000),
        (100, 5, 10, 20_000),
        (100, 10, 10, None),
        (100, 20, 10, None),
        (10**12, 0, 1, None),
    ],
)
def test_the_time_to_drain(waiting: int, came: float, left: float, expected: int | None):
    rates = (ItemRates(0, 0, 0), ItemRates(came, 0, left), ItemRates(0, 0, 0))
    assert drain_ms(waiting, rates) == expected
    assert drain_ms(waiting, ()) is None
