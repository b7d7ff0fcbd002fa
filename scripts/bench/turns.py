"""How the groups of a fair queue have shared what was leased, in rounds.

In each partition groups take turns by themselves. A round of a partition is as many leased items as
the weights of its groups sum up to that still have waiting items there: each of them should get its
weight. A group that has no more items leaves the sum, so later rounds are shorter. The clock of a
partition counts these rounds: each leased item moves it by one part of the sum.

Items are in the order of their leases by the time of the leader, and not in the order in which they
come to consumers. The items of one lease are leased at once. Groups that have no backlog at the
beginning do not move the clock.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

NEARLY = 1e-9
"""Sums of fractions are not exact."""


class Leased(NamedTuple):
    """An item that was leased. Times are those of the leader of its partition."""

    partition: int
    leased_ms: float
    produced_ms: float
    group: str


class Clock:
    """The rounds of one partition, for items that come in the order of their leases."""

    def __init__(self, weights: Mapping[str, int], backlogs: Mapping[str, int]) -> None:
        self._weights = weights
        self.left = Counter(backlogs)
        self.rounds = 0.0
        self.sum = sum(weights[group] for group, count in backlogs.items() if count)

    def serve(self, group: str) -> None:
        if not self.left[group]:
            return
        self.rounds += 1 / self.sum
        self.left[group] -= 1
        if not self.left[group]:
            self.sum -= self._weights[group]


class Partition:
    """What a partition has leased. A window is `rounds` rounds; the first one begins after `start`
    rounds.

    Groups whose backlogs were produced before the first lease are in step: those of one weight get
    their items at the same parts of a round, which are multiples of one round by the weight. A
    window should begin between these parts.
    """

    def __init__(
        self,
        weights: Mapping[str, int],
        backlogs: Mapping[str, int],
        items: Iterable[Leased],
        *,
        rounds: int,
        start: float = 0.0,
    ) -> None:
        self.windows: list[tuple[Counter[str], set[str]]] = []
        """Of each whole window what was leased, and the groups that had waiting items at its
        end.
        """
        self._times: list[float] = []
        self._rounds: list[float] = []
        """The clock before each item."""
        clock = Clock(weights, backlogs)
        served: Counter[str] = Counter()
        for item in sorted(items, key=lambda item: item.leased_ms):
            self._times.append(item.leased_ms)
            self._rounds.append(clock.rounds)
            served[item.group] += clock.rounds >= start
            clock.serve(item.group)
            if clock.rounds > start + rounds * (len(self.windows) + 1) - NEARLY:
                self.windows.append((served, {group for group in weights if clock.left[group]}))
                served = Counter()
        self._rounds.append(clock.rounds)

    def wait(self, item: Leased) -> float:
        """The rounds between the produce of an item and its lease."""
        before = self._rounds[bisect_left(self._times, item.leased_ms)]
        return max(0.0, before - self._rounds[bisect_right(self._times, item.produced_ms)])


class Share(NamedTuple):
    """What a group got in a window. `deviation`: 0.05 is 5 % more than by its weight."""

    group: str
    items: int
    deviation: float


def shares(weights: Mapping[str, int], partitions: Iterable[Partition]) -> list[list[Share]]:
    """Of each window that all partitions have, the shares of the groups that had waiting items in
    all partitions at its end, among each other.
    """
    found = []
    for windows in zip(*(partition.windows for partition in partitions), strict=False):
        groups = set.intersection(*(waiting for _, waiting in windows))
        served = {group: sum(there[group] for there, _ in windows) for group in sorted(groups)}
        part = sum(served.values()) / max(1, sum(weights[group] for group in served))
        found.append(
            [
                Share(group, count, count / (weights[group] * part) - 1)
                for group, count in served.items()
            ]
        )
    return found
