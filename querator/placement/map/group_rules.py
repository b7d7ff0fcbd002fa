"""The rules for placement commands about replicas: pure functions from a view to a change.

Invariants that hold after every sequence of commands:

* the target of a moving group does not change, except for a node that joins the placement group, so
  one change of a group is finished before the next one begins;
* a node has at most one replica of a group; it gets another only after the group has settled
  without the first one, whose data the node may still have;
* a voter never becomes a learner: it stays or goes.
"""

from collections.abc import Mapping

import msgspec

from querator.model.commands import Done
from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, Replica
from querator.model.placement_map import PlacedGroup
from querator.placement.map.commands import GroupSettled, Place, PlaceGroups
from querator.placement.map.view import Change, View


def place(view: View, command: PlaceGroups) -> Change:
    nodes = {node.key for node in view.map.nodes}
    groups: dict[GroupId, PlacedGroup] = {}
    for wanted in command.places:
        placed = view.map.placed(wanted.group)
        if placed is None or not nodes.issuperset((*wanted.voters, *wanted.learners)):
            continue
        after = placed_as(placed, wanted)
        if after != placed:
            groups[wanted.group] = after
    return Change(Done(len(groups)), groups=groups)


def placed_as(placed: PlacedGroup, wanted: Place) -> PlacedGroup:
    """The group with its replicas at the wanted places. Returns the same object if `wanted` was
    made for another state of the group.
    """
    current: Mapping[NodeKey, Replica] = {replica.node: replica for replica in placed.target}
    demoted = [node for node in wanted.learners if node in current and current[node].voter]
    if placed.moving or tuple(current) != wanted.before or demoted:
        return placed
    if wanted.leader not in wanted.voters:
        return placed
    target: list[Replica] = []
    next_replica = placed.next_replica
    for node in (*wanted.voters, *wanted.learners):
        voter = node in wanted.voters
        known = current.get(node)
        if known is None:
            known = Replica(next_replica, node)
            next_replica += 1
        target.append(msgspec.structs.replace(known, voter=voter))
    target.sort(key=lambda replica: replica.id)
    after = tuple(target)
    preferred = next(replica.id for replica in after if replica.node == wanted.leader)
    return msgspec.structs.replace(
        placed,
        target=after,
        next_replica=next_replica,
        preferred=preferred,
        moving=after != placed.target,
        former=placed.voters if after != placed.target else (),
    )


def settled(view: View, command: GroupSettled) -> Change:
    placed = view.map.placed(command.group)
    if placed is None or not placed.moving or placed.next_replica != command.next_replica:
        return Change(Done())
    done = msgspec.structs.replace(placed, moving=False, former=())
    return Change(Done(1), groups={command.group: done})
