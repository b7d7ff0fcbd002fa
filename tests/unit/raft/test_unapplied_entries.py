"""A replica that has the log, and must still apply much of it, could not serve at once: it becomes
a voter, or leads, only when that does not stop the group.
"""

import pytest

from querator.model.errors import ErrorCode, QueratorError
from querator.model.nodes import Replica
from querator.raft.configuration import AddLearner, Promote
from querator.raft.consensus import replication, voter
from querator.raft.group import group, leadership
from querator.raft.requests import Reconfigure, Transfer
from tests.unit.raft.raft_cluster import G, RaftCluster, future, key

ENTRIES = 400
MOST = 20


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn applies one entry, and few are left when a replica may lead."""
    monkeypatch.setattr(group, "APPLY_ENTRIES_TURN_MAX", 1)
    for module in (leadership, replication, voter):
        monkeypatch.setattr(module, "UNAPPLIED_ENTRIES_MAX", MOST)


def filled(*, seed: int = 1) -> tuple[RaftCluster, str, str, str]:
    """A cluster; its leader, a follower that has applied everything, and one that was away."""
    cluster = RaftCluster("a", "b", "c", seed=seed)
    leader = cluster.leader()
    other, away = (name for name in cluster.nodes if name != leader)
    cluster.until(cluster.alike)
    cluster.separate(away)
    for _ in range(ENTRIES):
        cluster.add(leader, 1)
    cluster.until(lambda: len(cluster.results) == ENTRIES, within_s=30)
    status = cluster.nodes[leader].status
    cluster.until(lambda: cluster.nodes[other].status.applied_index == status.applied_index)
    return cluster, leader, other, away


def unapplied(cluster: RaftCluster, name: str) -> int:
    status = cluster.nodes[name].status
    return status.log_last - status.applied_index


def refusal(cluster: RaftCluster) -> QueratorError:
    [(_, error)] = cluster.done
    assert isinstance(error, QueratorError)
    return error


def has_log(cluster: RaftCluster, leader: str, away: str) -> bool:
    return cluster.nodes[away].status.log_last == cluster.nodes[leader].status.log_last


@pytest.mark.usefixtures("slow")
def test_a_learner_does_not_vote_before_it_has_applied_the_log() -> None:
    cluster, leader, _, _ = filled()
    cluster.nodes["d"] = joined = type(cluster.nodes["a"])(cluster, "d")
    joined.start((Replica(4, key("d"), voter=False),))
    cluster.ask(leader, Reconfigure(G, AddLearner(4, key("d")), future()))
    cluster.until(lambda: has_log(cluster, leader, "d"))
    assert unapplied(cluster, "d") > ENTRIES // 2
    refusals = 0
    while True:
        cluster.done.clear()
        cluster.ask(leader, Reconfigure(G, Promote(4), future()))
        cluster.until(lambda: cluster.done)
        if cluster.done[0][1] is None:
            break
        assert refusal(cluster).code is ErrorCode.UNAVAILABLE
        refusals += 1
        cluster.step()
    assert refusals
    assert unapplied(cluster, "d") <= MOST


@pytest.mark.usefixtures("slow")
def test_a_leadership_is_not_handed_to_a_replica_that_has_not_applied_the_log() -> None:
    cluster, leader, _, away = filled()
    cluster.heal()
    cluster.until(lambda: has_log(cluster, leader, away))
    cluster.done.clear()
    cluster.ask(leader, Transfer(G, key(away), future()))
    error = refusal(cluster)
    assert error.code is ErrorCode.UNAVAILABLE
    assert f"{away} has to apply" in error.message
    cluster.add(leader, 1)
    cluster.until(lambda: len(cluster.results) > ENTRIES, within_s=0.5)
    assert cluster.leaders == [leader]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("seed", range(8))
def test_a_replica_that_has_applied_the_log_leads_before_one_that_has_not(seed: int) -> None:
    cluster, leader, other, away = filled(seed=seed)
    cluster.heal()
    cluster.until(lambda: has_log(cluster, leader, away))
    # The commit index comes with the next message.
    cluster.until(lambda: cluster.nodes[away].status.commit_index > ENTRIES)
    cluster.stop(leader)
    cluster.until(lambda: cluster.leaders, within_s=5)
    assert cluster.leaders == [other]
    assert unapplied(cluster, away) > 1


@pytest.mark.usefixtures("slow")
def test_a_replica_leads_with_entries_to_apply_when_no_other_has_them() -> None:
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    heir, other = (name for name in cluster.nodes if name != leader)
    cluster.until(cluster.alike)
    cluster.separate(other)
    for _ in range(ENTRIES):
        cluster.add(leader, 1)
    cluster.until(lambda: cluster.nodes[heir].status.commit_index > ENTRIES)
    assert unapplied(cluster, heir) > ENTRIES // 2
    cluster.stop(leader)
    cluster.heal()
    cluster.until(lambda: cluster.leaders == [heir], within_s=30)
    assert unapplied(cluster, heir) <= 1
