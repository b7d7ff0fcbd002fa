"""The order of the keys of a keyed queue, as the log of each partition shows it.

    at most `key_leased_max` items of a key are leased, and all of them under one lease
    an item is leased only with all earlier items of its key, or when these are gone
    both hold over partitions while their number changes

An earlier item is one that was applied before, in any partition of the queue. An item that dies is
gone when it begins to move. An item that is retried later is still the first one of its key, unless
the queue lets it step aside: then nothing is claimed of its place.

The checker sees the state after each entry, as the first replica applies it, and which items the
leases of the entry took. It knows the key of an item from its payload. Nothing is claimed of items
without a key, or of those whose payload the replica cannot read.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from querator.model.commands import FlowSettings
from querator.partition.rows import RowState

Place = tuple[int, int]
"""Group and sequence."""
_HELD_BY_A_CONSUMER = (RowState.LEASED, RowState.RESERVED)


class There(NamedTuple):
    """An item in a partition. `lease` 0: it is not leased."""

    key: str
    state: int
    lease: int
    attempt: int = 0


class KeyOrderChecker:
    def __init__(self) -> None:
        self.compared = 0
        """Items that were leased while later ones of their keys were waiting."""
        self._partitions: dict[int, dict[int, There]] = {}
        self._born: dict[Place, int] = {}
        """The order in which items were applied."""
        self._aside: set[Place] = set()
        """Items that have stepped aside."""
        self._found: list[str] = []

    def applied(
        self,
        group: int,
        settings: FlowSettings,
        items: Mapping[int, There],
        granted: Iterable[int],
    ) -> None:
        """The first replica has applied an entry. `items`: those of the partition by sequence,
        without those that move; the key of those about which nothing is claimed is empty.
        `granted`: what the leases of the entry took.
        """
        self._partitions[group] = {seq: item for seq, item in items.items() if item.key}
        for seq, item in sorted(items.items()):
            self._born.setdefault((group, seq), len(self._born))
            if item.state == RowState.SCHEDULED and not settings.key_retry_blocks:
                self._aside.add((group, seq))
        took = [seq for seq in granted if seq in self._partitions[group]]
        for key in {items[seq].key for seq in took}:
            self._judge_leased(key, settings)
        for seq in took:
            self._judge_order(group, seq, items[seq])

    def _of(self, key: str) -> Iterator[tuple[Place, There]]:
        for group, items in self._partitions.items():
            for seq, item in items.items():
                if item.key == key:
                    yield (group, seq), item

    def _judge_leased(self, key: str, settings: FlowSettings) -> None:
        leased = [
            (place, item) for place, item in self._of(key) if item.state in _HELD_BY_A_CONSUMER
        ]
        if len(leased) > settings.key_leased_max:
            self._found.append(
                f"{len(leased)} items of key {key} are leased, and {settings.key_leased_max} may be"
            )
        if len({(place[0], item.lease) for place, item in leased}) > 1:
            self._found.append(f"items of key {key} are under several leases: {leased}")

    def _judge_order(self, group: int, seq: int, item: There) -> None:
        place = group, seq
        if place in self._aside:
            return
        others = False
        for other, there in self._of(item.key):
            if other == place or other in self._aside:
                continue
            if self._born[other] > self._born[place]:
                others = True
            elif there.state != RowState.LEASED or (other[0], there.lease) != (group, item.lease):
                self._found.append(
                    f"item {seq} of group {group} was leased, and item {other[1]} of group "
                    f"{other[0]}, an earlier one of key {item.key}, is {RowState(there.state).name}"
                )
        self.compared += others

    def judge(self) -> Iterator[str]:
        """What is wrong."""
        yield from self._found
