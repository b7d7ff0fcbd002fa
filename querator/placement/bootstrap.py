"""What placement knows of its own node before there is a map."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey, Replicas
from querator.model.placement_map import PlacedNode
from querator.placement.assign import assign

Propose = Callable[[GroupId, Any], Awaitable[Any]]
"""Sends a command to the leader of its group, on any node. Returns the result, which may be a
Refusal. Raises QueratorError.
"""


Ask = Callable[[GroupId, Any], Awaitable[Any]]
"""Sends a query of `partition.dedup_export` to the leader of the group, on any node. The answer
reflects everything that was answered before. Raises QueratorError.
"""


class ClusterBootstrap(msgspec.Struct, frozen=True):
    """`node` is the node's own description, `replicas` the configuration of the placement group
    with which this node begins. `founders` are all nodes that founded the cluster, and any of them
    may propose these nodes to the map; empty for a node that joined later.
    """

    cluster_id: str
    node: PlacedNode
    replicas: Replicas
    founders: tuple[PlacedNode, ...] = ()

    @property
    def key(self) -> NodeKey:
        return self.node.key


def founding(founders: tuple[PlacedNode, ...]) -> Replicas:
    """The first configuration of the placement group: a replica on each founding node."""
    nodes = sorted(founders, key=lambda node: node.name)
    return assign(nodes, PLACEMENT_GROUP, replicas=len(nodes)).founding


def learning(replicas: Replicas, node: NodeKey) -> Replicas:
    """The replicas with which a node begins that joined a group later: its own replica does not
    vote.
    """
    return tuple(
        msgspec.structs.replace(replica, voter=False) if replica.node == node else replica
        for replica in replicas
    )


def alone(name: str = "node", incarnation: str = "alone") -> ClusterBootstrap:
    """Bootstrap of the only node of a cluster, in one process."""
    node = PlacedNode(name, incarnation, peer_address="", client_address="")
    return ClusterBootstrap("alone", node, founding((node,)), (node,))
