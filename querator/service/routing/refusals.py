"""Calls that a partition, or the way to it, has refused for want of room: how many, and why."""

from typing import Final

import msgspec

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId

FULL: Final = frozenset(
    {
        ErrorCode.OVERLOADED,
        ErrorCode.QUEUE_FULL,
        ErrorCode.STAGE_FULL,
        ErrorCode.STORAGE_FULL,
    }
)
"""Refusals for want of room: the caller is to wait, or somebody is to make room."""


class Refused(msgspec.Struct):
    """`calls` were refused between two instants of the loop's clock, the last one by `error`."""

    calls: int
    since_s: float
    last_s: float
    error: QueratorError


class Refusals:
    """Of one node, by partition. A call that is accepted costs nothing."""

    def __init__(self) -> None:
        self._groups: dict[GroupId, Refused] = {}

    def add(self, group: GroupId, error: QueratorError, now_s: float) -> None:
        known = self._groups.get(group)
        if known is None:
            self._groups[group] = Refused(1, now_s, now_s, error)
            return
        known.calls += 1
        known.last_s, known.error = now_s, error

    def since(self, from_s: float) -> dict[GroupId, Refused]:
        """Partitions that have refused a call since then; the others are forgotten."""
        self._groups = {group: one for group, one in self._groups.items() if one.last_s >= from_s}
        return dict(self._groups)
