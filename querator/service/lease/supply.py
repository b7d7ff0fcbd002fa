"""Number of items of one partition that this node can lease; this module is the only owner of the
number.

The dispatcher of the partition's queue takes from it, offers to other nodes reserve some of it, and
reports of the partition renew it. All of them use the methods of this module. The dispatcher alone
sets `in_flight`, and the offers alone set `is_resting`.
"""

from typing import Protocol

from querator.model.commands import PartitionEffects
from querator.model.ids import GroupId, QueueId
from querator.service.routing.route import PartitionRoute


class Dispatcher(Protocol):
    """The dispatcher of a queue, as seen by supplies and the exchange between nodes."""

    queue_id: QueueId
    supplies: "tuple[PartitionSupply, ...]"

    def on_supply(self, supply: "PartitionSupply") -> None:
        """The supply has changed."""
        ...

    def demand(self) -> tuple[int, int]:
        """Number of callers that wait and are not being served, and number of items they want."""
        ...

    def served(self) -> tuple[int, int]:
        """As `demand`, for all callers that wait until items are ready (`patient`), including
        those that are being served.
        """
        ...


class PartitionSupply:
    """Supply of one partition on this node. It may lag behind the partition."""

    __slots__ = ("dispatcher", "group", "in_flight", "is_resting", "ready", "reserved", "route")

    def __init__(self, route: PartitionRoute) -> None:
        self.group = route.group
        self.route = route
        self.ready = route.effects.ready if route.local else 0
        """Items that can be leased through this node: not reserved for other nodes."""
        self.reserved = False
        """Whether this node reserves items for others: its own leases then ask for no more than
        `ready`.
        """
        self.is_resting = False
        """Whether leases of this node give way to those of other nodes for a moment (`pace`)."""
        self.in_flight = False
        """Whether a lease command is unanswered; there is never more than one."""
        self.dispatcher: Dispatcher | None = None
        """Shares the supply among the callers of its queue; None before the first one."""

    def renew(self, items: int) -> None:
        """Another node leads the partition, and reports this number of items for this node."""
        self.ready = items

    def reserve(self, *, free: int, reserved: bool) -> None:
        """This node leads the partition. `free` items are not reserved for other nodes; `reserved`
        tells whether others are.
        """
        self.reserved = reserved
        self.ready = max(0, free)

    def unreserve(self) -> None:
        """Another node leads the partition: nothing is reserved here."""
        self.reserved = False

    def notify(self) -> None:
        """Notifies the dispatcher that the supply has changed."""
        if self.dispatcher is not None:
            self.dispatcher.on_supply(self)


class Supplies:
    """Supplies of all partitions of this node, by group. Used on the event loop."""

    def __init__(self) -> None:
        self._supplies: dict[GroupId, PartitionSupply] = {}

    def of(self, route: PartitionRoute) -> PartitionSupply:
        supply = self._supplies.get(route.group)
        if supply is None or supply.route is not route:
            supply = self._supplies[route.group] = PartitionSupply(route)
        return supply

    def on_effects(self, route: PartitionRoute, effects: PartitionEffects) -> PartitionSupply:
        """This node's replica reports the ready items of the partition."""
        supply = self.of(route)
        if route.local:
            supply.ready = effects.ready
        return supply

    def on_leadership(self, route: PartitionRoute) -> PartitionSupply:
        """This node has begun or ceased to lead the partition."""
        supply = self.of(route)
        supply.ready = route.effects.ready if route.local else 0
        return supply

    def on_leader_change(self, route: PartitionRoute) -> None:
        """Another node leads the partition, or none: the supply of the former leader is not known
        to exist.
        """
        supply = self._supplies.get(route.group)
        if supply is not None:
            supply.ready = 0

    def forget(self, group: GroupId) -> None:
        """The partition has left the map."""
        self._supplies.pop(group, None)
