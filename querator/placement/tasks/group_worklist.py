"""The groups led by a node for which work may be pending. Pure.

A group without pending work is skipped until the node becomes its leader again or the map changes
for it. So a round costs what has changed, not what exists. All groups are checked every AGAIN_S
regardless.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Final

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.placement_map import PlacementMap

AGAIN_S: Final = 10.0

AT_ONCE_MAX: Final = 16
"""Leaderships that move to their preferred nodes in one round."""
QUEUE_PART: Final = 16
QUEUE_MIN: Final = 2
"""At most one in QUEUE_PART of a queue's partitions moves its leadership in a round, but QUEUE_MIN
always may. Each stops for a moment, and the others continue.
"""


class GroupWorklist:
    """Call `refresh` first in each round."""

    def __init__(self) -> None:
        self._since_s: dict[GroupId, float] = {}
        self._left: dict[GroupId, None] = {}
        self._placed = PlacementMap()
        self._again_s = float("-inf")

    @property
    def left(self) -> tuple[GroupId, ...]:
        """Led groups that are not done. The placement group comes first, because a new node learns
        from it what it should hold, and the others wait for that. The groups tried last come last.
        """
        return tuple(sorted(self._left, key=lambda group: group != PLACEMENT_GROUP))

    def led_s(self, group: GroupId, now_s: float) -> float:
        """How long a led group has been led, as seen by the rounds."""
        return now_s - self._since_s[group]

    def refresh(self, led: Set[GroupId], placed: PlacementMap, now_s: float) -> None:
        """Takes over the led groups and the map."""
        for group in self._since_s.keys() - led:
            del self._since_s[group]
            self._left.pop(group, None)
        for group in sorted(led - self._since_s.keys()):
            self._since_s[group] = now_s
            self._left[group] = None
        if now_s >= self._again_s:
            self._again_s = now_s + AGAIN_S
            self._left.update(dict.fromkeys(self._since_s))
        elif placed is not self._placed:
            before: Mapping[GroupId, object] = self._placed.groups
            after = placed.groups
            self._left.update(
                (group, None)
                for group in self._since_s
                if before.get(group) is not after.get(group)
            )
        self._placed = placed

    def tried(self, group: GroupId) -> None:
        """Moves the group behind the others, so that a group that waits for a node does not hold up
        others.
        """
        if group in self._left:
            del self._left[group]
            self._left[group] = None

    def done(self, group: GroupId) -> None:
        """No work is pending for the group, by the map of the last `refresh`."""
        self._left.pop(group, None)


def some_at_once(groups: Iterable[GroupId], placed: PlacementMap) -> list[GroupId]:
    """The first groups, as many as may stop for a moment together."""
    chosen: list[GroupId] = []
    of_queue: dict[object, int] = {}
    for group in groups:
        owner = placed.by_group(group)
        queue = None if owner is None else owner[0]
        most = QUEUE_MIN if queue is None else max(QUEUE_MIN, len(queue.groups) // QUEUE_PART)
        known = None if queue is None else queue.id
        if of_queue.get(known, 0) < most:
            of_queue[known] = of_queue.get(known, 0) + 1
            chosen.append(group)
            if len(chosen) == AT_ONCE_MAX:
                break
    return chosen
