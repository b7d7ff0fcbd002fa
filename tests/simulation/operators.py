"""Operators: they hand leaderships over and change the replicas of groups.

An operator remembers nothing. Each step reads what the leader reports and asks for the next change,
so a change with an unknown outcome is simply checked again.
"""

import random
from typing import Any, Protocol

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, Replica, Replicas
from querator.raft.configuration import AddLearner, Change, Promote, RemoveReplica, of_node
from querator.raft.requests import Reconfigure, Transfer
from querator.raft.status import GroupStatus
from tests.simulation.node import Lost, SimulatedNode, Ticket
from tests.simulation.profile import Profile
from tests.simulation.timeline import MS, Timeline

EXPECTED = frozenset(
    {
        ErrorCode.NOT_LEADER, ErrorCode.UNAVAILABLE, ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.STORAGE_FULL,
    }
)  # fmt: skip


class Office(Protocol):
    """What operators see of the world."""

    timeline: Timeline
    profile: Profile
    groups: list[GroupId]

    def all_nodes(self) -> list[SimulatedNode]: ...

    def leader(self, group: GroupId) -> tuple[SimulatedNode, GroupStatus] | None: ...

    def is_gone(self, node: NodeKey) -> bool: ...

    def committed_replicas(self, group: GroupId) -> Replicas: ...

    def drop_replica(self, node: SimulatedNode, group: GroupId) -> None: ...

    def found(self, text: str) -> None: ...


class Operator:
    def __init__(self, office: Office, chance: random.Random) -> None:
        self.stopped = False
        self.repairs = False
        """Whether the operator only does what remains to be done after a disk was lost."""
        self.transfers = 0
        self.changes = 0
        self._office = office
        self._chance = chance
        self._timeline = office.timeline
        self._ids = dict.fromkeys(office.groups, office.profile.replicas)
        """The last replica id in use, by group."""
        self._plan()

    def _plan(self) -> None:
        pause_us = int(self._chance.expovariate(1 / (1_200 * MS))) + 1
        self._timeline.after(pause_us, self._work)

    def _work(self) -> None:
        if self.stopped:
            return
        group = self._chance.choice(self._groups())
        found = self._office.leader(group)
        profile = self._office.profile
        if found is not None:
            node, status = found
            transfers = profile.transfers and not self.repairs
            if transfers and (not profile.members or self._chance.random() < 0.4):
                self._transfer(group, node, status)
            elif profile.members:
                self._change(group, node, status)
        self._plan()

    def _groups(self) -> list[GroupId]:
        """The groups to work on. While it repairs, these are the groups with a replica on a lost
        disk, if there are any, because the time for all of them is limited.
        """
        groups = self._office.groups
        damaged = [group for group in groups if self.repairs and self._lacks(group)]
        return damaged or groups

    def _lacks(self, group: GroupId) -> bool:
        replicas = self._office.committed_replicas(group)
        return any(self._office.is_gone(replica.node) for replica in replicas)

    # --- leadership --------------------------------------------------------------------

    def _transfer(self, group: GroupId, leader: SimulatedNode, status: GroupStatus) -> None:
        others = [replica.node for replica in status.replicas if replica.voter]
        to = self._chance.choice(others)
        self._timeline.tell("OPERATOR", f"hands group {group} from {leader.name} to {to}")

        def answered(_: Any, error: BaseException | None) -> None:
            self.transfers += error is None
            self._judge("transfer", error, also=ErrorCode.INVALID_ARGUMENT)

        leader.request(Transfer(group, to, Ticket("transfer", answered).future))

    # --- membership --------------------------------------------------------------------

    def _change(self, group: GroupId, leader: SimulatedNode, status: GroupStatus) -> None:
        self._clean(group)
        change = self._next_change(group, status)
        if change is None:
            return
        self._timeline.note("change", group, type(change).__name__, change.id)
        self._timeline.tell("OPERATOR", f"group {group} at {leader.name}: {change}")

        def answered(_: Any, error: BaseException | None) -> None:
            self.changes += error is None
            # The leader may have changed meanwhile, and with it what makes sense.
            self._judge("change", error, also=ErrorCode.INVALID_ARGUMENT)

        ticket = Ticket("change", answered)
        leader.request(Reconfigure(group, change, ticket.future))

    def _next_change(self, group: GroupId, status: GroupStatus) -> Change | None:
        voters = [replica for replica in status.replicas if replica.voter]
        learners = [replica for replica in status.replicas if not replica.voter]
        self._ids[group] = max(self._ids[group], *(replica.id for replica in status.replicas))
        gone = [replica for replica in status.replicas if self._office.is_gone(replica.node)]
        if learners:
            if learners[0] in gone or (not self.repairs and self._chance.random() < 0.15):
                return RemoveReplica(learners[0].id)
            return Promote(learners[0].id)
        if len(voters) > self._office.profile.replicas:
            return RemoveReplica(self._chance.choice(gone or voters).id)
        if self.repairs and not gone:
            return None
        committed = self._office.committed_replicas(group)
        for node in self._office.all_nodes():
            # The addition of this replica has failed so far, or its success is not known.
            if node.up and group in node.first_replicas and not _in(status.replicas, node):
                id_ = node.first_replicas[group][0].id
                if id_ > max(replica.id for replica in committed):
                    return AddLearner(id_, node.key)
        spare = [
            node
            for node in self._office.all_nodes()
            if node.up
            and group not in node.first_replicas
            and group not in node.leaving
            and not _in(status.replicas, node)
        ]
        if not spare:
            return None
        node = self._chance.choice(spare)
        self._ids[group] += 1
        id_ = self._ids[group]
        # The replica is opened first, as a non-voter that knows no other replica.
        node.hold(group, (Replica(id_, node.key, voter=False),))
        return AddLearner(id_, node.key)

    def _clean(self, group: GroupId) -> None:
        """Has nodes delete, sooner or later, replicas that can never again belong to the group."""
        committed = self._office.committed_replicas(group)
        newest = max(replica.id for replica in committed)
        for node in self._office.all_nodes():
            if not node.up or group not in node.first_replicas or _in(committed, node):
                continue
            mine = of_node(node.first_replicas[group], node.key)
            if mine is not None and mine.id <= newest and self._chance.random() < 0.5:
                self._office.drop_replica(node, group)

    def _judge(self, what: str, error: BaseException | None, *, also: ErrorCode) -> None:
        if error is None or isinstance(error, Lost):
            return
        if not isinstance(error, QueratorError) or error.code not in EXPECTED | {also}:
            self._office.found(f"a {what} ended with {error!r}")


def _in(replicas: Replicas, node: SimulatedNode) -> bool:
    return of_node(replicas, node.key) is not None
