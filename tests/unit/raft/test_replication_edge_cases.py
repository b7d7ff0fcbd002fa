"""Edge cases of a group's replicas: two messages in one turn that affect each other; leaders that
are alone, hand over or cannot commit; followers that cannot write.
"""

from querator.model.entries import Proposal
from querator.model.errors import ErrorCode, QueratorError
from querator.raft.configuration import AddLearner
from querator.raft.consensus.replication import ReplicationState
from querator.raft.consensus.skew import Skew
from querator.raft.messages import (
    Append,
    AppendReply,
    Envelope,
    LogEntry,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from querator.raft.peers import Received
from querator.raft.requests import Call, Leader, Read, Reconfigure, Remove, Request, Transfer
from querator.raft.turn import turn
from tests.unit.raft.raft_cluster import G, RaftCluster, future, key


def _contradiction(cluster: RaftCluster, name: str) -> Append:
    """A message that no correct leader sends: it stops the replica."""
    status = cluster.nodes[name].status
    return Append(
        term=status.term + 1,
        sequence=1,
        read_round=0,
        prev_index=status.commit_index,
        prev_term=status.term + 9,
        commit_index=0,
    )


def _followers(cluster: RaftCluster) -> list[str]:
    leader = cluster.leader()
    return [name for name in cluster.nodes if name != leader]


def test_a_vote_of_the_turn_in_which_the_replica_stops_is_not_sent():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    cluster.until(cluster.alike)
    voter, other = _followers(cluster)
    term = cluster.nodes[voter].status.term + 1
    cluster.said(voter)
    candidate = RequestVote(term, 1000, term, transfer=True)
    cluster.hear(voter, other, candidate, _contradiction(cluster, voter))
    assert cluster.nodes[voter].status.quarantined
    assert VoteReply(term, True) not in cluster.said(voter), "it is not on disk"


def test_entries_of_the_turn_in_which_the_replica_stops_are_not_acknowledged():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    cluster.until(cluster.alike)
    follower, leader = _followers(cluster)[0], cluster.leader()
    status = cluster.nodes[follower].status
    entry = LogEntry(status.term, status.now_ms, 2, b"")
    cluster.said(follower)
    more = Append(
        term=status.term,
        sequence=99,
        read_round=0,
        prev_index=status.log_last,
        prev_term=status.term,
        commit_index=0,
        entries=(entry,),
    )
    cluster.hear(follower, leader, more, _contradiction(cluster, follower))
    assert cluster.nodes[follower].status.quarantined
    said = cluster.said(follower)
    assert not [one for one in said if isinstance(one, AppendReply) and one.success]


def test_a_replica_that_stops_or_goes_knows_no_leader_any_more():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    cluster.until(cluster.alike)
    one, other = _followers(cluster)
    cluster.events.clear()
    cluster.hear(one, other, _contradiction(cluster, one))
    cluster.ask(other, Remove(G, future()))
    for name in (one, other):
        assert next(event for who, event in cluster.events if who == name) == Leader(G, None)


def test_a_heartbeat_right_behind_it_does_not_undo_the_handing_over():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    cluster.until(cluster.alike)
    target, old = _followers(cluster)[0], cluster.leader()
    status = cluster.nodes[target].status
    term, last = status.term, status.log_last
    cluster.said(target)
    empty = Append(
        term=term, sequence=1_000, read_round=0, prev_index=last, prev_term=term, commit_index=last
    )
    cluster.hear(target, old, TimeoutNow(term), empty)
    assert cluster.nodes[target].status.term == term + 1
    votes = [one for one in cluster.said(target) if isinstance(one, RequestVote)]
    assert [vote.transfer for vote in votes] == [True, True]


def test_calls_keep_their_order_when_a_leadership_could_not_be_handed_over():
    cluster = RaftCluster("a", "b", "c")
    leader, target = cluster.leader(), _followers(cluster)[0]
    cluster.stop(target)
    requests: list[Request] = [
        Call(G, Proposal("at 1"), future(), 100),
        Transfer(G, key(target), future()),
        Call(G, Proposal("at 2"), future(), 100),
    ]
    cluster.turn(cluster.nodes[leader], requests)
    cluster.add(leader, 5)
    applied = cluster.nodes[leader].machine.commands
    cluster.until(lambda: 5 in applied)
    assert [one for one in applied if one != "fired"] == ["at 1", "at 2", 5]


def test_a_lone_leader_that_hears_of_a_higher_term_leads_again_in_that():
    cluster = RaftCluster("a")
    leader = cluster.leader()
    cluster.added(1)
    term = cluster.nodes[leader].status.term
    turns = cluster.nodes[leader].turns
    assert turns is not None
    stray = Envelope(G, 1, 9, AppendReply(term + 5, 0, 0, False, 0))
    cluster.nodes[leader].inbox.append(Received(key("gone"), [stray]))
    cluster.add(leader, 1)
    assert [error.code for error in cluster.errors if isinstance(error, QueratorError)] == [
        ErrorCode.UNAVAILABLE
    ]
    assert turns.wait_s() != 0
    cluster.until(lambda: cluster.nodes[leader].status.term > term + 5, within_s=3)
    assert cluster.added(1)[0] == 2


def test_a_leader_with_a_wrong_clock_that_nobody_follows_works_most_of_the_time(monkeypatch):
    cluster = RaftCluster("a", "b", "c")
    leader = cluster.leader()
    # The others find that their clocks are wrong as well, and do not take over.
    monkeypatch.setattr(Skew, "clock_is_wrong", property(lambda self: True))
    cluster.pass_s(3)
    for count in range(1, 7):
        cluster.add(leader, 1)
        cluster.pass_s(1)
        assert len(cluster.results) == count
    assert cluster.leaders == [leader]


def test_a_leader_that_cannot_commit_takes_on_no_more_than_it_can_hold(monkeypatch):
    monkeypatch.setattr(turn, "PROPOSAL_BYTES_UNAPPLIED_MAX", 100_000)
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    leader = cluster.leader()
    for name in _followers(cluster):
        cluster.fill(name)
    # Callers try again after each timeout.
    for _ in range(40):
        cluster.add(leader, 1, b"x" * 10_000)
        cluster.pass_s(1)
    assert cluster.leaders == [leader]
    assert cluster.nodes[leader].status.log_bytes < 150_000
    codes = [error.code for error in cluster.errors if isinstance(error, QueratorError)]
    assert set(codes) == {ErrorCode.OUTCOME_UNKNOWN, ErrorCode.OVERLOADED}
    for name in _followers(cluster):
        cluster.fill(name, full=False)
    assert cluster.added(1)[0] == 2 + codes.count(ErrorCode.OUTCOME_UNKNOWN)
    cluster.until(cluster.alike)


def test_what_finds_no_room_goes_as_soon_as_there_is_some():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    cluster.until(cluster.alike)
    leader = cluster.leader()
    turns = cluster.nodes[leader].turns
    assert turns is not None
    for name in _followers(cluster):
        cluster.room_bytes[leader, name] = 0
    cluster.said(leader)
    cluster.add(leader, 1, b"x" * 1000)
    cluster.turn(cluster.nodes[leader])
    assert not any(isinstance(one, Append) for one in cluster.said(leader))
    assert turns.wait_s() != 0
    cluster.room_bytes.clear()
    assert turns.wait_s() == 0
    cluster.turn(cluster.nodes[leader])
    sent = [one for one in cluster.said(leader) if isinstance(one, Append)]
    assert [len(one.entries) for one in sent] == [1, 1]
    cluster.until(lambda: len(cluster.results) == 2, within_s=0.1)


def test_reads_and_changes_end_though_a_majority_can_only_beat():
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    leader = cluster.leader()
    for name in _followers(cluster):
        cluster.fill(name)
    cluster.done.clear()
    cluster.ask(leader, Reconfigure(G, AddLearner(4, key("d")), future()))
    cluster.ask(leader, Read(G, future()))
    cluster.add(leader, 1)
    cluster.pass_s(12)
    assert cluster.leaders == [leader]
    read, change = (error for _, error in cluster.done)
    assert read is None
    assert isinstance(change, QueratorError)
    assert change.code is ErrorCode.OUTCOME_UNKNOWN


def test_the_refusal_of_a_beat_of_an_earlier_leadership_says_nothing_of_the_log():
    """A slow beat of the same node's earlier term is refused with the term of its present
    leadership.
    """
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    leader, follower = cluster.leader(), _followers(cluster)[0]
    turns = cluster.nodes[leader].turns
    assert turns is not None
    member = turns._groups[G].member
    replica = 1 + list(cluster.nodes).index(follower)
    member.on_beat_refused(replica, member.term, member.term - 1)
    assert member.progress[replica].state is ReplicationState.REPLICATE
    member.on_beat_refused(replica, member.term, member.term)
    assert member.progress[replica].state is ReplicationState.LOST
