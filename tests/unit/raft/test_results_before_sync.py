"""Results and effects that are reported before the sync of a turn."""

import pytest

from querator.raft.requests import Effects, Read, Remove
from querator.raft.turn.open_transaction import COMMIT_WITHIN_S
from querator.storage import generations
from tests.unit.raft import fake_machine
from tests.unit.raft.raft_cluster import ClusterNode, G, RaftCluster, future


class PowerLoss(BaseException):
    """The node stops here."""


def lose_power(point: str) -> None:
    if point == "sync":
        raise PowerLoss


def effects(cluster: RaftCluster) -> list[int]:
    return [event.effects for _, event in cluster.events if isinstance(event, Effects)]


def test_the_result_of_a_replicated_entry_is_told_before_its_state_is_on_disk():
    cluster = RaftCluster("a", "b", "c")
    value, index = cluster.added(7)
    assert value == 7
    [(early, stored)] = cluster.early
    assert early == (value, index)
    assert stored.applied_index < index
    assert cluster.results == [early], "once"
    assert effects(cluster)[-1] == 7


def test_what_was_told_is_there_after_a_power_loss_of_all_in_the_same_turn():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.add(leader, 7)
    cluster.nodes[leader].environment.faults = lambda point: (
        lose_power(point) if cluster.results else None
    )
    with pytest.raises(PowerLoss):
        cluster.until(lambda: False)
    [((value, index), stored)] = cluster.early
    assert value == 7
    assert stored.applied_index < index
    for name in cluster.nodes:
        cluster.stop(name)
    for name in cluster.nodes:
        cluster.start(name)
    assert cluster.added(0)[0] == 7


def test_a_lone_voter_tells_nothing_before_it_is_on_disk():
    cluster = RaftCluster("a")
    assert cluster.added(7)[0] == 7
    assert cluster.early == []


def test_what_the_machine_holds_back_comes_after_the_sync():
    cluster = RaftCluster("a", "b", "c")
    assert cluster.added(-7)[0] == -7
    assert cluster.early == []
    assert effects(cluster)[-1] == -7


def test_effects_keep_their_order_when_some_may_not_be_told_early():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.pass_s(1)
    cluster.separate(leader)
    for command in (1, "late", 2):
        cluster.add(leader, command)
    assert cluster.results == []
    cluster.heal()
    cluster.until(lambda: len(cluster.results) == 3)
    assert [value for value, _ in cluster.results] == [1, 1, 3]
    assert [result[0] for result, _ in cluster.early] == [1]
    assert effects(cluster)[-3:] == [1, 1, 3]


# --- commits that may wait -----------------------------------------------------------------


def applied() -> tuple[RaftCluster, ClusterNode]:
    """A cluster and its leader, which has reported a result and has not committed the result's
    effects to its storage.
    """
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    cluster.until(cluster.alike)
    cluster.added(7)
    leader = cluster.nodes[cluster.leader()]
    assert leader.status.applied_index < leader.status.commit_index
    return cluster, leader


def stored(node: ClusterNode) -> int:
    with node.environment.snapshot() as snapshot:
        return fake_machine.read(generations.view(snapshot, G), G).value


def test_what_was_applied_is_committed_soon_though_nothing_else_is_to_be_written():
    cluster, leader = applied()
    before = leader.environment.commit_points
    assert leader.turns is not None
    wait_s = leader.turns.wait_s()
    assert wait_s is not None
    assert wait_s < COMMIT_WITHIN_S + 0.001
    assert stored(leader) == 1
    cluster.until(lambda: leader.status.applied_index == leader.status.commit_index)
    assert stored(leader) == 8
    assert leader.environment.commit_points > before


def log_of(node: ClusterNode) -> tuple[int, int]:
    """Indexes of the last entry, and of the last one that is on disk."""
    assert node.turns is not None
    journal = node.turns._groups[G].journal
    return journal.last_index, journal.durable_index


def test_a_leader_whose_followers_are_prompt_leaves_the_sync_to_them():
    cluster, leader = applied()
    cluster.add(leader.name, 1)
    last, durable = log_of(leader)
    assert durable < last
    cluster.until(lambda: len(cluster.results) == 3)
    assert cluster.results[-1] == (9, last)
    cluster.until(cluster.alike)
    assert log_of(leader) == (last, last)


def test_a_sync_that_was_left_to_others_commits_when_it_comes_if_they_did_not():
    cluster, leader = applied()
    silent = next(name for name in cluster.nodes if name != leader.name)
    # Messages to this node are lost, and the leader does not know that yet.
    cluster.cut.add(frozenset((leader.name, silent)))
    cluster.add(leader.name, 1)
    last, durable = log_of(leader)
    assert durable < last
    cluster.until(lambda: len(cluster.results) == 3, within_s=0.1)


def test_one_whose_followers_are_silent_does_not():
    cluster, leader = applied()
    cluster.separate(leader.name)
    cluster.pass_s(0.1)
    cluster.add(leader.name, 1)
    last, durable = log_of(leader)
    assert durable == last
    assert len(cluster.results) == 2


def test_what_two_followers_have_is_there_when_the_leader_is_lost_before_its_sync():
    cluster, leader = applied()
    cluster.add(leader.name, 1)
    cluster.until(lambda: len(cluster.results) == 3)
    last, durable = log_of(leader)
    assert durable < last
    cluster.stop(leader.name)
    cluster.until(lambda: cluster.leaders)
    cluster.start(leader.name)
    cluster.until(lambda: stored(leader) == 9)
    assert cluster.added(0)[0] == 9


def test_who_reads_does_not_wait_for_it():
    cluster, leader = applied()
    asked = future()
    now_s = cluster.clock.monotonic_s()
    cluster.ask(leader.name, Read(G, asked))
    cluster.until(lambda: (asked, None) in cluster.done)
    assert cluster.clock.monotonic_s() - now_s < COMMIT_WITHIN_S
    assert stored(leader) == 8


def test_what_was_not_committed_is_applied_again():
    cluster, leader = applied()
    cluster.stop(leader.name)
    assert stored(leader) == 1
    cluster.start(leader.name)
    cluster.until(lambda: stored(leader) == 8)


def test_a_node_stops_only_when_it_is_committed():
    cluster, leader = applied()
    assert leader.turns is not None
    assert not leader.turns.all_answered
    cluster.until(cluster.alike)
    assert leader.turns.all_answered


def test_a_removed_group_takes_what_was_applied_with_it():
    cluster, leader = applied()
    cluster.ask(leader.name, Remove(G, future()))
    cluster.until(lambda: cluster.done)
    assert stored(leader) == 0


def test_a_leader_that_is_removed_while_its_entries_are_not_on_disk_stays_away():
    cluster, leader = applied()
    follower, other = (node for node in cluster.nodes.values() if node is not leader)
    cluster.cut.add(frozenset((leader.name, other.name)))
    cluster.add(leader.name, 1)
    cluster.turn(follower)
    cluster.turn(leader)
    last, durable = log_of(leader)
    assert durable < last, "its own copy is what the commit waits for"
    removed = [future() for _ in cluster.nodes]
    for node, request in zip((leader, follower, other), removed, strict=True):
        cluster.ask(node.name, Remove(G, request))
    cluster.until(lambda: {*removed} <= {one for one, _ in cluster.done})
    cluster.carried.clear()
    cluster.pass_s(1)
    assert [message for one, _, message in cluster.carried if one == leader.name] == []
    with leader.environment.snapshot() as snapshot:
        assert list(snapshot.scan(b"\0", b"\xff")) == []
