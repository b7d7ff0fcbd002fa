"""When to check groups in which nothing happens."""

import heapq

from querator.model.ids import GroupId


class GroupTimers:
    """Timers by the monotonic clock, at most one for each group."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, GroupId]] = []
        self._set: dict[GroupId, float] = {}

    @property
    def first_s(self) -> float | None:
        """When the first timer is due, or earlier."""
        return self._heap[0][0] if self._heap else None

    def set(self, group: GroupId, at_s: float) -> None:
        """Sets a timer, unless an earlier one is set: a group that is checked early sets it
        again.
        """
        earlier = self._set.get(group)
        if earlier is None or at_s < earlier:
            self._set[group] = at_s
            heapq.heappush(self._heap, (at_s, group))

    def due(self, now_s: float) -> list[GroupId]:
        """Takes the groups whose timers are due."""
        groups = []
        while self._heap and self._heap[0][0] <= now_s:
            at_s, group = heapq.heappop(self._heap)
            if self._set.get(group) == at_s:
                del self._set[group]
                groups.append(group)
        return groups
