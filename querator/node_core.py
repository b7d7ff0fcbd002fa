"""Assembles the packages of a node between its storage and its ports: raft, placement, service.

The caller passes the outside parts: the environment, the clock, the other nodes (the peer port, and
links for forwarding), and the loop that makes the turns of the raft package. So a program with
other implementations of them, such as the simulator, runs the same node.

Events of the raft package arrive here. Events of group 0 go to placement, events of partitions to
placement and the service.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

from querator import telemetry
from querator.model.cluster import ClusterCertificate
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import LOG_BYTES_KEPT
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacedNode, PlacementMap
from querator.partition.machine import PartitionMachine
from querator.placement.bootstrap import ClusterBootstrap
from querator.placement.joining.formation import Description
from querator.placement.placement import Placement
from querator.placement.tasks.reconcile import MachineFactory
from querator.raft.clock import Clock
from querator.raft.host import Host
from querator.raft.peers import PeerLink
from querator.raft.refusals import LastingRefusal, OtherTokens
from querator.raft.turn.thread import TurnLoop
from querator.server.link.forwarding import Forwarding
from querator.service.admin_service import AdminService
from querator.service.assembly import assemble
from querator.service.cluster_service import ClusterService
from querator.service.conditions import Conditions
from querator.service.repair.scrub import Scrub
from querator.storage.environment import Environment

_log = telemetry.logger(__name__)


class PeerServices(Protocol):
    """The peer port's knowledge of the other nodes."""

    def connected(self) -> Mapping[NodeKey, PlacedNode]:
        """The connected nodes, as they describe themselves."""
        ...

    def newcomers(self) -> tuple[PlacedNode, ...]:
        """Nodes without a cluster that have asked this node since the last call."""
        ...

    def out_of_reach(self, placed: PlacementMap) -> frozenset[str]:
        """The other nodes of the map that are not connected, or not heard."""
        ...

    def old_copies(self) -> Mapping[str, str]:
        """Nodes refused for an old copy of their data: name → reason."""
        ...

    def other_tokens(self) -> OtherTokens:
        """The nodes that had another cluster token lately."""
        ...

    def lasting_refusals(self) -> Sequence[LastingRefusal]:
        """Connections that are refused again and again."""
        ...

    async def ask(self, node: PlacedNode) -> Description | str:
        """Asks the node at that address to describe itself. Returns the reason if it does not."""
        ...

    def on_map(self, placed: PlacementMap) -> None:
        """Receives a newer map."""
        ...


class NodeCore:
    """Created on the event loop that all parts use. `start` once; the caller's stack ends it."""

    def __init__(
        self,
        environment: Environment,
        *,
        clock: Clock,
        bootstrap: ClusterBootstrap,
        on_failure: Callable[[BaseException], None],
        on_hand_off: Callable[[], Awaitable[None]],
        peers: PeerLink | None = None,
        turn_loop: TurnLoop | None = None,
        peer_services: PeerServices | None = None,
        waiting: Callable[[], Sequence[PlacedNode]] = tuple,
        certificates: Callable[[], Sequence[ClusterCertificate]] = tuple,
        forwarding: Forwarding | None = None,
        machine_for: MachineFactory = PartitionMachine,
        log_bytes_kept: int = LOG_BYTES_KEPT,
        scrub_bytes_per_s: int = 0,
        born: str = "",
    ) -> None:
        """`peers`, `turn_loop` and `log_bytes_kept` as for `Host`, `on_hand_off`, `waiting` and
        `certificates` as for `ClusterService`, `scrub_bytes_per_s` as for `Scrub`, `born` as for
        `Router`. `peer_services` and `forwarding` None: a single node. `on_failure` receives the
        error that has stopped the raft package, or the work behind the map, for good; it ends the
        rest of that work (`Placement.end`).
        """
        self._on_failure = on_failure
        self._peer_services = peer_services
        self._forwarding = forwarding
        self.host = Host(
            environment,
            clock=clock,
            events=self,
            node=bootstrap.key,
            peers=peers,
            log_bytes_kept=log_bytes_kept,
            turn_loop=turn_loop,
        )
        connected: Callable[[], Mapping[NodeKey, PlacedNode]] = (
            dict if peer_services is None else peer_services.connected
        )
        self.placement = placement = Placement(
            self.host,
            machine_for,
            environment=environment,
            bootstrap=bootstrap,
            on_failure=self.on_failure,
            propose=None if forwarding is None else self._propose,
            ask=None if forwarding is None else self._ask,
            connected=connected,
            newcomers=tuple if peer_services is None else peer_services.newcomers,
        )
        if forwarding is not None:
            placement.watch(forwarding.on_map)
        self.service = assemble(
            host=self.host,
            placement=placement,
            environment=environment,
            clock=clock,
            forwarder=forwarding,
            out_of_reach=self._out_of_reach,
            born=born,
        )
        placement.watch(self.service.events.on_map)
        if peer_services is not None:
            placement.watch(peer_services.on_map)
        self.admin = AdminService(
            placement=placement,
            router=self.service.router,
            directory=self.service.directory,
            reads=self.service.reads,
            durable=environment.durable,
            clock=clock,
        )
        self.scrub = Scrub(
            environment, self.service.damage, clock=clock, bytes_per_s=scrub_bytes_per_s
        )
        self.conditions = Conditions(
            host=self.host,
            placement=placement,
            service=self.service,
            clock=clock,
            out_of_reach=self._out_of_reach,
            other_tokens=OtherTokens if peer_services is None else peer_services.other_tokens,
            lasting_refusals=tuple if peer_services is None else peer_services.lasting_refusals,
        )
        self.cluster = ClusterService(
            host=self.host,
            environment=environment,
            placement=placement,
            ask=None if peer_services is None else peer_services.ask,
            connected=connected,
            on_hand_off=on_hand_off,
            damaged=self.service.damage.items,
            old_copies=dict if peer_services is None else peer_services.old_copies,
            waiting=waiting,
            conditions=lambda: self.conditions.present,
            scrub=self.scrub.for_operators,
            certificates=certificates,
        )

    async def start(self, running: AsyncExitStack) -> None:
        """Returns when the map and its groups on this node are recovered; the caller awaits
        `placement.until_formed`. All started parts are on the stack, also when this raises
        QueratorError.
        """
        await self.host.start()
        running.push_async_callback(self.host.stop)
        if self._forwarding is not None:
            running.push_async_callback(self._forwarding.close)
        running.push_async_callback(self.placement.stop)
        await self.placement.start()
        self.conditions.start()
        running.callback(self.conditions.stop)
        self.scrub.start()
        running.push_async_callback(self.scrub.stop)

    # --- to the leader of a group, on any node ---------------------------------------------

    async def _propose(self, group: GroupId, command: Any) -> Any:
        return await self.service.router.propose(group, command)

    async def _ask(self, group: GroupId, query: Any) -> Any:
        return await self.service.router.read(group, query)

    def _out_of_reach(self) -> frozenset[str]:
        """The other nodes of the map that the peer port cannot reach, or does not hear."""
        if self._peer_services is None:
            return frozenset()
        return self._peer_services.out_of_reach(self.placement.map)

    # --- events of the host ----------------------------------------------------------------

    def on_effects(self, group: GroupId, effects: Any) -> None:
        if group == PLACEMENT_GROUP:
            self.placement.on_effects(effects)
        else:
            self.placement.on_partition(group, effects)
            self.service.events.on_effects(group, effects)

    def on_leader(self, group: GroupId, node: NodeKey | None) -> None:
        self.service.events.on_leader(group, node)

    def on_leadership(self, group: GroupId, leads: bool) -> None:
        self.service.events.on_leadership(group, leads)

    def on_hang(self, hangs: bool) -> None:
        self.service.events.on_hang(hangs)

    def on_damage(self, group: GroupId, index: int, part: int) -> None:
        self.service.damage.unsendable(group, index, part)

    def on_quarantine(self, group: GroupId, error: BaseException) -> None:
        """One partition is down, and the node continues; without group 0, with the current map."""
        owner = self.placement.map.by_group(group)
        _log.error(
            "node.partition_stopped",
            group=group,
            queue="" if owner is None else owner[0].name,
            partition=-1 if owner is None else owner[1],
            exc_info=error,
        )

    def on_failure(self, error: BaseException) -> None:
        self._on_failure(error)
