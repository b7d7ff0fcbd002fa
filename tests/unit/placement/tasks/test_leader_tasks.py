"""The tasks of a leader for its groups while a node stays away."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from querator.model.commands import Done
from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.nodes import NodeKey
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import QueueSettings
from querator.placement.map.commands import (
    CreateQueue,
    GiveUpTarget,
    GroupSettled,
    HandOffNode,
    JoinNode,
    Place,
    PlaceGroups,
    RemoveNode,
    ReplaceNode,
)
from querator.placement.tasks import leader_tasks
from querator.placement.tasks.leader_tasks import CHANGING_MAX, LeaderTasks
from querator.raft.configuration import Change, changed
from querator.raft.host import Host
from querator.raft.status import GroupStatus
from tests.unit.placement.conftest import Group, node
from tests.unit.placement.tasks.test_steps import status


class LeadingHost:
    """Leads its groups: by the replica `own`, or by each group's preferred replica. Replicas change
    at once; learners of groups in `waiting` never catch up. Nodes in `declining` take no
    leadership.
    """

    def __init__(
        self, groups: dict[GroupId, PlacedGroup], waiting: set[GroupId], *, own: int = 0
    ) -> None:
        self._own = own
        self.led_groups = frozenset(groups)
        self.settled = asyncio.Event()
        self.declining: set[NodeKey] = set()
        self.asked: list[NodeKey] = []
        self.is_committed = True
        self.looks = 0
        self.looked_often = asyncio.Event()
        self._waiting = waiting
        self._groups = groups
        self.replicas = {group: placed.founding for group, placed in groups.items()}

    def leads(self, group: GroupId) -> bool:
        return group in self.led_groups

    def status(self, group: GroupId) -> GroupStatus | None:
        replicas = self.replicas.get(group)
        if replicas is None:
            return None
        self.looks += 1
        if self.looks == 100:
            self.looked_often.set()
        found = status(replicas=replicas)
        return msgspec.structs.replace(
            found,
            replica=self._own or self._groups[group].preferred,
            replicas_index=found.commit_index + (not self.is_committed),
        )

    async def transfer(self, group: GroupId, to: NodeKey) -> None:
        self.asked.append(to)
        if to in self.declining:
            raise QueratorError(ErrorCode.UNAVAILABLE, f"{to} did not take group {group} over")
        self.settled.set()

    async def change_replicas(self, group: GroupId, change: Change) -> None:
        after = changed(self.replicas[group], change)
        if group in self._waiting and [one.voter for one in after].count(True) == 3:
            raise QueratorError(ErrorCode.UNAVAILABLE, f"group {group}: replica 4 is behind")
        self.replicas[group] = after
        if after == self._groups[group].target:
            self.settled.set()


async def until_settled(host: LeadingHost, placement_map: PlacementMap, own: NodeKey) -> None:
    async def propose(group: GroupId, command: object) -> None:
        raise QueratorError(ErrorCode.UNAVAILABLE, "nobody leads the placement group")

    doing = LeaderTasks(
        cast(Host, host),
        lambda: placement_map,
        node=own,
        propose=propose,
        connected=dict[NodeKey, Any],
        said=lambda: node("a"),
    )
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(doing.run())
        await host.settled.wait()
        running.cancel()


async def test_groups_that_wait_for_a_node_keep_no_others_waiting(monkeypatch):
    """As in `make chaos`, seed 952946: four groups that waited for a replacement were tried for
    ever.
    """
    monkeypatch.setattr(leader_tasks, "ROUND_S", 0.001)
    cluster = Group(nodes="abc")
    cluster.propose(CreateQueue("n", "q", QueueSettings(partitions=3 * (CHANGING_MAX + 1))))
    cluster.propose(ReplaceNode(node("c", incarnation="2"), "1"))
    own = node("a").key
    groups = {
        group: placed
        for group, placed in cluster.map.groups.items()
        if group != PLACEMENT_GROUP and cluster.map.preferred(group) == own
    }
    assert len(groups) == CHANGING_MAX + 1
    host = LeadingHost(groups, waiting=set(sorted(groups)[:CHANGING_MAX]))

    await until_settled(host, cluster.map, own)


async def test_a_leader_that_is_to_go_asks_another_heir_when_one_does_not_take_the_group(
    monkeypatch,
):
    """Seed 20088 of whole nodes: the preferred node's clock was wrong, and the leader asked it
    again and again.
    """
    monkeypatch.setattr(leader_tasks, "ROUND_S", 0.001)
    cluster = Group(nodes="abc")
    cluster.propose(CreateQueue("n", "q", QueueSettings(partitions=1)))
    group = next(group for group in cluster.map.groups if group != PLACEMENT_GROUP)
    placed = cluster.map.groups[group]
    leader, preferred, other = sorted(placed.target, key=lambda one: -one.id)
    target = (preferred, other)
    leaving = msgspec.structs.replace(placed, target=target, preferred=preferred.id, moving=True)
    placement_map = cluster.map.evolve(cluster.map.epoch + 1, groups={group: leaving})
    host = LeadingHost({group: leaving}, waiting=set(), own=leader.id)
    host.declining.add(preferred.node)
    await until_settled(host, placement_map, leader.node)
    assert host.asked == [preferred.node, other.node]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_target_on_a_dead_node_is_given_up_once_the_configuration_is_committed(
    is_committed: bool, monkeypatch: pytest.MonkeyPatch
):
    """Another leader may not have a configuration that is not committed."""
    monkeypatch.setattr(leader_tasks, "ROUND_S", 0.001)
    cluster = Group(nodes="abc")
    cluster.propose(CreateQueue("n", "q", QueueSettings(partitions=1)))
    cluster.propose(JoinNode(node("d")))
    council = cluster.map.groups[PLACEMENT_GROUP]
    cluster.propose(GroupSettled(PLACEMENT_GROUP, council.next_replica))
    [group] = (group for group in cluster.map.groups if group != PLACEMENT_GROUP)
    a, b, c, d = (node(name).key for name in "abcd")
    cluster.propose(PlaceGroups((Place(group, (a, b, c), (a, b, d), a),)))
    cluster.propose(RemoveNode("d"))
    placed = cluster.map.groups[group]
    learner = msgspec.structs.replace(placed.target[-1], voter=False)
    host = LeadingHost({group: placed}, waiting=set(), own=1)
    host.replicas[group] = (*placed.founding, learner)
    host.is_committed = is_committed
    proposed: list[object] = []

    async def propose(_: GroupId, command: object) -> object:
        proposed.append(command)
        host.looked_often.set()
        return Done()

    tasks = LeaderTasks(
        cast(Host, host),
        lambda: cluster.map,
        node=a,
        propose=propose,
        connected=lambda: {b: node("b"), c: node("c")},
        said=lambda: node("a"),
    )
    running = asyncio.get_running_loop().create_task(tasks.run())
    async with asyncio.timeout(10):
        await host.looked_often.wait()
    running.cancel()
    expected = GiveUpTarget(group, placed.next_replica, placed.founding, 1)
    assert proposed == ([expected] if is_committed else [])


async def test_a_handoff_without_a_majority_is_announced_when_there_is_one(monkeypatch):
    """The map never knew it: the other nodes offered leaderships, and status said all is well."""
    monkeypatch.setattr(leader_tasks, "ROUND_S", 0.001)
    cluster = Group(nodes="abc")
    monkeypatch.setattr(leader_tasks, "ANNOUNCE_S", 0.001)
    announced = asyncio.Event()
    attempts = 0

    async def propose(_: GroupId, command: Any) -> object:
        nonlocal attempts
        assert isinstance(command, HandOffNode)
        attempts += 1
        if attempts == 1:
            await asyncio.Event().wait()
        if attempts == 2:
            raise QueratorError(ErrorCode.UNAVAILABLE, "nobody leads the placement group")
        cluster.propose(command)
        announced.set()
        return Done()

    said = cluster.map.node("a")
    assert said is not None
    assert said.takes_leaderships
    tasks = LeaderTasks(
        cast(Host, LeadingHost({}, waiting=set())),
        lambda: cluster.map,
        node=said.key,
        propose=propose,
        connected=dict[NodeKey, Any],
        said=lambda: said,
    )
    async with asyncio.timeout(10), asyncio.TaskGroup() as running:
        run = running.create_task(tasks.run())
        assert (await tasks.hand_over(0.0)).moved == 0
        await announced.wait()
        run.cancel()
    after = cluster.map.node("a")
    assert after is not None
    assert not after.takes_leaderships
    assert attempts == 3
