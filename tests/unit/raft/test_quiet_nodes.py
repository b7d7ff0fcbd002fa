"""Silent nodes: the link reports them, and leaders change before elections are due."""

from querator.model.limits import PEER_PING_MS, PEER_QUIET_MS, PEER_SILENCE_MS_MAX
from querator.raft.clock import SimulatedClock
from querator.raft.engine.library import settings
from querator.raft.messages import Envelope, TimeoutNow
from querator.raft.peers import Connected, Quiet
from tests.unit.raft.raft_cluster import RaftCluster
from tests.unit.raft.tcp_cluster import TcpNode, drive, settle, tcp_cluster

ELECTION_S = settings().raftMinTimeout


def quiet(tcp_node: TcpNode, other: TcpNode) -> int:
    """How many times the node reported that the other one is silent."""
    return tcp_node.events.count(Quiet(other.key))


def passes(clock: SimulatedClock, ms: int, *tcp_nodes: TcpNode) -> None:
    for _ in range(ms // PEER_PING_MS):
        clock.advance(PEER_PING_MS)
        settle(*tcp_nodes)
    clock.advance(ms % PEER_PING_MS)
    settle(*tcp_nodes)


def test_a_node_that_says_nothing_is_quiet_once_and_stays_connected():
    clock = SimulatedClock()
    with tcp_cluster("a", "b", clock=clock) as (a, b):
        # b does not run; its connection stays open.
        passes(clock, PEER_QUIET_MS - 50, a)
        assert quiet(a, b) == 0
        passes(clock, 2 * PEER_PING_MS, a)
        assert quiet(a, b) == 1
        assert a.peers.quiet() == {b.key}
        assert a.sees(b)
        drive(a, b, until=lambda: not a.peers.quiet())
        passes(clock, 5 * PEER_QUIET_MS, a, b)
        assert quiet(a, b) == 1
        assert a.links(b) == [Connected]


def test_a_link_that_stutters_is_given_longer():
    clock = SimulatedClock()
    with tcp_cluster("a", "b", clock=clock) as (a, b):
        passes(clock, 300, a)
        passes(clock, PEER_PING_MS, a, b)
        passes(clock, PEER_QUIET_MS + PEER_PING_MS, a)
        assert quiet(a, b) == 0
        passes(clock, PEER_QUIET_MS, a)
        assert quiet(a, b) == 1
        assert 3 * 500 < PEER_SILENCE_MS_MAX


def test_followers_of_a_quiet_node_have_another_leader_before_an_election_is_due():
    cluster = RaftCluster("a", "b", "c")
    hangs = cluster.leader()
    others = [name for name in cluster.nodes if name != hangs]
    cluster.pass_s(1)
    for other in others:
        cluster.mute(hangs, other)
        cluster.mute(other, hangs)
    began_s = cluster.clock.monotonic_s()
    cluster.until(lambda: set(cluster.leaders) & set(others), within_s=ELECTION_S / 2)
    assert cluster.clock.monotonic_s() - began_s < ELECTION_S / 2
    # The leader received the report that its followers are silent, and has stepped down as well.
    cluster.until(lambda: hangs not in cluster.leaders, within_s=ELECTION_S / 2)


def test_a_leader_that_hears_nobody_gives_way_to_one_that_does():
    cluster = RaftCluster("a", "b", "c")
    deaf = cluster.leader()
    others = [name for name in cluster.nodes if name != deaf]
    cluster.pass_s(1)
    for other in others:
        cluster.mute(other, deaf)
    # The others hear it, and would not start an election before it falls silent.
    cluster.until(lambda: set(cluster.leaders) & set(others), within_s=ELECTION_S / 2)
    assert deaf not in cluster.leaders


def test_a_quiet_follower_costs_nobody_the_leadership():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.pass_s(1)
    term = cluster.nodes[leader].status.term
    follower = next(name for name in cluster.nodes if name != leader)
    for other in cluster.nodes:
        if other != follower:
            cluster.mute(follower, other)
    cluster.pass_s(5)
    assert cluster.leaders == [leader]
    assert cluster.nodes[leader].status.term == term
    assert cluster.added(1)[0] == 1


def test_a_follower_that_hears_its_leader_does_not_vote_for_one_that_does_not():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.pass_s(1)
    term = cluster.nodes[leader].status.term
    cluster.mute(leader, next(name for name in cluster.nodes if name != leader))
    cluster.pass_s(5)
    assert cluster.leaders == [leader]
    assert cluster.nodes[leader].status.term == term


def test_a_leader_that_is_told_when_its_alarm_goes_off_steps_down():
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    cluster.pass_s(1)
    for other in cluster.nodes:
        if other != leader:
            cluster.mute(other, leader)
    node = cluster.nodes[leader]
    node.clock.advance(5_000)
    cluster.turn(node)
    assert not node.status.leads


def told_to_stand(cluster: RaftCluster, leader: str) -> list[str]:
    """The nodes that a leader has asked to start an election, in order."""
    return [
        to
        for one, to, message in cluster.carried
        if one == leader
        and isinstance(message, Envelope)
        and isinstance(message.message, TimeoutNow)
    ]


def test_a_leader_without_a_majority_gives_way_to_one_that_it_hears():
    cluster = RaftCluster("a", "b", "c", "d", "e")
    leader = cluster.leader()
    cluster.added(1)
    hangs, *deaf_to, heard = [name for name in cluster.nodes if name != leader]
    for other in cluster.nodes:
        if other != hangs:
            cluster.mute(hangs, other)
    for other in deaf_to:
        cluster.mute(other, leader)
    cluster.until(lambda: told_to_stand(cluster, leader), within_s=ELECTION_S)
    assert told_to_stand(cluster, leader) == [heard]
    cluster.until(lambda: cluster.leaders == [heard], within_s=ELECTION_S / 2)


def test_a_leader_with_a_wrong_clock_gives_way_to_one_with_a_right_clock():
    cluster = RaftCluster("a", "b", "c", "d", "e")
    leader = cluster.leader()
    cluster.added(1)
    first, second, *_ = [name for name in cluster.nodes if name != leader]
    cluster.nodes[first].clock.step_wall(-2_000)
    cluster.pass_s(2)
    cluster.nodes[leader].clock.step_wall(2_000)
    cluster.until(lambda: told_to_stand(cluster, leader))
    assert told_to_stand(cluster, leader) == [second]
    cluster.until(lambda: cluster.leaders == [second])
