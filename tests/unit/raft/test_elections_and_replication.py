"""A group with several replicas: elections, replication, and the ends of requests."""

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.nodes import Replica
from querator.raft.configuration import AddLearner, Promote, RemoveReplica
from querator.raft.group.group import Group
from querator.raft.requests import Leadership, Read, Reconfigure, Transfer
from tests.unit.raft.raft_cluster import G, RaftCluster, future, key


def test_three_nodes_elect_the_preferred_leader_of_a_new_group_at_once():
    cluster = RaftCluster("a", "b", "c")
    cluster.until(lambda: cluster.leaders, within_s=1)
    assert cluster.leaders == ["b"]
    assert {node.status.leader for node in cluster.nodes.values()} <= {key("b"), None}
    cluster.until(lambda: {node.status.leader for node in cluster.nodes.values()} == {key("b")})


def test_what_is_acknowledged_is_on_all_nodes_soon():
    cluster = RaftCluster("a", "b", "c")
    for amount in range(1, 20):
        value, _ = cluster.added(amount, b"x" * 1000)
        assert value == sum(range(amount + 1))
    cluster.until(cluster.alike, within_s=2)
    assert all(node.status.applied_index == 20 for node in cluster.nodes.values())


def test_a_follower_that_hears_its_leader_is_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.pass_s(2)
    looked_at: list[Group] = []
    tick = Group.tick

    def noted(group: Group) -> None:
        looked_at.append(group)
        tick(group)

    monkeypatch.setattr(Group, "tick", noted)
    cluster.pass_s(20)
    assert cluster.leaders == [leader]
    assert not [group for group in looked_at if not group.is_serving]


def test_nothing_is_acknowledged_without_a_majority():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.separate(leader)
    cluster.add(leader, 1)
    cluster.pass_s(12)
    assert cluster.results == []
    assert [error.code for error in cluster.errors if isinstance(error, QueratorError)] == [
        ErrorCode.OUTCOME_UNKNOWN
    ]


def test_a_leader_that_is_cut_off_is_replaced_and_its_tail_is_taken_back():
    cluster = RaftCluster("a", "b", "c")
    old = cluster.leader()
    cluster.added(1)
    cluster.separate(old)
    for amount in (100, 200, 300):
        cluster.add(old, amount)
    cluster.until(lambda: [name for name in cluster.leaders if name != old], within_s=3)
    cluster.until(lambda: old not in cluster.leaders, within_s=5)
    assert cluster.added(10)[0] == 11
    cluster.heal()
    cluster.until(cluster.alike, within_s=5)
    assert cluster.nodes[old].status.log_last == cluster.nodes[cluster.leader()].status.log_last
    codes = [error.code for error in cluster.errors if isinstance(error, QueratorError)]
    assert codes == [ErrorCode.NOT_LEADER] * 3


def test_the_others_go_on_soon_after_a_leader_has_died():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    old = cluster.leader()
    cluster.stop(old)
    cluster.until(lambda: cluster.leaders, within_s=1)
    assert cluster.added(1)[0] == 2
    cluster.start(old)
    cluster.until(cluster.alike, within_s=3)


def test_a_node_that_comes_back_does_not_depose_the_leader():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    term = cluster.nodes[leader].status.term
    other = next(name for name in cluster.nodes if name != leader)
    cluster.separate(other)
    cluster.pass_s(20)
    cluster.heal()
    cluster.pass_s(5)
    assert cluster.leaders == [leader]
    assert cluster.nodes[leader].status.term == term
    assert cluster.added(1)[0] == 1


def test_all_nodes_may_lose_power_at_once():
    cluster = RaftCluster("a", "b", "c")
    for _ in range(5):
        cluster.added(1, b"x" * 100)
    for name in cluster.nodes:
        cluster.stop(name)
    for name in cluster.nodes:
        cluster.start(name)
    assert cluster.added(1)[0] == 6
    cluster.until(cluster.alike)


def test_a_follower_far_behind_gets_all_entries_with_attachments():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    other = next(name for name in cluster.nodes if name != leader)
    cluster.separate(other)
    for _ in range(40):
        cluster.added(1, b"x" * 100_000)
    cluster.heal()
    cluster.until(cluster.alike, within_s=5)


def test_leadership_is_handed_over_and_calls_go_on_at_the_other():
    cluster = RaftCluster("a", "b", "c")
    old = cluster.leader()
    target = next(name for name in cluster.nodes if name != old)
    cluster.added(1)
    cluster.ask(old, Transfer(G, key(target), future()))
    cluster.add(old, 5)
    cluster.until(lambda: cluster.leaders == [target], within_s=0.2)
    assert [error for _, error in cluster.done if error is not None] == []
    codes = [error.code for error in cluster.errors if isinstance(error, QueratorError)]
    assert codes == [ErrorCode.NOT_LEADER]
    assert cluster.added(1)[0] == 2
    assert (old, Leadership(G, False)) in cluster.events


def test_a_leader_goes_on_when_the_other_does_not_take_over():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    target = next(name for name in cluster.nodes if name != leader)
    cluster.stop(target)
    cluster.done.clear()
    cluster.ask(leader, Transfer(G, key(target), future()))
    cluster.add(leader, 7)
    cluster.until(lambda: cluster.results, within_s=5)
    assert cluster.results[-1][0] == 7
    [(_, error)] = cluster.done
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.UNAVAILABLE


def test_a_read_is_confirmed_by_a_majority():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.added(3)
    cluster.done.clear()
    cluster.ask(leader, Read(G, future()))
    assert cluster.done == []
    cluster.until(lambda: cluster.done, within_s=1)
    assert cluster.done[0][1] is None


def test_a_read_is_confirmed_while_the_leadership_is_being_handed_over():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    target = next(name for name in cluster.nodes if name != leader)
    cluster.stop(target)
    cluster.ask(leader, Transfer(G, key(target), future()))
    cluster.done.clear()
    read = future()
    cluster.ask(leader, Read(G, read))
    cluster.until(lambda: cluster.done, within_s=0.5)
    assert cluster.done == [(read, None)]


def test_a_read_that_is_overtaken_by_the_next_leader_is_refused():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    target, other = (name for name in cluster.nodes if name != leader)
    cluster.added(1)
    cluster.until(cluster.alike)
    cluster.stop(other)
    cluster.done.clear()
    read = future()
    cluster.turn(cluster.nodes[leader], [Transfer(G, key(target), future()), Read(G, read)])
    cluster.until(lambda: cluster.leaders == [target], within_s=0.5)
    [error] = [error for one, error in cluster.done if one is read]
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.NOT_LEADER


def test_a_leader_that_is_cut_off_confirms_no_read():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.separate(leader)
    cluster.done.clear()
    cluster.ask(leader, Read(G, future()))
    cluster.until(lambda: cluster.done, within_s=5)
    [(_, error)] = cluster.done
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.NOT_LEADER


def test_a_replica_on_another_node_is_added_promoted_and_one_removed():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.added(1, b"x" * 1000)
    cluster.nodes["d"] = joined = type(cluster.nodes["a"])(cluster, "d")
    joined.start((Replica(4, key("d"), voter=False),))

    def change(what: AddLearner | Promote | RemoveReplica) -> BaseException | None:
        cluster.done.clear()
        cluster.ask(leader, Reconfigure(G, what, future()))
        cluster.until(lambda: cluster.done)
        return cluster.done[0][1]

    assert change(AddLearner(4, key("d"))) is None
    cluster.until(cluster.alike, within_s=3)
    assert change(Promote(4)) is None
    gone = next(replica for replica in cluster.replicas if replica.node != key(leader))
    assert change(RemoveReplica(gone.id)) is None
    assert len(cluster.nodes[leader].status.replicas) == 3
    cluster.stop(gone.node.partition("/")[0])
    assert cluster.added(1)[0] == 2
    mine = next(replica for replica in cluster.replicas if replica.node == key(leader))
    error = change(RemoveReplica(mine.id))
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("seed", range(5))
def test_a_fourth_that_is_no_replica_of_the_group_disturbs_nothing(seed):
    cluster = RaftCluster("a", "b", "c", seed=seed)
    leader = cluster.leader()
    cluster.ask(leader, Reconfigure(G, RemoveReplica(9), future()))
    assert cluster.added(1)[0] == 1


def test_a_leadership_is_not_offered_to_a_node_whose_clock_is_wrong():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    wrong = next(name for name in cluster.nodes if name != leader)
    cluster.nodes[wrong].clock.step_wall(2_000)
    cluster.pass_s(3)
    cluster.ask(leader, Transfer(G, key(wrong), future()))
    error = cluster.done[-1][1]
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.UNAVAILABLE
    cluster.add(leader, 1)
    cluster.pass_s(0.5)
    assert cluster.results, "nothing was held up"


@pytest.mark.parametrize("ahead_ms", [-2_000, 2_000])
def test_a_node_whose_clock_is_wrong_does_not_lead(ahead_ms):
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    wrong = cluster.leader()
    cluster.nodes[wrong].clock.step_wall(ahead_ms)
    cluster.until(lambda: cluster.leaders and wrong not in cluster.leaders, within_s=5)
    assert cluster.added(1)[0] == 2
    for name in cluster.nodes:
        if name != wrong:
            cluster.stop(name)
            cluster.start(name)
    cluster.until(lambda: cluster.leaders)
    assert wrong not in cluster.leaders
    cluster.nodes[wrong].clock.step_wall(-ahead_ms)
    cluster.pass_s(5)
    other = cluster.leader()
    cluster.ask(other, Transfer(G, key(wrong), future()))
    cluster.until(lambda: cluster.leaders == [wrong])
