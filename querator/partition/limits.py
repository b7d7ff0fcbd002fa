"""The limits of the leases of a partition: a token bucket, and a number of items at a time.

Each leased item takes a token, and none gives it back: a retried or released item takes another one
with its next lease. A repeated lease request takes none. The bucket holds up to `burst` tokens, and
is full when its queue gets a rate limit. The time is that of the log's entries: replicas and later
leaders know the same, and nothing is read from a clock.

An item has its place among the leased ones until its lease ends, in whatever way.

A partition without tokens, or without a place, reports 0 items that can be leased, as during a
pause: consumers wait, and nothing polls. The entry that frees a place reports it. When ready items
wait for tokens, the leader proposes Refill once they are there, as it proposes Activate. It does
not while nothing is ready.

Readers of batches take neither tokens nor places.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from querator.model.commands import LeaseCaller, LeaseGrant, Refusal
from querator.model.fair_shares import fair_shares
from querator.model.lease_limits import LeaseLimits
from querator.partition.apply_context import ApplyContext
from querator.partition.flows import ROOT
from querator.partition.limit_rows import LimitRow


def configure_limits(context: ApplyContext, settings: LeaseLimits | None) -> None:
    """Limits that have changed take effect. A bucket keeps its tokens, up to its new burst. Leases
    above a lower number continue.
    """
    state = context.state
    row, now_ms = state.limits, context.now_ms
    if settings is None:
        state.limits = None
        return
    level = most = settings.burst * settings.interval_ms
    if row is not None and row.items and settings.items:
        level = min(row.level_at(now_ms) * settings.interval_ms // row.interval_ms, most)
    state.limits = LimitRow(
        items=settings.items,
        interval_ms=settings.interval_ms,
        burst=settings.burst,
        leased_max=settings.leased_max,
        level=level,
        at_ms=now_ms,
    )


def admitted(context: ApplyContext, row: LimitRow, callers: list[LeaseCaller]) -> list[LeaseCaller]:
    """The callers with what they may lease; empty: nothing."""
    wishes = [max(0, caller.max_items) for caller in callers]
    wanted = sum(wishes)
    may = row.leasable(wanted, context.state.leased, context.now_ms)
    if may == wanted:
        return callers
    if not may:
        return []
    shares = fair_shares(wishes, may)
    return [replace(caller, max_items=share) for caller, share in zip(callers, shares, strict=True)]


def leased(context: ApplyContext, row: LimitRow, grants: Iterable[LeaseGrant | Refusal]) -> None:
    """The admitted callers got `grants`."""
    if not row.items:
        return
    items = sum(
        segment.count
        for grant in grants
        if isinstance(grant, LeaseGrant)
        for segment in grant.segments
    )
    row.level = row.level_at(context.now_ms) - items * row.interval_ms
    row.at_ms = context.now_ms


def redate_limits(context: ApplyContext) -> None:
    """State time goes back: the buckets keep the tokens that they had. Those of flows follow in the
    review of all flows.
    """
    row = context.state.limits
    if context.flows is not None and context.flows.rated:
        context.state.review_flow = ROOT
    if row is not None:
        row.at_ms = min(row.at_ms, context.now_ms)
