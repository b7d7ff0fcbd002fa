"""Sets of items of one block as integers: bit i is the item with sequence first_seq + i.

Plain sets are one run of ones, and every function costs a few integer operations for such a set;
else the cost is per run, never per item.
"""

from collections.abc import Iterable, Iterator

from querator.model.commands import Ranges


def full(count: int) -> int:
    """The set of the first `count` items of a block."""
    return (1 << count) - 1


def low(mask: int) -> int:
    """The lowest ordinal of a set that is not empty."""
    return (mask & -mask).bit_length() - 1


def runs(mask: int) -> Iterator[tuple[int, int]]:
    """(first ordinal, count) of each run of ones, ascending."""
    start = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        start += skip
        mask >>= skip
        count = (~mask & (mask + 1)).bit_length() - 1
        yield start, count
        start += count
        mask >>= count


def ordinals(mask: int) -> Iterator[int]:
    for start, count in runs(mask):
        yield from range(start, start + count)


def first(mask: int, count: int) -> int:
    """The lowest `count` items of a set (all when it has no more)."""
    if mask.bit_count() <= count:
        return mask
    chosen = 0
    for start, length in runs(mask):
        if count <= 0:
            break
        take = min(count, length)
        chosen |= full(take) << start
        count -= take
    return chosen


def to_bytes(mask: int) -> bytes:
    """Shortest little-endian form; nothing for the empty set."""
    return mask.to_bytes((mask.bit_length() + 7) >> 3, "little")


def from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "little")


def to_ranges(first_seq: int, mask: int) -> list[tuple[int, int]]:
    return [(first_seq + start, count) for start, count in runs(mask)]


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, with touching runs joined."""
    merged: list[tuple[int, int]] = []
    for start, count in sorted(ranges):
        if merged and merged[-1][0] + merged[-1][1] >= start:
            last, have = merged[-1]
            merged[-1] = (last, max(have, start + count - last))
        else:
            merged.append((start, count))
    return tuple(merged)
