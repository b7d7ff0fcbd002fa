"""Items that a command of an operator names, as ranges of sequences."""

from collections.abc import Iterator

from querator.model.commands import Ranges, Refusal
from querator.model.errors import ErrorCode
from querator.partition import masks
from querator.partition.segments import load_block
from querator.storage.environment import ReadTransaction
from querator.storage.tables import BLOCKS


def too_many_items(ranges: Ranges, items_max: int) -> Refusal | None:
    """The refusal if the ranges have more than `items_max` items."""
    count = sum(count for _, count in ranges)
    if count <= items_max:
        return None
    return Refusal(
        ErrorCode.LIMIT_EXCEEDED,
        f"item_ids has {count} items; the limit is {items_max} items",
        field="item_ids",
        limit=f"{items_max} items",
        value=f"{count} items",
    )


def items_by_block(
    txn: ReadTransaction, group: int, ranges: Ranges, outside: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """The named items by block, in ascending order. Those in no block go to `outside`."""
    wanted: dict[int, int] = {}
    base, end = 0, 0
    for first_seq, count in masks.merge_ranges(ranges):
        at, stop = first_seq, first_seq + count
        while at < stop:
            if at >= end:
                base, end = _block_around(txn, group, at)
            until = min(stop, end)
            if base <= at:
                wanted[base] = wanted.get(base, 0) | masks.full(until - at) << (at - base)
            else:
                until = min(stop, base)
                outside.append((at, until - at))
            at = until
    yield from wanted.items()


def _block_around(txn: ReadTransaction, group: int, seq: int) -> tuple[int, int]:
    """Begin and end of the block that has a sequence, or else of the next one. After the last block
    it is one without end that begins nowhere.
    """
    start, stop = BLOCKS.bounds(group)
    here = BLOCKS.key(group, seq)
    for key, _ in txn.scan(start, here + b"\0", reverse=True):
        first_seq = int.from_bytes(key[-8:], "big")
        end = first_seq + load_block(txn, group, first_seq).count
        if seq < end:
            return first_seq, end
        break
    for key, _ in txn.scan(here, stop):
        first_seq = int.from_bytes(key[-8:], "big")
        return first_seq, first_seq + load_block(txn, group, first_seq).count
    return _NOWHERE, _NOWHERE


_NOWHERE = 1 << 65
"""Behind every sequence."""
