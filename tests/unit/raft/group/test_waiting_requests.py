"""Waiting requests: reads wait for a round of answers, calls for their entries, and
acknowledgements for the sync.
"""

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from querator.model.entries import Proposal
from querator.model.ids import GroupId
from querator.model.nodes import NodeKey, node_key
from querator.raft.group.pending import Backlog, Pending
from querator.raft.group.read_index import ReadIndex
from querator.raft.messages import (
    AppendReply,
    Envelope,
    GroupMessage,
    HeartbeatReply,
    PeerMessage,
    VoteReply,
)
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.requests import Call
from tests.unit.raft.raft_cluster import RaftCluster, future

A, B = node_key("a", "1"), node_key("b", "1")
G, H = GroupId(1), GroupId(2)


# --- reads -----------------------------------------------------------------------------


def test_a_read_waits_for_a_round_that_began_after_it_and_for_what_was_committed_when_it_came():
    reads = ReadIndex()
    first, second = future(), future()
    reads.add(first, 5)
    assert reads.wants_round
    reads.begun(1)
    assert not reads.wants_round
    reads.add(second, 7)
    reads.confirm(1)
    assert reads.done(4) == []
    assert reads.done(5) == [first]
    assert reads.done(9) == [], "the second asks only now"
    reads.begun(2)
    assert reads.first_round == 2
    reads.confirm(2)
    assert reads.done(6) == []
    assert reads.done(7) == [second]
    assert not reads


def test_a_later_round_confirms_the_earlier_ones():
    reads = ReadIndex()
    futures = [future() for _ in range(3)]
    for round_, one in enumerate(futures, 1):
        reads.add(one, round_)
        reads.begun(round_)
    reads.confirm(2)
    assert reads.done(10) == futures[:2]
    assert reads.first_round == 3


def test_all_reads_end_with_the_office():
    reads = ReadIndex()
    futures = [future() for _ in range(3)]
    reads.add(futures[0], 1)
    reads.begun(1)
    reads.confirm(1)
    reads.add(futures[1], 1)
    reads.begun(2)
    reads.add(futures[2], 1)
    assert set(reads.take_all()) == set(futures)
    assert not reads
    assert reads.take_all() == []


@given(st.integers(0, 1 << 32))
def test_reads_are_answered_once_and_never_too_early(seed):
    chance = random.Random(seed)
    reads = ReadIndex()
    commit = synced = round_ = confirmed = 0
    came: dict[Any, tuple[int, int]] = {}
    """The commit index when the read came, and the first round that began after it."""
    answered: set[Any] = set()
    for _ in range(200):
        match chance.randrange(5):
            case 0:
                one = future()
                came[one] = commit, round_ + 1
                reads.add(one, commit)
            case 1 if reads.wants_round:
                round_ += 1
                reads.begun(round_)
            case 2 if confirmed < round_:
                confirmed = chance.randint(confirmed + 1, round_)
                reads.confirm(confirmed)
            case 3:
                commit += chance.randrange(3)
            case 4:
                synced = chance.randint(synced, commit)
        for one in reads.done(synced):
            index, after = came[one]
            assert synced >= index
            assert confirmed >= after
            assert one not in answered
            answered.add(one)
    left = set(reads.take_all())
    assert left | answered == set(came)
    assert not left & answered


# --- pending ---------------------------------------------------------------------------


def calls(count: int, deadline_s: float = 10.0) -> list[Call]:
    made = []
    for _ in range(count):
        call = Call(G, Proposal(1), future(), 1)
        call.deadline_s = deadline_s
        made.append(call)
    return made


def test_the_calls_of_an_entry_are_its_own():
    pending = Pending(Backlog(bytes_max=1_000), G)
    mine, later = calls(2), calls(1)
    pending.add(5, 3, mine)
    pending.add(6, 3, later)
    assert pending.calls_of(5, 3) == mine
    assert pending.calls_of(5, 4) is None
    assert pending.calls_of(7, 3) is None
    assert pending.pop_applied(4, 2) == ([], [])
    assert pending.pop_applied(5, 3) == (mine, [])
    assert pending.pop_applied(5, 3) == ([], [])
    assert pending.pop_applied(6, 3) == (later, [])


def test_an_entry_of_another_term_ends_what_it_replaces_and_all_older_terms_behind_it():
    pending = Pending(Backlog(bytes_max=1_000), G)
    replaced, behind, kept = calls(1), calls(2), calls(1)
    pending.add(5, 3, replaced)
    pending.add(6, 3, behind)
    pending.add(9, 4, kept)
    assert pending.pop_applied(5, 4) == ([], [*replaced, *behind])
    assert pending.pop_applied(9, 4) == (kept, [])


def test_an_entry_of_an_older_term_says_nothing_of_those_behind_it():
    pending = Pending(Backlog(bytes_max=1_000), G)
    mine = calls(1)
    pending.add(5, 3, mine)
    assert pending.pop_applied(4, 3) == ([], [])
    assert pending.calls_of(5, 3) == mine


def test_calls_weigh_on_the_node_until_their_entries_are_gone():
    backlog = Backlog(bytes_max=1_000)
    one, other = Pending(backlog, G), Pending(backlog, GroupId(G + 1))
    for index in range(1, 6):
        one.add(index, 3, calls(2))
    other.add(1, 3, calls(5, 20.0))
    assert backlog.bytes == 15
    one.expired(10.0)
    assert backlog.bytes == 15, "the entries are in the log"
    one.pop_applied(1, 3)
    assert backlog.bytes == 13
    one.pop_applied(3, 4)
    assert backlog.bytes == 7
    assert len(one.take_all()) == 2
    assert backlog.bytes == 5
    other.take_all()
    assert backlog.bytes == 0


def test_calls_end_at_their_deadlines_and_keep_their_places():
    pending = Pending(Backlog(bytes_max=1_000), G)
    early, late = calls(2, 1.0), calls(1, 2.0)
    own = Call(G, Proposal(1), None, 0)
    pending.add(5, 3, [early[0], own, early[1]])
    pending.add(6, 3, late)
    assert pending.deadline_s == 1.0
    assert pending.expired(0.9) == []
    assert pending.expired(1.0) == early
    assert pending.expired(1.0) == []
    assert pending.deadline_s == 2.0
    taken, _ = pending.pop_applied(5, 3)
    assert taken == [early[0], own, early[1]]
    assert [call.ended for call in taken] == [True, False, True]
    assert pending.expired(5.0) == late
    assert pending.deadline_s is None


# --- acknowledgements ------------------------------------------------------------------


class Recorder:
    def __init__(self) -> None:
        self.sent: list[tuple[NodeKey, PeerMessage]] = []
        self.flushes = 0
        self.room = 100

    def send(self, node: NodeKey, messages: Sequence[PeerMessage]) -> None:
        self.sent += [(node, message) for message in messages]

    def room_bytes(self, node: NodeKey) -> int:
        return self.room

    def flush(self) -> None:
        self.flushes += 1


def reply(
    index: int, *, term: int = 1, success: bool = True, sequence: int = 0, round_: int = 0
) -> AppendReply:
    return AppendReply(
        term=term,
        sequence=sequence,
        read_round=round_,
        success=success,
        index=index,
        conflict_term=0 if success else 1,
    )


def acknowledged(*replies: tuple[GroupId, NodeKey, GroupMessage]) -> list[tuple[GroupId, Any]]:
    peers = Recorder()
    mail = PeerOutbox(peers)
    for group, node, message in replies:
        mail.acknowledge(node, Envelope(group, 1, 2, message))
    mail.send_now()
    assert peers.sent == []
    mail.send_later()
    assert peers.flushes == 1
    mail.send_later()
    assert peers.flushes == 1, "all is sent"
    found = []
    for _, envelope in peers.sent:
        assert isinstance(envelope, Envelope)
        found.append((envelope.group, envelope.message))
    return found


def test_the_last_of_several_acknowledgements_says_what_the_others_do():
    one, two, three = (reply(index, sequence=index, round_=index) for index in (1, 2, 3))
    assert acknowledged((G, A, one), (G, A, two), (G, A, three)) == [(G, three)]


def test_an_acknowledgement_is_not_left_out_for_one_that_says_something_else():
    for other in (
        reply(1, term=2),
        reply(0),
        reply(3, success=False),
        VoteReply(1, True),
    ):
        assert acknowledged((G, A, reply(1)), (G, A, other)) == [(G, reply(1)), (G, other)]
        assert (
            acknowledged((G, A, other), (G, A, reply(2)))
            == [(G, other), (G, reply(2))][(other == reply(0)) :]
        )


def test_acknowledgements_of_other_groups_and_to_other_nodes_are_their_own():
    one, two = reply(1), reply(2)
    assert acknowledged((G, A, one), (H, A, two)) == [(G, one), (H, two)]
    assert acknowledged((G, A, one), (G, B, two)) == [(G, one), (G, two)]
    assert acknowledged((G, A, one), (H, A, two), (G, A, two)) == [(G, one), (H, two), (G, two)]


def test_promises_wait_for_the_sync_and_those_of_a_group_that_stops_are_withdrawn():
    peers = Recorder()
    mail = PeerOutbox(peers)
    mail.acknowledge(A, Envelope(G, 1, 2, reply(1)))
    mail.later(A, Envelope(G, 1, 2, VoteReply(1, True)))
    mail.later(A, Envelope(H, 1, 2, VoteReply(1, True)))
    mail.later(A, HeartbeatReply(1, 0))
    mail.later(B, Envelope(G, 1, 3, VoteReply(1, True)))
    mail.now(B, Envelope(G, 1, 3, reply(9)))
    mail.send_now()
    assert peers.sent == [(B, Envelope(G, 1, 3, reply(9)))]
    peers.sent.clear()
    mail.withdraw(G)
    mail.send_later()
    assert peers.sent == [(A, Envelope(H, 1, 2, VoteReply(1, True))), (A, HeartbeatReply(1, 0))]


def test_the_groups_of_a_turn_share_the_room():
    peers = Recorder()
    mail = PeerOutbox(peers)
    mail.now(A, Envelope(G, 1, 2, reply(1)), bytes_=30)
    mail.later(A, Envelope(G, 1, 2, reply(2)), bytes_=90)
    assert (mail.room_bytes(A), mail.room_bytes(B)) == (-20, 100)
    mail.send_now()
    assert mail.room_bytes(A) == 10
    mail.send_later()
    assert mail.room_bytes(A) == 100


def test_who_finds_no_room_is_called_when_there_is():
    peers = Recorder()
    mail = PeerOutbox(peers)
    assert not mail.calls
    for group, node in ((H, A), (G, A), (G, B)):
        mail.finds_no_room(node, group)
    peers.room = 0
    assert not mail.calls
    assert mail.called() == []
    peers.room = 1
    assert mail.calls
    assert mail.called() == [H, G], "each once, in the order in which they came"
    assert not mail.calls


def test_a_node_without_a_majority_does_not_wait_for_one_when_it_stops():
    """Other nodes may still apply the entries of its log later: this node cannot know."""
    cluster = RaftCluster("a", "b", "c")
    cluster.added(1)
    cluster.until(cluster.alike)
    leader = cluster.nodes[cluster.leader()]
    assert leader.turns is not None
    cluster.separate(leader.name)
    cluster.add(leader.name, 7)
    cluster.step()
    assert not leader.turns.all_answered, "the others may answer in a moment"
    cluster.pass_s(3)
    assert cluster.errors == []
    assert leader.turns.all_answered
