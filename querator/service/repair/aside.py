"""The damaged blocks that leases of this node skip.

Only this node knows which blocks it cannot read, but all replicas must skip the same blocks. So
each lease command that is proposed here names them.
"""

from typing import Any

import msgspec

from querator.model.commands import Lease
from querator.model.ids import GroupId
from querator.model.limits import ASIDE_BLOCKS_MAX, MEND_PAUSE_MS_MIN
from querator.partition.payloads import BlockDamaged


class AsideBlock:
    """One damaged block, and the time of the next request to the other replicas."""

    __slots__ = ("again_s", "damaged", "pause_ms")

    def __init__(self, damaged: BlockDamaged | None) -> None:
        self.damaged = damaged
        """None: the damage is not in the payload, which is the only part that can be repaired."""
        self.pause_ms = MEND_PAUSE_MS_MIN
        self.again_s = 0.0
        """Time of the next request, by the loop's clock."""


class AsideBlocks:
    """Damaged blocks of all partitions of this node. Only `repair.damage` adds and
    removes blocks.
    """

    def __init__(self) -> None:
        self.by_group: dict[GroupId, dict[int, AsideBlock]] = {}
        """By group and the first sequence of the block."""

    def amend(self, group: GroupId, command: Any) -> Any:
        """The command as it is proposed on this node, which leads the group."""
        blocks = self.by_group.get(group)
        if not blocks or not isinstance(command, Lease):
            return command
        return msgspec.structs.replace(command, aside=tuple(sorted(blocks)[:ASIDE_BLOCKS_MAX]))
