"""What the placement commands about replicas do, as pure functions from a view to a change.

Rules that hold after every command, whatever the commands were:

* the target of a group that is moving does not change, but for a node that joins the placement
  group: so what a group is told to do is done, step by step, before it is told something else;
* a node has at most one replica of a group, and gets another only when the group has settled
  without the first, of which it may still have the data;
* a replica that votes never becomes a learner: it stays or goes.
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
    """The group with its replicas where they are wanted; the same object when that was made for
    another state of it.
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
