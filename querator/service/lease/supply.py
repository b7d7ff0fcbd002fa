"""What this node can lease of one partition, and the one owner of that fact.

The dispatcher of the partition's queue takes from it, offers to other nodes reserve some of it, and
the partition's own reports renew it. All of them go through the methods here.
"""

from typing import Protocol

from querator.model.commands import PartitionEffects
from querator.model.ids import GroupId, QueueId
from querator.service.routing.route import PartitionRoute


class Dispatcher(Protocol):
    """The dispatcher of a queue, as supplies and the exchange between nodes know it."""

    queue_id: QueueId
    supplies: "tuple[PartitionSupply, ...]"

    def on_supply(self, supply: "PartitionSupply") -> None:
        """The supply has changed."""
        ...

    def demand(self) -> tuple[int, int]:
        """How many callers wait and are not being served, and how many items they want."""
        ...

    def served(self) -> tuple[int, int]:
        """As `demand`, of all callers that take what comes."""
        ...


class PartitionSupply:
    """Of one partition on this node. It may be behind the partition."""

    __slots__ = ("dispatcher", "group", "in_flight", "is_resting", "ready", "reserved", "route")

    def __init__(self, route: PartitionRoute) -> None:
        self.group = route.group
        self.route = route
        self.ready = route.effects.ready if route.local else 0
        """Items that can be leased through this node: not reserved for others."""
        self.reserved = False
        """Whether this node reserves some for others: then its own leases ask for no more."""
        self.is_resting = False
        """Whether leases of this node give way to those of others for a moment (`pace`)."""
        self.in_flight = False
        """Whether a lease command is unanswered; there is never more than one."""
        self.dispatcher: Dispatcher | None = None
        """Shares it out among the callers of its queue; None before the first one."""

    def offered(self, items: int) -> None:
        """Another node, which leads the partition, has this number of items for this node."""
        self.ready = items
        self.notify()

    def reserve(self, *, free: int, reserved: bool) -> None:
        """This node leads the partition: `free` items are not reserved for other nodes, and others
        may be.
        """
        self.reserved = reserved
        self.ready = max(0, free)

    def notify(self) -> None:
        """The supply has changed: its dispatcher looks at it."""
        if self.dispatcher is not None:
            self.dispatcher.on_supply(self)


class Supplies:
    """Of all partitions of this node, by group. On the event loop."""

    def __init__(self) -> None:
        self._supplies: dict[GroupId, PartitionSupply] = {}

    def of(self, route: PartitionRoute) -> PartitionSupply:
        supply = self._supplies.get(route.group)
        if supply is None or supply.route is not route:
            supply = self._supplies[route.group] = PartitionSupply(route)
        return supply

    def on_effects(self, route: PartitionRoute, effects: PartitionEffects) -> PartitionSupply:
        """This node's replica reports what the partition has ready."""
        supply = self.of(route)
        if route.local:
            supply.ready = effects.ready
        return supply

    def on_leadership(self, route: PartitionRoute) -> PartitionSupply:
        """This node leads the partition from here on, or no longer."""
        supply = self.of(route)
        supply.ready = route.effects.ready if route.local else 0
        return supply

    def on_leader_change(self, route: PartitionRoute) -> None:
        """Another node leads the partition, or none: what the former one had is not known to be
        there.
        """
        supply = self._supplies.get(route.group)
        if supply is not None:
            supply.ready = 0

    def forget(self, group: GroupId) -> None:
        """The partition has left the map."""
        self._supplies.pop(group, None)
