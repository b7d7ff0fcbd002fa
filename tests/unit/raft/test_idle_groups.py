"""Replicas of idle groups do next to nothing."""

from typing import Any

from tests.unit.raft.raft_cluster import G, RaftCluster

IDLE_S = 10.0


def led() -> RaftCluster:
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    cluster.until(cluster.alike)
    cluster.pass_s(1.0)
    return cluster


def test_replicas_that_hear_of_each_other_are_not_looked_at():
    cluster = led()
    looked_at = []
    for node in cluster.nodes.values():
        assert node.turns is not None
        group: Any = node.turns._groups[G]
        group.tick = lambda name=node.name: looked_at.append(name)
    cluster.pass_s(IDLE_S)
    assert not looked_at


def test_a_leader_that_no_majority_hears_steps_down_within_an_election_timeout():
    cluster = led()
    leader = cluster.leader()
    cluster.separate(leader)
    cluster.until(lambda: leader not in cluster.leaders, within_s=2.6)
