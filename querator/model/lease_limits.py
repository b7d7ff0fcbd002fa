"""A partition's parts of the limits of its queue.

The partitions of a queue do not ask one another. Each has a part of the rate, of the burst and of
the number of items that are leased at a time, which the placement leader computes from the settings
and from the number of partitions. All parts of the rate are equal: a token of a partition costs as
many of the queue's intervals as there are partitions. The parts of the numbers differ by one at
most, and are at least 1.
"""

import msgspec

from querator.model.limits import RATE_BURST_MS_DEFAULT, RATE_BURST_MS_MIN
from querator.model.queues import QueueSettings, RateSettings


class LeaseLimits(msgspec.Struct, frozen=True, array_like=True):
    """`items` tokens come in each `interval_ms`, and up to `burst` gather; 0 items: any number may
    be leased. At most `leased_max` items are leased at a time; 0: any number.
    """

    items: int = 0
    interval_ms: int = 0
    burst: int = 0
    leased_max: int = 0


def limits_of(settings: QueueSettings, partition: int, partitions: int) -> LeaseLimits | None:
    """The limits of one of the partitions that are there; None: the queue has none."""
    rate, leased_max = settings.rate_limit, settings.lease_limit
    if not settings.has_limits:
        return None
    if leased_max:
        leased_max = part_of(leased_max, partition, partitions)
    if rate is None:
        return LeaseLimits(leased_max=leased_max)
    part = rate_part(rate, partition, partitions)
    return LeaseLimits(part.items, part.interval_ms, part.burst, leased_max)


def rate_part(rate: RateSettings, partition: int, partitions: int) -> RateSettings:
    """A partition's part of a rate, with the burst of its bucket."""
    interval_ms = rate.interval_ms * partitions
    least_ms = RATE_BURST_MS_MIN if rate.burst else RATE_BURST_MS_DEFAULT
    least = -(-rate.items * least_ms // interval_ms)
    burst = max(least, part_of(rate.burst, partition, partitions))
    return RateSettings(rate.items, interval_ms, burst)


def part_of(number: int, partition: int, partitions: int) -> int:
    """A partition's part of a number. All parts together are the number, or each is 1."""
    return max(1, number // partitions + (partition < number % partitions))
