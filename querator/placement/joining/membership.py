"""This node among the others of its cluster: how it becomes a member, which nodes may connect to
it, and what it reports to nodes that ask.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from querator.config import ClusterSettings
from querator.model.nodes import NodeKey, node_name
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.placement.joining.formation import Description, old_copy
from querator.placement.joining.forming import Forming, ask, description, peer_info, placed_node
from querator.placement.joining.known_peers import KnownPeers, removed_node, why_no_member
from querator.placement.map.machine import stored_effects
from querator.raft.clock import Clock
from querator.raft.refusals import LastingRefusal, OtherTokens
from querator.raft.starts import StartMemory
from querator.raft.tcp.channel import PeerTls
from querator.raft.tcp.tcp_peers import TcpPeers
from querator.storage.environment import Environment
from querator.storage.identity import DirectoryRefused, Identity, NodeRemoved, give_up

WATCH_S: Final = 2.0
"""Interval at which a node without connections asks."""


class Membership:
    """The membership of a node in a cluster of several. Runs on the event loop; `start` comes
    first, `close` last.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        waits_for: Callable[[str], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`waits_for` is called with what the start waits for; empty: nothing. `on_failure` is
        called when the cluster does not count on this node any more.
        """
        self._settings = settings
        self._waits_for = waits_for
        self._on_failure = on_failure
        self._known_peers = KnownPeers(settings)
        self._peers: TcpPeers | None = None
        self._tls: PeerTls | None = None
        self._identity: Identity | None = None
        self._node: PlacedNode | None = None
        self._environment: Environment | None = None
        self._old_copy = ""
        """Why the others refuse this copy of the data; empty if they do not."""

    @property
    def settings(self) -> ClusterSettings:
        return self._settings

    @property
    def certificate_expires_at_s(self) -> float | None:
        """Unix time at which the certificate of the port for other nodes expires; None: there is
        none, or it is not known.
        """
        return None if self._tls is None else self._tls.expires_at_s

    @property
    def peers(self) -> TcpPeers:
        assert self._peers is not None, "started"
        return self._peers

    async def start(
        self,
        environment: Environment,
        identity: Identity,
        node: PlacedNode,
        *,
        clock: Clock,
        stop: asyncio.Event,
    ) -> Identity | None:
        """Listens for the others, and waits without limit until the node is a member. Returns the
        member's identity; None when `stop` came before.

        Raises StorageError (also for a directory that the others refuse), PeerTlsError, and OSError
        when it cannot listen.
        """
        if self._settings.tls is not None:
            self._tls = await asyncio.to_thread(PeerTls, self._settings.tls)
        self._node, known = node, self._known_peers
        self._environment = environment
        placed = await asyncio.to_thread(stored_map, environment)
        known.learn(placed.epoch, placed.nodes or identity.founders)
        starts = await asyncio.to_thread(_stored_starts, environment, identity)
        forming = Forming(
            self._settings,
            environment,
            identity,
            node,
            known_peers=known,
            tls=self._tls,
            starts=starts.own,
            waits_for=self._waits_for,
        )
        if identity.is_member:
            await forming.check()
        loop = asyncio.get_running_loop()

        def on_old_copy(reason: str) -> None:
            loop.call_soon_threadsafe(self._on_old_copy, reason)

        self._peers = peers = await asyncio.to_thread(
            TcpPeers,
            peer_info(node, identity.cluster_id if identity.is_member else ""),
            listen=self._settings.listen_peers,
            token=self._settings.token,
            peers=known.peers(),
            clock=clock,
            tls=self._tls,
            description=description(self._settings, identity, node, placed),
            starts=starts,
            on_old_copy=on_old_copy,
        )
        if not identity.is_member:
            joined = await forming.join(peers, stop)
            if joined is None:
                return None
            identity = joined
            peers.set_peers(known.peers())
            peers.set_cluster_id(identity.cluster_id)
        self._identity = identity
        return identity

    async def watch(self) -> None:
        """Runs until cancelled. While no other node is connected, asks the others whether this node
        was removed, because a removed node does not receive the map.
        """
        while True:
            await asyncio.sleep(WATCH_S)
            if not self.peers.connected() and await self._was_removed():
                self._on_failure(NodeRemoved(removed_node(self._settings.name)))
                return

    async def _was_removed(self) -> bool:
        assert self._identity is not None
        for peer in self._known_peers.peers().values():
            said = await self._ask(peer.address)
            if isinstance(said, str) or said.cluster_id != self._identity.cluster_id:
                continue
            if any(node.key == self._identity.key for node in said.removed):
                return True
        return False

    async def ask(self, node: PlacedNode) -> Description | str:
        """What the node at `node`'s address reports, or why it does not answer."""
        return await self._ask(self._settings.peers.get(node.name) or node.peer_address)

    async def _ask(self, address: str) -> Description | str:
        return await asyncio.to_thread(ask, address, self._settings.token, tls=self._tls)

    def _on_old_copy(self, reason: str) -> None:
        """Called when another node reports that this data is an old copy."""
        if not self._old_copy:
            self._old_copy = old_copy(reason)
            self._on_failure(DirectoryRefused(self._old_copy))

    def close(self) -> None:
        """Closes the peer port, after the raft thread has ended. Blocks. Raises StorageError."""
        if self._peers is not None:
            self._peers.close()
        if self._old_copy:
            assert self._environment is not None
            assert self._identity is not None
            give_up(self._environment, self._identity, self._old_copy)

    def say(self, node: PlacedNode) -> None:
        """Replaces this node's own description."""
        self._node = node

    def connected(self) -> dict[NodeKey, PlacedNode]:
        """The nodes with open connections, as they describe themselves."""
        return {key: placed_node(info) for key, info in self.peers.connected().items()}

    def newcomers(self) -> tuple[PlacedNode, ...]:
        """Nodes without a cluster that have asked this one since the last call."""
        return tuple(map(placed_node, self.peers.newcomers()))

    def waiting(self) -> tuple[PlacedNode, ...]:
        """Nodes without a cluster that ask this one, and have not joined yet."""
        return tuple(map(placed_node, self.peers.waiting()))

    def other_tokens(self) -> OtherTokens:
        """See `TcpPeers.other_tokens`."""
        return self.peers.other_tokens()

    def lasting_refusals(self) -> tuple[LastingRefusal, ...]:
        """See `TcpPeers.lasting_refusals`."""
        return self.peers.lasting_refusals()

    def old_copies(self) -> dict[str, str]:
        """See `TcpPeers.old_copies`."""
        return self.peers.old_copies()

    def out_of_reach(self, placed: PlacementMap) -> frozenset[str]:
        """The other nodes of the map that are not connected, or from which nothing is received."""
        near = {node_name(key) for key in self.peers.connected().keys() - self.peers.quiet()}
        return frozenset({node.name for node in placed.nodes} - near - {self._settings.name})

    def on_map(self, placed: PlacementMap) -> None:
        """Updates, from the map, which nodes may connect and what this node reports."""
        assert self._identity is not None
        assert self._node is not None
        if self._known_peers.learn(placed.epoch, placed.nodes):
            self.peers.set_peers(self._known_peers.peers())
            if reason := why_no_member(placed, self._node):
                removed = placed.node(self._node.name) is None
                self._on_failure((NodeRemoved if removed else DirectoryRefused)(reason))
        if placed.nodes:
            told = description(self._settings, self._identity, self._node, placed)
            self.peers.set_description(told)


def stored_map(environment: Environment) -> PlacementMap:
    """The map that this node stored last. Blocks. Raises StorageError."""
    with environment.snapshot() as snapshot:
        return stored_effects(snapshot).map


def _stored_starts(environment: Environment, identity: Identity) -> StartMemory:
    """Blocks. Raises StorageError."""
    with environment.snapshot() as snapshot:
        return StartMemory.load(snapshot, identity.key)
