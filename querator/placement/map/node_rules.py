"""The rules for placement commands about nodes: pure functions from a view to a change.

Invariants that hold after every sequence of commands:

* a name belongs to one incarnation at a time; only ReplaceNode gives it to another;
* `boots` of an incarnation never decreases: a node with fewer holds an old copy of the data;
* replica ids count up in each group and are never reused;
* the data of a removed node does not return, and neither does its name unless it was readmitted;
* the nodes that take replicas are at least as many as a partition has replicas, or do not become
  fewer.
"""

import msgspec

from querator.model.commands import Done, Refusal
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP
from querator.model.limits import NODES_MAX
from querator.model.nodes import Replica
from querator.model.placement_map import NodeState, PlacedNode
from querator.model.queues import Queue, QueueState
from querator.placement.assign import assign, replaced, replicas_wanted
from querator.placement.map.commands import (
    DrainNode,
    FormCluster,
    HandOffNode,
    JoinNode,
    NodeGone,
    ReadmitNode,
    RegisterNode,
    RemoveNode,
    ReplaceNode,
)
from querator.placement.map.majorities import is_deleting
from querator.placement.map.view import Change, View


def form(view: View, command: FormCluster) -> Change:
    if view.map.nodes:
        return Change(Done())
    nodes = tuple(sorted(command.nodes, key=lambda node: node.name))
    placement = assign(nodes, PLACEMENT_GROUP, replicas=len(nodes))
    return Change(
        Done(1),
        cluster_id=command.cluster_id,
        nodes=nodes,
        groups={PLACEMENT_GROUP: placement},
    )


def register(view: View, command: RegisterNode) -> Change:
    node = command.node
    known = _known(view, node.name)
    if isinstance(known, Refusal):
        return Change(known)
    if known.incarnation != node.incarnation:
        return Change(_other_data(known, node))
    if node.boots < known.boots:
        message = (
            f"node {node.name} has been started {known.boots} times on its data, and this process "
            f"counts {node.boots} starts: its data is an old copy"
        )
        return Change(_refusal(message, str(node.boots)))
    said = node.as_known(known)
    return Change(Done()) if said == known else Change(Done(1), nodes=(said,))


def replace(view: View, command: ReplaceNode) -> Change:
    node = command.node
    known = _known(view, node.name)
    if isinstance(known, Refusal):
        return Change(known)
    if known.incarnation == node.incarnation:
        return Change(Done())
    if known.incarnation != command.lost:
        return Change(
            Refusal(
                ErrorCode.VERSION_CONFLICT,
                f"node {node.name} has been replaced meanwhile: it is incarnation "
                f"{known.incarnation}, not {command.lost}",
                field="name",
                value=node.name,
            )
        )
    groups = {}
    for group, placed in view.map.groups.items():
        after = replaced(placed, known.key, node.key)
        if after is not placed:
            groups[group] = after
    node = msgspec.structs.replace(node, state=known.state)
    return Change(Done(1), nodes=(node,), groups=groups)


def join(view: View, command: JoinNode) -> Change:
    node = command.node
    known = view.map.node(node.name)
    if known is not None:
        return Change(Done()) if known.key == node.key else Change(_other_data(known, node))
    if any(removed.key == node.key for removed in view.map.removed):
        message = f"node {node.name} was removed from the cluster: start it with empty data"
        return Change(_refusal(message, node.name))
    if _barred(view, node.name):
        message = (
            f"node {node.name} was removed from the cluster: start it under another name, or "
            f"first: querator node readmit {node.name}"
        )
        return Change(_refusal(message, node.name))
    if len(view.map.nodes) >= NODES_MAX:
        message = (
            f"the cluster has {NODES_MAX} nodes, which is the limit: node {node.name} cannot join"
        )
        return Change(
            Refusal(
                ErrorCode.LIMIT_EXCEEDED,
                message,
                field="name",
                limit=str(NODES_MAX),
                value=node.name,
            )
        )
    council = view.map.placed(PLACEMENT_GROUP)
    if council is None:
        return Change(Refusal(ErrorCode.UNAVAILABLE, "the cluster is being formed; try again"))
    joined = msgspec.structs.replace(node, handoff_boots=0, state=NodeState.ACTIVE)
    learner = Replica(council.next_replica, node.key, voter=False)
    council = msgspec.structs.replace(
        council,
        target=(*council.target, learner),
        next_replica=learner.id + 1,
        moving=True,
        former=council.former if council.moving else council.voters,
    )
    return Change(Done(1), nodes=(joined,), groups={PLACEMENT_GROUP: council})


def drain(view: View, command: DrainNode) -> Change:
    known = _known(view, command.name)
    if isinstance(known, Refusal):
        return Change(known)
    if known.state is NodeState.LEAVING:
        message = f"node {known.name} is leaving the cluster"
        return Change(_refusal(message, known.name))
    wanted = NodeState.DRAINING if command.drain else NodeState.ACTIVE
    if known.state is wanted:
        return Change(Done())
    if command.drain and (refusal := _refuse_fewer(view, known)) is not None:
        return Change(refusal)
    return Change(Done(1), nodes=(msgspec.structs.replace(known, state=wanted),))


def remove(view: View, command: RemoveNode) -> Change:
    if _barred(view, command.name):
        return Change(Done())
    known = _known(view, command.name)
    if isinstance(known, Refusal):
        return Change(known)
    if known.state is NodeState.LEAVING:
        return Change(Done())
    if known.takes_replicas and (refusal := _refuse_fewer(view, known)) is not None:
        return Change(refusal)
    return Change(Done(1), nodes=(msgspec.structs.replace(known, state=NodeState.LEAVING),))


def gone(view: View, command: NodeGone) -> Change:
    known = view.map.node(command.name)
    if known is None or known.state is not NodeState.LEAVING:
        return Change(Done())
    if any(
        placed.moving or placed.replica_on(known.key) is not None
        for group, placed in view.map.groups.items()
        if not is_deleting(view.map, group)
    ):
        return Change(Refusal(ErrorCode.UNAVAILABLE, f"node {known.name} still has replicas"))
    return Change(Done(1), nodes=(msgspec.structs.replace(known, state=NodeState.REMOVED),))


def readmit(view: View, command: ReadmitNode) -> Change:
    gone = next((node for node in view.map.removed if node.name == command.name), None)
    if gone is None:
        message = f"node {command.name} is not among the nodes that were removed"
        return Change(_refusal(message, command.name))
    if gone.state is NodeState.FORGOTTEN:
        return Change(Done())
    return Change(Done(1), nodes=(msgspec.structs.replace(gone, state=NodeState.FORGOTTEN),))


def _barred(view: View, name: str) -> bool:
    return any(node.name == name and node.state is NodeState.REMOVED for node in view.map.removed)


def _refuse_fewer(view: View, known: PlacedNode) -> Refusal | None:
    """Why the node may not move its replicas elsewhere; None when it may."""
    left = sum(node.takes_replicas for node in view.map.nodes if node.name != known.name)
    if left == 0:
        message = f"node {known.name} is the last one that takes replicas; add another node first"
        if not known.peer_address:
            message += (
                f": other nodes can join it when it is started with --name {known.name}, "
                "--cluster-token-file and --listen-peers"
            )
    elif replicas_wanted(left) < replicas_wanted(left + 1):
        message = (
            f"without node {known.name} there are {left} nodes that take replicas, and partitions "
            f"have {replicas_wanted(left + 1)}; add another node first"
        )
    elif (queue := _needs(view, left)) is not None:
        message = (
            f"without node {known.name} there are {left} nodes that take replicas, and queue "
            f"{queue.name} asks for {queue.settings.replicas}; add another node first, or: "
            f"querator queue update {queue.name} --replicas"
        )
    else:
        return None
    return _refusal(message, known.name)


def _needs(view: View, nodes: int) -> Queue | None:
    """A queue that asks for more replicas than `nodes`."""
    asking = (queue for queue in view.map if queue.settings.replicas > nodes)
    staying = (queue for queue in asking if queue.state is not QueueState.DELETING)
    return min(staying, key=lambda queue: queue.name, default=None)


def hand_off(view: View, command: HandOffNode) -> Change:
    known = view.map.node(command.name)
    if known is None or known.incarnation != command.incarnation:
        return Change(Done())
    if not known.handoff_boots < command.boots >= known.boots:
        return Change(Done())
    given = msgspec.structs.replace(known, handoff_boots=command.boots)
    return Change(Done(1), nodes=(given,))


def _other_data(known: PlacedNode, node: PlacedNode) -> Refusal:
    message = (
        f"node {node.name} is known with other data (incarnation {known.incarnation}, not "
        f"{node.incarnation}); if that is lost: querator node replace {node.name}"
    )
    return _refusal(message, node.incarnation)


def _known(view: View, name: str) -> PlacedNode | Refusal:
    known = view.map.node(name)
    if known is not None:
        return known
    names = ", ".join(node.name for node in view.map.nodes) or "none"
    message = f"there is no node {name} in the cluster; its nodes are: {names}"
    return Refusal(ErrorCode.INVALID_ARGUMENT, message, field="name", value=name)


def _refusal(message: str, value: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_ARGUMENT, message, field="name", value=value)
