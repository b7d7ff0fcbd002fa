"""Reads of the flows of a partition for other threads, in a view of the generation in use."""

from collections.abc import Iterator

import msgspec

from querator.model.calls import FlowCounts
from querator.partition.flow_rows import FlowRow, decode_flow
from querator.partition.rows import RowState
from querator.partition.segments import load_block, load_segment
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import FLOW_NAMES, FLOW_READY, FLOWS


class FlowPage(msgspec.Struct, frozen=True):
    """Flows in the order of the hashes of their names, which is the same in all partitions. `after`
    is the hash after which the next page starts; empty: there is none.
    """

    flows: tuple[FlowCounts, ...]
    after: bytes


def flow_page(txn: ReadTransaction, group: int, *, after: bytes, limit: int) -> FlowPage:
    """Up to `limit` flows of a fair or keyed queue, after the one of a hash (16 bytes; empty: from
    the first). Flows of one hash are on one page.
    """
    assert limit > 0
    txn = generations.view(txn, group)
    start, stop = FLOW_NAMES.bounds(group)
    if after:
        start = FLOW_NAMES.bounds(group, after)[1]
    found: list[tuple[bytes, int, bytes]] = []
    for key, name in txn.scan(start, stop):
        hashed, flow = key[9:25], int.from_bytes(key[25:33], "big")
        if len(found) >= limit and hashed != found[-1][0]:
            return FlowPage(_counts(txn, group, found), found[-1][0])
        found.append((hashed, flow, name))
    return FlowPage(_counts(txn, group, found), b"")


def _counts(
    txn: ReadTransaction, group: int, found: list[tuple[bytes, int, bytes]]
) -> tuple[FlowCounts, ...]:
    counts: list[FlowCounts] = []
    for _, flow, name in found:
        raw = FLOWS.get(txn, group, flow)
        assert raw is not None, "every name is that of a flow"
        row = decode_flow(raw)
        # Without items, only its bucket keeps the row of a flow.
        if row.passes[0] or not name:
            counts.append(_count(txn, group, flow, name, row))
    return tuple(counts)


def _count(txn: ReadTransaction, group: int, flow: int, name: bytes, row: FlowRow) -> FlowCounts:
    items, ready, leased, _ = row.passes
    head_seq = attempt = oldest_ms = due_ms = 0
    for key, value in FLOW_READY.rows(txn, group, flow):
        first_seq, slot = int.from_bytes(value, "big"), key[-1]
        segment = load_segment(txn, group, first_seq, slot)
        head_seq, attempt = first_seq + slot, segment.attempt
        if segment.state == RowState.SCHEDULED:
            due_ms = segment.locator
        else:
            oldest_ms = load_block(txn, group, first_seq).produced_at_ms
        break
    return FlowCounts(
        name=name,
        weight=row.weight,
        leased_max=max(0, row.leased_max),
        items=items,
        ready=ready,
        leased=leased,
        oldest_ready_at_ms=oldest_ms,
        head_seq=head_seq,
        head_attempt=attempt,
        blocked_until_ms=due_ms,
        next_ms=row.bucket.due_at_ms if row.bucket is not None and row.bucket.waits else 0,
    )


def flow_heads(txn: ReadTransaction, group: int) -> Iterator[bytes]:
    """The block of the first ready segment of each flow, as bytes. One seek for each flow."""
    at, stop = FLOW_READY.bounds(group)
    more = True
    while more:
        begin, more = at, False
        for key, value in txn.scan(begin, stop):
            flow, rank = int.from_bytes(key[9:17], "big"), int.from_bytes(key[17:25], "big")
            more = True
            if rank:
                at = FLOW_READY.bounds(group, flow)[1]
                yield value
            else:
                # Scheduled items that keep back those of their key.
                at = FLOW_READY.bounds(group, flow, rank)[1]
            break
