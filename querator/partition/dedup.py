"""Dedup keys: a second item with a key within the queue's window is not stored.

The window begins with the produce of the first item, whatever has become of that item. A partition
remembers at most DEDUP_KEYS_MAX keys: items with further keys are refused until keys have left the
window. A transaction reserves space for the keys of its stages when it prepares, because it must
not be refused later. Each item with a key counts, also one that repeats a key. Keys that another
partition hands over are always accepted.
"""

from hashlib import blake2b

from querator.model.commands import ItemSpecial, KeyFact, Produce, Refusal
from querator.model.errors import ErrorCode
from querator.model.limits import DEDUP_KEYS_MAX
from querator.model.routing import slot_of_key
from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.request_places import slot_at
from querator.partition.rows import DedupRow, decode_dedup, encode
from querator.storage.tables import DEDUP_KEYS, DEDUP_ORDER

Duplicates = tuple[tuple[int, ...], ...]
"""(ordinal in the command, sequence of the earlier item, and its partition when that is another
one), in ascending order.
"""


def known_keys(
    context: ApplyContext,
    specials: tuple[ItemSpecial, ...],
    first_seq: int,
    stored: Duplicates = (),
) -> Duplicates:
    """Which items of a command repeat a key, also a key of the same command. The items that are
    `stored` already are included.
    """
    window_ms = context.queue.dedup_window_ms
    if window_ms <= 0 or not specials:
        return stored
    duplicates = {duplicate[0]: duplicate for duplicate in stored}
    here: dict[bytes, tuple[int, ...]] = {}
    for special in specials:
        key = special.dedup_key
        if not key or special.ordinal in duplicates:
            continue
        if key in here:
            duplicates[special.ordinal] = (special.ordinal, *here[key])
            continue
        raw = DEDUP_KEYS.get(context.txn, context.group, _hash(key))
        row = None if raw is None else decode_dedup(raw)
        if row is not None and row.key == key and row.at_ms + window_ms > context.now_ms:
            here[key] = (row.seq,) if row.partition < 0 else (row.seq, row.partition)
            duplicates[special.ordinal] = (special.ordinal, *here[key])
        else:
            here[key] = (first_seq + special.ordinal,)
    return tuple(duplicates[ordinal] for ordinal in sorted(duplicates))


def too_many_keys(
    context: ApplyContext, specials: tuple[ItemSpecial, ...], duplicates: Duplicates
) -> Refusal | None:
    """The refusal if the keys of a command cannot be remembered; else None."""
    if not specials:
        return None
    repeated = {duplicate[0] for duplicate in duplicates}
    return no_room_for_keys(
        context, sum(1 for one in specials if one.dedup_key and one.ordinal not in repeated)
    )


def keys_of(specials: tuple[ItemSpecial, ...]) -> int:
    """The number of items with a key."""
    return sum(1 for special in specials if special.dedup_key)


def no_room_for_keys(context: ApplyContext, fresh: int) -> Refusal | None:
    """The refusal if `fresh` more keys cannot be remembered; else None."""
    held = context.state.dedup_keys + context.state.pinned_keys
    if not fresh or context.queue.dedup_window_ms <= 0 or held + fresh <= DEDUP_KEYS_MAX:
        return None
    return Refusal(
        ErrorCode.TOO_MANY_DEDUP_KEYS,
        f"the partition remembers {held} dedup keys, including those reserved by transactions; "
        f"{fresh} more would exceed the limit of {DEDUP_KEYS_MAX}. A key is forgotten "
        f"{context.queue.dedup_window_ms // 1000} s after its first item: wait, shorten the "
        "queue's dedup_window, or use more partitions",
        field="dedup_key",
        limit=str(DEDUP_KEYS_MAX),
        value=str(held + fresh),
    )


def remember_keys(
    context: ApplyContext, command: Produce, first_seq: int, duplicates: Duplicates
) -> None:
    window_ms = context.queue.dedup_window_ms
    if window_ms <= 0:
        return
    repeated = {duplicate[0] for duplicate in duplicates}
    for special in command.specials:
        if not special.dedup_key or special.ordinal in repeated:
            continue
        slot = slot_at(command.slots, special.ordinal) if command.slots else -1
        if slot == slot_of_key(special.dedup_key):
            slot = -1
        seq = first_seq + special.ordinal
        _put(context, DedupRow(special.dedup_key, seq, context.now_ms, slot=slot))


def adopt_key(context: ApplyContext, fact: KeyFact) -> None:
    """Adopts what another partition knows about a key. Of two items, the later one is kept."""
    before = DEDUP_KEYS.get(context.txn, context.group, _hash(fact.key))
    if before is not None and decode_dedup(before).at_ms >= fact.at_ms:
        return
    partition = -1 if fact.partition == context.queue.partition else fact.partition
    _put(context, DedupRow(fact.key, fact.seq, fact.at_ms, partition, fact.slot))


def _put(context: ApplyContext, row: DedupRow) -> None:
    txn, group = context.txn, context.group
    hashed = _hash(row.key)
    before = DEDUP_KEYS.get(txn, group, hashed)
    if before is None:
        context.state.dedup_keys += 1
    else:
        DEDUP_ORDER.delete(txn, group, decode_dedup(before).at_ms, hashed)
    DEDUP_KEYS.put(txn, group, hashed, value=encode(row))
    DEDUP_ORDER.put(txn, group, row.at_ms, hashed, value=b"")
    due_ms = row.at_ms + context.queue.dedup_window_ms
    context.state.cleanup_head_ms = earlier(context.state.cleanup_head_ms, due_ms)


def forget_keys(context: ApplyContext, rows_max: int) -> int:
    """Forgets keys that have left the window, the oldest first, up to `rows_max`. Returns their
    number.
    """
    txn, group = context.txn, context.group
    doomed: list[tuple[int, bytes]] = []
    for key, _ in DEDUP_ORDER.rows(txn, group):
        at_ms, hashed = DEDUP_ORDER.parts(key)
        assert isinstance(at_ms, int)
        assert isinstance(hashed, bytes)
        if len(doomed) == rows_max or at_ms + context.queue.dedup_window_ms > context.now_ms:
            break
        doomed.append((at_ms, hashed))
    for at_ms, hashed in doomed:
        DEDUP_ORDER.delete(txn, group, at_ms, hashed)
        DEDUP_KEYS.delete(txn, group, hashed)
    context.state.dedup_keys -= len(doomed)
    return len(doomed)


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
