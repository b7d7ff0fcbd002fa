"""The partition for a request that may go to any: plain produces without identity or key.

Requests that come one at a time go to the partitions in turn. Requests that come while others are
under way go to the same partition until they fill a block: the partition stores concurrent requests
as one block, and a block costs as much as an item. Then the next partition takes over, or the one
after it when that has fewer bytes under way. Partitions that this node leads come first, because
the path to other nodes is longer. Partitions without a leader are skipped.
"""

from querator.model.limits import BLOCK_BYTES_MAX, BLOCK_ITEMS_MAX
from querator.service.produce.load import PartitionLoad
from querator.service.routing.route import PartitionRoute


class PartitionChooser:
    """Rotation among the partitions of one queue."""

    __slots__ = ("_burst_bytes", "_burst_items", "_current", "_loads", "_routes")

    def __init__(
        self, routes: tuple[PartitionRoute, ...], loads: tuple[PartitionLoad, ...]
    ) -> None:
        """Both arguments are ordered by partition."""
        assert routes
        self._routes = routes
        self._loads = loads
        self._current = len(routes) - 1
        self._burst_items = 0
        self._burst_bytes = 0

    @property
    def partitions(self) -> int:
        return len(self._routes)

    def choose(self, items: int, size: int) -> int:
        """The partition for a request with this number of items and bytes."""
        if len(self._routes) == 1:
            return 0
        route = self._routes[self._current]
        if (
            self._loads[self._current].produces
            and route.is_reachable
            and self._burst_items + items <= BLOCK_ITEMS_MAX
            and self._burst_bytes + size <= BLOCK_BYTES_MAX
        ):
            self._burst_items += items
            self._burst_bytes += size
            return self._current
        first = self._next(self._current)
        second = self._next(first)
        busier = self._loads[first].payload_bytes > self._loads[second].payload_bytes
        self._current = second if busier else first
        self._burst_items = items
        self._burst_bytes = size
        return self._current

    def _next(self, position: int) -> int:
        """The next partition led by this node, else by another node; the next one when no leader is
        known.
        """
        routes = self._routes
        count = len(routes)
        elsewhere = -1
        for step in range(1, count + 1):
            candidate = (position + step) % count
            if routes[candidate].is_reachable:
                if routes[candidate].local:
                    return candidate
                if elsewhere < 0:
                    elsewhere = candidate
        return elsewhere if elsewhere >= 0 else (position + 1) % count
