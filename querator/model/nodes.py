"""Nodes of a cluster, and the replicas they hold.

A node is known by its name, and each copy of its data by a random *incarnation*, which is born with
the data directory. What has to do with votes and acknowledgements names both: a node that lost its
disk comes back as another incarnation, and nothing that the first one promised is expected of it.
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
    """One node's copy of a group. `id` counts from 1 in the group and is never reused there: votes
    name it. One that is not a voter (a learner) gets everything and counts for nothing.
    """

    id: int
    node: NodeKey
    voter: bool = True


Replicas = tuple[Replica, ...]
"""The replicas of a group, by id."""
