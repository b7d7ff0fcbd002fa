"""Complete, retry and extend: a call is split by partition, its answers are merged by lease.

A lease id names its group, which is never reused. Whatever names a lease of another queue, or of an
earlier queue of the same name, is answered LEASE_LOST like any lease that has ended, without asking
anybody.

A partition that fails takes only its own leases down: their outcomes carry the reason (for example
OUTCOME_UNKNOWN: repeat them), the others are precise. When all that a call names fails, the call
fails.
"""

from collections.abc import Callable, Sequence

import msgspec

from querator.model.calls import (
    CompleteCall,
    ExtendOutcome,
    LeaseOutcome,
    LeaseRef,
    RetryCall,
)
from querator.model.commands import (
    Command,
    Complete,
    ExtendResult,
    LeaseItems,
    Retry,
    SettleOutcome,
)
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import (
    GroupId,
    LeaseNumber,
    PartitionNumber,
    format_lease_id,
    parse_lease_id,
)
from querator.model.queues import Queue

Settle = Callable[[tuple[LeaseItems, ...]], Command]
"""Makes the command for the leases of one partition."""


class Share(msgspec.Struct):
    """What a call asks of one partition: `leases[i]` is number `positions[i]` of the call."""

    partition: int
    leases: list[LeaseItems]
    positions: list[int]


def command_of(call: CompleteCall | RetryCall) -> Settle:
    if isinstance(call, CompleteCall):
        return lambda leases: Complete(leases, call.all_or_nothing)
    return lambda leases: Retry(
        leases,
        call.retry_at_ms,
        call.dead,
        call.error,
        call.count_attempt,
        call.all_or_nothing,
    )


def share_out(queue: Queue, leases: Sequence[LeaseRef], *, field: str) -> list[Share]:
    """By partition. Leases that cannot be this queue's are in no share: they are lost.

    Raises INVALID_ARGUMENT naming the malformed id.
    """
    shares: dict[int, Share] = {}
    groups = queue.groups
    for position, ref in enumerate(leases):
        group, partition, lease = parse_lease_id(ref.lease_id, field=field.format(position))
        if partition >= len(groups) or groups[partition] != group:
            continue
        share = shares.get(partition)
        if share is None:
            share = shares[partition] = Share(partition, [], [])
        share.leases.append(LeaseItems(lease, ref.ranges))
        share.positions.append(position)
    return list(shares.values())


def lost(ref: LeaseRef) -> LeaseOutcome:
    return LeaseOutcome(ref.lease_id, (), (), ref.ranges, ErrorCode.LEASE_LOST)


def failed(ref: LeaseRef, error: QueratorError) -> LeaseOutcome:
    """Neither done nor lost, as far as is known."""
    return LeaseOutcome(ref.lease_id, (), (), (), error.code)


def outcome_of(ref: LeaseRef, outcome: SettleOutcome) -> LeaseOutcome:
    error = ErrorCode.LEASE_LOST if outcome.unknown or outcome.lost else None
    return LeaseOutcome(ref.lease_id, outcome.done, outcome.repeated, outcome.lost, error)


def extended(
    queue: Queue, partition: int, result: ExtendResult, *, elapsed_ms: int
) -> list[ExtendOutcome]:
    """A partition's answer, in its order. `elapsed_ms`: since the command was made."""
    group = queue.groups[partition]
    return [
        ExtendOutcome(
            format_lease_id(GroupId(group), PartitionNumber(partition), LeaseNumber(lease)),
            deadline_ms,
            max(0, deadline_ms - result.now_ms - elapsed_ms) if deadline_ms else 0,
        )
        for lease, deadline_ms in result.outcomes
    ]
