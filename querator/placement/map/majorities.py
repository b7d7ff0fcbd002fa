"""When no node can lead a partition of a deleted queue any more. Pure.

A node *closes* its replicas of a queue that is being deleted: they never vote or acknowledge again,
not even after a crash. That needs no leader of the partition; the node only reports it to the
placement group. A partition is closed when the remaining replicas cannot be a majority in any
configuration that may be in force:

    kept    nodes that vote in all configurations from the former target to the present one
    others  nodes that vote in some of them

A configuration has all of the kept nodes, and some of the others. A partition is closed when the
open nodes, kept and others together, are at most as many as the closed kept nodes: then at most
half of the voters of any such configuration are open, and no majority is. Example: a group moves
from nodes a, b, c to a, b, d. Kept are a and b; c and d are others. When a and b are closed, c and
d are open: two open nodes, two closed kept ones, so no configuration has a majority. When a group
does not move, all its nodes are kept.
Replaced and removed nodes do not count, because no node talks to them again.
"""

from collections.abc import Collection

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import Queue, QueueState


def is_deleting(placed: PlacementMap, group: GroupId) -> bool:
    """Whether the group belongs to a queue that is being deleted."""
    owner = placed.by_group(group)
    return owner is not None and owner[0].state is QueueState.DELETING


def open_groups(
    placed: PlacementMap, queue: Queue, closed: Collection[NodeKey]
) -> dict[GroupId, tuple[NodeKey, ...]]:
    """The queue's groups that may still have a leader when the nodes in `closed` have closed their
    replicas; with each, the nodes that have not closed theirs.
    """
    alive = {node.key for node in placed.nodes}
    found: dict[GroupId, tuple[NodeKey, ...]] = {}
    for group in queue.groups:
        known = placed.placed(group)
        assert known is not None, "a group of a queue is in the map with it"
        left = _left_open(known, alive, closed)
        if left:
            found[group] = left
    return found


def _left_open(
    known: PlacedGroup, alive: Collection[NodeKey], closed: Collection[NodeKey]
) -> tuple[NodeKey, ...]:
    voters = set(known.voters)
    former = set(known.former) if known.moving else voters
    left = {node for node in voters | former if node in alive and node not in closed}
    kept = {node for node in voters & former if node in closed}
    return tuple(sorted(left)) if len(left) > len(kept) else ()
