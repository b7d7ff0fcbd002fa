"""The payload of a block as it is stored: read as a whole, and checked.

The position of a flipped bit in the block is unknown, so all items of the block count as damaged.
Another replica of the partition may have the same bytes undamaged.
"""

from collections.abc import Callable, Collection, Iterable

from querator.partition import masks
from querator.partition.rows import Block, RowState, decode_block, decode_segment
from querator.storage import attachments
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import ReadTransaction, StorageCorrupt
from querator.storage.tables import BLOCKS, SEGMENTS

ReadPart = Callable[[ReadTransaction, int, int, int], bytes | None]
"""Reads an attachment: (transaction, group, index, part)."""


class BlockDamaged(StorageCorrupt):
    """The payload of a block cannot be read. The items of the block begin at `first_seq`."""

    def __init__(self, group: int, first_seq: int, block: Block, error: AttachmentDamaged) -> None:
        super().__init__(f"block {first_seq} of group {group}: {error}")
        self.group = group
        self.first_seq = first_seq
        self.index = block.index
        self.part = block.part


def read_payload(
    txn: ReadTransaction,
    group: int,
    first_seq: int,
    block: Block,
    *,
    read: ReadPart = attachments.read,
) -> bytes:
    """The bytes of a stored block. Raises BlockDamaged if they are damaged or missing."""
    try:
        stored = read(txn, group, block.index, block.part)
        if stored is None:
            raise AttachmentDamaged(group, block.index, block.part, "missing")
    except AttachmentDamaged as error:
        raise BlockDamaged(group, first_seq, block, error) from None
    return stored


def find_block(txn: ReadTransaction, group: int, first_seq: int) -> Block | None:
    """The block, in a view of the generation in use. None if it is gone."""
    row = BLOCKS.get(txn, group, first_seq)
    return None if row is None else decode_block(row)


def named_blocks(
    txn: ReadTransaction, group: int, damaged: Iterable[AttachmentDamaged]
) -> list[BlockDamaged | AttachmentDamaged]:
    """The errors, as errors of their blocks where they have one. Other attachments are staged, or
    belong to the log alone. Reads all blocks of the partition.
    """
    left = {(error.index, error.part): error for error in damaged}
    found: list[BlockDamaged | AttachmentDamaged] = []
    for key, row in BLOCKS.rows(txn, group):
        block = decode_block(row)
        error = left.pop((block.index, block.part), None)
        if error is not None:
            found.append(BlockDamaged(group, int.from_bytes(key[-8:], "big"), block, error))
            if not left:
                break
    return [*found, *left.values()]


def ready_items(txn: ReadTransaction, group: int, blocks: Iterable[int]) -> int:
    """The number of ready items of these blocks, in a view of the generation in use."""
    count = 0
    for first_seq in blocks:
        for _, row in SEGMENTS.rows(txn, group, first_seq):
            segment = decode_segment(row)
            if segment.state == RowState.READY:
                count += segment.mask.bit_count()
    return count


def items_left(
    txn: ReadTransaction,
    group: int,
    blocks: Iterable[int],
    states: Collection[RowState] = frozenset(RowState),
) -> int:
    """The number of items of these blocks that are in these states."""
    segments = (
        decode_segment(row)
        for first_seq in blocks
        for _, row in SEGMENTS.rows(txn, group, first_seq)
    )
    return sum(segment.mask.bit_count() for segment in segments if segment.state in states)


def ranges_of(first_seq: int, mask: int) -> tuple[tuple[int, int], ...]:
    """Items of a block as ranges of sequences."""
    return tuple((first_seq + start, count) for start, count in masks.runs(mask))
