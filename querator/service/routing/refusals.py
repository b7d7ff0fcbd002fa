"""Calls refused for lack of space by a partition or on the way to it: counts and reasons."""

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
"""Refusals for lack of space: the caller has to wait, or space has to be freed."""


class RefusedCalls(msgspec.Struct):
    """Refused calls: `calls` is their number between two times of the loop's clock, `error` the
    last refusal.
    """

    calls: int
    since_s: float
    last_s: float
    error: QueratorError


class Refusals:
    """Refused calls of one node, by partition. An accepted call costs nothing."""

    def __init__(self) -> None:
        self._groups: dict[GroupId, RefusedCalls] = {}

    def add(self, group: GroupId, error: QueratorError, now_s: float) -> None:
        known = self._groups.get(group)
        if known is None:
            self._groups[group] = RefusedCalls(1, now_s, now_s, error)
            return
        known.calls += 1
        known.last_s, known.error = now_s, error

    def since(self, from_s: float) -> dict[GroupId, RefusedCalls]:
        """Partitions that have refused a call since `from_s`; the others are forgotten."""
        self._groups = {group: one for group, one in self._groups.items() if one.last_s >= from_s}
        return dict(self._groups)
