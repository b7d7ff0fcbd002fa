"""Checkers: what clients saw, and what that must not contain.

They read histories only, nothing internal. Items are named by their reference, which the load makes
unique. Times are seconds of one monotonic clock of the test process.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Delivery:
    """One item in one lease reply. The lease was live from some moment in [asked_s, got_s] on."""

    reference: str
    lease_id: str
    attempt: int
    asked_s: float
    got_s: float


@dataclass(slots=True)
class Completion:
    """An answered complete of one item; `repeated`: the server says that it was done before."""

    reference: str
    lease_id: str
    asked_s: float
    answered_s: float
    repeated: bool


@dataclass(slots=True)
class History:
    acknowledged: set[str] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    lost_leases: int = 0
    unsettled: set[tuple[str, str]] = field(default_factory=set)
    """(reference, lease) of completes whose outcome the client never learned."""

    def violations(self) -> list[str]:
        """Sentences, one for each thing that must not be. Call it after a drain: the queue is
        empty.
        """
        return [
            *self._lost(),
            *self._duplicated_in_store(),
            *self._completed_twice(),
            *self._came_back(),
            *self._attempts(),
        ]

    def _lost(self) -> list[str]:
        ended = {c.reference for c in self.completions} | {r for r, _ in self.unsettled}
        return [f"{r}: acknowledged, but lost" for r in sorted(self.acknowledged - ended)]

    def _duplicated_in_store(self) -> list[str]:
        """The same attempt of an item is granted under one lease only."""
        leases: dict[tuple[str, int], set[str]] = defaultdict(set)
        for d in self.deliveries:
            leases[d.reference, d.attempt].add(d.lease_id)
        return [
            f"{reference}: attempt {attempt} under {len(ids)} leases"
            for (reference, attempt), ids in sorted(leases.items())
            if len(ids) > 1
        ]

    def _completed_twice(self) -> list[str]:
        """At most one complete is accepted; others must be marked as repeats of the same lease."""
        firsts = Counter(c.reference for c in self.completions if not c.repeated)
        by_lease: dict[str, set[str]] = defaultdict(set)
        for c in self.completions:
            by_lease[c.reference].add(c.lease_id)
        return [f"{r}: {n} completes accepted" for r, n in sorted(firsts.items()) if n > 1] + [
            f"{r}: completed under {len(ids)} leases"
            for r, ids in sorted(by_lease.items())
            if len(ids) > 1
        ]

    def _came_back(self) -> list[str]:
        """Nothing is delivered by a request that was made after its complete was answered."""
        ended: dict[str, float] = {}
        for c in self.completions:
            ended[c.reference] = min(c.answered_s, ended.get(c.reference, c.answered_s))
        return [
            f"{d.reference}: delivered (attempt {d.attempt}) after it was completed"
            for d in self.deliveries
            if d.reference in ended and d.asked_s > ended[d.reference]
        ]

    def _attempts(self) -> list[str]:
        """Attempts of an item grow in the order of its deliveries."""
        last: dict[str, tuple[int, float]] = {}
        found = []
        for d in sorted(self.deliveries, key=lambda d: d.got_s):
            attempt, asked = last.get(d.reference, (0, 0.0))
            if d.attempt < attempt and d.asked_s > asked:
                found.append(f"{d.reference}: attempt {d.attempt} after attempt {attempt}")
            last[d.reference] = (max(attempt, d.attempt), d.got_s)
        return found
