"""The rows of dedup keys, and how keys that last until their item is done are freed.

    a key that counts    row of DEDUP_KEYS, and its index                  it is forgotten
    ------------------   -----------------------------------------------   -------------------------
    in a window          DEDUP_ORDER by time                               when the window is over
    until its item is    DEDUP_LASTING by time, DEDUP_ITEMS by sequence    when the item completes,
    done, here                                                             dies, or is removed
    until its item is    DEDUP_LASTING by time, DEDUP_AWAY by the place    by FreeKeys
    done, elsewhere      of the item

Each of the rows of DEDUP_ITEMS stands for one item that is stored here and is not on its way to a
dead queue. An item that comes back from there has no key.
"""

from hashlib import blake2b

from msgspec.structs import replace

from querator.model.commands import Done, FreeKeys
from querator.model.limits import KEYS_FREED_MAX
from querator.partition import masks
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.rows import DedupRow, decode_dedup, encode
from querator.storage.environment import ReadTransaction
from querator.storage.tables import (
    DEDUP_AWAY,
    DEDUP_ITEMS,
    DEDUP_KEYS,
    DEDUP_LASTING,
    DEDUP_ORDER,
)


def hash_of(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()


def find(context: ApplyContext, key: bytes) -> DedupRow | None:
    """The row of a key, or of another key with the same hash."""
    raw = DEDUP_KEYS.get(context.txn, context.group, hash_of(key))
    return None if raw is None else decode_dedup(raw)


def put(context: ApplyContext, row: DedupRow) -> None:
    """Writes a row in place of the one that its key has."""
    txn, group, state = context.txn, context.group, context.state
    hashed = hash_of(row.key)
    before = DEDUP_KEYS.get(txn, group, hashed)
    if before is not None:
        _leave_index(context, decode_dedup(before), hashed)
    state.dedup_keys += before is None
    DEDUP_KEYS.put(txn, group, hashed, value=encode(row))
    if not row.lasting:
        DEDUP_ORDER.put(txn, group, row.at_ms, hashed, value=b"")
        due_ms = row.at_ms + context.queue.dedup_window_ms
        state.cleanup_head_ms = earlier(state.cleanup_head_ms, due_ms)
        return
    DEDUP_LASTING.put(txn, group, row.at_ms, hashed, value=b"")
    if row.partition < 0:
        state.lasting_keys += 1
        DEDUP_ITEMS.put(txn, group, row.seq, value=hashed)
    else:
        state.away_keys += 1
        DEDUP_AWAY.put(txn, group, row.partition, row.seq, value=hashed)


def note_position(context: ApplyContext, key: bytes, position: int) -> None:
    """Notes the place that the item with the key has for itself."""
    row = find(context, key)
    assert row is not None, "the key of a stored item is remembered"
    raw = encode(replace(row, position=position))
    DEDUP_KEYS.put(context.txn, context.group, hash_of(key), value=raw)


def free_items(context: ApplyContext, first_seq: int, mask: int) -> None:
    """Frees the keys of items of a block that are done. Called only while there are such keys."""
    for _, hashed in _lasting(context, first_seq, mask):
        _free(context, hashed)


def with_lasting_keys(context: ApplyContext, first_seq: int, mask: int) -> int:
    """Those of the items of a block whose keys last until they are done."""
    return sum(1 << ordinal for ordinal, _ in _lasting(context, first_seq, mask))


def _lasting(context: ApplyContext, first_seq: int, mask: int) -> list[tuple[int, bytes]]:
    """Those of the items, by their ordinals, with the hashes of their keys."""
    start = DEDUP_ITEMS.key(context.group, first_seq + masks.low(mask))
    stop = DEDUP_ITEMS.key(context.group, first_seq + mask.bit_length())
    found = []
    for key, hashed in context.txn.scan(start, stop):
        ordinal = int.from_bytes(key[-8:], "big") - first_seq
        if mask >> ordinal & 1:
            found.append((ordinal, bytes(hashed)))
    return found


def free_keys(context: ApplyContext, command: FreeKeys) -> Done:
    """`changed` counts the freed keys. A repeated command finds none."""
    freed = 0
    for partition, seq in command.items[:KEYS_FREED_MAX]:
        hashed = DEDUP_AWAY.get(context.txn, context.group, partition, seq)
        if hashed is not None:
            _free(context, hashed)
            freed += 1
    return Done(freed)


def away_items(
    txn: ReadTransaction, group: int, after: tuple[int, int], most: int
) -> tuple[tuple[int, int], ...]:
    """Up to `most` items of other partitions that have keys here, as (partition, sequence), after
    one of them, in ascending order.
    """
    _, stop = DEDUP_AWAY.bounds(group)
    found: list[tuple[int, int]] = []
    for key, _ in txn.scan(DEDUP_AWAY.key(group, *after) + b"\0", stop):
        if len(found) == most:
            break
        partition, seq = DEDUP_AWAY.parts(key)
        assert isinstance(partition, int)
        assert isinstance(seq, int)
        found.append((partition, seq))
    return tuple(found)


def keep_their_keys(txn: ReadTransaction, group: int, seqs: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the items whose keys last: they are stored here, and are not done."""
    return tuple(seq for seq in seqs if DEDUP_ITEMS.get(txn, group, seq) is not None)


def _free(context: ApplyContext, hashed: bytes) -> None:
    raw = DEDUP_KEYS.get(context.txn, context.group, hashed)
    assert raw is not None, "an index of dedup keys names a row"
    _leave_index(context, decode_dedup(raw), hashed)
    DEDUP_KEYS.delete(context.txn, context.group, hashed)
    context.state.dedup_keys -= 1


def _leave_index(context: ApplyContext, row: DedupRow, hashed: bytes) -> None:
    txn, group, state = context.txn, context.group, context.state
    if not row.lasting:
        DEDUP_ORDER.delete(txn, group, row.at_ms, hashed)
        return
    DEDUP_LASTING.delete(txn, group, row.at_ms, hashed)
    if row.partition < 0:
        state.lasting_keys -= 1
        DEDUP_ITEMS.delete(txn, group, row.seq)
    else:
        state.away_keys -= 1
        DEDUP_AWAY.delete(txn, group, row.partition, row.seq)
