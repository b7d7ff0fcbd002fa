"""Splitting of items that differ only in their payloads, without parsing each one.

Consecutive items of one producer mostly have the same kind, encoding and so on. If the payload
comes first, as encoders write it, and the rest of the item is the same, the length of an item
determines where its payload is:

    tag · length of the item · tag · length of the payload │ payload │ the rest
    ╰───────────────────── head ─────────────────────────╯

So one call of `struct` cuts a block, and two comparisons prove that the assumption holds. This
costs a tenth of parsing the items and reading their fields.
"""

import struct
from collections.abc import Sequence

import msgspec

from querator.v1 import items_pb2
from querator.wire.fields import LEN, MalformedError, next_field, prefix, varint

_ITEMS = items_pb2.LeasedBatch.ITEMS_FIELD_NUMBER
_PAYLOAD = items_pb2.Item.PAYLOAD_FIELD_NUMBER


class Alike(msgspec.Struct, frozen=True):
    """Items that differ only in their payloads. `sample` is an item without its payload."""

    sample: items_pb2.Item
    payloads: Sequence[bytes]


def cut_alike(items: bytes, lengths: Sequence[int]) -> Alike | None:
    """Splits items, tagged and length-prefixed, of `lengths` bytes each. None: they are not alike,
    or not in the usual encoding, and must be parsed.
    """
    rest = _rest(items, lengths[0])
    # Most blocks that are not alike differ in the first two items or in the last one: check these
    # first.
    second = sum(lengths[:2])
    if rest is None or not (items.endswith(rest, 0, second) and items.endswith(rest)):
        return None
    head_of = {length: _head(length, len(rest)) for length in set(lengths)}
    if None in head_of.values():
        return None
    format_of = {
        length: f"{len(head)}s{length - len(head) - len(rest)}s{len(rest)}s"
        for length, head in head_of.items()
        if head is not None
    }
    # `struct` caches the formats of earlier blocks.
    pieces = struct.unpack("".join([format_of[length] for length in lengths]), items)
    if list(pieces[::3]) != [head_of[length] for length in lengths]:
        return None
    if pieces[2::3].count(rest) != len(lengths):
        return None
    return Alike(items_pb2.Item.FromString(rest), pieces[1::3])


def _rest(items: bytes, length: int) -> bytes | None:
    """The bytes after the payload of the first item, which has `length` bytes. None: it has another
    form.
    """
    try:
        number, wire_type, at, stop = next_field(items, 0, length)
        if (number, wire_type, stop) != (_ITEMS, LEN, length):
            return None
        number, wire_type, _, end = next_field(items, at, stop)
        if (number, wire_type) != (_PAYLOAD, LEN):
            return None
        at = end
        while at < stop:
            number, _, _, at = next_field(items, at, stop)
            if number == _PAYLOAD:
                # A second payload: the last one counts.
                return None
    except MalformedError:
        return None
    return items[end:stop]


def _head(length: int, rest_bytes: int) -> bytes | None:
    """The bytes before the payload in an item of this length, if its lengths have their shortest
    encoding; None if there is no such item.
    """
    item_bytes = _content(length)
    payload_bytes = _content(item_bytes - rest_bytes)
    if payload_bytes < 0:
        return None
    return prefix(_ITEMS, item_bytes) + prefix(_PAYLOAD, payload_bytes)


def _content(size: int) -> int:
    """Number of content bytes in a field of `size` bytes with a tag of one byte; -1: no field has
    this size.
    """
    for length_bytes in range(1, min(6, size)):
        content = size - 1 - length_bytes
        if len(varint(content)) == length_bytes:
            return content
    return -1
