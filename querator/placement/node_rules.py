"""What the placement commands about nodes do, as pure functions from a view to a change.

Rules that hold after every command, whatever the commands were:

* a name belongs to one incarnation at a time; another takes its place by ReplaceNode alone;
* `boots` of an incarnation never goes down: who comes with fewer holds an old copy of the data;
* ids of replicas count up in each group and are never used again.
"""

import msgspec

from querator.model.commands import Done, Refusal
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP
from querator.model.placement_map import PlacedNode
from querator.placement.assign import assign, replaced
from querator.placement.commands import FormCluster, HandOffNode, RegisterNode, ReplaceNode
from querator.placement.view import Change, View


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
        message = (
            f"node {node.name} is known with other data (incarnation {known.incarnation}, not "
            f"{node.incarnation}); if that is lost: querator node replace {node.name}"
        )
        return Change(_refusal(message, node.incarnation))
    if node.boots < known.boots:
        message = (
            f"node {node.name} has been started {known.boots} times on its data and comes with "
            f"{node.boots}: an old copy of it"
        )
        return Change(_refusal(message, str(node.boots)))
    said = msgspec.structs.replace(node, handoff_boots=known.handoff_boots)
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
    return Change(Done(1), nodes=(node,), groups=groups)


def hand_off(view: View, command: HandOffNode) -> Change:
    known = view.map.node(command.name)
    if known is None or known.incarnation != command.incarnation:
        return Change(Done())
    if not known.handoff_boots < command.boots >= known.boots:
        return Change(Done())
    given = msgspec.structs.replace(known, handoff_boots=command.boots)
    return Change(Done(1), nodes=(given,))


def _known(view: View, name: str) -> PlacedNode | Refusal:
    known = view.map.node(name)
    if known is not None:
        return known
    names = ", ".join(node.name for node in view.map.nodes) or "none"
    message = f"there is no node {name} in the cluster; its nodes are: {names}"
    return Refusal(ErrorCode.INVALID_ARGUMENT, message, field="name", value=name)


def _refusal(message: str, value: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_ARGUMENT, message, field="name", value=value)
