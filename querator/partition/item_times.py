"""The times of single items of a block, when they change after the block was written."""

from collections.abc import Iterable

import msgspec

from querator.partition.apply_context import ApplyContext, earlier
from querator.partition.rows import Block, OwnTimes, encode
from querator.storage.tables import BLOCKS, EXPIRIES


def put_times(context: ApplyContext, first_seq: int, block: Block, own: Iterable[OwnTimes]) -> None:
    """Gives a block other times of its own, and puts its expiries into their index."""
    txn, group = context.txn, context.group
    before = block.expiries()
    block = msgspec.structs.replace(block, own=tuple(own))
    after = block.expiries()
    block = msgspec.structs.replace(block, expiry_head_ms=after[0] if after else 0)
    for at_ms in set(before) - set(after):
        EXPIRIES.delete(txn, group, at_ms, first_seq)
    for at_ms in sorted(set(after) - set(before)):
        # Those of before are in the index, or have left it. No item expires earlier.
        if at_ms > context.now_ms:
            EXPIRIES.put(txn, group, at_ms, first_seq, value=b"")
            context.state.expiry_head_ms = earlier(context.state.expiry_head_ms, at_ms)
    BLOCKS.put(txn, group, first_seq, value=encode(block))
    context.blocks[first_seq] = block
