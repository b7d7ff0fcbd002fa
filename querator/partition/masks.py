"""Sets of items of one block as integers: bit i is the item with sequence first_seq + i.

Most sets are one run of ones. For such a set every function costs a few integer operations. For
other sets the cost is per run, never per item.
"""

from collections.abc import Iterable, Iterator

from querator.model.commands import Ranges


def full(count: int) -> int:
    """The set of the first `count` items of a block."""
    return (1 << count) - 1


def low(mask: int) -> int:
    """The lowest ordinal of a set. The set must not be empty."""
    return (mask & -mask).bit_length() - 1


def runs(mask: int) -> Iterator[tuple[int, int]]:
    """(first ordinal, count) of each run of ones, in ascending order."""
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
    """The lowest `count` items of a set, or all if it has fewer."""
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
    """The shortest little-endian form. The empty set has no bytes."""
    return mask.to_bytes((mask.bit_length() + 7) >> 3, "little")


def from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "little")


def to_ranges(first_seq: int, mask: int) -> list[tuple[int, int]]:
    return [(first_seq + start, count) for start, count in runs(mask)]


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The ranges in order, with touching ones joined."""
    merged: list[tuple[int, int]] = []
    for start, count in sorted(ranges):
        if merged and merged[-1][0] + merged[-1][1] >= start:
            last, have = merged[-1]
            merged[-1] = (last, max(have, start + count - last))
        else:
            merged.append((start, count))
    return tuple(merged)
