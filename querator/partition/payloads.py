"""The payload of a block as it is stored: read as a whole, and checked; and checkpoints of items.

The position of a flipped bit in the block is unknown, so all items of the block count as damaged.
Another replica of the partition may have the same bytes undamaged.
"""

from collections.abc import Callable, Collection, Iterable

from querator.partition import masks
from querator.partition.rows import (
    Block,
    RowState,
    StoredCheckpoint,
    decode_block,
    decode_overlay,
    decode_segment,
)
from querator.storage import attachments
from querator.storage.attachments import AttachmentDamaged
from querator.storage.environment import ReadTransaction, StorageCorrupt
from querator.storage.tables import BLOCKS, OVERLAYS, SEGMENTS

ReadPart = Callable[[ReadTransaction, int, int, int], bytes | None]
"""Reads an attachment: (transaction, group, index, part)."""


class BlockDamaged(StorageCorrupt):
    """The payload of a block, or a checkpoint of an item of it, cannot be read: an attachment of
    `size` bytes. The items of the block begin at `first_seq`.
    """

    def __init__(self, group: int, first_seq: int, size: int, error: AttachmentDamaged) -> None:
        super().__init__(f"block {first_seq} of group {group}: {error}")
        self.group = group
        self.first_seq = first_seq
        self.index = error.index
        self.part = error.part
        self.size = size


def read_payload(
    txn: ReadTransaction,
    group: int,
    first_seq: int,
    block: Block,
    *,
    read: ReadPart = attachments.read,
) -> bytes:
    """The bytes of a stored block. Raises BlockDamaged if they are damaged or missing. A block of
    activations has none.
    """
    if not block.index:
        return b""
    try:
        stored = read(txn, group, block.index, block.part)
        if stored is None:
            raise AttachmentDamaged(group, block.index, block.part, "missing")
    except AttachmentDamaged as error:
        raise BlockDamaged(group, first_seq, block.offset(block.count), error) from None
    return stored


def read_checkpoint(
    txn: ReadTransaction, group: int, first_seq: int, stored: StoredCheckpoint
) -> bytes:
    """The data of a checkpoint of an item of the block. Raises BlockDamaged."""
    if not stored.size:
        return b""
    index, part = stored.index, stored.part
    try:
        data = attachments.read(txn, group, index, part)
        if data is None:
            raise AttachmentDamaged(group, index, part, "missing")
    except AttachmentDamaged as error:
        raise BlockDamaged(group, first_seq, stored.size, error) from None
    return data


def is_held(txn: ReadTransaction, damaged: BlockDamaged) -> bool:
    """Whether the block is there and holds the attachment: its payload, or a checkpoint that was
    not replaced meanwhile.
    """
    group, first_seq = damaged.group, damaged.first_seq
    block = find_block(txn, group, first_seq)
    if block is None:
        return False
    place = damaged.index, damaged.part
    if place == (block.index, block.part):
        return True
    return any(
        (stored := decode_overlay(row).checkpoint) is not None
        and stored.size > 0
        and (stored.index, stored.part) == place
        for _, row in txn.scan(
            OVERLAYS.key(group, first_seq), OVERLAYS.key(group, first_seq + block.count)
        )
    )


def find_block(txn: ReadTransaction, group: int, first_seq: int) -> Block | None:
    """The block, in a view of the generation in use. None if it is gone."""
    row = BLOCKS.get(txn, group, first_seq)
    return None if row is None else decode_block(row)


def named_blocks(
    txn: ReadTransaction, group: int, damaged: Iterable[AttachmentDamaged]
) -> list[BlockDamaged | AttachmentDamaged]:
    """The errors, as errors of their blocks where they have one. Other attachments are staged, are
    checkpoints, or belong to the log alone. Reads all blocks of the partition.
    """
    left = {(error.index, error.part): error for error in damaged}
    found: list[BlockDamaged | AttachmentDamaged] = []
    for key, row in BLOCKS.rows(txn, group):
        block = decode_block(row)
        error = left.pop((block.index, block.part), None)
        if error is not None:
            first_seq, size = int.from_bytes(key[-8:], "big"), block.offset(block.count)
            found.append(BlockDamaged(group, first_seq, size, error))
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
