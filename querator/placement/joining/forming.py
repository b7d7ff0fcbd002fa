"""Formation with its I/O: asks the peers, carries out the decisions of
`placement.joining.formation`, and stores each durably before it is reported. It also makes the
description that the peer port serves.
"""

import asyncio
import select
import threading
from collections.abc import Callable
from typing import Final

import uuid_utils

from querator import telemetry
from querator.config import ClusterSettings
from querator.model.ids import PLACEMENT_GROUP
from querator.model.nodes import Replicas
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.model.starts import Starts
from querator.placement.bootstrap import founding
from querator.placement.joining import formation
from querator.placement.joining.formation import (
    Decision,
    Description,
    Found,
    Join,
    OldCopy,
    Refuse,
    Start,
    Starter,
    Wait,
    WaitAsReplacement,
    decide,
    decode_description,
    encode_description,
)
from querator.placement.joining.known_peers import KnownPeers
from querator.raft.refusals import Code
from querator.raft.tcp.channel import PeerTls
from querator.raft.tcp.hello import PeerInfo
from querator.raft.tcp.query import QueryFailed, QueryRefused, query
from querator.raft.tcp.tcp_peers import TcpPeers
from querator.storage import identity as identities
from querator.storage.environment import Environment
from querator.storage.identity import DirectoryRefused, Identity, NodeRemoved

QUERY_TIMEOUT_S: Final = 1.0
AGAIN_S: Final = 0.25
"""Pause between two rounds of questions while no cluster is found."""
_ATTEND_S: Final = 0.1

_log = telemetry.logger(__name__)


# --- messages of the peer port -------------------------------------------------------------


def peer_info(node: PlacedNode, cluster_id: str, starts: Starts = ()) -> PeerInfo:
    """The handshake's description of a node; `cluster_id` empty: it has none. The peer port adds
    `starts` itself, except for queries.
    """
    return PeerInfo(
        name=node.name,
        incarnation=node.incarnation,
        cluster_id=cluster_id or None,
        peer_address=node.peer_address,
        client_address=node.client_address,
        zone=node.zone,
        boots=node.boots,
        version=node.version,
        starts=starts,
    )


def placed_node(info: PeerInfo) -> PlacedNode:
    """A node as it described itself in the handshake."""
    return PlacedNode(
        info.name,
        info.incarnation,
        peer_address=info.peer_address,
        client_address=info.client_address,
        zone=info.zone,
        boots=info.boots,
        version=info.version,
    )


def description(
    settings: ClusterSettings, identity: Identity, node: PlacedNode, placed: PlacementMap
) -> bytes:
    """The answer to queries."""
    replicas: Replicas = placed.replicas(PLACEMENT_GROUP)
    return encode_description(
        Description(
            formation.VERSION,
            node,
            settings.founds_with,
            cluster_id=identity.cluster_id,
            epoch=placed.epoch,
            nodes=placed.nodes or identity.founders,
            founders=identity.founders,
            replicas=replicas,
            removed=placed.removed,
        )
    )


def ask(address: str, token: bytes, *, tls: PeerTls | None) -> Description | str:
    """What the node at the address reports, or why it does not answer. Blocks."""
    try:
        return decode_description(query(address, token, QUERY_TIMEOUT_S, tls=tls))
    except QueryFailed as failure:
        return str(failure)


def ask_as(
    info: PeerInfo, address: str, token: bytes, *, tls: PeerTls | None
) -> Description | OldCopy | str:
    """As `ask`; the node at the address also judges whether the asking node's data is the newest.
    Blocks.
    """
    try:
        return decode_description(query(address, token, QUERY_TIMEOUT_S, info=info, tls=tls))
    except QueryRefused as refused:
        return OldCopy(refused.reason) if refused.code is Code.OLD_COPY else str(refused)
    except QueryFailed as failure:
        return str(failure)


# --- before the raft thread runs -----------------------------------------------------------


class FormationListener:
    """Serves the peer port until the raft thread does. Before the node is a member, the port only
    answers queries.
    """

    def __init__(self, peers: TcpPeers) -> None:
        self._peers = peers
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Blocks until another thread can use the port. Raises the error that ended the work."""
        self._ending.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._peers.fileno(), select.POLLIN)
        try:
            while not self._ending.is_set():
                wait_s = self._peers.wait_s()
                poll.poll(1000 * (_ATTEND_S if wait_s is None else min(wait_s, _ATTEND_S)))
                events = self._peers.receive()
                assert not events, "a node without a cluster has no connections"
        except BaseException as error:  # noqa: BLE001 - the thread's top: `stop` tells
            self._error = error


class Forming:
    """One start of a node of a cluster of several. Runs on the event loop."""

    def __init__(
        self,
        settings: ClusterSettings,
        environment: Environment,
        identity: Identity,
        node: PlacedNode,
        *,
        known_peers: KnownPeers,
        tls: PeerTls | None,
        starts: Starts,
        waits_for: Callable[[str], None],
    ) -> None:
        """`tls` is that of the peer port, `starts` are those of this node. `waits_for` is called
        with what the start waits for; empty: nothing any more.
        """
        self._known_peers = known_peers
        self._settings = settings
        self._environment = environment
        self._identity = identity
        self._node = node
        self._tls = tls
        self._starts = starts
        self._waits_for = waits_for
        self._reason = ""

    async def check(self) -> None:
        """Asks the others about this member and adopts their newest list of nodes. Raises
        DirectoryRefused if they refuse its data.
        """
        assert self._identity.is_member
        decision = await self._decision()
        if isinstance(decision, Refuse):
            if decision.for_good:
                await asyncio.to_thread(
                    identities.give_up, self._environment, self._identity, decision.reason
                )
            raise _refused(decision)
        assert isinstance(decision, Start)
        self._known_peers.learn(decision.epoch, decision.nodes)

    async def join(self, peers: TcpPeers, stop: asyncio.Event) -> Identity | None:
        """Returns the identity of the new member, stored durably; None when `stop` came before.
        Queries at the peer port are answered meanwhile.

        Raises DirectoryRefused and StorageError.
        """
        listener = FormationListener(peers)
        try:
            while not stop.is_set():
                decision = await self._decision()
                await self._follow(decision, peers)
                if self._identity.is_member:
                    return self._identity
                try:
                    async with asyncio.timeout(AGAIN_S):
                        await stop.wait()
                except TimeoutError:
                    continue
            return None
        finally:
            self._waits_for("")
            await asyncio.to_thread(listener.stop)

    async def _decision(self) -> Decision:
        known = {name: peer.address for name, peer in self._known_peers.peers().items()}
        others = {**known, **self._settings.peers}
        others.pop(self._identity.name, None)
        member = self._identity.is_member
        info = peer_info(self._node, self._identity.cluster_id if member else "", self._starts)
        answers = await asyncio.gather(
            *(
                asyncio.to_thread(ask_as, info, address, self._settings.token, tls=self._tls)
                for address in others.values()
            )
        )
        starter = Starter(
            self._node,
            self._settings.founds_with,
            cluster_id=self._identity.cluster_id,
            member=self._identity.is_member,
        )
        return decide(starter, dict(zip(others, answers, strict=True)))

    async def _follow(self, decision: Decision, peers: TcpPeers) -> None:
        match decision:
            case Refuse():
                raise _refused(decision)
            case Wait(reason):
                self._send_report(reason)
            case WaitAsReplacement(cluster_id, reason):
                if not self._identity.cluster_id:
                    self._identity = await asyncio.to_thread(
                        identities.wait, self._environment, self._identity, cluster_id=cluster_id
                    )
                self._send_report(reason)
            case Found(founders):
                cluster_id = uuid_utils.uuid7().hex
                self._known_peers.learn(0, founders)
                await self._join(cluster_id, founding(founders), founders)
                names = [founder.name for founder in founders]
                _log.info("formation.founded", cluster_id=cluster_id, nodes=names)
            case Join(cluster_id, replicas, founders, epoch, nodes):
                self._known_peers.learn(epoch, nodes)
                await self._join(cluster_id, replicas, founders)
                _log.info("formation.joined", cluster_id=cluster_id)
            case _:
                raise AssertionError(decision)
        # The node only reports what is stored.
        told = description(self._settings, self._identity, self._node, PlacementMap())
        peers.set_description(told)

    async def _join(
        self, cluster_id: str, replicas: Replicas, founders: tuple[PlacedNode, ...]
    ) -> None:
        self._identity = await asyncio.to_thread(
            identities.join,
            self._environment,
            self._identity,
            cluster_id=cluster_id,
            replicas=replicas,
            founders=founders,
        )

    def _send_report(self, reason: str) -> None:
        self._waits_for(f"its cluster: {reason}")
        if reason != self._reason:
            self._reason = reason
            _log.info("formation.waiting", reason=reason)


def _refused(decision: Refuse) -> DirectoryRefused:
    return (NodeRemoved if decision.removed else DirectoryRefused)(decision.reason)
