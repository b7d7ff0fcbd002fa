"""The breaker of a partition: stops leases while the consumers fail, and tries single items later.

    CLOSED ──too many failures in the window──► OPEN ──open time over (HalfOpen)──► HALF_OPEN
      ▲                                          ▲                                     │ │
      │                                          └──────────────a probe fails──────────┘ │
      └───────────────────────────────enough probes succeed──────────────────────────────┘

A completed item is a success. An item that is retried at the cost of an attempt, rejected, or whose
lease lapses, is a failure. An item that is given back without counting the attempt is neither: it
frees the place of a probe, and the next single item is tried.

Only leases that were granted since the breaker closed count, and in HALF_OPEN only that of the
probe. So the late outcomes of what was leased before it opened neither open nor close it.

All follows from the log: the time is that of the entries, and the leader proposes HalfOpen when the
open time is over, as it proposes Activate. Partitions do not know of one another: what is broken
for one is broken for all, and each finds out by itself.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from querator.model.commands import Done, LeaseCaller, LeaseGrant, Refusal, SetBreaker
from querator.model.errors import ErrorCode
from querator.model.event_calls import EventKind
from querator.model.limits import BREAKER_BUCKETS
from querator.model.queues import BreakerSettings, BreakerState
from querator.partition.apply_context import ApplyContext
from querator.partition.breaker_rows import BreakerRow

Outcomes = Iterable[tuple[int, int]]
"""(lease, items)."""


def configure_breaker(context: ApplyContext, settings: BreakerSettings | None) -> None:
    """Settings that have changed take effect: counts begin at zero, an open time counts from when
    it began, and a breaker that is removed does not exist any more.
    """
    state = context.state
    before = None if context.row is None else context.row.settings.breaker
    if settings == before:
        return
    row = state.breaker
    if settings is None:
        state.breaker = None
    elif row is None:
        state.breaker = BreakerRow(since_ms=context.now_ms, first_lease=state.next_lease)
    elif row.state is BreakerState.OPEN:
        row.until_ms = row.since_ms + settings.open_ms
    elif row.state is BreakerState.CLOSED:
        row.buckets = []
    elif row.passed >= settings.probes:
        _close(context, row)


def half_open(context: ApplyContext) -> Done:
    row = context.state.breaker
    if row is None or row.state is not BreakerState.OPEN or row.until_ms > context.now_ms:
        return Done(0)
    row.state, row.since_ms, row.until_ms = BreakerState.HALF_OPEN, context.now_ms, 0
    row.probe = row.passed = 0
    _note(context, row)
    return Done(1)


def set_breaker(context: ApplyContext, command: SetBreaker) -> Done | Refusal:
    """Opening counts the open time from now on, and closing begins the counts at zero, also where
    the breaker is in that state.
    """
    row = context.state.breaker
    if row is None:
        return no_breaker(context.queue.queue)
    wanted = BreakerState.OPEN if command.open else BreakerState.CLOSED
    changed = row.state is not wanted
    if command.open:
        _open(context, row)
    else:
        _close(context, row)
    return Done(int(changed))


def no_breaker(queue: str) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_ARGUMENT,
        f"queue {queue} has no breaker: its settings do not have one",
        field="queue",
        value=queue,
    )


def admitted(row: BreakerRow, callers: list[LeaseCaller]) -> list[LeaseCaller]:
    """The callers with what they may lease; empty: nothing. While single items are tried, the first
    caller that wants any may lease one.
    """
    if row.state is BreakerState.CLOSED:
        return callers
    if not row.leasable(1):
        return []
    wanting = next((place for place, one in enumerate(callers) if one.max_items > 0), 0)
    return [
        replace(one, max_items=min(1, one.max_items) if place == wanting else 0)
        for place, one in enumerate(callers)
    ]


def leased(row: BreakerRow, grants: Iterable[LeaseGrant | Refusal]) -> None:
    """The admitted callers got `grants`."""
    if row.state is BreakerState.HALF_OPEN:
        row.probe = sum(grant.lease for grant in grants if isinstance(grant, LeaseGrant))


def succeeded(context: ApplyContext, outcomes: Outcomes) -> None:
    _count(context, outcomes, failed=False)


def failed(context: ApplyContext, outcomes: Outcomes) -> None:
    _count(context, outcomes, failed=True)


def given_back(context: ApplyContext, outcomes: Outcomes) -> None:
    """The attempts do not count."""
    row = context.state.breaker
    assert row is not None
    if row.probe and any(lease == row.probe for lease, _ in outcomes):
        row.probe = 0


def _count(context: ApplyContext, outcomes: Outcomes, *, failed: bool) -> None:
    row = context.state.breaker
    assert row is not None
    if row.state is BreakerState.OPEN:
        return
    if row.state is BreakerState.CLOSED:
        items = sum(items for lease, items in outcomes if lease >= row.first_lease)
        if items:
            _judge(context, row, items, failed=failed)
    elif row.probe and any(lease == row.probe for lease, _ in outcomes):
        if failed:
            _open(context, row)
            return
        row.probe = 0
        row.passed += 1
        if row.passed >= _settings(context).probes:
            _close(context, row)


def _judge(context: ApplyContext, row: BreakerRow, items: int, *, failed: bool) -> None:
    """Counts outcomes, and opens the breaker if too many are failures."""
    settings = _settings(context)
    bucket = bucket_at(context.now_ms, settings)
    counted = [one for one in row.buckets if one[0] > bucket - BREAKER_BUCKETS]
    if not counted or counted[-1][0] != bucket:
        counted.append([bucket, 0, 0])
    counted[-1][1] += items
    counted[-1][2] += items if failed else 0
    row.buckets = counted
    outcomes = sum(one[1] for one in counted)
    failures = sum(one[2] for one in counted)
    if outcomes >= settings.outcomes_min and 100 * failures >= settings.failure_percent * outcomes:
        _open(context, row)
        row.outcomes, row.failures = outcomes, failures


def counts(row: BreakerRow, settings: BreakerSettings, now_ms: int) -> tuple[int, int]:
    """Outcomes and failures: of the window at this time, or those for which the breaker opened."""
    if row.state is not BreakerState.CLOSED:
        return row.outcomes, row.failures
    bucket = bucket_at(now_ms, settings)
    living = [one for one in row.buckets if one[0] > bucket - BREAKER_BUCKETS]
    return sum(one[1] for one in living), sum(one[2] for one in living)


def bucket_at(now_ms: int, settings: BreakerSettings) -> int:
    return now_ms * BREAKER_BUCKETS // settings.window_ms


def redate_breaker(context: ApplyContext, ahead_ms: int) -> None:
    """State time goes back by `ahead_ms`: an open breaker stays open as long as it would have, and
    counts begin at zero.
    """
    row = context.state.breaker
    if row is None:
        return
    row.since_ms = min(row.since_ms, context.now_ms)
    row.buckets = []
    if row.state is BreakerState.OPEN:
        row.until_ms = max(context.now_ms, row.until_ms - ahead_ms)


def _open(context: ApplyContext, row: BreakerRow) -> None:
    row.state, row.since_ms = BreakerState.OPEN, context.now_ms
    row.until_ms = context.now_ms + _settings(context).open_ms
    row.buckets, row.probe, row.passed = [], 0, 0
    row.outcomes = row.failures = 0
    _note(context, row)


def _close(context: ApplyContext, row: BreakerRow) -> None:
    row.state, row.since_ms, row.until_ms = BreakerState.CLOSED, context.now_ms, 0
    row.buckets, row.probe, row.passed = [], 0, 0
    row.outcomes = row.failures = 0
    row.first_lease = context.state.next_lease
    _note(context, row)


def _note(context: ApplyContext, row: BreakerRow) -> None:
    if context.feed is not None:
        context.feed.partition(EventKind.BREAKER_CHANGED, row.state)


def _settings(context: ApplyContext) -> BreakerSettings:
    settings = context.queue.breaker
    assert settings is not None, "a partition with a breaker has settings of it"
    return settings
