"""Replicas of a group in corners: what two messages of one turn do to each other, leaders that are
alone, that hand over, that cannot commit, and followers that cannot write.
"""

from querator.raft.messages import Append, AppendReply, LogEntry, RequestVote, VoteReply
from tests.unit.raft.trio import World


def _contradiction(world: World, name: str) -> Append:
    """What no leader may say: it stops the replica."""
    status = world.nodes[name].status
    return Append(status.term + 1, 1, 0, status.commit_index, status.term + 9, 0)


def _followers(world: World) -> list[str]:
    leader = world.leader()
    return [name for name in world.nodes if name != leader]


def test_a_vote_of_the_turn_in_which_the_replica_stops_is_not_sent():
    world = World("a", "b", "c")
    world.added(1)
    world.until(world.alike)
    voter, other = _followers(world)
    term = world.nodes[voter].status.term + 1
    world.said(voter)
    candidate = RequestVote(term, 1000, term, transfer=True)
    world.hear(voter, other, candidate, _contradiction(world, voter))
    assert world.nodes[voter].status.quarantined
    assert VoteReply(term, True) not in world.said(voter), "it is not on disk"


def test_entries_of_the_turn_in_which_the_replica_stops_are_not_acknowledged():
    world = World("a", "b", "c")
    world.added(1)
    world.until(world.alike)
    follower, leader = _followers(world)[0], world.leader()
    status = world.nodes[follower].status
    entry = LogEntry(status.term, status.now_ms, 2, b"")
    world.said(follower)
    more = Append(status.term, 99, 0, status.log_last, status.term, 0, (entry,))
    world.hear(follower, leader, more, _contradiction(world, follower))
    assert world.nodes[follower].status.quarantined
    said = world.said(follower)
    assert not [one for one in said if isinstance(one, AppendReply) and one.success]
