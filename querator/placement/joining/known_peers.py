"""Which nodes may connect to this one: those of the newest list of its cluster that it has heard
of, from the map or from what a peer said when this node started.

The map of a node that learns it from its beginning, or that was away, names data that has been
replaced since. It must not turn the nodes away from which it would learn that.
"""

from collections.abc import Iterable

from querator.config import ClusterSettings
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.raft.tcp.hello import KnownPeer


class Acquaintances:
    """Of the node with these settings."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._epoch = -1
        self._nodes: tuple[PlacedNode, ...] = ()

    def learn(self, epoch: int, nodes: Iterable[PlacedNode]) -> bool:
        """A list of the cluster's nodes, at an epoch of the map (0: those that founded it); whether
        it is as new as any before.
        """
        nodes = tuple(nodes)
        if epoch < self._epoch or not nodes:
            return False
        self._epoch, self._nodes = epoch, nodes
        return True

    def peers(self) -> dict[str, KnownPeer]:
        """With the addresses of the settings, where these name a node. Before any list is known the
        names of the settings count, with whatever data.
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
    """Why a node that the newest map does not name as it is must stop; empty: it is named so, or
    not at all.
    """
    known = placed.node(own.name)
    if known is None:
        removed = any(node.key == own.key for node in placed.removed)
        return f"node {own.name} has been removed from its cluster" if removed else ""
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
