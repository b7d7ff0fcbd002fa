"""Reads of items by sequence, in any state, in a view of the generation in use."""

from collections.abc import Sequence

from querator.partition.queries import ItemPage, collect
from querator.partition.segments import find_item
from querator.storage import generations
from querator.storage.environment import ReadTransaction


def items_at(txn: ReadTransaction, group: int, seqs: Sequence[int], *, bytes_max: int) -> ItemPage:
    """The items of these sequences that are there. `seqs` are in order. A page stops at
    `bytes_max`, but has at least one item if any is there. Raises BlockDamaged.
    """
    txn = generations.view(txn, group)
    found = []
    for seq in seqs:
        place = find_item(txn, group, seq)
        if place is not None:
            found.append((seq, *place))
    page = collect(txn, group, found, limit=len(found), bytes_max=bytes_max)
    return ItemPage(page, page[-1].seq if len(page) < len(found) else 0)
