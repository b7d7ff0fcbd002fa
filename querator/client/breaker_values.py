"""The settings and the states of breakers of queues."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from querator.model import limits

BreakerState = Literal["closed", "open", "half_open"]
"""What the breaker of a partition does."""


class Breaker(msgspec.Struct, frozen=True):
    """When a partition of a queue stops its leases by itself. It opens when `failure_percent` (1 to
    100) of at least `outcomes_min` (1 to 1,000,000) outcomes in the last `window` (1 s to 1 day)
    are failures. It stays open for `open_time` (1 s to 1 day). Then it lets one item be leased at a
    time, and `probes` (1 to 1,000) of them that succeed one after the other close it; one that
    fails opens it again.

    A completed item is a success. An item that is retried at the cost of an attempt, rejected, or
    whose lease lapses, is a failure. Each partition counts its own items.
    """

    failure_percent: int = limits.BREAKER_PERCENT_DEFAULT
    outcomes_min: int = limits.BREAKER_OUTCOMES_DEFAULT
    window: timedelta = timedelta(milliseconds=limits.BREAKER_WINDOW_MS_DEFAULT)
    open_time: timedelta = timedelta(milliseconds=limits.BREAKER_OPEN_MS_DEFAULT)
    probes: int = limits.BREAKER_PROBES_DEFAULT


class BreakerStats(msgspec.Struct, frozen=True):
    """The breaker of one partition, which is in `state` since `since`. `until`: when an open one
    tries single items; None: it is not open. `outcomes` and `failures`: those of the window, or
    those for which it opened; 0: a single item or an operator opened it. `probes_passed`: how many
    single items have succeeded; `probing`: one is leased.
    """

    state: BreakerState
    since: datetime
    until: datetime | None
    outcomes: int
    failures: int
    probes_passed: int
    probing: bool
