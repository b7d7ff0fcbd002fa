"""The look-ahead: which of the next items a consumer wants, by kind and by attributes.

The first ready items are read in the order of leasing, up to LOOK_AHEAD_ITEMS_MAX of them and about
LOOK_AHEAD_BYTES_MAX bytes of blocks. What is farther behind is not found before the items in front
of it are leased, or change their places.
"""

from collections.abc import Collection, Mapping

import msgspec

from querator.model.limits import LOOK_AHEAD_BYTES_MAX, LOOK_AHEAD_ITEMS_MAX
from querator.partition import masks
from querator.partition.item_fields import attributes_of, kind_of
from querator.partition.overlays import overlays_of
from querator.partition.payloads import read_payload
from querator.partition.rows import PartitionState, Segment, decode_state
from querator.partition.segments import load_block, load_segment, ready_rows
from querator.storage import generations
from querator.storage.environment import ReadTransaction
from querator.storage.tables import STATE


class Sought(msgspec.Struct, frozen=True, array_like=True):
    """Items of one of these kinds (empty: of any), with all of these attributes."""

    kinds: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()


def look_ahead(
    txn: ReadTransaction, group: int, sought: Sought, *, limit: int, aside: Collection[int] = ()
) -> tuple[int, ...]:
    """Sequences of up to `limit` wanted items, in the order of leasing. Blocks that begin at
    `aside` are passed over. Empty in a fair or keyed queue. Raises BlockDamaged.
    """
    txn = generations.view(txn, group)
    raw = STATE.get(txn, group)
    state = PartitionState() if raw is None else decode_state(raw)
    if state.lease_paused or state.next_flow:
        return ()
    found: list[int] = []
    looked = 0
    blocks = _Blocks(txn, group, sought, overlaid=state.overlays > 0)
    for key, value in ready_rows(txn, group, state):
        first_seq = int.from_bytes(value, "big")
        if first_seq not in aside:
            segment = load_segment(txn, group, first_seq, key[-1])
            wanted = masks.first(segment.mask, LOOK_AHEAD_ITEMS_MAX - looked)
            looked += wanted.bit_count()
            found += blocks.matches(first_seq, segment, wanted)
        else:
            looked += 1
        if (
            len(found) >= limit
            or looked >= LOOK_AHEAD_ITEMS_MAX
            or blocks.read_bytes >= LOOK_AHEAD_BYTES_MAX
        ):
            break
    return tuple(found[:limit])


class _Blocks:
    """The blocks that one look-ahead reads. Its last one is kept: segments that follow one another
    are often of one block.
    """

    def __init__(self, txn: ReadTransaction, group: int, sought: Sought, *, overlaid: bool) -> None:
        self.read_bytes = 0
        self._txn = txn
        self._group = group
        self._kinds = frozenset(kind.encode() for kind in sought.kinds)
        self._attributes = {name.encode(): value.encode() for name, value in sought.attributes}
        self._overlaid = overlaid
        self._first_seq = -1
        self._stored = b""

    def matches(self, first_seq: int, segment: Segment, mask: int) -> list[int]:
        block = load_block(self._txn, self._group, first_seq)
        if first_seq != self._first_seq:
            self._stored = read_payload(self._txn, self._group, first_seq, block)
            self._first_seq = first_seq
            self.read_bytes += len(self._stored)
        later = self._later(first_seq, mask)
        found = []
        for ordinal in masks.ordinals(mask):
            item = self._stored[block.offset(ordinal) : block.offset(ordinal + 1)]
            if self._is_wanted(item, later.get(ordinal)):
                found.append(first_seq + ordinal)
        return found

    def _later(self, first_seq: int, mask: int) -> Mapping[int, Mapping[bytes, bytes]]:
        """The attributes that retries have given to items, by ordinal."""
        if not (self._attributes and self._overlaid):
            return {}
        ordinals = masks.ordinals(mask)
        by_place = {
            one.index: one.attributes
            for one in overlays_of(self._txn, self._group, first_seq, mask)
            if one.attributes is not None
        }
        return {
            ordinal: {name.encode(): value.encode() for name, value in by_place[place]}
            for place, ordinal in enumerate(ordinals)
            if place in by_place
        }

    def _is_wanted(self, item: bytes, later: Mapping[bytes, bytes] | None) -> bool:
        if self._kinds and kind_of(item) not in self._kinds:
            return False
        if not self._attributes:
            return True
        there = attributes_of(item) if later is None else later
        return self._attributes.items() <= there.items()
