"""What the breaker of each partition must do, decided again from the entries of its log.

    while it is open, nothing is leased
    while it is half-open, one item is leased at a time
    it opens, half-opens and closes when the outcomes in the log say so, and at no other time

The breaker is that of the reference model (`unit/partition/reference_model.py`), which shares no
code with the machine. That it never stays open is the claim of the world: after the last fault
everything is delivered in time.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from querator.model.commands import (
    Complete,
    Configure,
    Done,
    Expire,
    HalfOpen,
    LeaseGrant,
    LeaseResult,
    Retry,
    SetBreaker,
    SettleResult,
)
from querator.model.queues import BreakerSettings
from querator.partition.breaker_rows import BreakerRow
from tests.unit.partition.reference_model import Breaker, BreakerRule


class AppliedEntry(NamedTuple):
    """An entry, and what came of it. `leases` live after it, and `row` is the breaker then."""

    now_ms: int
    commands: Sequence[Any]
    results: Sequence[Any]
    leases: Collection[int]
    row: BreakerRow | None


@dataclass
class _Partition:
    breaker: Breaker | None = None
    live: dict[int, int] = field(default_factory=dict)
    """Lease to the number of items that it holds."""
    next_lease: int = 1


@dataclass
class BreakerChecker:
    """Gets all entries of each partition of the queue, in the order of the log."""

    found: list[str] = field(default_factory=list)
    opened: int = 0
    """How often a breaker has opened."""
    _partitions: dict[int, _Partition] = field(default_factory=dict)

    def applied(self, group: int, entry: AppliedEntry) -> None:
        one = self._partitions.setdefault(group, _Partition())
        before = "" if one.breaker is None else one.breaker.state
        pairs = list(zip(entry.commands, entry.results, strict=True))
        # Settings are first in an entry.
        pairs.sort(key=lambda pair: not isinstance(pair[0], Configure))
        for place, (command, result) in enumerate(pairs):
            if isinstance(command, Configure) and result == Done(1):
                self._configured(one, command.settings.breaker)
            elif one.breaker is None:
                continue
            elif isinstance(result, LeaseResult):
                self._leased(group, one, one.breaker, result)
            elif isinstance(result, SettleResult):
                self._settled(one, one.breaker, entry.now_ms, command, result)
            elif isinstance(command, Expire):
                later = [after for _, after in pairs[place:] if isinstance(after, SettleResult)]
                self._lapsed(one, one.breaker, entry, later)
            elif isinstance(command, HalfOpen):
                one.breaker.half_open(entry.now_ms)
            elif isinstance(command, SetBreaker):
                if command.open:
                    one.breaker.open(entry.now_ms)
                else:
                    one.breaker.close(one.next_lease)
        state = "" if one.breaker is None else one.breaker.state
        self.opened += state == "open" != before
        self._compare(group, one.breaker, entry.row)

    def _configured(self, one: _Partition, settings: BreakerSettings | None) -> None:
        """The queue keeps the breaker with which it was created."""
        if settings is not None and one.breaker is None:
            rule = BreakerRule(
                percent=settings.failure_percent,
                least=settings.outcomes_min,
                window=settings.window_ms,
                open=settings.open_ms,
                probes=settings.probes,
            )
            one.breaker = Breaker(rule, one.next_lease)

    def _leased(self, group: int, one: _Partition, breaker: Breaker, result: LeaseResult) -> None:
        for grant in result.grants:
            if not isinstance(grant, LeaseGrant) or grant.repeated or not grant.lease:
                continue
            may = breaker.may_lease()
            items = sum(segment.count for segment in grant.segments)
            if may is not None and items > may:
                self.found.append(
                    f"group {group}: {items} items were leased while the breaker is "
                    f"{breaker.state}, and {may} may be"
                )
            for segment in grant.segments:
                lease = segment.lease or grant.lease
                one.live[lease] = one.live.get(lease, 0) + segment.count
                one.next_lease = max(one.next_lease, lease + 1)
            if breaker.state == "half_open":
                breaker.probe = grant.lease

    def _settled(
        self, one: _Partition, breaker: Breaker, now_ms: int, command: Any, result: SettleResult
    ) -> None:
        assert isinstance(command, Complete | Retry)
        settled = _done(result)
        for lease, items in settled:
            one.live[lease] -= items
            if not one.live[lease]:
                del one.live[lease]
        failed: bool | None = False
        if isinstance(command, Retry):
            failed = command.dead or command.count_attempt or None
        breaker.outcome(now_ms, settled, failed, one.next_lease)

    def _lapsed(
        self,
        one: _Partition,
        breaker: Breaker,
        entry: AppliedEntry,
        later: Sequence[SettleResult],
    ) -> None:
        """Leases are gone that the rest of the entry has not settled."""
        settled = {lease for result in later for lease, _ in _done(result)}
        for lease in sorted(one.live):
            if lease not in entry.leases and lease not in settled:
                held = [(lease, one.live.pop(lease))]
                breaker.outcome(entry.now_ms, held, True, one.next_lease)

    def _compare(self, group: int, breaker: Breaker | None, row: BreakerRow | None) -> None:
        expected = breaker and (breaker.state, breaker.until, breaker.passed, breaker.probe)
        there = row and (row.state.name.lower(), row.until_ms, row.passed, row.probe)
        if expected != there:
            self.found.append(
                f"group {group}: the breaker is {there}, and {expected} by the outcomes"
            )


def _done(result: SettleResult) -> list[tuple[int, int]]:
    """(lease, items) of what a command has settled, and did not repeat."""
    return [
        (outcome.lease, sum(count for _, count in outcome.done))
        for outcome in result.outcomes
        if outcome.done
    ]
