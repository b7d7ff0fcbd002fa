"""Nodes and replicas in the map, through the machine's own interface."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator.model.commands import Done, Refusal
from querator.model.errors import ErrorCode
from querator.model.ids import PLACEMENT_GROUP, GroupId, QueueId
from querator.model.nodes import NodeKey, Replica, node_key
from querator.model.placement_map import PlacedGroup
from querator.model.queues import QueueSettings, QueueState
from querator.placement.assign import assign
from querator.placement.map.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    FormCluster,
    HandOffNode,
    QueueConfigured,
    RegisterNode,
    ReplaceNode,
    ReplicasGone,
)
from tests.unit.placement.conftest import Group, node


@pytest.fixture
def three() -> Group:
    return Group(nodes="cab")


def refused(result: Any, *words: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> None:
    assert isinstance(result, Refusal), result
    assert (result.code, result.field) == (code, "name")
    for word in words:
        assert word in result.message


def nodes_of(placed: PlacedGroup | None) -> list[tuple[int, str]]:
    assert placed is not None
    return [(replica.id, replica.node) for replica in placed.target]


def test_the_founding_nodes(three: Group):
    assert three.map.cluster_id == "c"
    assert [one.name for one in three.map.nodes] == ["a", "b", "c"]
    assert nodes_of(three.map.placed(PLACEMENT_GROUP)) == [(1, "a/1"), (2, "b/1"), (3, "c/1")]
    epoch = three.map.epoch
    assert three.propose(FormCluster("other", (node("x"),))) == Done()
    assert three.map.epoch == epoch
    three.restart()
    assert three.map.cluster_id == "c"
    assert three.map.preferred(PLACEMENT_GROUP) == "a/1"


def test_partitions_have_replicas_on_all_nodes_and_even_leaders(three: Group):
    three.propose(CreateQueue("n", "p", QueueSettings()))
    three.propose(CreateQueue("n", "q", QueueSettings(partitions=8)))
    queue = three.map.find("n", "q")
    assert queue is not None
    for group in queue.groups:
        placed = three.map.placed(group)
        assert nodes_of(placed) == [(1, "a/1"), (2, "b/1"), (3, "c/1")]
        assert placed is not None
        assert placed.founding == placed.target
        assert placed.next_replica == 4
    preferred = Counter(three.map.preferred(GroupId(group)) for group in range(1, 10))
    assert preferred == {"a/1": 3, "b/1": 3, "c/1": 3}
    assert three.map.holders(queue) == {"a/1", "b/1", "c/1"}
    assert three.map.replicas(GroupId(99)) == ()
    assert three.map.preferred(GroupId(99)) is None


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 200))
def test_assignments_are_even(count: int, replicas: int, groups: int):
    nodes = [node(f"n{number:02}") for number in range(count)]
    placed = [assign(nodes, GroupId(group), replicas=replicas) for group in range(groups)]
    held = Counter({one.key: 0 for one in nodes})
    led = Counter({one.key: 0 for one in nodes})
    for one in placed:
        assert len(one.target) == min(replicas, count)
        assert [replica.id for replica in one.target] == list(range(1, len(one.target) + 1))
        assert [replica.node for replica in one.target] == sorted(
            {replica.node for replica in one.target}
        )
        held.update(replica.node for replica in one.target)
        led.update(replica.node for replica in one.target if replica.id == one.preferred)
    assert max(led.values()) - min(led.values()) <= 1
    assert max(held.values()) - min(held.values()) <= min(replicas, count)


def test_a_node_says_other_things_of_itself(three: Group):
    moved = node("b", client_address="elsewhere:1", zone="z", boots=4, version="2")
    assert three.propose(RegisterNode(moved)) == Done(1)
    assert three.map.node("b") == moved
    epoch = three.map.epoch
    assert three.propose(RegisterNode(moved)) == Done()
    assert three.map.epoch == epoch
    three.restart()
    assert three.map.node("b") == moved


def test_who_cannot_register(three: Group):
    three.propose(RegisterNode(node("b", boots=4)))
    refused(three.propose(RegisterNode(node("x"))), "no node x", "a, b, c")
    refused(three.propose(RegisterNode(node("b", "2"))), "other data", "querator node replace b")
    refused(three.propose(RegisterNode(node("b", boots=3))), "4 times", "old copy")


def test_replacing_a_node_that_lost_its_data(three: Group):
    three.propose(CreateQueue("n", "q", QueueSettings(partitions=3)))
    three.propose(QueueConfigured(QueueId(1), 1))
    new = node("b", "2")
    assert three.propose(ReplaceNode(new, "1")) == Done(1)
    assert three.map.node("b") == new
    for group in range(4):
        placed = three.map.placed(GroupId(group))
        assert placed is not None
        assert nodes_of(placed) == [(1, "a/1"), (3, "c/1"), (4, "b/2")]
        assert placed.founding == tuple(
            Replica(number, node_key(name, "1")) for number, name in enumerate("abc", start=1)
        )
        assert placed.next_replica == 5
    leaders = {three.map.preferred(GroupId(group)) for group in range(1, 4)}
    assert leaders == {"a/1", "b/2", "c/1"}
    assert three.propose(ReplaceNode(new, "1")) == Done(), "a repeat"
    three.propose(ReplaceNode(node("b", "3"), "2"))
    assert nodes_of(three.map.placed(GroupId(1))) == [(1, "a/1"), (3, "c/1"), (5, "b/3")]
    again = three.propose(ReplaceNode(node("b", "4"), "2"))
    refused(again, "incarnation 3", code=ErrorCode.VERSION_CONFLICT)
    refused(three.propose(ReplaceNode(node("x", "4"), "2")), "no node x")


def test_a_queue_is_gone_when_every_node_has_deleted_it(three: Group):
    three.propose(CreateQueue("n", "q", QueueSettings(partitions=2)))
    three.propose(DeleteQueue("n", "q"))
    for name in "ab":
        gone = ReplicasGone(QueueId(1), node_key(name, "1"))
        assert three.propose(gone) == Done(1)
        assert three.propose(gone) == Done(), "a repeat"
        three.restart()
    assert three.effects.deleted_on == {1: ("a/1", "b/1")}
    queue = three.map.find("n", "q")
    assert queue is not None
    assert queue.state is QueueState.DELETING
    assert three.propose(ReplicasGone(QueueId(1), NodeKey("c/1"))) == Done(1)
    assert three.map.find("n", "q") is None
    assert three.effects.deleted_on == {}
    assert three.map.placed(GroupId(1)) is None


def test_a_deletion_waits_for_the_node_that_came_for_a_lost_one(three: Group):
    three.propose(CreateQueue("n", "q", QueueSettings()))
    three.propose(DeleteQueue("n", "q"))
    for name in "ab":
        three.propose(ReplicasGone(QueueId(1), node_key(name, "1")))
    three.propose(ReplaceNode(node("c", "2"), "1"))
    three.propose(ReplicasGone(QueueId(1), NodeKey("c/1")))
    assert three.map.find("n", "q") is not None
    three.propose(ReplicasGone(QueueId(1), NodeKey("c/2")))
    assert three.map.find("n", "q") is None


def test_a_handoff_lasts_until_the_next_start(three: Group):
    def takes() -> bool:
        known = three.map.node("a")
        assert known is not None
        return known.takes_leaderships

    three.propose(RegisterNode(node("a", boots=2)))
    assert takes()
    assert three.propose(HandOffNode("a", "1", 1)) == Done(), "of an earlier start"
    assert three.propose(HandOffNode("a", "2", 2)) == Done(), "of other data"
    assert three.propose(HandOffNode("x", "1", 2)) == Done()
    assert takes()
    assert three.propose(HandOffNode("a", "1", 2)) == Done(1)
    assert three.propose(HandOffNode("a", "1", 2)) == Done()
    assert not takes()
    three.propose(RegisterNode(node("a", boots=2)))
    assert not takes()
    three.propose(RegisterNode(node("a", boots=3)))
    assert takes()


NODES = st.builds(
    node,
    st.sampled_from("abcx"),
    st.sampled_from("123"),
    boots=st.integers(1, 3),
)
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(RegisterNode, NODES),
    st.builds(ReplaceNode, NODES, st.sampled_from("123")),
    st.builds(HandOffNode, st.sampled_from("abcx"), st.sampled_from("123"), st.integers(1, 3)),
    st.builds(CreateQueue, st.just("n"), st.sampled_from("pq"), st.just(QueueSettings())),
    st.builds(DeleteQueue, st.just("n"), st.sampled_from("pq")),
    st.builds(
        ReplicasGone,
        st.integers(1, 3).map(QueueId),
        st.builds(node_key, st.sampled_from("abc"), st.sampled_from("123")),
    ),
)


@given(st.lists(COMMANDS, max_size=30))
def test_any_commands_keep_the_rules(commands: list[Command]):
    group = Group(nodes="abc")
    used: dict[tuple[int, int], NodeKey] = {}
    for command in commands:
        before = group.map
        group.propose(command)
        placed = group.map
        assert [one.name for one in placed.nodes] == ["a", "b", "c"]
        keys = {one.key for one in placed.nodes}
        for one in placed.nodes:
            was = before.node(one.name)
            assert was is not None
            assert was.incarnation != one.incarnation or was.boots <= one.boots
        for number, replicas in placed.groups.items():
            assert {replica.node for replica in replicas.target} == keys
            assert placed.preferred(number) in keys
            for replica in (*replicas.founding, *replicas.target):
                assert replica.id < replicas.next_replica
                assert used.setdefault((number, replica.id), replica.node) == replica.node

    other = Group(nodes="")
    for entry in group.log:
        other.restart()
        other.apply(entry)
    assert other.digest() == group.digest()
    assert other.effects.deleted_on == group.effects.deleted_on
    assert other.map.nodes == group.map.nodes
    assert other.map.groups == group.map.groups


def test_a_stored_node_keeps_fields_that_it_does_not_have_yet():
    """A row of an earlier release has fewer fields. The missing fields are at the end, and have
    defaults.
    """
    row = msgspec.msgpack.encode(["a", "1", "p", "c"])
    assert msgspec.msgpack.decode(row, type=type(node("a"))).boots == 1
