"""Which nodes hold a group's replicas, and which of them should lead it. Pure.

Groups are given to the nodes in turn: with n nodes by name, group g begins at node g mod n, goes
round, and prefers to be led by the first. Ids of groups count up, so the partitions of one queue,
and of all queues together, come out even in replicas and in leaders. Ids of replicas follow the
names, for the order of a configuration says nothing.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, Replica
from querator.model.placement_map import PlacedGroup, PlacedNode

REPLICAS_DEFAULT: Final = 3
"""Of a partition, where there are so many nodes: any one machine may be lost."""


def replicas_wanted(nodes: int, asked: int = 0) -> int:
    """Of a partition, where so many nodes take replicas and its queue asks for so many (0: for no
    number of its own).
    """
    return min(asked or REPLICAS_DEFAULT, nodes)


def assign(nodes: Sequence[PlacedNode], group: GroupId, *, replicas: int) -> PlacedGroup:
    """`nodes` by name, at least one; as many replicas as asked for, or as there are nodes."""
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
    """The group with the lost node's replica given to another, under an id of its own; the same
    object when the node has none.
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
