"""The time at which a queue that is being deleted is closed, and at which it leaves the map."""

from collections.abc import Iterable
from itertools import chain, combinations

import msgspec
import pytest

from querator.model.commands import Done
from querator.model.ids import GroupId, QueueId
from querator.model.nodes import NodeKey, Replica
from querator.model.placement_map import PlacedGroup, PlacementMap
from querator.model.queues import Queue, QueueSettings, QueueState
from querator.placement.map import deletion_rules
from querator.placement.map.commands import (
    CreateQueue,
    DeleteQueue,
    GiveUpTarget,
    GroupSettled,
    JoinNode,
    NodeGone,
    Place,
    PlaceGroups,
    RemoveNode,
    ReplaceNode,
    ReplicasClosed,
    ReplicasGone,
)
from querator.placement.map.group_rules import given_up
from querator.placement.map.majorities import open_groups
from querator.placement.map_waiters import not_closed
from tests.unit.placement.conftest import Group, node

Q = QueueId(1)
A, B, C, D = (NodeKey(f"{name}/1") for name in "abcd")


@pytest.fixture
def three() -> Group:
    return Group(nodes="abc")


def create(group: Group, *, replicas: int = 0) -> GroupId:
    created: Queue = group.propose(CreateQueue("n", "q", QueueSettings(replicas=replicas))).queue
    return created.groups[0]


def queue(group: Group) -> Queue:
    found = group.map.get(Q)
    assert found is not None
    return found


def test_a_queue_is_closed_when_those_that_are_left_are_no_majority(three: Group):
    create(three)
    three.propose(DeleteQueue("n", "q"))
    assert not three.effects.has_closed(Q)
    assert three.propose(ReplicasClosed(Q, A)) == Done(1)
    assert three.propose(ReplicasClosed(Q, A)) == Done(), "a repeat"
    assert three.effects.closed_on == {Q: (A,)}
    assert not queue(three).closed
    three.restart()
    three.propose(ReplicasClosed(Q, C))
    assert queue(three).closed
    assert queue(three).state is QueueState.DELETING
    assert three.effects.has_closed(Q)
    for one in (A, B, C):
        three.propose(ReplicasGone(Q, one))
    assert three.map.get(Q) is None
    assert three.effects.has_closed(Q)
    assert three.effects.closed_on == {}


def test_who_has_nothing_left_has_closed_it(three: Group):
    create(three)
    three.propose(DeleteQueue("n", "q"))
    three.propose(ReplicasGone(Q, A))
    three.propose(ReplicasClosed(Q, B))
    assert queue(three).closed


def test_a_queue_that_is_not_being_deleted_cannot_be_closed(three: Group):
    create(three)
    assert three.propose(ReplicasClosed(Q, A)) == Done()
    assert three.propose(ReplicasClosed(QueueId(7), A)) == Done()
    assert three.effects.closed_on == {}


def test_the_only_copy_is_waited_for(three: Group):
    group = create(three, replicas=1)
    [holder] = (replica.node for replica in three.map.replicas(group))
    three.propose(DeleteQueue("n", "q"))
    for one in {A, B, C} - {holder}:
        three.propose(ReplicasGone(Q, one))
    assert not three.effects.has_closed(Q)
    error = not_closed(queue(three), three.effects)
    assert "1 of its 1 partitions" in error.message
    assert f"has not answered: {holder[0]};" in error.message
    three.propose(ReplicasClosed(Q, holder))
    assert three.effects.has_closed(Q)


def test_a_copy_that_moves_away_is_waited_for_as_well(three: Group):
    group = create(three, replicas=1)
    [holder] = (replica.node for replica in three.map.replicas(group))
    to = min({A, B, C} - {holder})
    three.propose(PlaceGroups((Place(group, (holder,), (to,), to),)))
    three.propose(DeleteQueue("n", "q"))
    for one in {A, B, C} - {holder}:
        three.propose(ReplicasGone(Q, one))
    assert three.map.get(Q) is not None, "its former node may have a leader of it"
    assert not three.effects.has_closed(Q)
    three.propose(ReplicasClosed(Q, holder))
    assert three.map.get(Q) is None


def test_where_it_was_before_is_not_waited_for_when_it_has_settled(three: Group):
    group = create(three, replicas=1)
    [holder] = (replica.node for replica in three.map.replicas(group))
    to = min({A, B, C} - {holder})
    three.propose(PlaceGroups((Place(group, (holder,), (to,), to),)))
    known = three.map.placed(group)
    assert known is not None
    assert known.former == (holder,)
    three.propose(GroupSettled(group, known.next_replica))
    three.propose(DeleteQueue("n", "q"))
    three.propose(ReplicasClosed(Q, to))
    assert queue(three).closed


def test_a_node_that_was_replaced_is_not_waited_for(three: Group):
    group = create(three, replicas=1)
    [holder] = (replica.node for replica in three.map.replicas(group))
    three.propose(DeleteQueue("n", "q"))
    for one in {A, B, C} - {holder}:
        three.propose(ReplicasGone(Q, one))
    new = node(holder[0], "2")
    three.propose(ReplaceNode(new, "1"))
    assert three.map.get(Q) is not None
    three.propose(ReplicasGone(Q, new.key))
    assert three.map.get(Q) is None


def test_a_node_that_was_removed_is_not_waited_for(three: Group):
    group = create(three, replicas=1)
    [holder] = (replica.node for replica in three.map.replicas(group))
    three.propose(JoinNode(node("d")))
    council = three.map.placed(GroupId(0))
    assert council is not None
    three.propose(GroupSettled(GroupId(0), council.next_replica))
    three.propose(DeleteQueue("n", "q"))
    for one in {A, B, C, D} - {holder}:
        three.propose(ReplicasGone(Q, one))
    three.propose(RemoveNode(holder[0]))
    council = three.map.placed(GroupId(0))
    assert council is not None
    voters = tuple(sorted({A, B, C, D} - {holder}))
    before = tuple(replica.node for replica in council.target)
    three.propose(PlaceGroups((Place(GroupId(0), before, voters, voters[0]),)))
    council = three.map.placed(GroupId(0))
    assert council is not None
    three.propose(GroupSettled(GroupId(0), council.next_replica))
    assert three.map.get(Q) is not None
    assert three.propose(NodeGone(holder[0])) == Done(1)
    assert three.map.get(Q) is None


def test_closed_means_that_no_configuration_on_the_way_has_a_majority():
    """Every configuration on the way contains the nodes that vote both before and after, and no
    nodes that vote neither before nor after.
    """
    names = (A, B, C, D)
    for former in subsets(names):
        for target in subsets(names):
            if not former or not target:
                continue
            known, queue = _map(_placed(target, former))
            for closed in subsets(names):
                if open_groups(known, queue, closed):
                    continue
                for others in subsets(tuple(former ^ target)):
                    voters = (former & target) | others
                    assert 2 * len(voters - closed) <= len(voters), (former, target, closed)


def test_a_target_that_was_given_up_counts_with_all_configurations_on_the_way():
    """A node that the given-up target had replaced did not vote in every configuration."""
    names = (A, B, C)
    for former in subsets(names)[1:]:
        for given in subsets(names)[1:]:
            moving = msgspec.structs.replace(
                _placed(given, former), moving=True, former=tuple(sorted(former))
            )
            for others in subsets(tuple(former ^ given)):
                there = _replicas((former & given) | others)
                if not there:
                    continue
                after = given_up(moving, GiveUpTarget(GroupId(1), 9, there, 1), learns=False)
                known, queue = _map(after)
                for closed in subsets(names):
                    if open_groups(known, queue, closed):
                        continue
                    for some in subsets(tuple(former ^ given)):
                        voters = (former & given) | some
                        assert 2 * len(voters - closed) <= len(voters), (former, given, there)


def test_a_second_target_that_is_given_up_counts_with_the_first():
    moving = msgspec.structs.replace(
        _placed(frozenset((A, B, D)), frozenset()), moving=True, former=(A, B, C)
    )
    first = given_up(moving, GiveUpTarget(GroupId(1), 9, _replicas((A, B, C)), 1), learns=False)
    assert (set(first.former), first.voters) == ({A, B, D}, (A, B, C))
    second = given_up(first, GiveUpTarget(GroupId(1), 10, _replicas((A, B)), 1), learns=False)
    assert (set(second.former), second.voters) == ({A, B, C, D}, (A, B))
    known, queue = _map(second)
    assert open_groups(known, queue, (A,)), "B, C and D may be a majority of four"
    assert not open_groups(known, queue, (A, B)), "C and D are at most half of any"


def _replicas(nodes: Iterable[NodeKey]) -> tuple[Replica, ...]:
    return tuple(Replica(id_, one) for id_, one in enumerate(sorted(nodes), 1))


def _placed(target: frozenset[NodeKey], former: frozenset[NodeKey]) -> PlacedGroup:
    replicas = _replicas(target)
    return PlacedGroup(
        replicas, replicas, 9, 1, moving=former != target, former=tuple(sorted(former))
    )


def _map(placed: PlacedGroup) -> tuple[PlacementMap, Queue]:
    """A map with a queue of one partition, which is being deleted."""
    queue = Queue(
        namespace="n",
        name="q",
        id=Q,
        state=QueueState.DELETING,
        settings=QueueSettings(),
        settings_version=1,
        created_at_ms=0,
        groups=(GroupId(1),),
        closed=False,
    )
    nodes = tuple(node(name) for name in "abcd")
    return PlacementMap(1, ["n"], [queue], nodes=nodes, groups={GroupId(1): placed}), queue


def subsets(names: tuple[NodeKey, ...]) -> list[frozenset[NodeKey]]:
    sizes = range(len(names) + 1)
    return [frozenset(one) for one in chain.from_iterable(combinations(names, n) for n in sizes)]


@pytest.mark.parametrize("queues", [10, 40])
def test_each_report_costs_the_look_at_its_own_queue(
    three: Group, queues: int, monkeypatch: pytest.MonkeyPatch
):
    names = [f"q{number}" for number in range(queues)]
    ids = [three.propose(CreateQueue("n", name, QueueSettings())).queue.id for name in names]
    for name in names:
        three.propose(DeleteQueue("n", name))
    looked_at: list[QueueId] = []

    def counted(placed: PlacementMap, queue: Queue, closed: set[NodeKey]) -> object:
        looked_at.append(queue.id)
        return open_groups(placed, queue, closed)

    monkeypatch.setattr(deletion_rules, "open_groups", counted)
    for one in (A, B, C):
        for queue_id in ids:
            three.propose(ReplicasClosed(queue_id, one))
    assert all(three.effects.has_closed(one) for one in ids)
    assert len(looked_at) == 2 * queues, "the third report finds it closed"
    for queue_id in ids:
        for one in (A, B, C):
            three.propose(ReplicasGone(queue_id, one))
    assert not list(three.map)
