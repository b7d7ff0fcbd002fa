"""A partition of a fair or keyed queue, and the groups or keys of its items."""

from collections import Counter
from struct import pack
from typing import Any

from querator.model.commands import Complete, FlowSettings, LeaseGrant, LeaseItems, Retry
from querator.model.item_options import NO_FLOW, FlowNames
from querator.model.queues import Fairness, GroupSettings, QueueKind
from tests.unit.partition.partition_log import PartitionLog, lease_of, seqs


def names_of(names: list[str]) -> FlowNames | None:
    """The names of items; empty: the item has none."""
    distinct = list(dict.fromkeys(name for name in names if name))
    if not distinct:
        return None
    places = [distinct.index(name) if name else NO_FLOW for name in names]
    return FlowNames(tuple(name.encode() for name in distinct), pack(f"<{len(names)}H", *places))


def fair(fairness: Fairness = Fairness.TURNS, **changes: Any) -> FlowSettings:
    return FlowSettings(QueueKind.FAIR, fairness, **changes)


def keyed(**changes: Any) -> FlowSettings:
    return FlowSettings(QueueKind.KEYED, **changes)


def weights(**by_path: int) -> tuple[GroupSettings, ...]:
    return tuple(GroupSettings(path, weight) for path, weight in sorted(by_path.items()))


class FlowQueue(PartitionLog):
    """Knows the name of each item that it has."""

    def __init__(
        self,
        flows: FlowSettings,
        *,
        checked: bool = True,
        all_events: bool = False,
        **changes: Any,
    ) -> None:
        super().__init__(checked=checked, all_events=all_events)
        self.version = 0
        self.names: dict[int, str] = {}
        self.set(flows, **changes)

    def set(self, flows: FlowSettings, **changes: Any) -> None:
        self.version += 1
        self.configure(self.version, flows=flows, **changes)

    def put(self, *names: str, **changes: Any) -> range:
        """Produces one item for each name."""
        result = self.produce(
            [b"%d" % number for number in range(len(names))],
            flows=names_of(list(names)),
            **changes,
        )
        found = range(result.first_seq, result.first_seq + result.count)
        self.names |= dict(zip(found, names, strict=True))
        return found

    def fill(self, backlogs: dict[str, int]) -> None:
        """Produces the items of each group together."""
        for name, count in backlogs.items():
            for start in range(0, count, 1000):
                self.put(*[name] * min(1000, count - start))

    def lease(self, items: int = 100, **changes: Any) -> LeaseGrant:
        grant: LeaseGrant = self.one(lease_of(items, **changes)).grants[0]
        return grant

    def complete(self, grant: LeaseGrant) -> None:
        if grant.lease:
            numbers = {segment.lease or grant.lease for segment in grant.segments}
            self.one(Complete(tuple(LeaseItems(number) for number in sorted(numbers))))

    def release(self, grant: LeaseGrant) -> None:
        self.one(Retry((LeaseItems(grant.lease),), count_attempt=False))

    def take(self, items: int = 100) -> list[str]:
        """Leases and completes items. Returns their names in order."""
        grant = self.lease(items)
        self.complete(grant)
        return [self.names[seq] for seq in seqs(grant)]

    def served(self, *, items: int, of: int) -> Counter[str]:
        """How many items of each name are served when `of` items are taken in leases of `items`."""
        found: Counter[str] = Counter()
        while (left := of - found.total()) > 0:
            taken = self.take(min(items, left))
            assert taken, "no more items are left"
            found.update(taken)
        return found
