"""Dedup keys: a second item with a key that counts is not stored.

By the queue's setting, a key counts in the window after the produce of its first item, whatever has
become of that item; or until its item is done: completed, dead, or removed. A change of the setting
holds for the keys of later items. A partition remembers at most DEDUP_KEYS_MAX keys: items with
further keys are refused until keys are forgotten. A transaction reserves space for the keys of its
stages when it prepares, because it must not be refused later. Each item with a key counts, also one
that repeats a key. Keys that another partition hands over are always accepted.

When the number of partitions has changed, an item may stay in its partition while its key belongs
to another one. That partition cannot see whether the item is done. It refuses to decide about the
key (`unsure`) until its caller has asked the partition of the item: a key that is still in use
comes back with the command (`ItemSpecial.holder`), and one that is not is freed (FreeKeys). An item
that is done never returns to its key, so an answer that comes late frees nothing too early.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from querator.model.commands import ItemSpecial, KeyFact, Produce, Refusal
from querator.model.errors import ErrorCode
from querator.model.limits import DEDUP_KEYS_MAX, KEYS_FREED_MAX
from querator.model.queues import DedupUntil
from querator.model.routing import slot_of_key
from querator.partition.apply_context import ApplyContext
from querator.partition.dedup_rows import find, hash_of, put
from querator.partition.request_places import slot_at
from querator.partition.rows import DedupRow, decode_dedup
from querator.storage.tables import DEDUP_KEYS, DEDUP_ORDER

Duplicates = tuple[tuple[int, ...], ...]
"""(ordinal in the command, sequence of the earlier item, and its partition when that is another
one), in ascending order.
"""

NEVER: Mapping[int, int] = MappingProxyType({})


def known_keys(
    context: ApplyContext,
    specials: tuple[ItemSpecial, ...],
    first_seq: int,
    stored: Duplicates = (),
) -> Duplicates:
    """Which items of a command repeat a key, also a key of the same command. The items that are
    `stored` already are included.
    """
    queue, state = context.queue, context.state
    window_ms = queue.dedup_window_ms
    if not specials or (
        window_ms <= 0
        and queue.dedup_until is DedupUntil.WINDOW
        and not (state.lasting_keys or state.away_keys)
    ):
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
        raw = DEDUP_KEYS.get(context.txn, context.group, hash_of(key))
        row = None if raw is None else decode_dedup(raw)
        if (
            row is not None
            and row.key == key
            and (row.lasting or row.at_ms + window_ms > context.now_ms)
        ):
            here[key] = (row.seq,) if row.partition < 0 else (row.seq, row.partition)
            duplicates[special.ordinal] = (special.ordinal, *here[key])
        else:
            here[key] = (first_seq + special.ordinal,)
    return tuple(duplicates[ordinal] for ordinal in sorted(duplicates))


def unsure(
    context: ApplyContext, specials: tuple[ItemSpecial, ...], duplicates: Duplicates
) -> Refusal | None:
    """The refusal if a duplicate follows from an item of another partition of which the caller does
    not know whether it is done; else None. Called only while there are such keys.
    """
    repeated = {duplicate[0]: duplicate[1:] for duplicate in duplicates}
    asked: list[str] = []
    for special in specials:
        if not special.dedup_key or len(repeated.get(special.ordinal, ())) < 2:
            continue
        row = find(context, special.dedup_key)
        if row is None or row.key != special.dedup_key or not row.lasting or row.partition < 0:
            continue
        if (row.seq, row.partition) == repeated[special.ordinal]:
            known = special.holder == (row.partition, row.seq)
            if not known and len(asked) < KEYS_FREED_MAX:
                asked.append(f"{special.ordinal}:{row.partition}:{row.seq}")
    if not asked:
        return None
    return Refusal(
        ErrorCode.ROUTING_CHANGED,
        "not executed: items in other partitions may have the dedup keys still",
        field=UNSURE,
        value=",".join(asked),
    )


UNSURE = "dedup_key"
"""Field of the refusal by `unsure`. Its value has the items of the command, each with the place of
the item that has the key: ordinal:partition:sequence,…
"""


def too_many_keys(
    context: ApplyContext,
    specials: tuple[ItemSpecial, ...],
    duplicates: Duplicates,
    replaced: int = 0,
) -> Refusal | None:
    """The refusal if the keys of a command cannot be remembered; else None. `replaced` items give
    their keys to others.
    """
    if not specials:
        return None
    repeated = {duplicate[0] for duplicate in duplicates}
    keys = sum(1 for one in specials if one.dedup_key and one.ordinal not in repeated)
    return no_room_for_keys(context, keys - replaced)


def keys_of(specials: tuple[ItemSpecial, ...]) -> int:
    """The number of items with a key."""
    return sum(1 for special in specials if special.dedup_key)


def no_room_for_keys(context: ApplyContext, fresh: int) -> Refusal | None:
    """The refusal if `fresh` more keys cannot be remembered; else None."""
    held = context.state.dedup_keys + context.state.pinned_keys
    if fresh <= 0 or held + fresh <= DEDUP_KEYS_MAX:
        return None
    queue = context.queue
    if queue.dedup_until is DedupUntil.DONE:
        until = "when its item completes or dies: complete items, or use more partitions"
    elif queue.dedup_window_ms <= 0:
        return None
    else:
        until = (
            f"{queue.dedup_window_ms // 1000} s after its first item: wait, shorten the "
            "queue's dedup_window, or use more partitions"
        )
    return Refusal(
        ErrorCode.TOO_MANY_DEDUP_KEYS,
        f"the partition remembers {held} dedup keys, including those reserved by transactions; "
        f"{fresh} more would exceed the limit of {DEDUP_KEYS_MAX}. A key is forgotten {until}",
        field="dedup_key",
        limit=str(DEDUP_KEYS_MAX),
        value=str(held + fresh),
    )


def remember_keys(
    context: ApplyContext,
    command: Produce,
    first_seq: int,
    duplicates: Duplicates,
    since: Mapping[int, int] = NEVER,
) -> None:
    """`since` has the `since_ms` of rows by ordinal, where they have one."""
    queue = context.queue
    lasting = queue.dedup_until is DedupUntil.DONE
    if not lasting and queue.dedup_window_ms <= 0:
        return
    repeated = {duplicate[0] for duplicate in duplicates}
    for special in command.specials:
        if not special.dedup_key or special.ordinal in repeated:
            continue
        slot = slot_at(command.slots, special.ordinal) if command.slots else -1
        if slot == slot_of_key(special.dedup_key):
            slot = -1
        seq = first_seq + special.ordinal
        row = DedupRow(special.dedup_key, seq, context.now_ms, slot=slot, lasting=lasting)
        if special.ordinal in since:
            row = replace(row, since_ms=since[special.ordinal])
        put(context, row)


def adopt_key(context: ApplyContext, fact: KeyFact) -> None:
    """Adopts what another partition knows about a key. Of two items, the later one is kept; but one
    that has the key until it is done is kept before one whose key counts in the window.
    """
    here = fact.partition == context.queue.partition
    if here and fact.lasting:
        # This partition knows whether its own item is done.
        return
    before = find(context, fact.key)
    if before is not None and (before.lasting, before.at_ms) >= (fact.lasting, fact.at_ms):
        return
    partition = -1 if here else fact.partition
    put(
        context,
        DedupRow(fact.key, fact.seq, fact.at_ms, partition, slot=fact.slot, lasting=fact.lasting),
    )


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
