"""Extend: moves deadlines to a later time, never to an earlier one.

Without a timeout in the command, a lease lasts for its items' own lease timeout again, if they were
leased for that, else for the queue's.
"""

from querator.model.commands import Extend, ExtendResult, Refusal
from querator.model.errors import ErrorCode
from querator.model.limits import APPLY_SEGMENTS_MAX
from querator.partition.apply_context import ApplyContext
from querator.partition.lease import client_hash, deadline_after
from querator.partition.rows import decode_lease, encode
from querator.storage.tables import CLIENT_LEASES, DEADLINES, LEASES


def extend(context: ApplyContext, command: Extend) -> ExtendResult | Refusal:
    """Extends leases. A client with more leases than one command may touch is refused, not served
    in part.
    """
    timeout_ms = command.lease_timeout_ms
    if command.leases:
        return ExtendResult(
            tuple(
                (lease, _extend_one(context, lease, timeout_ms, None)) for lease in command.leases
            ),
            context.now_ms,
        )
    prefix = client_hash(command.client_id)
    leases: list[int] = []
    for key, _ in CLIENT_LEASES.rows(context.txn, context.group, prefix):
        if len(leases) == APPLY_SEGMENTS_MAX:
            return Refusal(
                ErrorCode.LIMIT_EXCEEDED,
                f"client {command.client_id!r} holds more than {APPLY_SEGMENTS_MAX} leases of the "
                "partition; name the leases",
                field="lease_ids",
                limit=str(APPLY_SEGMENTS_MAX),
            )
        leases.append(int.from_bytes(key[-8:], "big"))
    extended = [
        (lease, _extend_one(context, lease, timeout_ms, command.client_id)) for lease in leases
    ]
    return ExtendResult(
        tuple((lease, end_ms) for lease, end_ms in extended if end_ms), context.now_ms
    )


def _extend_one(context: ApplyContext, lease: int, timeout_ms: int, client_id: str | None) -> int:
    """The deadline of a lease after the command. 0 if the lease is lost, or is not the client's."""
    txn, group = context.txn, context.group
    raw = LEASES.get(txn, group, lease) if lease > 0 else None
    if raw is None:
        return 0
    row = decode_lease(raw)
    if client_id is not None and row.client_id != client_id:
        return 0
    deadline_ms = deadline_after(
        context, timeout_ms or row.timeout_ms or context.queue.lease_timeout_ms
    )
    if deadline_ms > row.deadline_ms:
        DEADLINES.delete(txn, group, row.deadline_ms, lease)
        DEADLINES.put(txn, group, deadline_ms, lease, value=b"")
        row.deadline_ms, row.since_ms = deadline_ms, context.now_ms
        LEASES.put(txn, group, lease, value=encode(row))
    return row.deadline_ms
