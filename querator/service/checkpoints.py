"""Checkpoints of an extend: cut by partition, into the commands that save them."""

from collections.abc import Sequence
from struct import pack

from querator.model.calls import Checkpoint
from querator.model.commands import Extend, ItemCheckpoint, SaveCheckpoints
from querator.model.ids import GroupId, parse_lease_id


def with_checkpoints(
    extend: Extend, group: GroupId, checkpoints: Sequence[Checkpoint]
) -> tuple[Extend | SaveCheckpoints, bytes]:
    """The command and its attachment: an extend of leases of the group, with those of the
    checkpoints that are of these leases.
    """
    items: list[ItemCheckpoint] = []
    pieces: list[bytes] = []
    for one in checkpoints:
        of_group, _, lease = parse_lease_id(one.lease_id, field="checkpoints.lease_id")
        if of_group == group:
            items.append(ItemCheckpoint(lease, one.seq, one.revision))
            pieces.append(one.data)
    if not items:
        return extend, b""
    lengths = pack(f"<{len(pieces)}I", *map(len, pieces))
    return SaveCheckpoints(extend, lengths, tuple(items)), b"".join(pieces)


def all_lost(checkpoints: Sequence[Checkpoint], lease_id: str) -> tuple[int, ...]:
    """The sequences of all checkpoints of a lease that belongs to no partition of the queue."""
    return tuple(one.seq for one in checkpoints if one.lease_id == lease_id)
