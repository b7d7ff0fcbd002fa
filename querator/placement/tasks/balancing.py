"""Decides changes of the map for its nodes: input and output of `placement.tasks.plan`, and the
voters of the placement group. Pure.

Every node has a replica of the placement group, because it learns the map from it. Three replicas
vote, five from seven nodes on; the others are learners. A voter stays one while its node is in the
cluster, because a voter never becomes a learner.

A node that is being removed keeps that replica until it has no replicas of other groups. Else it
might return from a failure with an old map, and lead a group by it for ever.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey
from querator.model.placement_map import (
    NodeState,
    PlacedGroup,
    PlacedNode,
    PlacementMap,
    map_voters_wanted,
)
from querator.model.queues import QueueState
from querator.placement.assign import replicas_wanted
from querator.placement.map.commands import Place
from querator.placement.map.majorities import is_deleting
from querator.placement.tasks.plan import CandidateNode, CurrentReplicas, Placing, plan

MOVING_MAX: Final = 8
"""Groups whose replicas move to other nodes at the same time, in the whole cluster."""


def homes(placed: PlacementMap) -> tuple[CandidateNode, ...]:
    return tuple(CandidateNode(node.key, node.zone, node.takes_replicas) for node in placed.nodes)


def planned(placed: PlacementMap) -> dict[GroupId, Placing]:
    """The partitions that should be elsewhere, and where. Costs up to a second for 10,000."""
    nodes = sum(node.takes_replicas for node in placed.nodes)
    held = {
        group: CurrentReplicas(
            tuple(replica.node for replica in placed.replicas(group)),
            placed.preferred(group),
            replicas_wanted(nodes, queue.settings.replicas),
        )
        for queue in placed
        if queue.state is not QueueState.DELETING
        for group in queue.groups
        if placed.placed(group) is not None
    }
    return plan(homes(placed), held)


def next_places(
    placed: PlacementMap, planning: Mapping[GroupId, Placing], connected: Collection[NodeKey]
) -> tuple[Place, ...]:
    """The next places to propose, from the plan for this map, so that at most MOVING_MAX groups
    move; also those of the placement group, whenever they should change. `connected` are the nodes
    that this node can reach, and itself.
    """
    moving = sum(known.moving for known in placed.groups.values())
    ready = [group for group in sorted(planning) if not placed.groups[group].moving]
    places = [
        _place(group, placed.groups[group], planning[group])
        for group in ready[: max(0, MOVING_MAX - moving)]
    ]
    seats = council(placed, connected)
    return tuple(places) if seats is None else (seats, *places)


def _place(group: GroupId, known: PlacedGroup, placing: Placing) -> Place:
    before = tuple(replica.node for replica in known.target)
    return Place(group, before, placing.nodes, placing.leader)


def council(placed: PlacementMap, connected: Collection[NodeKey]) -> Place | None:
    """The wanted replicas of the placement group; None when it has them.

    A voter on a node that is removed while it is down is replaced when it has left: one voter more
    would need a majority that the dead one makes harder to reach.
    """
    known = placed.placed(PLACEMENT_GROUP)
    if known is None or known.moving:
        return None
    staying = {
        node.key: node
        for node in placed.nodes
        if node.state is not NodeState.LEAVING or _needs_map(placed, node.key, connected)
    }
    voting = [replica.node for replica in known.target if replica.voter]
    voters = [node for node in voting if node in staying]
    active = [node for node in staying.values() if node.takes_replicas]
    number = map_voters_wanted(len(active))
    counting = [node for node in voters if staying[node].takes_replicas]
    dead = [
        node
        for node in voters
        if staying[node].state is NodeState.LEAVING and node not in connected
    ]
    voters += _more(counting, active, number - len(counting) - len(dead))
    if not voters:
        return None
    learners = [node for node in sorted(staying) if node not in voters]
    leader = placed.preferred(PLACEMENT_GROUP)
    if leader not in counting:
        leader = next((node for node in voters if staying[node].takes_replicas), voters[0])
    place = Place(
        PLACEMENT_GROUP,
        tuple(replica.node for replica in known.target),
        tuple(voters),
        leader,
        tuple(learners),
    )
    same = set(voters) == set(voting) and {*voters, *learners} == set(place.before)
    return None if same and leader == placed.preferred(PLACEMENT_GROUP) else place


def _needs_map(placed: PlacementMap, node: NodeKey, connected: Collection[NodeKey]) -> bool:
    """Whether a node that is being removed has replicas of other groups, or may have. A node that
    has left the placement group does not come back into it.
    """
    if placed.groups[PLACEMENT_GROUP].replica_on(node) is None:
        return False
    return any(
        known.replica_on(node) is not None or (known.moving and node in known.former)
        for group, known in placed.groups.items()
        if group != PLACEMENT_GROUP and (node in connected or not is_deleting(placed, group))
    )


def _more(voters: Sequence[NodeKey], active: Sequence[PlacedNode], number: int) -> list[NodeKey]:
    """Chooses `number` more voters, from the zones that have the fewest."""
    zones: Mapping[NodeKey, str] = {node.key: node.zone for node in active}
    chosen: list[NodeKey] = []
    for _ in range(number):
        taken = [zones[node] for node in (*voters, *chosen)]
        free = [node for node in active if node.key not in voters and node.key not in chosen]
        if not free:
            break
        chosen.append(min(free, key=lambda node: (taken.count(node.zone), node.name)).key)
    return chosen
