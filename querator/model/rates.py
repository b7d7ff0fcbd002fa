"""Rates of a partition: how many items come and go per second, over 1, 5 and 15 minutes.

They are moving averages in which older time counts exponentially less, as the load averages of
Unix: a few numbers for each partition, however many items there are.
"""

import math

import msgspec

PERIODS_S = (60, 300, 900)
_DRAIN_PERIOD = 1
"""The time to drain is that of the rates over 5 minutes."""
_DRAIN_MS_MAX = 3_650 * 86_400_000


class ItemRates(msgspec.Struct, frozen=True, array_like=True):
    """Items per second over one period: `came`, as produces, moves and runs of recurrences bring
    them; `completed`, those acknowledged by readers included; `left`, in whatever way.
    """

    came: float
    completed: float
    left: float


class MeteredCounts(msgspec.Struct, frozen=True):
    """The counters of a partition, from which rates come."""

    came: int
    completed: int
    left: int


class Meter:
    """The rates of one partition. They are those of the time since the first sample, until that is
    longer than a period.
    """

    __slots__ = ("_age_s", "_at_s", "_sums", "_totals")

    def __init__(self, totals: MeteredCounts, now_s: float) -> None:
        self._totals = totals
        self._at_s = now_s
        self._age_s = 0.0
        self._sums = [[0.0, 0.0, 0.0] for _ in PERIODS_S]

    def sample(self, totals: MeteredCounts, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        if elapsed_s <= 0:
            return
        before, self._totals, self._at_s = self._totals, totals, now_s
        self._age_s += elapsed_s
        grown = (
            (totals.came - before.came) / elapsed_s,
            (totals.completed - before.completed) / elapsed_s,
            (totals.left - before.left) / elapsed_s,
        )
        for period_s, sums in zip(PERIODS_S, self._sums, strict=True):
            kept = math.exp(-elapsed_s / period_s)
            for place, rate in enumerate(grown):
                sums[place] = sums[place] * kept + rate * (1 - kept)

    def idle(self, now_s: float) -> None:
        """A sample of unchanged counters."""
        self.sample(self._totals, now_s)

    @property
    def rates(self) -> tuple[ItemRates, ...]:
        """One for each of PERIODS_S; empty before the second sample."""
        if not self._age_s:
            return ()
        found = []
        for period_s, sums in zip(PERIODS_S, self._sums, strict=True):
            # The part of the average that samples account for.
            weight = 1 - math.exp(-self._age_s / period_s)
            found.append(ItemRates(*(max(0.0, value / weight) for value in sums)))
        return tuple(found)


def summed(parts: list[tuple[ItemRates, ...]]) -> tuple[ItemRates, ...]:
    """The rates of several partitions together; those without rates do not count."""
    known = [rates for rates in parts if rates]
    return tuple(
        ItemRates(
            sum(one.came for one in column),
            sum(one.completed for one in column),
            sum(one.left for one in column),
        )
        for column in zip(*known, strict=True)
    )


def drain_ms(waiting: int, rates: tuple[ItemRates, ...]) -> int | None:
    """In which time `waiting` items are gone, if they continue to become fewer as in the last 5
    minutes. None: they do not become fewer, or it is not known, or takes more than ten years.
    """
    if not rates:
        return None
    if not waiting:
        return 0
    fewer = rates[_DRAIN_PERIOD].left - rates[_DRAIN_PERIOD].came
    if fewer <= 0 or waiting / fewer * 1000 > _DRAIN_MS_MAX:
        return None
    return round(waiting / fewer * 1000)
