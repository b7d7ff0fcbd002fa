"""Knows which nodes may connect to this one: those of the newest node list of its cluster, received
from the map or from a peer at the start.

The map of a node that is learning it from the beginning, or that was away, can name data that has
been replaced since. Such a map must not lock out the nodes from which this node would learn that.
"""

from collections.abc import Iterable

from querator.config import ClusterSettings
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.raft.tcp.hello import KnownPeer


class KnownPeers:
    """The known peers of the node with these settings."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._epoch = -1
        self._nodes: tuple[PlacedNode, ...] = ()

    def learn(self, epoch: int, nodes: Iterable[PlacedNode]) -> bool:
        """Adopts a list of the cluster's nodes at an epoch of the map (0: the founding nodes),
        unless a newer list is known. Returns whether it was adopted.
        """
        nodes = tuple(nodes)
        if epoch < self._epoch or not nodes:
            return False
        self._epoch, self._nodes = epoch, nodes
        return True

    def peers(self) -> dict[str, KnownPeer]:
        """The peers by name, with the address of the settings for nodes that these name. Before a
        list is known, the names of the settings count, with any incarnation.
        """
        settings = self._settings
        known = {
            node.name: KnownPeer(
                settings.peers.get(node.name) or node.peer_address, incarnation=node.incarnation
            )
            for node in self._nodes
        } or {name: KnownPeer(address) for name, address in settings.peers.items()}
        known.pop(settings.name, None)
        return known


def why_no_member(placed: PlacementMap, own: PlacedNode) -> str:
    """Why this node must stop, if the newest map names it with other data, a later start, or as
    removed; empty otherwise.
    """
    known = placed.node(own.name)
    if known is None:
        removed = any(node.key == own.key for node in placed.removed)
        return removed_node(own.name) if removed else ""
    if known.incarnation != own.incarnation:
        return (
            f"node {own.name} has been replaced: its cluster knows it with other data (incarnation "
            f"{known.incarnation}, not {own.incarnation})"
        )
    if known.boots > own.boots:
        return (
            f"another process runs as node {own.name}, on a copy of its data: its cluster has seen "
            f"start {known.boots}, and this is start {own.boots}"
        )
    return ""


def removed_node(name: str) -> str:
    return f"Node {name} was removed from the cluster and ends. Its data is not used again."
