"""The next step of a group's leader towards the replicas and the leadership that the map wants.
Pure.

    replicas of the group, and the target                       next
    one exists that the map has not named yet                   nothing: the map here is behind
    the target cannot be reached (`is_out_of_reach`)            nothing: it is given up
    a target replica does not exist                             AddLearner, by id
    a voter is lost, and is not in the target                   RemoveReplica
    one is a learner, and should vote                           Promote
    all of the target vote; one exists that is not in it        RemoveReplica
    the same, and it is the leader's own                        HandOver to one of the target,
                                                                to each in turn until one accepts

The leader takes one step at a time, and additions first, so there are never fewer live voters than
before. A replica that is lost for ever is removed before another one votes. A majority of three, of
which one is lost, needs both others. With a fourth voter it would need that one as well, which is
new and busy. A step that the group refuses (another change is under way, the learner is not caught
up) is tried again later. After a crash at any point, the same table says how to continue.

A learner on a node that is removed while it is down never catches up. Then the leader gives the
target up for the voters that the group has, and the next target begins from there. It does so as
well before a voter that works would leave for one that is lost.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from querator.model.limits import UNAPPLIED_ENTRIES_MAX
from querator.model.nodes import NodeKey, Replicas
from querator.model.placement_map import PlacedGroup
from querator.raft.configuration import AddLearner, Change, Promote, RemoveReplica
from querator.raft.status import GroupStatus, ReplicaStatus

SETTLED_S = 2.0
"""A new leadership stays for this time. The map of its node may be behind, and the preferred node
may be the one that gave it away because it is about to stop.
"""


_NOBODY: Final[Mapping[NodeKey, int]] = {}


class LeadershipTransfer(msgspec.Struct, frozen=True):
    to: NodeKey


def next_step(
    current: Replicas,
    placed: PlacedGroup,
    *,
    own: int,
    lost: Callable[[NodeKey], bool] = lambda _: False,
    declined: Mapping[NodeKey, int] = _NOBODY,
) -> Change | LeadershipTransfer | None:
    """The next step of the leader, whose replica is `own`; None when there is none. `lost` returns
    whether a node will never be heard again, `declined` has how often a node did not accept the
    leadership.
    """
    target = placed.target
    if current == target and any(replica.id == own for replica in target):
        return None
    if _is_behind(current, placed) or is_out_of_reach(current, placed, lost=lost):
        return None
    there = {replica.id: replica for replica in current}
    for replica in sorted(target, key=lambda replica: replica.id):
        if replica.id not in there and replica.id >= placed.next_added:
            return AddLearner(replica.id, replica.node)
    wanted = {replica.id for replica in target}
    for replica in current:
        surplus = replica.id not in wanted and replica.id != own
        if surplus and replica.voter and lost(replica.node):
            return RemoveReplica(replica.id)
    for replica in target:
        if replica.voter and not there[replica.id].voter:
            return Promote(replica.id)
    for replica in current:
        if replica.id not in wanted and replica.id != own:
            return RemoveReplica(replica.id)
    heirs = sorted(
        (declined.get(replica.node, 0), replica.id != placed.preferred, replica.node)
        for replica in target
        if replica.voter
    )
    if own not in wanted and heirs:
        return LeadershipTransfer(heirs[0][-1])
    return None


def _is_behind(current: Replicas, placed: PlacedGroup) -> bool:
    """Whether the map does not know a replica yet that the group has."""
    return any(replica.id >= placed.next_replica for replica in current)


def is_out_of_reach(
    current: Replicas, placed: PlacedGroup, *, lost: Callable[[NodeKey], bool]
) -> bool:
    """Whether the target of a moving group can never be its configuration, or should not: a learner
    that should vote is lost, a voter that should stay is lost while one that works would go, a
    voter should learn, or a replica has left the group, to which its id does not return. Before
    that, all of the target exist at least as learners: the next leader knows the same replicas.
    """
    if not placed.moving or _is_behind(current, placed):
        return False
    there = {replica.id: replica for replica in current}
    missing = [replica.id for replica in placed.target if replica.id not in there]
    if missing:
        return all(id_ < placed.next_added for id_ in missing)
    wanted = {replica.id for replica in placed.target}
    would_go = any(
        replica.voter and replica.id not in wanted and not lost(replica.node) for replica in current
    )
    return any(
        lost(replica.node) and (would_go or not there[replica.id].voter)
        if replica.voter
        else there[replica.id].voter
        for replica in placed.target
    )


def has_settled(status: GroupStatus, placed: PlacedGroup) -> bool:
    """Whether a moving group has arrived: its leader knows that the target is committed as its
    configuration. Before that, a node outside the target must not lose its data.
    """
    return (
        placed.moving
        and status.replicas == placed.target
        and status.replicas_index <= status.commit_index
    )


def may_take_over(status: GroupStatus, able: Collection[NodeKey]) -> list[ReplicaStatus]:
    """The followers on `able` nodes that could lead in a moment."""
    return [
        follower
        for follower in status.followers
        if follower.voter
        and follower.node in able
        and status.log_last - follower.applied <= UNAPPLIED_ENTRIES_MAX
    ]


def moves_home(
    status: GroupStatus,
    target: Replicas,
    preferred: NodeKey | None,
    able: Collection[NodeKey],
    *,
    led_s: float,
) -> bool:
    """Whether the leadership should move to the preferred node: it could lead, the replicas are the
    target, and this node has led long enough (`led_s`).
    """
    if preferred is None or status.replicas != target or led_s < SETTLED_S:
        return False
    return any(follower.node == preferred for follower in may_take_over(status, able))


def transfer_target(
    status: GroupStatus,
    preferred: NodeKey | None,
    able: Collection[NodeKey],
    given: Mapping[NodeKey, int],
    declined: Mapping[NodeKey, int] = _NOBODY,
) -> NodeKey | None:
    """The node that should lead instead of this one: of those that could and have `declined` the
    least often, the preferred node, else the one that was `given` the fewest; None if there is
    none.
    """
    candidates = (follower.node for follower in may_take_over(status, able))
    return min(
        candidates,
        key=lambda node: (declined.get(node, 0), node != preferred, given.get(node, 0), node),
        default=None,
    )
