"""The invariants of the results of items, as `invariants` checks those of the other tables."""

from collections.abc import Iterator

from querator.model.result_calls import ItemEnd
from querator.partition.rows import PartitionState, RowState, decode_result
from querator.partition.segments import find_item
from querator.storage import attachments
from querator.storage.environment import ReadTransaction, StorageCorrupt
from querator.storage.tables import RESULT_TIMES, RESULTS


def check_results(
    txn: ReadTransaction, group: int, state: PartitionState, *, checksums: bool
) -> Iterator[str]:
    """Each result that is waited for has an item here that has not ended. Each other one has its
    time, and an attachment of its size that no other one has.
    """
    waiting = size = 0
    times: set[tuple[int, int]] = set()
    places: set[tuple[int, int]] = set()
    rows = [(int.from_bytes(key[-8:], "big"), raw) for key, raw in RESULTS.rows(txn, group)]
    for seq, raw in rows:
        row = decode_result(raw)
        if row.end == ItemEnd.WAITS:
            waiting += 1
            item = find_item(txn, group, seq)
            if item is None or item[1].state == RowState.MOVING:
                yield f"the result of item {seq} is waited for, and the item has ended"
            continue
        times.add((row.ended_ms + row.keep_ms, seq))
        size += row.size
        if not row.size:
            continue
        place = row.index, row.part
        if place in places:
            yield f"the result of item {seq} is that of another item, too"
        places.add(place)
        yield from _damage(txn, group, seq, place, row.size, checksums=checksums)
    found = {RESULT_TIMES.parts(key) for key, _ in RESULT_TIMES.rows(txn, group)}
    if found != times:
        yield "results and their times disagree"
    if times and not state.cleanup_head_ms:
        yield "results would never be cleaned up"
    counted = state.results, state.asked, state.result_bytes
    if counted != (len(rows), waiting, size):
        yield (
            f"results counts {counted[0]}, {counted[1]} of them asked, {counted[2]} bytes; a scan "
            f"finds {len(rows)}, {waiting}, {size}"
        )


def _damage(
    txn: ReadTransaction,
    group: int,
    seq: int,
    place: tuple[int, int],
    size: int,
    *,
    checksums: bool,
) -> Iterator[str]:
    try:
        data = attachments.read(txn, group, *place)
    except StorageCorrupt as error:
        if checksums:
            yield f"the result of item {seq} is damaged: {error}"
        return
    if data is None or len(data) != size:
        yield f"item {seq} has lost its result of {size} bytes"
