"""Nodes that join, are drained and removed, and replicas that move: the rules, and a model of a
cluster that follows them.
"""

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querator.model.commands import Done, Refusal
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP, GroupId
from querator.model.limits import NODES_MAX
from querator.model.nodes import NodeKey, Replica, Replicas, node_key
from querator.model.placement_map import NodeState, PlacedGroup
from querator.model.queues import QueueSettings
from querator.placement.map.commands import (
    CreateQueue,
    DeleteQueue,
    DrainNode,
    GroupSettled,
    JoinNode,
    NodeGone,
    Place,
    PlaceGroups,
    ReadmitNode,
    RegisterNode,
    RemoveNode,
    ReplaceNode,
    UpdateQueue,
)
from querator.placement.tasks.balancing import MOVING_MAX, council, next_places, planned
from querator.placement.tasks.reconcile import first_configuration
from querator.placement.tasks.steps import LeadershipTransfer, next_step
from querator.raft.configuration import changed, voters
from tests.unit.placement.conftest import Group, node

A, B, C, D = (node_key(name, "1") for name in "abcd")
G = GroupId(1)


@pytest.fixture
def three() -> Group:
    group = Group(nodes="abc")
    group.propose(CreateQueue("n", "q", QueueSettings(partitions=3)))
    return group


def placed(group: Group, id_: GroupId = G) -> PlacedGroup:
    found = group.map.placed(id_)
    assert found is not None
    return found


def refused(result: Any, *words: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> None:
    assert isinstance(result, Refusal), result
    assert result.code is code
    for word in words:
        assert word in result.message


def settle(group: Group, id_: GroupId = G) -> None:
    assert group.propose(GroupSettled(id_, placed(group, id_).next_replica)) == Done(1)


# --- joining ---------------------------------------------------------------------------------


def test_a_node_joins_as_a_learner_of_the_map(three: Group):
    said = node("d", handoff_boots=7, state=NodeState.LEAVING)
    assert three.propose(JoinNode(said)) == Done(1)
    assert three.map.node("d") == node("d")
    council = placed(three, PLACEMENT_GROUP)
    assert council.target[-1] == Replica(4, D, voter=False)
    assert (council.next_replica, council.moving) == (5, True)
    assert not placed(three).moving, "partitions are moved by the plan"
    epoch = three.map.epoch
    assert three.propose(JoinNode(node("d"))) == Done()
    assert three.map.epoch == epoch
    three.restart()
    assert placed(three, PLACEMENT_GROUP) == council


def test_who_may_not_join(three: Group):
    refused(three.propose(JoinNode(node("a", "2"))), "known with other data", "node replace a")
    three.propose(JoinNode(node("d")))
    three.propose(RemoveNode("d"))
    settle(three, PLACEMENT_GROUP)
    arrange(three)
    settle(three, PLACEMENT_GROUP)
    assert three.propose(NodeGone("d")) == Done(1)
    refused(three.propose(JoinNode(node("d"))), "node d was removed", "empty data")
    refused(three.propose(JoinNode(node("d", "2"))), "node d was removed", "node readmit d")
    for number in range(NODES_MAX - 3):
        assert three.propose(JoinNode(node(f"n{number}"))) == Done(1)
    result = three.propose(JoinNode(node("z")))
    refused(result, f"{NODES_MAX} nodes", code=ErrorCode.LIMIT_EXCEEDED)
    assert (result.field, result.limit, result.value) == ("name", str(NODES_MAX), "z")
    refused(
        Group(nodes="").propose(JoinNode(node("d"))), "being formed", code=ErrorCode.UNAVAILABLE
    )


# --- draining and removing -------------------------------------------------------------------


def test_draining_and_back(three: Group):
    refused(three.propose(DrainNode("c")), "without node c there are 2 nodes", "partitions have 3")
    refused(three.propose(DrainNode("x")), "no node x", "a, b, c")
    three.propose(JoinNode(node("d")))
    assert three.propose(DrainNode("c")) == Done(1)
    assert three.propose(DrainNode("c")) == Done()
    refused(three.propose(DrainNode("d")), "add another node first")
    drained = three.map.node("c")
    assert drained is not None
    assert not drained.takes_replicas
    # Neither the node's own description nor the loss of its data changes that.
    three.propose(RegisterNode(node("c", boots=5)))
    three.propose(ReplaceNode(node("c", "2"), lost="1"))
    replaced = three.map.node("c")
    assert replaced is not None
    assert (replaced.incarnation, replaced.state) == ("2", NodeState.DRAINING)
    created = three.propose(CreateQueue("n", "new", QueueSettings(partitions=4))).queue
    assert "c/2" not in three.map.holders(created)
    assert three.propose(DrainNode("c", drain=False)) == Done(1)
    assert three.map.node("c") == node("c", "2")


def test_a_queue_has_as_many_replicas_as_it_asks_for(three: Group):
    def holders(name: str) -> list[int]:
        queue = three.map.find("n", name)
        assert queue is not None
        return [len(three.map.replicas(id_)) for id_ in queue.groups]

    three.propose(CreateQueue("n", "one", QueueSettings(partitions=4, replicas=1)))
    assert holders("one") == [1, 1, 1, 1]
    assert len(three.map.holders(three.map.queues("n")[0])) == 3, "they are spread all the same"
    refused(
        three.propose(CreateQueue("n", "five", QueueSettings(replicas=5))),
        "settings.replicas is 5; the cluster has 3 nodes that take replicas",
    )
    refused(three.propose(resized("one", 5)), "settings.replicas is 5; the cluster has 3 nodes")
    for name in "de":
        three.propose(JoinNode(node(name)))
    three.propose(resized("one", 5))
    arrange(three)
    assert holders("one") == [5, 5, 5, 5]
    for name in "cde":
        refused(
            three.propose(DrainNode(name)),
            f"without node {name} there are 4 nodes",
            "queue one asks for 5",
        )
    three.propose(resized("one", 0))
    assert three.propose(DrainNode("e")) == Done(1)
    three.propose(DeleteQueue("n", "one"))


def resized(name: str, replicas: int) -> UpdateQueue:
    return UpdateQueue("n", name, QueueSettings(replicas=replicas), ("replicas",))


def test_the_last_node_stays():
    alone = Group(nodes="a")
    refused(alone.propose(DrainNode("a")), "node a is the last one that takes replicas")
    refused(alone.propose(RemoveNode("a")), "node a is the last one that takes replicas")
    placed = msgspec.structs.replace(node("a"), boots=2, peer_address="")
    assert alone.propose(RegisterNode(placed)) == Done(1)
    refused(alone.propose(DrainNode("a")), "add another node first: ", "--cluster-token-file")


def test_a_node_leaves_when_nothing_is_on_it(three: Group):
    refused(three.propose(RemoveNode("c")), "add another node first")
    three.propose(JoinNode(node("d")))
    settle(three, PLACEMENT_GROUP)
    assert three.propose(RemoveNode("c")) == Done(1)
    assert three.propose(RemoveNode("c")) == Done()
    refused(three.propose(DrainNode("c")), "node c is leaving")
    refused(three.propose(NodeGone("c")), "still has replicas", code=ErrorCode.UNAVAILABLE)
    assert arrange(three) > 0
    refused(three.propose(NodeGone("c")), "still has replicas", code=ErrorCode.UNAVAILABLE)
    for id_, one in three.map.groups.items():
        if one.moving:
            settle(three, id_)
    assert three.propose(NodeGone("c")) == Done(1)
    assert [one.name for one in three.map.nodes] == ["a", "b", "d"]
    assert [one.name for one in three.map.removed] == ["c"]
    assert three.map.node("c") is None
    assert three.propose(NodeGone("c")) == Done()
    assert three.propose(RemoveNode("c")) == Done()
    assert voters(placed(three, PLACEMENT_GROUP).target) == {1, 2, 4}


def test_a_removed_name_is_used_again(three: Group):
    refused(three.propose(ReadmitNode("c")), "c is not among the nodes that were removed")
    three.propose(JoinNode(node("d")))
    settle(three, PLACEMENT_GROUP)
    three.propose(RemoveNode("d"))
    arrange(three)
    settle(three, PLACEMENT_GROUP)
    three.propose(NodeGone("d"))
    assert three.propose(ReadmitNode("d")) == Done(1)
    assert three.propose(ReadmitNode("d")) == Done()
    refused(three.propose(JoinNode(node("d"))), "node d was removed", "empty data")
    refused(three.propose(RemoveNode("d")), "no node d")
    assert three.propose(JoinNode(node("d", "2"))) == Done(1)
    assert three.map.node("d") == node("d", "2")
    assert three.map.removed == ()
    three.restart()
    assert three.map.node("d") == node("d", "2")


# --- placement of replicas -------------------------------------------------------------------


def test_a_group_is_placed_elsewhere(three: Group):
    three.propose(JoinNode(node("d")))
    before = placed(three)
    assert three.propose(PlaceGroups((Place(G, (A, B, C), (D, B, A), D),))) == Done(1)
    after = placed(three)
    assert after.target == (Replica(1, A), Replica(2, B), Replica(4, D))
    assert (after.next_replica, after.preferred, after.moving) == (5, 4, True)
    assert after.founding == before.founding
    # Until the group has settled, no other placement is accepted.
    assert three.propose(PlaceGroups((Place(G, (A, B, D), (A, B, C), A),))) == Done(0)
    assert three.propose(GroupSettled(G, 4)) == Done(), "of an earlier target"
    settle(three)
    assert three.propose(GroupSettled(G, 5)) == Done()
    assert three.propose(PlaceGroups((Place(G, (A, B, D), (A, B, C), A),))) == Done(1)
    assert placed(three).target == (Replica(1, A), Replica(2, B), Replica(5, C)), "another id"
    assert first_configuration(placed(three), C)[-1] == Replica(5, C, voter=False)


@pytest.mark.parametrize(
    "place",
    [
        Place(G, (A, B), (A, B, D), A),
        Place(G, (A, B, C), (A, B, NodeKey("x/1")), A),
        Place(G, (A, B, C), (A, B), A, (C,)),
        Place(G, (A, B, C), (A, B, C), D),
        Place(GroupId(99), (A, B, C), (A, B, D), A),
    ],
    ids=["of another state", "unknown node", "demoted", "leader elsewhere", "unknown group"],
)
def test_what_is_not_placed(three: Group, place: Place):
    three.propose(JoinNode(node("d")))
    epoch = three.map.epoch
    assert three.propose(PlaceGroups((place,))) == Done(0)
    assert three.map.epoch == epoch


def test_only_the_leadership_moves(three: Group):
    assert three.propose(PlaceGroups((Place(G, (A, B, C), (A, B, C), C),))) == Done(1)
    assert three.map.preferred(G) == C
    assert not placed(three).moving


def arrange(group: Group) -> int:
    """Places replicas as the leader of the map does. Returns how many groups change."""
    places = next_places(group.map, planned(group.map))
    return int(group.propose(PlaceGroups(places)).changed)


def test_a_council_of_five_from_seven_nodes_on(three: Group):
    for name in "defg":
        three.propose(JoinNode(node(name, zone="z" if name == "d" else "")))
        settle(three, PLACEMENT_GROUP)
        arrange(three)
        if placed(three, PLACEMENT_GROUP).moving:
            settle(three, PLACEMENT_GROUP)
    target = placed(three, PLACEMENT_GROUP).target
    assert len(target) == 7
    voting = [replica.node[0] for replica in target if replica.voter]
    assert voting == ["a", "b", "c", "d", "e"], "d is in a zone of its own"
    assert council(three.map) is None


def test_few_groups_move_at_once(three: Group):
    three.propose(CreateQueue("n", "large", QueueSettings(partitions=60)))
    three.propose(JoinNode(node("d")))
    moved: set[GroupId] = set()
    while arrange(three):
        moving = {id_ for id_, one in three.map.groups.items() if one.moving}
        assert len(moving) <= MOVING_MAX
        assert arrange(three) == 0, "until some have settled"
        settle(three, min(moving))
        moved |= moving
    assert len(moved) > MOVING_MAX


class Model:
    """Groups whose leaders follow `placement.tasks.steps`, one step of one group at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.placement = Group(nodes="abc")
        self.placement.propose(CreateQueue("n", "q", QueueSettings(partitions=4)))
        self.current: dict[GroupId, Replicas] = {
            id_: one.target for id_, one in self.placement.map.groups.items()
        }
        self.leads: dict[GroupId, int] = {id_: one[0].id for id_, one in self.current.items()}
        self.names = iter("defghij")

    def join(self) -> None:
        name = next(self.names, "")
        if name:
            self.placement.propose(JoinNode(node(name, zone=self.random.choice("xy"))))

    def drain(self) -> None:
        name = self.random.choice(self.placement.map.nodes).name
        self.placement.propose(DrainNode(name, drain=self.random.random() < 0.7))

    def remove(self) -> None:
        self.placement.propose(RemoveNode(self.random.choice(self.placement.map.nodes).name))

    def resize(self) -> None:
        self.placement.propose(resized("q", self.random.choice((0, 1, 3, 5))))

    def arrange(self) -> None:
        arrange(self.placement)
        for one in self.placement.map.nodes:
            if one.state is NodeState.LEAVING:
                self.placement.propose(NodeGone(one.name))

    def step(self) -> bool:
        """Runs one step; whether there was anything to do."""
        groups = list(self.current)
        self.random.shuffle(groups)
        for id_ in groups:
            target, current = placed(self.placement, id_), self.current[id_]
            step = next_step(current, target, own=self.leads[id_])
            if isinstance(step, LeadershipTransfer):
                heir = next(one for one in current if one.node == step.to)
                assert heir.voter
                self.leads[id_] = heir.id
                return True
            if step is not None:
                after = changed(current, step)
                assert len(voters(after)) >= min(len(voters(target.target)), len(voters(current)))
                assert len({one.node for one in after}) == len(after), "one replica on a node"
                assert self.leads[id_] in voters(after)
                self.current[id_] = after
                return True
            if target.moving:
                assert current == target.target
                settle(self.placement, id_)
                return True
        return False

    def rest(self) -> None:
        """Runs steps until nothing changes any more."""
        for _ in range(1_000):
            if not self.step():
                epoch = self.placement.map.epoch
                self.arrange()
                if self.placement.map.epoch == epoch:
                    return
        raise AssertionError("it does not come to rest")


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from(["join", "drain", "remove", "resize", "arrange", "step", "step"]),
        max_size=40,
    ),
    st.integers(0, 1_000),
)
def test_a_cluster_comes_to_rest_whatever_was_asked(actions: list[str], seed: int):
    model = Model(seed)
    for action in actions:
        getattr(model, action)()
    model.rest()
    nodes = model.placement.map.nodes
    active = {one.key for one in nodes if one.takes_replicas}
    assert all(one.state is not NodeState.LEAVING for one in nodes)
    held: Counter[NodeKey] = Counter(dict.fromkeys(active, 0))
    asked = model.placement.map.queues("n")[0].settings.replicas or 3
    for id_, one in model.placement.map.groups.items():
        assert not one.moving
        assert model.current[id_] == one.target
        if id_ == PLACEMENT_GROUP:
            assert {replica.node for replica in one.target} == {node.key for node in nodes}
            voting = [replica for replica in one.target if replica.voter]
            assert len([one for one in voting if one.node in active]) >= 3
            continue
        assert {replica.node for replica in one.target} <= active
        assert len(one.target) == asked
        assert all(replica.voter for replica in one.target)
        held.update(replica.node for replica in one.target)
    assert sum(held.values()) == 4 * asked


def test_a_group_that_moved_keeps_its_first_configuration_elsewhere(three: Group):
    one = placed(three)
    assert first_configuration(one, B) == one.founding
    back = msgspec.structs.replace(one, target=(*one.target[:2], Replica(9, C)))
    assert first_configuration(back, C) == (*one.target[:2], Replica(9, C, voter=False))
