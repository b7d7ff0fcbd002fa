"""When nobody can lead a partition of a deleted queue any more. Pure.

A node *closes* its replicas of a queue that is being deleted: they neither vote nor acknowledge
anything again, also after a crash. It needs no leader for that, and nobody but the placement group
to tell. A partition is closed when those that are left cannot be a majority, whichever of its
configurations is in force:

    kept    nodes that vote in all configurations from the former target to the present one
    others  nodes that vote in some of them

A configuration has all of the kept ones. If of both together no more are open than of the kept ones
are closed, at most half of its voters are open. When a group does not move, all are kept. What was
replaced or removed does not count: nobody talks to it again.
"""

from collections.abc import Collection

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import Queue, QueueState


def is_deleting(placed: PlacementMap, group: GroupId) -> bool:
    """Whether the group is of a queue that is being deleted."""
    owner = placed.by_group(group)
    return owner is not None and owner[0].state is QueueState.DELETING


def open_groups(
    placed: PlacementMap, queue: Queue, closed: Collection[NodeKey]
) -> dict[GroupId, tuple[NodeKey, ...]]:
    """The queue's groups that may still have a leader, with the nodes that have not closed theirs,
    when those of `closed` have.
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
