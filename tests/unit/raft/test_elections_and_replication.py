"""A group with several replicas: elections, replication, and the ends of requests."""

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.nodes import Replica
from querator.raft.configuration import AddLearner, Promote, RemoveReplica
from querator.raft.group.group import Group
from querator.raft.requests import Leadership, Read, Reconfigure, Transfer
from tests.unit.raft.trio import G, World, future, key


def test_three_nodes_elect_the_preferred_leader_of_a_new_group_at_once():
    world = World("a", "b", "c")
    world.until(lambda: world.leaders, within_s=1)
    assert world.leaders == ["b"]
    assert {node.status.leader for node in world.nodes.values()} <= {key("b"), None}
    world.until(lambda: {node.status.leader for node in world.nodes.values()} == {key("b")})


def test_what_is_acknowledged_is_on_all_nodes_soon():
    world = World("a", "b", "c")
    for amount in range(1, 20):
        value, _ = world.added(amount, b"x" * 1000)
        assert value == sum(range(amount + 1))
    world.until(world.alike, within_s=2)
    assert all(node.status.applied_index == 20 for node in world.nodes.values())


def test_a_follower_that_hears_its_leader_is_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    world = World("a", "b", "c")
    leader = world.leader()
    world.pass_s(2)
    looked_at: list[Group] = []
    tick = Group.tick

    def noted(group: Group) -> None:
        looked_at.append(group)
        tick(group)

    monkeypatch.setattr(Group, "tick", noted)
    world.pass_s(20)
    assert world.leaders == [leader]
    assert not [group for group in looked_at if not group.is_serving]


def test_nothing_is_acknowledged_without_a_majority():
    world = World("a", "b", "c")
    leader = world.leader()
    world.separate(leader)
    world.add(leader, 1)
    world.pass_s(12)
    assert world.results == []
    assert [error.code for error in world.errors if isinstance(error, QueratorError)] == [
        ErrorCode.OUTCOME_UNKNOWN
    ]


def test_a_leader_that_is_cut_off_is_replaced_and_its_tail_is_taken_back():
    world = World("a", "b", "c")
    old = world.leader()
    world.added(1)
    world.separate(old)
    for amount in (100, 200, 300):
        world.add(old, amount)
    world.until(lambda: [name for name in world.leaders if name != old], within_s=3)
    world.until(lambda: old not in world.leaders, within_s=5)
    assert world.added(10)[0] == 11
    world.heal()
    world.until(world.alike, within_s=5)
    assert world.nodes[old].status.log_last == world.nodes[world.leader()].status.log_last
    codes = [error.code for error in world.errors if isinstance(error, QueratorError)]
    assert codes == [ErrorCode.NOT_LEADER] * 3


def test_the_others_go_on_soon_after_a_leader_has_died():
    world = World("a", "b", "c")
    world.added(1)
    old = world.leader()
    world.stop(old)
    world.until(lambda: world.leaders, within_s=1)
    assert world.added(1)[0] == 2
    world.start(old)
    world.until(world.alike, within_s=3)


def test_a_node_that_comes_back_does_not_depose_the_leader():
    world = World("a", "b", "c")
    leader = world.leader()
    term = world.nodes[leader].status.term
    other = next(name for name in world.nodes if name != leader)
    world.separate(other)
    world.pass_s(20)
    world.heal()
    world.pass_s(5)
    assert world.leaders == [leader]
    assert world.nodes[leader].status.term == term
    assert world.added(1)[0] == 1


def test_all_nodes_may_lose_power_at_once():
    world = World("a", "b", "c")
    for _ in range(5):
        world.added(1, b"x" * 100)
    for name in world.nodes:
        world.stop(name)
    for name in world.nodes:
        world.start(name)
    assert world.added(1)[0] == 6
    world.until(world.alike)


def test_a_follower_far_behind_gets_all_entries_with_attachments():
    world = World("a", "b", "c")
    leader = world.leader()
    other = next(name for name in world.nodes if name != leader)
    world.separate(other)
    for _ in range(40):
        world.added(1, b"x" * 100_000)
    world.heal()
    world.until(world.alike, within_s=5)


def test_leadership_is_handed_over_and_calls_go_on_at_the_other():
    world = World("a", "b", "c")
    old = world.leader()
    target = next(name for name in world.nodes if name != old)
    world.added(1)
    world.ask(old, Transfer(G, key(target), future()))
    world.add(old, 5)
    world.until(lambda: world.leaders == [target], within_s=0.2)
    assert [error for _, error in world.done if error is not None] == []
    codes = [error.code for error in world.errors if isinstance(error, QueratorError)]
    assert codes == [ErrorCode.NOT_LEADER]
    assert world.added(1)[0] == 2
    assert (old, Leadership(G, False)) in world.events


def test_a_leader_goes_on_when_the_other_does_not_take_over():
    world = World("a", "b", "c")
    leader = world.leader()
    target = next(name for name in world.nodes if name != leader)
    world.stop(target)
    world.done.clear()
    world.ask(leader, Transfer(G, key(target), future()))
    world.add(leader, 7)
    world.until(lambda: world.results, within_s=5)
    assert world.results[-1][0] == 7
    [(_, error)] = world.done
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.UNAVAILABLE


def test_a_read_is_confirmed_by_a_majority():
    world = World("a", "b", "c")
    leader = world.leader()
    world.added(3)
    world.done.clear()
    world.ask(leader, Read(G, future()))
    assert world.done == []
    world.until(lambda: world.done, within_s=1)
    assert world.done[0][1] is None


def test_a_read_is_confirmed_while_the_leadership_is_being_handed_over():
    world = World("a", "b", "c")
    leader = world.leader()
    target = next(name for name in world.nodes if name != leader)
    world.stop(target)
    world.ask(leader, Transfer(G, key(target), future()))
    world.done.clear()
    read = future()
    world.ask(leader, Read(G, read))
    world.until(lambda: world.done, within_s=0.5)
    assert world.done == [(read, None)]


def test_a_read_that_is_overtaken_by_the_next_leader_is_refused():
    world = World("a", "b", "c")
    leader = world.leader()
    target, other = (name for name in world.nodes if name != leader)
    world.added(1)
    world.until(world.alike)
    world.stop(other)
    world.done.clear()
    read = future()
    world.turn(world.nodes[leader], [Transfer(G, key(target), future()), Read(G, read)])
    world.until(lambda: world.leaders == [target], within_s=0.5)
    [error] = [error for one, error in world.done if one is read]
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.NOT_LEADER


def test_a_leader_that_is_cut_off_confirms_no_read():
    world = World("a", "b", "c")
    leader = world.leader()
    world.separate(leader)
    world.done.clear()
    world.ask(leader, Read(G, future()))
    world.until(lambda: world.done, within_s=5)
    [(_, error)] = world.done
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.NOT_LEADER


def test_a_replica_on_another_node_is_added_promoted_and_one_removed():
    world = World("a", "b", "c")
    leader = world.leader()
    world.added(1, b"x" * 1000)
    world.nodes["d"] = joined = type(world.nodes["a"])(world, "d")
    joined.start((Replica(4, key("d"), voter=False),))

    def change(what: AddLearner | Promote | RemoveReplica) -> BaseException | None:
        world.done.clear()
        world.ask(leader, Reconfigure(G, what, future()))
        world.until(lambda: world.done)
        return world.done[0][1]

    assert change(AddLearner(4, key("d"))) is None
    world.until(world.alike, within_s=3)
    assert change(Promote(4)) is None
    gone = next(replica for replica in world.replicas if replica.node != key(leader))
    assert change(RemoveReplica(gone.id)) is None
    assert len(world.nodes[leader].status.replicas) == 3
    world.stop(gone.node.partition("/")[0])
    assert world.added(1)[0] == 2
    mine = next(replica for replica in world.replicas if replica.node == key(leader))
    error = change(RemoveReplica(mine.id))
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("seed", range(5))
def test_a_fourth_that_is_no_replica_of_the_group_disturbs_nothing(seed):
    world = World("a", "b", "c", seed=seed)
    leader = world.leader()
    world.ask(leader, Reconfigure(G, RemoveReplica(9), future()))
    assert world.added(1)[0] == 1


def test_a_leadership_is_not_offered_to_a_node_whose_clock_is_wrong():
    world = World("a", "b", "c")
    leader = world.leader()
    wrong = next(name for name in world.nodes if name != leader)
    world.nodes[wrong].clock.step_wall(2_000)
    world.pass_s(3)
    world.ask(leader, Transfer(G, key(wrong), future()))
    error = world.done[-1][1]
    assert isinstance(error, QueratorError)
    assert error.code is ErrorCode.UNAVAILABLE
    world.add(leader, 1)
    world.pass_s(0.5)
    assert world.results, "nothing was held up"


@pytest.mark.parametrize("ahead_ms", [-2_000, 2_000])
def test_a_node_whose_clock_is_wrong_does_not_lead(ahead_ms):
    world = World("a", "b", "c")
    world.added(1)
    wrong = world.leader()
    world.nodes[wrong].clock.step_wall(ahead_ms)
    world.until(lambda: world.leaders and wrong not in world.leaders, within_s=5)
    assert world.added(1)[0] == 2
    for name in world.nodes:
        if name != wrong:
            world.stop(name)
            world.start(name)
    world.until(lambda: world.leaders)
    assert wrong not in world.leaders
    world.nodes[wrong].clock.step_wall(-ahead_ms)
    world.pass_s(5)
    other = world.leader()
    world.ask(other, Transfer(G, key(wrong), future()))
    world.until(lambda: world.leaders == [wrong])
