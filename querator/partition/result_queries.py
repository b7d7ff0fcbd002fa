"""Reads of results of items for other threads, from a snapshot."""

import msgspec

from querator.model.result_calls import EndedItem, ItemEnd
from querator.partition.rows import PartitionState, decode_result, decode_state
from querator.partition.segments import find_item
from querator.storage import attachments, generations
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import ReadTransaction
from querator.storage.tables import RESULTS, STATE

_NEVER = "the queue has no such item"
_PLAIN = "the item was produced without keep_result"
_OVER = (
    "the item has ended, and no result of it is kept: its keep_result is over, or it was produced "
    "without one"
)


class ResultsPage(msgspec.Struct, frozen=True, array_like=True):
    """The items that have ended, as many as fit. Empty: all are waited for."""

    items: tuple[EndedItem, ...]


def ended_items(
    txn: ReadTransaction, group: int, seqs: tuple[int, ...], *, bytes_max: int
) -> ResultsPage:
    """Those of the items that have ended, up to `bytes_max` of data, but at least one. Raises
    AttachmentDamaged.
    """
    txn = generations.view(txn, group)
    raw = STATE.get(txn, group)
    next_seq = (PartitionState() if raw is None else decode_state(raw)).next_seq
    found: list[EndedItem] = []
    size = 0
    for seq in seqs:
        raw = RESULTS.get(txn, group, seq)
        if raw is None:
            found.append(EndedItem(seq, ItemEnd.NONE, error=_why_none(txn, group, seq, next_seq)))
            continue
        row = decode_result(raw)
        if row.end == ItemEnd.WAITS:
            continue
        size += row.size
        if found and size > bytes_max:
            break
        data: bytes | None = b""
        if row.size:
            data = attachments.read(txn, group, row.index, row.part)
            if data is None:
                raise AttachmentDamaged(group, row.index, row.part, "missing")
        found.append(
            EndedItem(
                seq=seq,
                outcome=row.end,
                data=data or b"",
                reason=row.reason,
                error=row.error,
                attempts=row.attempts,
                ended_ms=row.ended_ms,
            )
        )
    return ResultsPage(tuple(found))


def _why_none(txn: ReadTransaction, group: int, seq: int, next_seq: int) -> str:
    if not 0 < seq < next_seq:
        return _NEVER
    return _OVER if find_item(txn, group, seq) is None else _PLAIN
