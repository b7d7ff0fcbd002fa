"""The end of leases, and how long their outcomes are remembered.

Outcomes are kept for LEASE_OUTCOME_WINDOW_MS, and up to ENDED_LEASES_MAX of them. The oldest are
forgotten first.
"""

from querator.model.limits import ENDED_LEASES_MAX, LEASE_OUTCOME_WINDOW_MS
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.lease import client_hash, request_hash
from querator.partition.rows import (
    LeaseRow,
    decode_lease,
    encode,
    numbers_of,
    numbers_to_bytes,
)
from querator.storage.tables import (
    CLIENT_LEASES,
    DEADLINES,
    ENDED,
    ENDED_ORDER,
    LEASE_REQUESTS,
    LEASES,
)


def end_lease(context: ApplyContext, lease: int, row: LeaseRow) -> None:
    """Ends a lease that holds nothing any more. Its outcomes are remembered from now on."""
    txn, group, state = context.txn, context.group, context.state
    LEASES.delete(txn, group, lease)
    DEADLINES.delete(txn, group, row.deadline_ms, lease)
    CLIENT_LEASES.delete(txn, group, client_hash(row.client_id), lease)
    state.leases -= 1
    row.deadline_ms = context.now_ms
    ENDED.put(txn, group, lease, value=encode(row))
    ENDED_ORDER.put(txn, group, context.now_ms, lease, value=b"")
    state.ended += 1
    state.cleanup_head_ms = earlier(state.cleanup_head_ms, context.now_ms + LEASE_OUTCOME_WINDOW_MS)
    if state.ended > ENDED_LEASES_MAX:
        forget_ended(context, 1, everything=True)


def forget_ended(context: ApplyContext, rows_max: int, *, everything: bool = False) -> int:
    """Forgets the oldest outcomes, up to `rows_max`: those that have left the window, or any.
    Returns their number.
    """
    txn, group = context.txn, context.group
    doomed: list[tuple[int, int]] = []
    for key, _ in ENDED_ORDER.rows(txn, group):
        ended_ms, lease = ENDED_ORDER.parts(key)
        assert isinstance(ended_ms, int)
        assert isinstance(lease, int)
        if len(doomed) == rows_max:
            break
        if not everything and ended_ms + LEASE_OUTCOME_WINDOW_MS > context.now_ms:
            break
        doomed.append((ended_ms, lease))
    for ended_ms, lease in doomed:
        raw = ENDED.get(txn, group, lease)
        assert raw is not None
        row = decode_lease(raw)
        if row.request_id:
            _forget_request(context, request_hash(row.client_id, row.request_id), lease)
        ENDED.delete(txn, group, lease)
        ENDED_ORDER.delete(txn, group, ended_ms, lease)
    context.state.ended -= len(doomed)
    return len(doomed)


def _forget_request(context: ApplyContext, request: bytes, lease: int) -> None:
    """Removes a lease from those of its request. The request is known as long as it has one."""
    row = LEASE_REQUESTS.get(context.txn, context.group, request)
    left = [number for number in numbers_of(row) if number != lease]
    if left:
        LEASE_REQUESTS.put(context.txn, context.group, request, value=numbers_to_bytes(left))
    else:
        LEASE_REQUESTS.delete(context.txn, context.group, request)
