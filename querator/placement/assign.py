"""Chooses the nodes that hold a group's replicas, and the one that should lead it. Pure.

Groups are assigned round robin. With n nodes in order of name, the replicas of group g are on
consecutive nodes from node g mod n on, and the first of these nodes is the preferred leader. Group
ids count up, so replicas and leaders are even over the partitions of one queue and of all queues.
Replica ids follow the node names, because the order of a configuration has no meaning.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, Replica
from querator.model.placement_map import PlacedGroup, PlacedNode

REPLICAS_DEFAULT: Final = 3
"""Replicas of a partition if there are enough nodes: any one machine may be lost."""


def replicas_wanted(nodes: int, asked: int = 0) -> int:
    """Replicas of a partition when `nodes` nodes take replicas. `asked` is the number that its
    queue asks for; 0: the default.
    """
    return min(asked or REPLICAS_DEFAULT, nodes)


def assign(nodes: Sequence[PlacedNode], group: GroupId, *, replicas: int) -> PlacedGroup:
    """Places a new group. `nodes` are ordered by name, at least one. The group gets `replicas`
    replicas, or one on each node if there are fewer nodes.
    """
    assert nodes
    first = group % len(nodes)
    chosen = sorted((first + step) % len(nodes) for step in range(min(replicas, len(nodes))))
    founding = tuple(
        Replica(number, nodes[place].key) for number, place in enumerate(chosen, start=1)
    )
    return PlacedGroup(
        founding=founding,
        target=founding,
        next_replica=len(founding) + 1,
        preferred=chosen.index(first) + 1,
    )


def replaced(placed: PlacedGroup, lost: NodeKey, by: NodeKey) -> PlacedGroup:
    """The group with the replica of node `lost` moved to node `by`, under a new replica id. Returns
    the same object if `lost` has no replica of it.
    """
    old = placed.replica_on(lost)
    if old is None:
        return placed
    new = Replica(placed.next_replica, by, old.voter)
    target = (*(replica for replica in placed.target if replica.id != old.id), new)
    return msgspec.structs.replace(
        placed,
        target=target,
        next_replica=new.id + 1,
        preferred=new.id if placed.preferred == old.id else placed.preferred,
        moving=True,
        former=placed.former if placed.moving else placed.voters,
    )
