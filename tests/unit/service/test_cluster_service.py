"""Plans, and removing nodes: what an operator is shown and refused, and what a repeat gets."""

from types import SimpleNamespace
from typing import Any

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.ids import PLACEMENT_GROUP
from querator.model.nodes import node_key
from querator.model.queues import QueueSettings
from querator.placement.map.commands import (
    Command,
    CreateQueue,
    DrainNode,
    GroupSettled,
    HandOffNode,
    JoinNode,
    Place,
    PlaceGroups,
)
from querator.service.cluster_service import ClusterService
from tests.unit.placement.conftest import Group, node

A, B, C, D = (node_key(name, "1") for name in "abcd")


class Cluster:
    """The service of node a over a placement machine. `up` are the nodes that are connected."""

    def __init__(self) -> None:
        self.group = Group(nodes="abc")
        self.group.propose(CreateQueue("n", "q", QueueSettings(partitions=3)))
        self.group.propose(JoinNode(node("d")))
        council = self.group.map.placed(PLACEMENT_GROUP)
        assert council is not None
        self.group.propose(GroupSettled(PLACEMENT_GROUP, council.next_replica))
        self.up = {B, C, D}
        host: Any = SimpleNamespace(node=A)
        placement: Any = SimpleNamespace(change=self.change)
        self.service = ClusterService(
            host=host,
            environment=self.group.environment,
            placement=placement,
            ask=None,
            connected=lambda: {key: node(key[0]) for key in self.up},
            on_hand_off=self.hand_off,
        )
        self.placement = placement
        self.placement.map = self.group.map
        self.handed_off = False

    async def change(self, command: Command) -> Any:
        result = self.group.propose(command)
        self.placement.map = self.group.map
        return result

    async def hand_off(self) -> None:
        self.handed_off = True

    async def remove(self, name: str) -> str:
        self.placement.map = self.group.map
        return (await self.service.remove(name)).node.state


async def test_a_node_that_is_up_with_replicas_is_drained_first():
    cluster = Cluster()
    with pytest.raises(QueratorError, match="which is up and has replicas of 3 partitions") as hit:
        await cluster.remove("c")
    assert hit.value.code is ErrorCode.INVALID_ARGUMENT


async def test_a_repeated_removal_is_not_refused_because_the_node_has_come_back():
    """It was refused with the advice to drain the node, and a drain of it was refused as well."""
    cluster = Cluster()
    cluster.up.discard(C)
    assert await cluster.remove("c") == "leaving"
    cluster.up.add(C)
    assert await cluster.remove("c") == "leaving"


@pytest.mark.parametrize("drained", [True, False])
async def test_the_plan_says_where_replicas_under_way_were_and_why_they_move(drained: bool):
    cluster = Cluster()
    if drained:
        cluster.group.propose(DrainNode("c"))
    placed = cluster.group.map
    queue = next(iter(placed))
    known = placed.placed(queue.groups[0])
    assert known is not None
    before = tuple(replica.node for replica in known.target)
    place = Place(queue.groups[0], before, (A, B, D), leader=A)
    cluster.group.propose(PlaceGroups((place,)))
    cluster.placement.map = cluster.group.map
    move = (await cluster.service.plan()).moves[0]
    assert (move.moving, move.origin, move.to) == (True, ("a", "b", "c"), ("a", "b", "d"))
    assert move.reason == f"{'c is being drained' if drained else 'moving'} (under way)"


async def test_the_last_node_that_may_lead_does_not_hand_off():
    """No node would be ready any more, and only a start ends a handoff."""
    cluster = Cluster()
    cluster.placement.hand_over = handed = Handed()
    for name in "bc":
        await cluster.change(HandOffNode(name, "1", 1))
    assert (await cluster.service.hand_off("")).moved == 1
    assert cluster.handed_off
    cluster.handed_off = False
    await cluster.change(HandOffNode("d", "1", 1))
    with pytest.raises(QueratorError, match="the last one that may lead: b, c, d have") as hit:
        await cluster.service.hand_off("a")
    assert (hit.value.code, hit.value.field) == (ErrorCode.INVALID_ARGUMENT, "node")
    assert not cluster.handed_off
    assert handed.calls == 1


class Handed:
    """Hands over one leadership at each call."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, _: float) -> Any:
        self.calls += 1
        return SimpleNamespace(moved=1, left=())
