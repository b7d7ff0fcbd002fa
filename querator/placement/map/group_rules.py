"""The rules for placement commands about replicas: pure functions from a view to a change.

Invariants that hold after every sequence of commands:

* one change of a group is finished before the next one begins: the target of a moving group changes
  only for a node that joins the placement group, for a node that is replaced, and when it cannot be
  reached (GiveUpTarget);
* replica ids count up, and each target that a group's leader may report has its own `next_replica`,
  so that no report about one target takes effect on a later one;
* a node has at most one replica of a group; it gets another only after the group has settled
  without the first one, whose data the node may still have;
* a voter never becomes a learner: it stays or goes.
"""

from collections.abc import Mapping

import msgspec

from querator.model.commands import Done
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey, Replica
from querator.model.placement_map import PlacedGroup
from querator.placement.map.commands import GiveUpTarget, GroupSettled, Place, PlaceGroups
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
    done = msgspec.structs.replace(placed, moving=False, former=(), next_added=0)
    return Change(Done(1), groups={command.group: done})


def give_up(view: View, command: GiveUpTarget) -> Change:
    placed = view.map.placed(command.group)
    if placed is None or not placed.moving or placed.next_replica != command.next_replica:
        return Change(Done())
    learns = command.group == PLACEMENT_GROUP
    return Change(Done(1), groups={command.group: given_up(placed, command, learns=learns)})


def given_up(placed: PlacedGroup, command: GiveUpTarget, *, learns: bool) -> PlacedGroup:
    """The moving group with the voters that it has as its target.

    `learns`: the other nodes of the target stay as learners. Of those that may have voted, only the
    nodes that vote in every configuration up to now stay in both `former` and the target, as
    `placement.map.majorities` counts them.
    """
    voting = {replica.node for replica in command.voters}
    learners = tuple(
        msgspec.structs.replace(replica, voter=False)
        for replica in placed.target
        if learns and replica.node not in voting
    )
    before, target = set(placed.former), set(placed.voters)
    former = ((before | target) - voting) | (before & target & voting)
    return msgspec.structs.replace(
        placed,
        target=tuple(sorted((*command.voters, *learners), key=lambda replica: replica.id)),
        next_replica=placed.next_replica + 1,
        preferred=command.leader,
        former=tuple(sorted(former)),
        next_added=placed.next_replica,
    )
