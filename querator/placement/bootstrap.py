"""What placement is told of its own node before there is a map."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey, Replicas
from querator.model.placement_map import PlacedNode
from querator.placement.assign import assign

Propose = Callable[[GroupId, Any], Awaitable[Any]]
"""Brings a command to the leader of its group, wherever that is; gives its result, which may be a
Refusal. Raises QueratorError."""


Ask = Callable[[GroupId, Any], Awaitable[Any]]
"""Has a query of `partition.facts` answered on the node that leads the group, wherever that is, as
of after everything that was answered before. Raises QueratorError."""


class Standing(msgspec.Struct, frozen=True):
    """`node` is what the node says of itself, `replicas` the configuration of the placement group
    that this node begins with. `founders` are all nodes with which the cluster began, of which any
    may come to tell the map; empty for a node that came later.
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
    """The replicas as a node begins with them that came to a group later: its own does not vote."""
    return tuple(
        msgspec.structs.replace(replica, voter=False) if replica.node == node else replica
        for replica in replicas
    )


def alone(name: str = "node", incarnation: str = "alone") -> Standing:
    """Of a cluster of one node, in one process."""
    node = PlacedNode(name, incarnation, peer_address="", client_address="")
    return Standing("alone", node, founding((node,)), (node,))
