"""Reads of the live leases of a partition for operators, in a view of the generation in use."""

import msgspec

from querator.model.lease_calls import LeaseSummary
from querator.partition import masks
from querator.partition.lease import client_hash
from querator.partition.queries import SCAN_ROWS_MAX
from querator.partition.rows import LeaseRow, decode_lease, decode_state
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import CLIENT_LEASES, LEASES, STATE


class LeaseSummaries(msgspec.Struct, frozen=True):
    """Live leases in the order of their grants. `after_lease` is where the next page continues; 0:
    there is none.
    """

    leases: tuple[LeaseSummary, ...]
    after_lease: int


def lease_summaries(
    txn: ReadTransaction,
    group: int,
    *,
    client_id: str,
    older_than_ms: int,
    after_lease: int,
    limit: int,
) -> LeaseSummaries:
    """Live leases after a number: those of a client (empty: of all), granted this long ago or
    earlier. A page has up to `limit` leases, and may have fewer without being the last one.
    """
    txn = generations.view(txn, group)
    raw = STATE.get(txn, group)
    until_ms = 0 if raw is None else decode_state(raw).now_ms - older_than_ms
    if client_id:
        hashed = client_hash(client_id)
        start = CLIENT_LEASES.key(group, hashed, after_lease + 1)
        stop = CLIENT_LEASES.bounds(group, hashed)[1]
    else:
        start, stop = LEASES.key(group, after_lease + 1), LEASES.bounds(group)[1]
    found: list[LeaseSummary] = []
    scanned = last = 0
    for key, value in txn.scan(start, stop):
        if scanned >= SCAN_ROWS_MAX or len(found) >= limit:
            return LeaseSummaries(tuple(found), last)
        scanned += 1
        last = int.from_bytes(key[-8:], "big")
        row = LEASES.get(txn, group, last) if client_id else value
        assert row is not None, "a lease of a client lives"
        lease = decode_lease(row)
        # A lease may seem to be of a later time, after a repair of time.
        is_old = not older_than_ms or lease.leased_ms <= until_ms
        if is_old and client_id in ("", lease.client_id):
            found.append(_summary(last, lease))
    return LeaseSummaries(tuple(found), 0)


def _summary(number: int, lease: LeaseRow) -> LeaseSummary:
    return LeaseSummary(
        lease=number,
        client_id=lease.client_id,
        granted_at_ms=lease.leased_ms,
        extended_at_ms=lease.since_ms,
        deadline_ms=lease.deadline_ms,
        items=sum(masks.from_bytes(one.held).bit_count() for one in lease.items),
    )
