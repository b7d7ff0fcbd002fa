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
    GiveUpTarget,
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
from querator.placement.tasks.steps import LeadershipTransfer, is_out_of_reach, next_step
from querator.raft.configuration import Promote, changed, voters
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
    arrange_all(three)
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
    arrange_all(three)
    assert three.propose(NodeGone("c")) == Done(1)
    assert [one.name for one in three.map.nodes] == ["a", "b", "d"]
    assert [one.name for one in three.map.removed] == ["c"]
    assert three.map.node("c") is None
    assert three.propose(NodeGone("c")) == Done()
    assert three.propose(RemoveNode("c")) == Done()
    assert voters(placed(three, PLACEMENT_GROUP).target) == {1, 2, 4}


@pytest.mark.parametrize("down", ["", "c"])
def test_a_node_that_leaves_learns_the_map_until_its_last_replica_has_gone(three: Group, down: str):
    """Else it might come back with an old map, and lead a group by it for ever."""
    three.propose(JoinNode(node("d")))
    settle(three, PLACEMENT_GROUP)
    three.propose(RemoveNode("c"))
    arrange(three, down=down)
    moving = [id_ for id_, one in three.map.groups.items() if one.moving]
    if PLACEMENT_GROUP in moving:
        settle(three, PLACEMENT_GROUP)
        moving.remove(PLACEMENT_GROUP)
    assert len(moving) == 3
    voting = {one.node for one in placed(three, PLACEMENT_GROUP).target if one.voter}
    # A fourth voter would make it need three of the four while one is dead.
    assert voting == ({A, B, C} if down else {A, B, C, D})
    for id_ in moving:
        assert placed(three, PLACEMENT_GROUP).replica_on(C) is not None
        arrange(three, down=down)
        assert placed(three, PLACEMENT_GROUP).replica_on(C) is not None
        settle(three, id_)
    arrange(three, down=down)
    assert placed(three, PLACEMENT_GROUP).replica_on(C) is None
    settle(three, PLACEMENT_GROUP)
    assert {one.node for one in placed(three, PLACEMENT_GROUP).target if one.voter} == {A, B, D}
    assert arrange(three) == 0, "it does not come back into the placement group"


def test_a_node_that_is_removed_while_it_is_down_does_not_wait_for_a_deletion(three: Group):
    three.propose(JoinNode(node("d")))
    settle(three, PLACEMENT_GROUP)
    three.propose(DeleteQueue("n", "q"))
    three.propose(RemoveNode("c"))
    arrange(three)
    if placed(three, PLACEMENT_GROUP).moving:
        settle(three, PLACEMENT_GROUP)
    assert placed(three, PLACEMENT_GROUP).replica_on(C) is not None, "it has data to delete"
    arrange(three, down="c")
    settle(three, PLACEMENT_GROUP)
    assert placed(three, PLACEMENT_GROUP).replica_on(C) is None
    assert three.propose(NodeGone("c")) == Done(1)


def test_a_removed_name_is_used_again(three: Group):
    refused(three.propose(ReadmitNode("c")), "c is not among the nodes that were removed")
    three.propose(JoinNode(node("d")))
    settle(three, PLACEMENT_GROUP)
    three.propose(RemoveNode("d"))
    arrange_all(three)
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


# --- targets that are given up ---------------------------------------------------------------


def test_a_target_is_given_up_for_the_voters_that_the_group_has(three: Group):
    three.propose(JoinNode(node("d")))
    three.propose(PlaceGroups((Place(G, (A, B, C), (A, B, D), D),)))
    voters_now = (Replica(1, A), Replica(2, B), Replica(3, C))
    assert three.propose(GiveUpTarget(G, 4, voters_now, 2)) == Done(), "of an earlier target"
    assert three.propose(GiveUpTarget(G, 5, voters_now, 2)) == Done(1)
    after = placed(three)
    assert after.target == voters_now
    assert (after.next_replica, after.next_added, after.preferred) == (6, 5, 2)
    assert after.moving
    assert three.propose(GiveUpTarget(G, 5, voters_now, 2)) == Done(), "a repeat"
    assert three.propose(GroupSettled(G, 5)) == Done(), "of the target that was given up"
    three.restart()
    assert placed(three) == after
    assert three.propose(GroupSettled(G, 6)) == Done(1)
    assert not placed(three).moving
    assert placed(three).next_added == 0
    assert three.propose(PlaceGroups((Place(G, (A, B, C), (A, B, D), A),))) == Done(1)
    assert placed(three).replica_on(D) == Replica(6, D), "another id than the one given up"


def test_the_placement_group_keeps_those_that_do_not_vote_as_learners(three: Group):
    for name in "de":
        three.propose(JoinNode(node(name)))
        settle(three, PLACEMENT_GROUP)
    before = (A, B, C, D, node_key("e", "1"))
    place = Place(PLACEMENT_GROUP, before, (A, B, D), A, before[4:])
    assert three.propose(PlaceGroups((place,))) == Done(1)
    voters_now = (Replica(1, A), Replica(2, B), Replica(3, C))
    next_replica = placed(three, PLACEMENT_GROUP).next_replica
    three.propose(GiveUpTarget(PLACEMENT_GROUP, next_replica, voters_now, 1))
    assert placed(three, PLACEMENT_GROUP).target == (
        *voters_now,
        Replica(4, D, voter=False),
        Replica(5, before[4], voter=False),
    )


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


def arrange(group: Group, *, down: str = "") -> int:
    """Places replicas as the leader of the map does. Returns how many groups change."""
    connected = [one.key for one in group.map.nodes if one.name != down]
    places = next_places(group.map, planned(group.map), connected)
    return int(group.propose(PlaceGroups(places)).changed)


def arrange_all(group: Group, *, down: str = "") -> None:
    """Places and settles until every replica is where it should be."""
    placing = 1
    while placing:
        for id_, one in group.map.groups.items():
            if one.moving:
                settle(group, id_)
        placing = arrange(group, down=down)


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
    assert council(three.map, [one.key for one in three.map.nodes]) is None


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
    """Groups whose leaders follow `placement.tasks.steps`, one step of one group at a time. At most
    one node is down.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.placement = Group(nodes="abc")
        self.placement.propose(CreateQueue("n", "q", QueueSettings(partitions=4)))
        self.current: dict[GroupId, Replicas] = {
            id_: one.target for id_, one in self.placement.map.groups.items()
        }
        self.leads: dict[GroupId, int] = {id_: one[0].id for id_, one in self.current.items()}
        self.names = iter("defghij")
        self.down = ""

    def join(self) -> None:
        name = next(self.names, "")
        if name:
            self.placement.propose(JoinNode(node(name, zone=self.random.choice("xy"))))

    def drain(self) -> None:
        name = self.random.choice(self.placement.map.nodes).name
        self.placement.propose(DrainNode(name, drain=self.random.random() < 0.7))

    def remove(self) -> None:
        name = self.random.choice(self.placement.map.nodes).name
        self.placement.propose(RemoveNode(self.down or name))

    def resize(self) -> None:
        self.placement.propose(resized("q", self.random.choice((0, 1, 3, 5))))

    def die(self) -> None:
        """A node goes down, often one that has not got all of its replicas yet."""
        if self.down:
            return
        nodes = self.placement.map.nodes
        waiting = [one for one in nodes if self.is_learning(one.key)]
        self.down = self.random.choice(waiting or nodes).name
        if not self.all_have_majorities():
            self.down = ""

    def back(self) -> None:
        self.down = ""

    def is_learning(self, key: NodeKey) -> bool:
        return any(
            (replica := one.replica_on(key)) is not None
            and replica.voter
            and replica not in self.current[id_]
            for id_, one in self.placement.map.groups.items()
        )

    def is_down(self, key: NodeKey) -> bool:
        return key.partition("/")[0] == self.down

    def is_lost(self, key: NodeKey) -> bool:
        known = self.placement.map.node(key.partition("/")[0])
        leaves = known is None or known.state is NodeState.LEAVING
        return leaves and self.is_down(key)

    def has_majority(self, replicas: Replicas) -> bool:
        voting = [one for one in replicas if one.voter]
        return 2 * sum(not self.is_down(one.node) for one in voting) > len(voting)

    def all_have_majorities(self) -> bool:
        return all(map(self.has_majority, self.current.values()))

    def arrange(self) -> None:
        arrange(self.placement, down=self.down)
        for one in self.placement.map.nodes:
            council = placed(self.placement, PLACEMENT_GROUP)
            if one.state is NodeState.LEAVING and council.replica_on(one.key) is None:
                self.placement.propose(NodeGone(one.name))

    def step(self) -> bool:
        """Runs one step; whether there was anything to do."""
        groups = list(self.current)
        self.random.shuffle(groups)
        return any(self.has_majority(self.current[id_]) and self.step_of(id_) for id_ in groups)

    def step_of(self, id_: GroupId) -> bool:
        target, current = placed(self.placement, id_), self.current[id_]
        leader = next(one for one in current if one.id == self.leads[id_])
        if self.is_down(leader.node):
            heirs = [one.id for one in current if one.voter and not self.is_down(one.node)]
            self.leads[id_] = self.random.choice(heirs)
        step = next_step(current, target, own=self.leads[id_], lost=self.is_lost)
        if isinstance(step, LeadershipTransfer):
            heir = next(one for one in current if one.node == step.to)
            assert heir.voter
            if self.is_down(heir.node):
                return False
            self.leads[id_] = heir.id
            return True
        if isinstance(step, Promote):
            [learner] = [one for one in current if one.id == step.id]
            if self.is_down(learner.node):
                return False
        if step is not None:
            after = changed(current, step)
            assert self.voting(after) >= min(len(voters(target.target)), self.voting(current))
            assert len({one.node for one in after}) == len(after), "one replica on a node"
            assert self.leads[id_] in voters(after)
            self.current[id_] = after
            return True
        if target.moving and current == target.target:
            settle(self.placement, id_)
            return True
        if is_out_of_reach(current, target, lost=self.is_lost):
            there = tuple(one for one in current if one.voter)
            report = GiveUpTarget(id_, target.next_replica, there, self.leads[id_])
            assert self.placement.propose(report) == Done(1)
            return True
        return False

    def voting(self, replicas: Replicas) -> int:
        return sum(one.voter and not self.is_lost(one.node) for one in replicas)

    def rest(self) -> None:
        """Runs steps until nothing changes any more. A node that is down comes back if it is not
        removed, or if a group has no majority without it.
        """
        known = self.placement.map.node(self.down)
        if known is not None and known.state is not NodeState.LEAVING:
            self.down = ""
        for _ in range(1_000):
            if not self.all_have_majorities():
                self.down = ""
            if not self.step():
                epoch = self.placement.map.epoch
                self.arrange()
                if self.placement.map.epoch == epoch:
                    return
        raise AssertionError("it does not come to rest")


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            ["join", "drain", "remove", "resize", "die", "back", "arrange", "step", "step"]
        ),
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
