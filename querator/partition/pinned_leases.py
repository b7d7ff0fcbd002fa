"""LeasePinned: pinned executions continue with a worker whose version of their function may fit.

They get activations, which are leased at once, so that no other worker comes between. A command
leases up to EXECUTION_FIRES_MAX of them, whatever number waits. What pauses leases, the breaker and
the limits of the queue hold as for other leases. If the worker does not run them after all, they
are pinned again: with what it has refused, or when its lease lapses.
"""

from querator.model.commands import Lease, LeaseCaller, LeaseGrant, Refusal
from querator.model.execution_commands import LeasePinned, PinnedLease
from querator.model.limits import EXECUTION_FIRES_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext
from querator.partition.executions import (
    ExecutionEvent,
    activate,
    load_execution,
    place_activations,
    put_execution,
    unpin,
)
from querator.partition.lease import admitted, granted_before, lease
from querator.partition.pins import waiting_under


def lease_pinned(context: ApplyContext, command: LeasePinned) -> PinnedLease | Refusal:
    most = min(command.most, EXECUTION_FIRES_MAX)
    caller = LeaseCaller(
        command.client_id, command.request_id, most, 0, command.lease_timeout_ms
    )  # fmt: skip
    before = granted_before(context, caller) if caller.request_id else None
    if before is not None:
        return before if isinstance(before, Refusal) else _answer(context, before)
    seqs: list[int] = []
    if not context.state.lease_paused:
        for one in admitted(context, [caller]):
            seqs = _activated(context, command.pins, one.max_items)
    if not seqs:
        return PinnedLease(0, 0, context.now_ms)
    named = masks.merge_ranges((seq, 1) for seq in seqs)
    [grant] = lease(context, Lease((caller,), named=named)).grants
    return grant if isinstance(grant, Refusal) else _answer(context, grant)


def _activated(context: ApplyContext, pins: tuple[bytes, ...], most: int) -> list[int]:
    """Activations of the first executions that wait under these pins."""
    seqs: list[int] = []
    for key in pins:
        for number in waiting_under(context.txn, context.group, key, most - len(seqs)):
            row = load_execution(context, number)
            assert row is not None, "what waits under a pin is there"
            unpin(context, row, ExecutionEvent.TAKE)
            activate(context, number, row)
            put_execution(context, number, row)
            seqs.append(row.activation)
    place_activations(context)
    return seqs


def _answer(context: ApplyContext, grant: LeaseGrant) -> PinnedLease:
    activations = tuple(
        (segment.first_seq + ordinal, segment.attempt)
        for segment in grant.segments
        for ordinal in masks.ordinals(segment.mask)
    )
    return PinnedLease(grant.lease, grant.deadline_ms, context.now_ms, activations)
