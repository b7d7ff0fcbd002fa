"""The groups and keys of items, as the commands of fair and keyed queues name them."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from sys import byteorder

from querator.model.item_options import NO_FLOW, FlowNames
from querator.v1 import items_pb2


def flow_names(by_ordinal: Mapping[int, bytes], count: int) -> FlowNames:
    """The names of `count` items; at least one item has one."""
    positions: dict[bytes, int] = {}
    items = array("H", [NO_FLOW]) * count
    for ordinal, name in by_ordinal.items():
        items[ordinal] = positions.setdefault(name, len(positions))
    if byteorder == "big":
        items.byteswap()
    return FlowNames(tuple(positions), items.tobytes())


def stored_groups(
    items: bytes, lengths: Sequence[int], is_group: Callable[[str], bool]
) -> FlowNames | None:
    """The groups of stored items, one after the other, of `lengths` bytes each; a length of 0 is no
    item. Groups for which `is_group` is False count as none. None: no item has one.
    """
    groups = {
        ordinal: item.group.encode()
        for ordinal, item in _stored(items, lengths)
        if item.group and is_group(item.group)
    }
    return flow_names(groups, len(lengths)) if groups else None


def stored_keys(items: bytes, lengths: Sequence[int]) -> FlowNames | None:
    """As `stored_groups`, the keys."""
    keys = {ordinal: item.key.encode() for ordinal, item in _stored(items, lengths) if item.key}
    return flow_names(keys, len(lengths)) if keys else None


def _stored(items: bytes, lengths: Sequence[int]) -> list[tuple[int, items_pb2.Item]]:
    there = [ordinal for ordinal, length in enumerate(lengths) if length]
    parsed = items_pb2.LeasedBatch.FromString(items).items
    return list(zip(there, parsed, strict=True))


assert array("H").itemsize == 2
