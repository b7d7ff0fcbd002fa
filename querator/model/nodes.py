"""Nodes of a cluster, and the replicas they hold.

A node has a name, and each copy of its data has a random *incarnation*, which is created with the
data directory. Votes and acknowledgements name both. A node that lost its disk returns as another
incarnation, and is not bound by the promises of the first one.
"""

from typing import NewType

import msgspec

NodeKey = NewType("NodeKey", str)
"""`name/incarnation`: one copy of one node's data."""


def node_key(name: str, incarnation: str) -> NodeKey:
    assert "/" not in name
    return NodeKey(f"{name}/{incarnation}")


def node_name(key: NodeKey) -> str:
    return key.partition("/")[0]


class Replica(msgspec.Struct, frozen=True, array_like=True):
    """A group's replica on one node. `id` counts from 1 in the group and is never reused there:
    votes name it. A replica that is not a voter (a learner) receives everything and does not count
    for majorities.
    """

    id: int
    node: NodeKey
    voter: bool = True


Replicas = tuple[Replica, ...]
"""The replicas of a group, by id."""
