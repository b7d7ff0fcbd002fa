"""Costs of turns: sums and coarse histograms, cheap enough to be always on.

A histogram has one bucket per power of two: `buckets[n]` counts values v with 2**(n-1) <= v < 2**n
(and bucket 0 counts zeros), in the distribution's unit.
"""

import msgspec

_BUCKETS = 40


class Distribution(msgspec.Struct, frozen=True):
    """Whole numbers since the start: their count, their sum, the largest, and the histogram."""

    count: int
    total: int
    largest: int
    buckets: tuple[int, ...]

    def at_most(self, part: float) -> int:
        """An upper bound, exact to a factor of two, of the value below which `part` of them lie."""
        seen = 0
        for bucket, count in enumerate(self.buckets):
            seen += count
            if seen >= part * self.count:
                bound: int = min(2**bucket - 1, self.largest)
                return bound
        return self.largest


class Gatherer:
    """Gathers a distribution; one thread adds."""

    __slots__ = ("_buckets", "_count", "_largest", "_total")

    def __init__(self) -> None:
        self._count = 0
        self._total = 0
        self._largest = 0
        self._buckets = [0] * _BUCKETS

    def add(self, value: int) -> None:
        self._count += 1
        self._total += value
        if value > self._largest:
            self._largest = value
        self._buckets[min(value.bit_length(), _BUCKETS - 1)] += 1

    def distribution(self) -> Distribution:
        return Distribution(self._count, self._total, self._largest, tuple(self._buckets))


class TurnStats(msgspec.Struct, frozen=True):
    """Turns that did something, since the start. Durations are in microseconds.

    `take_us` sorts requests, `append_us` packs and appends, `tick_us` is the library's, `write_us`
    puts journal rows into the transaction, `apply_us` is the machines', `commit_us` the synced
    commit, `turn_us` the whole turn. `entries`, `commands` and `bytes` count the entries appended
    in the turn.
    """

    take_us: Distribution
    append_us: Distribution
    tick_us: Distribution
    write_us: Distribution
    apply_us: Distribution
    commit_us: Distribution
    turn_us: Distribution
    entries: Distribution
    commands: Distribution
    bytes: Distribution


class TurnGatherer:
    """The raft thread's side of `TurnStats`."""

    def __init__(self) -> None:
        self._gatherers = {name: Gatherer() for name in TurnStats.__struct_fields__}

    def add(self, **values: int) -> None:
        """Adds one value to each of the named distributions."""
        for name, value in values.items():
            self._gatherers[name].add(value)

    def stats(self) -> TurnStats:
        return TurnStats(
            **{name: gatherer.distribution() for name, gatherer in self._gatherers.items()}
        )
