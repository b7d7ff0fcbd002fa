"""The settings of limits of leases, and what they permit."""

from datetime import datetime, timedelta

import msgspec


class RateLimit(msgspec.Struct, frozen=True):
    """How many items of a queue are leased in a time at most: `items` (1 to 1,000,000) in each
    `interval` (1 s to 1 day), evenly over the time. `burst` (0 to 1,000,000): how many can be
    leased at once after a time without leases; 0: those of 1 s.

    The partitions of the queue share the rate and the burst. Each has an equal part of the rate,
    and a burst of one item and of the items of 200 ms at least.
    """

    items: int
    interval: timedelta = timedelta(seconds=1)
    burst: int = 0


class LimitStats(msgspec.Struct, frozen=True):
    """What the limits of its queue let one partition lease: `tokens` items, of `burst` at most (0:
    there is no rate limit). `next_at`: when the next tokens come that ready items wait for; None:
    none waits. `lease_limit`: how many items may be leased at a time; 0: any number.
    """

    tokens: int
    burst: int
    next_at: datetime | None
    lease_limit: int
