"""The damaged blocks that leases of this node pass over.

Which blocks a node cannot read is known on that node alone, but all replicas must pass over the
same ones. So each lease command that is proposed here names them.
"""

from typing import Any

import msgspec

from querator.model.commands import Lease
from querator.model.ids import GroupId
from querator.model.limits import ASIDE_BLOCKS_MAX, MEND_PAUSE_MS_MIN
from querator.partition.payloads import BlockDamaged


class AsideBlock:
    """One damaged block, and when it is asked of the other replicas again."""

    __slots__ = ("again_s", "damaged", "pause_ms")

    def __init__(self, damaged: BlockDamaged | None) -> None:
        self.damaged = damaged
        """None: what is damaged is not the payload, which is all that can be mended."""
        self.pause_ms = MEND_PAUSE_MS_MIN
        self.again_s = 0.0
        """When it is asked for, by the loop's clock."""


class AsideBlocks:
    """Of all partitions of this node. Only `repair.damage` adds and removes blocks."""

    def __init__(self) -> None:
        self.by_group: dict[GroupId, dict[int, AsideBlock]] = {}
        """By group and the first sequence of the block."""

    def amend(self, group: GroupId, command: Any) -> Any:
        """The command as it is proposed here, where the group is led."""
        blocks = self.by_group.get(group)
        if not blocks or not isinstance(command, Lease):
            return command
        return msgspec.structs.replace(command, aside=tuple(sorted(blocks)[:ASIDE_BLOCKS_MAX]))
