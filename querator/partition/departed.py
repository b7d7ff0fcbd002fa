"""What a partition remembers about groups from which it takes moves, or to which it sends some.

    the source has        `moved_upto` in the target                       its moves
    -------------------   ----------------------------------------------   -------------------------
    sent nothing yet      no row                                           from the first one on
    sent up to n          source → n                                       those after n
    left the map          last id of a range of such groups → first id     none: they are too late

Ids of groups ascend and are never reused. So a group that is missing in a map that has a group with
a higher id has left the map for ever, and its moves do not count. A batch that comes late has
arrived before, or belonged to a queue that was deleted. But its first batch looks like that of a
source that begins. A row per source would stay for ever. Therefore all gone groups between two
living ones share one row, so that there are about as many rows as living sources.

The number of the last move to a target (`outbox_targets`) is forgotten with the target.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator

from querator.model.commands import Done, ForgetGroups
from querator.model.limits import APPLY_SEGMENTS_MAX
from querator.partition.apply_context import ApplyContext
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import MOVED_UPTO, OUTBOX, OUTBOX_TARGETS

_UPTO_BYTES = 8
_RANGE = b"-"
"""Prefix before the first id of a range. It makes the values of the two kinds of rows differ in
length.
"""


def moved_upto(txn: ReadTransaction, group: int, source: int) -> int | None:
    """The last move of the source that has arrived. None means that the source is gone."""
    row = MOVED_UPTO.get(txn, group, source)
    if row is not None:
        return None if _is_range(row) else int.from_bytes(row, "big")
    for _, upper in _rows_from(txn, group, source):
        return None if _is_range(upper) and _first(upper) <= source else 0
    return 0


def note_moved(context: ApplyContext, source: int, upto: int) -> None:
    MOVED_UPTO.put(context.txn, context.group, source, value=upto.to_bytes(_UPTO_BYTES, "big"))


def sources(txn: ReadTransaction, group: int) -> tuple[int, ...]:
    """The groups from which the partition has taken moves and that are not known to be gone, in
    ascending order.
    """
    rows = MOVED_UPTO.rows(txn, group)
    return tuple(_id(key) for key, row in rows if not _is_range(row))


def departed(
    txn: ReadTransaction, group: int, living: Collection[int]
) -> tuple[tuple[int, int], ...]:
    """The ranges to name in ForgetGroups if all groups that are not `living` have left the map.
    Empty if there are none.
    """
    txn = generations.view(txn, group)
    gone: set[int] = set()
    ends: list[int] = []
    for key, row in MOVED_UPTO.rows(txn, group):
        if _is_range(row):
            ends.append(_id(key))
        elif _id(key) not in living:
            gone.add(_id(key))
    for key, _ in OUTBOX_TARGETS.rows(txn, group):
        target = _id(key)
        if target not in living and next(OUTBOX.rows(txn, group, target), None) is None:
            gone.add(target)
    if not gone and len(ends) < 2:
        return ()
    below = sorted({0, *living})
    found: dict[int, list[int]] = {}
    for last in sorted([*gone, *ends]):
        first = below[bisect_left(below, last) - 1] + 1
        found.setdefault(first, []).append(last)
    # A range by itself stays.
    return tuple(
        (first, lasts[-1])
        for first, lasts in found.items()
        if len(lasts) > 1 or not gone.isdisjoint(lasts)
    )


def forget_groups(context: ApplyContext, command: ForgetGroups) -> Done:
    """`changed` counts removed rows. The work of a command is bounded; the lowest ids come
    first.
    """
    left = APPLY_SEGMENTS_MAX
    for first, last in command.ranges:
        left -= _forget_sources(context, first, last, left)
        left -= _forget_targets(context, first, last, left)
        if left <= 0:
            break
    return Done(APPLY_SEGMENTS_MAX - left)


def _forget_sources(context: ApplyContext, first: int, last: int, most: int) -> int:
    """Replaces rows and ranges by one range. Returns by how many rows there are fewer, rows of
    sources included.
    """
    doomed: list[bytes] = []
    known = 0
    until = last
    for key, row in _rows_from(context.txn, context.group, first):
        if (_first(row) - 1 if _is_range(row) else _id(key)) > last:
            break
        if len(doomed) >= most:
            until = _id(doomed[-1]) if doomed else 0
            break
        doomed.append(key)
        if _is_range(row):
            known = 1
            first, until = min(first, _first(row)), max(until, _id(key))
    gone = len(doomed) - known
    if gone <= 0:
        return 0
    for key in doomed:
        context.txn.delete(key)
    value = _RANGE + first.to_bytes(_UPTO_BYTES, "big")
    MOVED_UPTO.put(context.txn, context.group, until, value=value)
    return gone


def _forget_targets(context: ApplyContext, first: int, last: int, most: int) -> int:
    """Forgets targets to which nothing is on its way. Returns the number of removed rows."""
    _, stop = OUTBOX_TARGETS.bounds(context.group)
    doomed: list[int] = []
    for key, _ in context.txn.scan(OUTBOX_TARGETS.key(context.group, first), stop):
        if _id(key) > last or len(doomed) >= most:
            break
        doomed.append(_id(key))
    idle = [
        target
        for target in doomed
        if next(OUTBOX.rows(context.txn, context.group, target), None) is None
    ]
    for target in idle:
        OUTBOX_TARGETS.delete(context.txn, context.group, target)
    return len(idle)


def check_departed(txn: ReadTransaction, group: int) -> list[str]:
    """All violations of the invariants, as sentences."""
    wrong = []
    before = 0
    for key, row in MOVED_UPTO.rows(txn, group):
        first = _first(row) if _is_range(row) else _id(key)
        if not before < first <= _id(key):
            wrong.append(f"sources {first} to {_id(key)} come after source {before}")
        before = _id(key)
    return wrong


def _rows_from(txn: ReadTransaction, group: int, source: int) -> Iterator[tuple[bytes, bytes]]:
    _, stop = MOVED_UPTO.bounds(group)
    return txn.scan(MOVED_UPTO.key(group, source), stop)


def _id(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def _is_range(row: bytes) -> bool:
    return len(row) != _UPTO_BYTES


def _first(row: bytes) -> int:
    return int.from_bytes(row[len(_RANGE) :], "big")
