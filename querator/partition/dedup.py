"""Dedup keys: a second item with a key within the queue's window is not stored.

The window counts from the first item's produce, whatever became of that item since.
"""

from hashlib import blake2b

from querator.model.commands import ItemSpecial
from querator.partition.rows import DedupRow, decode_dedup, encode
from querator.partition.turn import Turn, earlier
from querator.storage.tables import DEDUP_KEYS, DEDUP_ORDER

Duplicates = tuple[tuple[int, int], ...]
"""(ordinal in the command, sequence of the first item with the key), ascending."""


def known_keys(turn: Turn, specials: tuple[ItemSpecial, ...], first_seq: int) -> Duplicates:
    """Which items of a command repeat a key, also one of the same command."""
    window_ms = turn.queue.dedup_window_ms
    if window_ms <= 0:
        return ()
    duplicates: list[tuple[int, int]] = []
    here: dict[bytes, int] = {}
    for special in specials:
        key = special.dedup_key
        if not key:
            continue
        if key in here:
            duplicates.append((special.ordinal, here[key]))
            continue
        raw = DEDUP_KEYS.get(turn.txn, turn.group, _hash(key))
        row = None if raw is None else decode_dedup(raw)
        if row is not None and row.key == key and row.at_ms + window_ms > turn.now_ms:
            duplicates.append((special.ordinal, row.seq))
            here[key] = row.seq
        else:
            here[key] = first_seq + special.ordinal
    return tuple(duplicates)


def remember_keys(
    turn: Turn, specials: tuple[ItemSpecial, ...], first_seq: int, duplicates: Duplicates
) -> None:
    window_ms = turn.queue.dedup_window_ms
    if window_ms <= 0:
        return
    txn, group = turn.txn, turn.group
    repeated = {ordinal for ordinal, _ in duplicates}
    for special in specials:
        if not special.dedup_key or special.ordinal in repeated:
            continue
        hashed = _hash(special.dedup_key)
        before = DEDUP_KEYS.get(txn, group, hashed)
        if before is not None:
            DEDUP_ORDER.delete(txn, group, decode_dedup(before).at_ms, hashed)
        row = DedupRow(special.dedup_key, first_seq + special.ordinal, turn.now_ms)
        DEDUP_KEYS.put(txn, group, hashed, value=encode(row))
        DEDUP_ORDER.put(txn, group, turn.now_ms, hashed, value=b"")
        turn.state.cleanup_head_ms = earlier(turn.state.cleanup_head_ms, turn.now_ms + window_ms)


def forget_keys(turn: Turn, rows_max: int) -> int:
    """Forgets keys out of the window, the oldest first, up to `rows_max`. How many."""
    txn, group = turn.txn, turn.group
    doomed: list[tuple[int, bytes]] = []
    for key, _ in DEDUP_ORDER.rows(txn, group):
        at_ms, hashed = DEDUP_ORDER.parts(key)
        assert isinstance(at_ms, int)
        assert isinstance(hashed, bytes)
        if len(doomed) == rows_max or at_ms + turn.queue.dedup_window_ms > turn.now_ms:
            break
        doomed.append((at_ms, hashed))
    for at_ms, hashed in doomed:
        DEDUP_ORDER.delete(txn, group, at_ms, hashed)
        DEDUP_KEYS.delete(txn, group, hashed)
    return len(doomed)


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
