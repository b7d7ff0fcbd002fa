"""What the limits of each partition must permit, decided again from the entries of its log.

    in any time, no more items are leased than tokens come in it and the largest burst of that time
    after a lease, no more items are leased than may be at a time
    a partition with ready items, a token and a place reports an item to consumers
    a partition whose ready items lack only a token knows when one comes
    of each group or key with a rate, no more items are leased in any time than its tokens and burst

The checker knows tokens only as a sum over time, and counts leased items in the tables. That the
reports wake consumers is the claim of the world: after the last fault everything is delivered in
time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from querator.model.commands import Configure, Done, FlowSettings, LeaseGrant, LeaseResult
from querator.model.lease_limits import LeaseLimits
from querator.model.queues import RateSettings


class LimitedEntry(NamedTuple):
    """An entry, and what came of it: after it, `ready` items, of which `reported` may be leased,
    `leased` ones, and `next_ms`, when tokens come. `lease_paused` is the setting.
    """

    now_ms: int
    commands: Sequence[Any]
    results: Sequence[Any]
    ready: int
    leased: int
    reported: int
    next_ms: int
    lease_paused: bool = False
    flows: FlowSettings | None = None
    """Those of a fair or keyed queue, whose `ready` are those that its flows let be leased."""
    names: Sequence[str] = ()
    """Of the items that were leased, the groups or keys."""


class _Grant(NamedTuple):
    come: Fraction
    """All tokens that had come when the items were leased."""
    items: int
    burst: int
    """The largest one since the grant before."""


@dataclass
class _Partition:
    limits: LeaseLimits | None = None
    now_ms: int = 0
    come: Fraction = Fraction(0)
    """All tokens that have come since there is a bucket."""
    grants: list[_Grant] = field(default_factory=list)
    burst: int = 0
    """The largest one since the last grant."""
    flow_rate: RateSettings | None = None
    flow_leases: dict[str, list[int]] = field(default_factory=dict)
    """By group or key: the instants at which items were leased, since its rate is the same."""


@dataclass
class LimitChecker:
    """Gets all entries of each partition of the queue, in the order of the log."""

    found: list[str] = field(default_factory=list)
    kept_back: int = 0
    """After how many entries items waited for a token or a place."""
    _partitions: dict[int, _Partition] = field(default_factory=dict)

    def applied(self, group: int, entry: LimitedEntry) -> None:
        one = self._partitions.setdefault(group, _Partition())
        if entry.now_ms < one.now_ms:
            # Time was put back: nothing is known of the tokens.
            one.grants, one.flow_leases = [], {}
        elif one.limits is not None and one.limits.items:
            passed_ms = entry.now_ms - one.now_ms
            one.come += Fraction(passed_ms * one.limits.items, one.limits.interval_ms)
        one.now_ms = entry.now_ms
        for command, result in zip(entry.commands, entry.results, strict=True):
            # Settings are first in an entry.
            if isinstance(command, Configure) and result == Done(1):
                self._configured(one, command.settings.limits)
        self._flows_leased(group, one, entry)
        items = sum(_granted(result) for result in entry.results if isinstance(result, LeaseResult))
        if one.limits is None:
            return
        if items:
            self._leased(group, one, one.limits, items, entry.leased)
        self._reported(group, one, one.limits, entry)

    def _flows_leased(self, group: int, one: _Partition, entry: LimitedEntry) -> None:
        rate = None if entry.flows is None else entry.flows.rate_limit
        if rate != one.flow_rate:
            one.flow_rate, one.flow_leases = rate, {}
        if rate is None:
            return
        for name in entry.names:
            parts = name.split(".") if name else []
            for depth in range(len(parts)):
                flow = ".".join(parts[: depth + 1])
                instants = one.flow_leases.setdefault(flow, [])
                instants.append(entry.now_ms)
                for taken, since_ms in enumerate(reversed(instants), 1):
                    come = Fraction((entry.now_ms - since_ms) * rate.items, rate.interval_ms)
                    if taken > come + rate.burst:
                        self.found.append(
                            f"group {group}: {taken} items of {flow} were leased in a time of "
                            f"{float(come):.2f} tokens and a burst of {rate.burst}"
                        )
                        return

    def _configured(self, one: _Partition, limits: LeaseLimits | None) -> None:
        if limits is None or not limits.items:
            one.grants, one.burst = [], 0
        else:
            one.burst = max(one.burst, limits.burst)
        one.limits = limits

    def _leased(
        self, group: int, one: _Partition, limits: LeaseLimits, items: int, leased: int
    ) -> None:
        if limits.leased_max and leased > limits.leased_max:
            self.found.append(
                f"group {group}: {leased} items are leased, and {limits.leased_max} may be"
            )
        if not limits.items:
            return
        one.grants.append(_Grant(one.come, items, max(one.burst, limits.burst)))
        one.burst = limits.burst
        taken = burst = 0
        for grant in reversed(one.grants):
            taken += grant.items
            burst = max(burst, grant.burst)
            if taken > one.come - grant.come + burst:
                self.found.append(
                    f"group {group}: {taken} items were leased in a time of "
                    f"{float(one.come - grant.come):.2f} tokens and a burst of {burst}"
                )
                return

    def _reported(
        self, group: int, one: _Partition, limits: LeaseLimits, entry: LimitedEntry
    ) -> None:
        has_place = not limits.leased_max or entry.leased < limits.leased_max
        if not entry.ready or entry.lease_paused:
            return
        if entry.reported:
            return
        self.kept_back += 1
        if has_place and not limits.items:
            self.found.append(f"group {group}: {entry.ready} items wait, and there are places")
        elif has_place and entry.next_ms <= entry.now_ms:
            self.found.append(f"group {group}: {entry.ready} items wait for tokens for ever")
        elif has_place and self._certain(one, limits) >= 1:
            self.found.append(f"group {group}: {entry.ready} items wait, and there are tokens")

    def _certain(self, one: _Partition, limits: LeaseLimits) -> Fraction:
        """The tokens that have come since the last grant, of which all that fit are there."""
        since = one.come - one.grants[-1].come if one.grants else Fraction(0)
        return min(since, Fraction(limits.burst))


def _granted(result: LeaseResult) -> int:
    return sum(
        segment.count
        for grant in result.grants
        if isinstance(grant, LeaseGrant) and not grant.repeated
        for segment in grant.segments
    )
