"""The cluster for operators: this node's view of it, hand-off of leaderships, and replacing,
draining and removing nodes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from querator.model.cluster import (
    ClusterCertificate,
    ClusterCondition,
    ClusterGroup,
    ClusterMove,
    ClusterNode,
    ClusterPending,
    ClusterPlan,
    ClusterReplica,
    ClusterScrub,
    ClusterStatus,
    ClusterWaiting,
    NodeHandedOff,
    NodeReplaced,
    NodeRetired,
)
from querator.model.errors import invalid
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey, Replica, Replicas, node_name
from querator.model.placement_map import NodeState, PlacedGroup, PlacedNode, PlacementMap
from querator.model.queues import Queue, QueueState
from querator.partition import queries
from querator.placement.joining.formation import Description
from querator.placement.map.commands import DrainNode, ReadmitNode, RemoveNode, ReplaceNode
from querator.placement.tasks.balancing import planned
from querator.placement.tasks.plan import Placing

if TYPE_CHECKING:
    from querator.placement.placement import Placement
    from querator.raft.host import Host
    from querator.storage.environment import Environment

Ask = Callable[[PlacedNode], Awaitable[Description | str]]
"""Description of the process at the node's address, given by itself, or the reason why there is
none.
"""

Held = Mapping[GroupId, tuple[int, tuple[int, ...]]]
"""Number of items by group, and the partitions that they wait for."""

HAND_OFF_S_MAX = 8.0
"""Time after which a hand-off begins no further transfers; the answer comes within 10 s."""


class ClusterService:
    """Status and changes of the cluster. Every method raises QueratorError, and runs on the event
    loop of the host.
    """

    def __init__(
        self,
        *,
        host: "Host",
        environment: "Environment",
        placement: "Placement",
        ask: Ask | None,
        connected: Callable[[], Mapping[NodeKey, PlacedNode]],
        on_hand_off: Callable[[], Awaitable[None]],
        damaged: Callable[[GroupId], tuple[int, int]] = lambda group: (0, 0),
        old_copies: Callable[[], Mapping[str, str]] = dict,
        waiting: Callable[[], Sequence[PlacedNode]] = tuple,
        conditions: Callable[[], Sequence[ClusterCondition]] = tuple,
        scrub: Callable[[], ClusterScrub] = ClusterScrub,
        certificates: Callable[[], Sequence[ClusterCertificate]] = tuple,
    ) -> None:
        """`ask` asks the process at a node's address for other nodes; None on a single node.
        `connected` returns the other nodes with open connections. `on_hand_off` is called when the
        node should get no more clients. `damaged` counts the blocks of a group that cannot be read
        here, and their items. `old_copies` returns, by node name, why nodes with an old copy of
        their data were refused. `waiting` returns nodes without a cluster that ask this one and
        have not joined. `conditions` returns the conditions of this node, `scrub` the progress
        of its background reads, and `certificates` those of its ports.
        """
        self._host = host
        self._environment = environment
        self._placement = placement
        self._ask_at = ask
        self._connected = connected
        self._on_hand_off = on_hand_off
        self._damaged = damaged
        self._old_copies = old_copies
        self._waiting = waiting
        self._conditions = conditions
        self._scrub = scrub
        self._certificates = certificates
        self.before_status: Callable[[], Awaitable[None]] = _nothing
        """Makes the conditions up to date. The owner of what they depend on may replace it."""

    # --- status ------------------------------------------------------------------

    async def status(self) -> ClusterStatus:
        await self.before_status()
        placed = self._placement.map
        named = sorted(placed, key=lambda queue: (queue.namespace, queue.name))
        held = self._held(placed)
        return ClusterStatus(
            cluster_id=placed.cluster_id,
            epoch=placed.epoch,
            node=node_name(self._host.node),
            nodes=tuple(map(self._node, placed.nodes)),
            groups=(
                self._group(placed, PLACEMENT_GROUP, None, 0, held),
                *(
                    self._group(placed, group, queue, partition, held)
                    for queue in named
                    for partition, group in enumerate(queue.groups)
                ),
            ),
            pending=tuple(
                self._pending(placed, queue)
                for queue in named
                if queue.id in self._placement.pending
            ),
            clock_ahead_ms=-self._host.skew_ms,
            conditions=tuple(self._conditions()),
            scrub=self._scrub(),
            certificates=tuple(self._certificates()),
            waiting=tuple(
                ClusterWaiting(one.name, one.incarnation, one.peer_address)
                for one in self._waiting()
                if one.key not in {node.key for node in placed.nodes}
            ),
        )

    def _node(self, node: PlacedNode) -> ClusterNode:
        own = node.key == self._host.node
        return ClusterNode(
            name=node.name,
            incarnation=node.incarnation,
            peer_address=node.peer_address,
            client_address=node.client_address,
            zone=node.zone,
            boots=node.boots,
            version=node.version,
            connected=own or node.key in self._connected(),
            # The map may not have heard yet of this node's handoff, or of its start after one.
            handed_off=self._placement.hands_off if own else not node.takes_leaderships,
            state=node.state.value,
            old_copy=self._old_copies().get(node.name, ""),
        )

    def _held(self, placed: PlacementMap) -> Held:
        """Items held by the partitions that this node leads, and the partitions that
        they wait for.
        """
        groups = [group for queue in placed if queue.routing for group in queue.groups]
        with self._environment.snapshot() as txn:
            return {group: queries.held(txn, group) for group in groups if self._host.leads(group)}

    def _group(
        self,
        placed: PlacementMap,
        group: GroupId,
        queue: Queue | None,
        partition: int,
        held: Held,
    ) -> ClusterGroup:
        status = self._host.status(group)
        leader, preferred = self._host.leader(group), placed.preferred(group)
        leads = self._host.leads(group)
        items, waits_for = held.get(group, (0, ()))
        damaged_blocks, damaged_items = self._damaged(group)
        lags: dict[int, int] = {}
        if status is not None and leads:
            lags = {one.id: max(0, status.log_last - one.match) for one in status.followers}
            lags[status.replica] = 0
        return ClusterGroup(
            group=group,
            namespace="" if queue is None else queue.namespace,
            queue="" if queue is None else queue.name,
            partition=partition,
            leads=leads,
            leader="" if leader is None else node_name(leader),
            preferred_leader="" if preferred is None else node_name(preferred),
            term=0 if status is None else status.term,
            open=status is not None,
            stopped=status is not None and status.quarantined,
            applied_index=0 if status is None else status.applied_index,
            replicas=() if status is None else _replicas(status.replicas, lags),
            target=_replicas(placed.replicas(group), {}),
            moving=(known := placed.placed(group)) is not None and known.moving,
            closing=queue is not None and partition >= queue.settings.partitions,
            held=items,
            waits_for=waits_for,
            damaged_blocks=damaged_blocks,
            damaged_items=damaged_items,
            time_ahead_ms=max(0, self._host.time_ahead_ms(group)) if leads else 0,
            waits_for_clock=status is not None and status.waits_for_clock,
        )

    def _pending(self, placed: PlacementMap, queue: Queue) -> ClusterPending:
        doing = "updating"
        waits_for = [f"{queue.name}/{number}" for number in self._placement.missing(queue.id)]
        if queue.state is QueueState.ACTIVE and queue.is_changing:
            doing = "changing"
        elif queue.state is QueueState.CREATING:
            doing = "creating"
        elif queue.state is QueueState.DELETING:
            doing = "deleting"
            done = self._placement.deleted_on.get(queue.id, ())
            waits_for = sorted(map(node_name, placed.holders(queue).difference(done)))
        return ClusterPending(queue.namespace, queue.name, doing, tuple(waits_for))

    async def plan(self) -> ClusterPlan:
        """Moves in progress and planned moves, by this node's map."""
        placed = self._placement.map
        planning = await asyncio.to_thread(planned, placed)
        moves = []
        for queue in sorted(placed, key=lambda queue: (queue.namespace, queue.name)):
            for partition, group in enumerate(queue.groups):
                known = placed.placed(group)
                if known is None or not (known.moving or group in planning):
                    continue
                moves.append(_move(placed, queue, partition, known, planning.get(group)))
        return ClusterPlan(placed.epoch, tuple(moves))

    # --- handing off -------------------------------------------------------------

    async def hand_off(self, name: str) -> NodeHandedOff:
        """Hands off the leaderships of this node. `name` empty: this node, whatever its name.

        Refused when all other nodes have handed off: no node could lead, and a handoff ends only
        when its node starts again.
        """
        own = node_name(self._host.node)
        if name not in ("", own):
            raise invalid(
                "node", f"is {name}, and this is node {own}: ask {name} itself", value=name
            )
        others = [node for node in self._placement.map.nodes if node.key != self._host.node]
        if others and not any(node.takes_leaderships for node in others):
            gone = ", ".join(sorted(node.name for node in others))
            raise invalid(
                "node",
                f"is {own}, the last one that may lead: {gone} have handed off or leave; start one "
                "of them again first",
                value=own,
            )
        await self._on_hand_off()
        handed = await self._placement.hand_over(HAND_OFF_S_MAX)
        return NodeHandedOff(own, handed.moved, handed.left)

    # --- replacing ---------------------------------------------------------------

    async def replace(self, name: str) -> NodeReplaced:
        """Lets the waiting node of this name replace the node with the lost data.

        Refused for an unknown name, while the node's data is present, and when no node waits.
        """
        placed = self._placement.map
        known = _known(placed, name)
        if known.key == self._host.node:
            raise invalid("node", f"is {name}, which answers you: its data is there", value=name)
        described = await self._ask(known)
        if described.node.incarnation == known.incarnation:
            raise invalid(
                "node", f"is {name}, which is up with its data: there is nothing to replace"
            )
        if described.cluster_id not in ("", placed.cluster_id):
            raise invalid(
                "node",
                f"is {name}, but the node that waits at {known.peer_address} has data of cluster "
                f"{described.cluster_id}: start it with an empty directory",
                value=name,
            )
        await self._placement.change(ReplaceNode(described.node, lost=known.incarnation))
        return NodeReplaced(self._node(described.node), _partitions_on(placed, known))

    # --- draining and removing ---------------------------------------------------

    async def drain(self, name: str, *, undo: bool) -> NodeRetired:
        """Moves the replicas of the node to other nodes, or lets it have replicas again."""
        _known(self._placement.map, name)
        await self._placement.change(DrainNode(name, drain=not undo))
        return self._retired(name, NodeState.ACTIVE if undo else NodeState.DRAINING)

    async def remove(self, name: str) -> NodeRetired:
        """Removes the node for ever. Refused while it is up with replicas: it must be drained
        first. A repeat is not refused, also if the node has come back meanwhile.
        """
        placed = self._placement.map
        known = placed.node(name)
        if known is not None and known.state is not NodeState.LEAVING:
            up = known.key == self._host.node or known.key in self._connected()
            partitions = _partitions_on(placed, known)
            if up and partitions:
                raise invalid(
                    "node",
                    f"is {name}, which is up and has replicas of {partitions} partitions; first: "
                    f"querator node drain {name}",
                    value=name,
                )
            if queues := _only_here(placed, known):
                raise invalid(
                    "node",
                    f"is {name}, which is down and has the only replica of partitions of "
                    f"{', '.join(queues[:5])}: start it and drain it; or, if its data is lost, "
                    "first: querator queue delete",
                    value=name,
                )
        await self._placement.change(RemoveNode(name))
        return self._retired(name, NodeState.LEAVING)

    async def readmit(self, name: str) -> None:
        """Lets the name of a removed node be used again."""
        await self._placement.change(ReadmitNode(name))

    def _retired(self, name: str, state: NodeState) -> NodeRetired:
        """The node, with the state that was just decided: the map of this node may be behind."""
        placed = self._placement.map
        known = placed.node(name)
        if known is None:
            known = next(node for node in placed.removed if node.name == name)
        else:
            known = msgspec.structs.replace(known, state=state)
        return NodeRetired(self._node(known), _partitions_on(placed, known))

    async def _ask(self, known: PlacedNode) -> Description:
        """Description given by the process that waits at the node's address."""
        name = known.name
        if self._ask_at is None:
            raise invalid("node", f"is {name}, and this node is alone", value=name)
        described = await self._ask_at(known)
        if isinstance(described, str):
            raise invalid(
                "node",
                f"is {name}, which cannot be asked ({described}): start it with an empty "
                "directory, and when it waits, repeat this",
                value=name,
            )
        if described.node.name != name:
            raise invalid(
                "node",
                f"is {name}, and node {described.node.name} answers at its address",
                value=name,
            )
        return described


async def _nothing() -> None:
    pass


def _move(
    placed: PlacementMap,
    queue: Queue,
    partition: int,
    known: PlacedGroup,
    placing: Placing | None,
) -> ClusterMove:
    """`placing`: the planned placement; None: the group is moving to its placement in the map."""
    there = tuple(node_name(replica.node) for replica in known.target)
    preferred = placed.preferred(queue.groups[partition])
    leader = "" if preferred is None else node_name(preferred)
    if placing is not None and not known.moving:
        there_next = tuple(map(node_name, placing.nodes))
        leader, reason = node_name(placing.leader), placing.reason
        return ClusterMove(
            namespace=queue.namespace,
            queue=queue.name,
            partition=partition,
            origin=there,
            to=there_next,
            leader=leader,
            reason=reason,
            moving=False,
        )
    return ClusterMove(
        namespace=queue.namespace,
        queue=queue.name,
        partition=partition,
        origin=tuple(map(node_name, known.former)),
        to=there,
        leader=leader,
        reason=f"{_why(placed, known)} (under way)",
        moving=True,
    )


def _why(placed: PlacementMap, known: PlacedGroup) -> str:
    """The reason of a move that is under way, by the states of the nodes that it leaves."""
    kept = set(known.voters)
    left = [node for node in placed.nodes if node.key in known.former and node.key not in kept]
    for node in left:
        if node.state is NodeState.DRAINING:
            return f"{node.name} is being drained"
        if node.state is NodeState.LEAVING:
            return f"{node.name} is being removed"
    return "moving"


def _known(placed: PlacementMap, name: str) -> PlacedNode:
    known = placed.node(name)
    if known is None:
        names = ", ".join(node.name for node in placed.nodes)
        raise invalid("node", f"is {name}; the nodes of the cluster are: {names}", value=name)
    return known


def _partitions_on(placed: PlacementMap, node: PlacedNode) -> int:
    return sum(
        group != PLACEMENT_GROUP and where.replica_on(node.key) is not None
        for group, where in placed.groups.items()
    )


def _only_here(placed: PlacementMap, node: PlacedNode) -> list[str]:
    """Queues with partitions whose only replica is on this node."""
    return sorted(
        queue.name
        for queue in placed
        if queue.state is not QueueState.DELETING
        and any(
            {replica.node for replica in placed.replicas(group)} == {node.key}
            for group in queue.groups
        )
    )


def _replicas(replicas: Replicas, lags: Mapping[int, int]) -> tuple[ClusterReplica, ...]:
    return tuple(_replica(replica, lags.get(replica.id)) for replica in replicas)


def _replica(replica: Replica, lag: int | None) -> ClusterReplica:
    name, _, incarnation = replica.node.partition("/")
    return ClusterReplica(replica.id, name, incarnation, replica.voter, lag)
