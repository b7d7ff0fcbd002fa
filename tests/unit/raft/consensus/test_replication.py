"""What a leader knows of a follower. Two real journals are connected by a link, which loses
messages in flight when it breaks.
"""

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from querator.model.entries import Entry
from querator.model.ids import GroupId
from querator.model.limits import (
    APPEND_BYTES_MAX,
    KIB,
    LOG_UNAPPLIED_CACHE_BYTES,
    MIB,
    REPLICATION_WINDOW_BYTES,
)
from querator.model.nodes import NodeKey, Replica, node_key
from querator.raft.clock import SimulatedClock
from querator.raft.consensus.loop_watch import LoopWatch
from querator.raft.consensus.member import Member
from querator.raft.consensus.replication import (
    REPLY_TIMEOUT_S,
    UNREAD_S,
    FollowerProgress,
    ReplicationState,
)
from querator.raft.consensus.skew import Skew
from querator.raft.engine import library
from querator.raft.log.journal import Journal, Stamped
from querator.raft.messages import Append, AppendReply, Envelope, PeerMessage
from querator.raft.peer_outbox import PeerOutbox
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.tables import ATTACHMENTS

G = GroupId(3)
REPLICAS = (Replica(1, node_key("a", "1")), Replica(2, node_key("b", "1")))
TERM = 1_000
"""Term of the leader: later than the terms of all entries that the logs have at first."""


class Leader:
    def __init__(self, terms: list[int], *, committed: int = 0) -> None:
        self.environment = MemoryEnvironment()
        self.journal = filled(self.environment, terms)
        self.progress = FollowerProgress(last_index=self.journal.last_index, now_s=0.0)
        self.journal.setCurrentTerm(TERM, 1)
        self.now_s = 0.0
        self.commit_index = committed
        self.add()
        self.sync()

    def add(self, size: int = 10) -> None:
        entry = Stamped(Entry(b"c", (b"x" * size,)), 0)
        self.journal.add(entry, self.journal.last_index + 1, TERM)

    def sync(self) -> None:
        write(self.environment, self.journal, self.commit_index)

    def send(self, *, asked: bool = False, room_bytes: int = MIB, round_: int = 0) -> list[Append]:
        return self.progress.appends(
            self.journal,
            self.environment.snapshot,
            commit_index=self.commit_index,
            read_round=round_,
            room_bytes=room_bytes,
            now_s=self.now_s,
            asked=asked,
        )

    def beat(self) -> list[Append]:
        """The messages that a heartbeat sends to the follower."""
        if self.progress.overdue(self.now_s) or not self.progress.heartbeat_suffices:
            return self.send(asked=True)
        return []

    def hear(self, reply: AppendReply) -> None:
        self.progress.on_reply(reply, self.journal, self.now_s)


class Outgoing:
    """Collects the messages that a member sends."""

    def __init__(self) -> None:
        self.sent: list[PeerMessage] = []

    def send(self, node: NodeKey, messages: Sequence[PeerMessage]) -> None:
        self.sent += messages

    def room_bytes(self, node: NodeKey) -> int:
        return MIB

    def flush(self) -> None: ...


class Follower:
    """A real member, which receives what the leader sends and answers when that is on disk."""

    def __init__(self, terms: list[int], *, committed: int = 0) -> None:
        self.environment = MemoryEnvironment()
        self.journal = filled(self.environment, terms, replica=2)
        self.full = False
        self._clock = SimulatedClock()
        self._open(committed)

    def _open(self, committed: int) -> None:
        library.bind(self._clock)
        self._peers = Outgoing()
        self._mail = PeerOutbox(self._peers)
        self._member = Member(
            G,
            self.journal,
            applied_index=committed,
            clock=self._clock,
            chance=random.Random(1),
            skew=Skew(self._clock),
            loop_watch=LoopWatch(),
            outbox=self._mail,
            snapshots=lambda: self.environment.snapshot(),
        )

    def hear(self, message: Append) -> None:
        if self.full:
            message = msgspec.structs.replace(message, entries=())
        self._member.receive(1, REPLICAS[0].node, message)

    def sync(self) -> list[AppendReply]:
        write(self.environment, self.journal, 0)
        self._mail.send_later()
        sent, self._peers.sent = self._peers.sent, []
        replies = [one.message for one in sent if isinstance(one, Envelope)]
        assert len(replies) == len(sent)
        return [one for one in replies if isinstance(one, AppendReply)]

    def lose_answers(self) -> None:
        """Drops the answers that the follower has not sent yet."""
        self._mail.withdraw(G)

    def crash(self) -> None:
        self.environment = self.environment.crash()
        with self.environment.snapshot() as snapshot:
            self.journal = Journal.open(snapshot, G, replica=2, replicas=REPLICAS)
        self._open(0)


def filled(environment: MemoryEnvironment, terms: list[int], *, replica: int = 1) -> Journal:
    journal = Journal(G, replica=replica, replicas=REPLICAS)
    for index, term in enumerate(terms, 1):
        journal.setCurrentTerm(term, None)
        journal.add(Stamped(Entry(b"%d" % term), 0), index, term)
    write(environment, journal, 0)
    return journal


def write(environment: MemoryEnvironment, journal: Journal, applied: int) -> None:
    txn = environment.begin()
    journal.flush(txn)
    txn.commit(sync=True)
    journal.synced(applied)


def exchange(leader: Leader, follower: Follower, *, most: int) -> int:
    """Exchanges messages until both logs are the same, over a link without losses; a heartbeat is
    sent when no message is in flight. Returns the number of messages.
    """
    messages = 0
    while not same(leader, follower):
        sent = leader.send() or leader.beat()
        assert sent, "nothing goes on"
        messages += len(sent)
        assert messages <= most, "it does not heal"
        for message in sent:
            follower.hear(message)
        for reply in follower.sync():
            leader.hear(reply)
    return messages


def same(leader: Leader, follower: Follower) -> bool:
    return leader.progress.match == leader.journal.last_index == follower.journal.last_index


def cut_head(leader: Leader, upto: int) -> None:
    """Truncates the head of the log up to and including `upto`."""
    txn = leader.environment.begin()
    leader.journal.flush(txn)
    while leader.journal.first_index <= upto:
        leader.journal.truncate_head(txn, upto + 1, bytes_max=0, whole=True)
    txn.commit(sync=True)
    leader.journal.synced(upto)


def replicating(size: int = 10) -> tuple[Leader, Follower]:
    leader, follower = Leader([1, 1, 1]), Follower([1, 1, 1])
    exchange(leader, follower, most=10)
    assert leader.progress.state is ReplicationState.REPLICATE
    leader.add(size)
    return leader, follower


def test_a_question_when_the_log_has_let_go_of_what_comes_next():
    leader, follower = replicating()
    leader.add(REPLICATION_WINDOW_BYTES)
    for _ in range(10):
        leader.add()
    leader.sync()
    assert leader.send()
    assert leader.progress.next <= leader.journal.last_index, "the window is full"
    cut_head(leader, leader.journal.last_index - 1)
    [question] = leader.send(asked=True, round_=7)
    assert leader.progress.state is ReplicationState.SNAPSHOT
    match = leader.progress.match
    for message in (question, *leader.beat()):
        assert message.entries == ()
        follower.hear(message)
    for reply in follower.sync():
        assert not reply.success
        leader.hear(reply)
    assert (leader.progress.read_round, leader.progress.match) == (7, match)
    assert leader.progress.state is ReplicationState.SNAPSHOT
    assert leader.send() == []


def test_a_damaged_entry_that_is_not_committed_waits_until_it_is_mended():
    leader, follower = replicating()
    exchange(leader, follower, most=10)
    leader.add(LOG_UNAPPLIED_CACHE_BYTES)
    leader.sync()
    index = leader.journal.last_index
    row, rows = ATTACHMENTS.key(G, index, 0), leader.environment._rows
    stored, rows[row] = rows[row], b"damaged"
    assert leader.send() == []
    # The leader asks whether the follower has the entry already.
    [question] = leader.beat()
    assert (question.prev_index, question.entries) == (index, ())
    follower.hear(question)
    for reply in follower.sync():
        leader.hear(reply)
    assert leader.send() == []
    for _ in range(10):
        assert leader.progress.unread is not None
        assert leader.progress.unread.index == leader.progress.unsent == index
        leader.progress.unread = None
        leader.now_s += UNREAD_S
        [question] = leader.beat()
        assert question.entries == ()
        follower.hear(question)
        for reply in follower.sync():
            leader.hear(reply)
    assert leader.progress.state is ReplicationState.PROBE, "no state has it"
    rows[row] = stored
    assert exchange(leader, follower, most=2)
    assert leader.progress.unsent == 0


@pytest.mark.parametrize("size", [10, 100 * KIB, 2 * MIB])
def test_a_follower_that_cannot_write_is_tried_once_a_heartbeat(size):
    leader, follower = replicating(size)
    for _ in range(100):
        leader.add(size)
    leader.sync()
    follower.full = True
    quiet = 0
    while quiet < 2:
        # The messages that were sent before the leader knew may yield up to a window of refusals.
        sent = leader.send()
        quiet = 0 if sent else quiet + 1
        assert leader.progress.sequence < 80
        for message in sent:
            follower.hear(message)
        for reply in follower.sync():
            leader.hear(reply)
    for _ in range(3):
        before = leader.progress.sequence
        tried = [*leader.beat(), *leader.send()]
        assert 1 <= leader.progress.sequence - before <= 2
        assert sum(len(message.entries) for message in tried) >= 1
        assert sum(map(_bytes, tried)) <= max(APPEND_BYTES_MAX, size)
        for message in tried:
            follower.hear(message)
        for reply in follower.sync():
            leader.hear(reply)
        assert leader.send() == []
        for round_ in range(leader.progress.read_round + 1, leader.progress.read_round + 5):
            [question] = leader.send(asked=True, round_=round_)
            assert question.entries == ()
            follower.hear(question)
            leader.hear(follower.sync()[0])
            assert leader.progress.read_round == round_
    follower.full = False
    exchange(leader, follower, most=300)


def _bytes(message: Append) -> int:
    return sum(len(part) for entry in message.entries for part in entry.attachments)


def test_a_follower_that_has_something_else_in_the_place_of_what_it_acknowledged_is_lost():
    leader, follower = replicating()
    exchange(leader, follower, most=10)
    lost = Follower([1, 1, 1, 999, 999])
    leader.progress.interrupted()
    leader.add()
    for _ in range(10):
        for message in leader.send() or leader.beat():
            lost.hear(message)
        for reply in lost.sync():
            leader.hear(reply)
    assert leader.progress.state is ReplicationState.LOST
    assert leader.progress.sequence <= 5


def test_a_follower_that_has_less_than_it_acknowledged_is_lost():
    leader, follower = replicating()
    exchange(leader, follower, most=10)
    lost = Follower([1, 1])
    leader.progress.interrupted()
    for message in leader.send():
        lost.hear(message)
    for reply in lost.sync():
        leader.hear(reply)
    assert leader.progress.state is ReplicationState.LOST
    assert leader.send(asked=True) == []


def test_a_follower_that_is_slow_is_asked_but_not_sent_everything_again_and_again():
    leader, follower = replicating()
    for _ in range(50):
        leader.add(100 * KIB)
    leader.sync()
    flying = leader.send()
    leader.now_s += REPLY_TIMEOUT_S + 1
    again = leader.beat()
    assert sum(len(message.entries) for message in again) >= 1
    for _ in range(10):
        assert [len(message.entries) for message in leader.beat()] == [0]
    for message in (*flying, *again):
        follower.hear(message)
    for reply in follower.sync():
        leader.hear(reply)
    assert leader.progress.match == follower.journal.last_index
    exchange(leader, follower, most=10)


def test_of_a_term_that_both_have_only_what_differs_is_sent():
    leader, follower = Leader([1] * 500 + [3] * 5), Follower([1] * 505)
    [probe] = leader.send()
    assert probe.prev_index == 505
    follower.hear(probe)
    for reply in follower.sync():
        leader.hear(reply)
    assert leader.progress.next == 501
    assert exchange(leader, follower, most=3) == 1


def test_of_several_refusals_in_flight_the_first_counts():
    leader, follower = Leader([3] * 5), Follower([2] * 5)
    for message in (*leader.send(), *leader.send(asked=True), *leader.beat()):
        follower.hear(message)
    replies = follower.sync()
    assert [reply.conflict_term for reply in replies] == [2] * 3
    for reply in replies:
        leader.hear(reply)
    assert (leader.progress.state, leader.progress.next) == (ReplicationState.PROBE, 1)
    exchange(leader, follower, most=2)


def test_who_has_more_than_there_is_room_for_says_so():
    leader, follower = replicating(300 * KIB)
    leader.add(300 * KIB)
    leader.add(900 * KIB)
    leader.sync()
    assert leader.progress.wants_room(leader.journal)
    sent = leader.send(room_bytes=1)
    assert len(sent) == 1
    assert leader.progress.wants_room(leader.journal)
    sent += leader.send()
    assert not leader.progress.wants_room(leader.journal)
    leader.progress.interrupted()
    for _ in range(2):
        [question] = leader.send(asked=True, room_bytes=0)
        assert question.entries == ()
        assert leader.progress.wants_room(leader.journal), "a probe"
    leader.send()
    assert not leader.progress.wants_room(leader.journal)
    for message in sent:
        follower.hear(message)
    for reply in follower.sync():
        leader.hear(reply)
    leader.add(REPLICATION_WINDOW_BYTES)
    leader.add()
    leader.sync()
    exchange(leader, follower, most=10)
    leader.add(REPLICATION_WINDOW_BYTES)
    leader.add()
    leader.sync()
    assert len(leader.send()) == 1
    assert not leader.progress.wants_room(leader.journal), "the window is full"


def _diverged(seed: int, runs: int) -> tuple[list[int], list[int]]:
    """Terms of two logs that are equal up to some point and have `runs` different terms each from
    there.
    """
    chance = random.Random(seed)
    common = sorted(chance.choices(range(1, 50), k=chance.randrange(20)))
    logs: tuple[list[int], list[int]] = ([*common], [*common])
    # One of the two logs has more entries of the last common term.
    logs[chance.randrange(2)].extend(common[-1:] * chance.randrange(8))
    term = 50
    for _ in range(2 * runs):
        term += 1
        # A term belongs to one of the two logs, because it had one leader.
        logs[term % 2].extend([term] * chance.randrange(1, 8))
    return logs


@pytest.mark.parametrize("seed", range(50))
def test_logs_of_many_terms_are_made_one_in_a_step_for_each_term(seed):
    mine, its = _diverged(seed, runs=20)
    leader, follower = Leader(mine), Follower(its)
    messages = exchange(leader, follower, most=60)
    assert messages <= 50
    assert follower.journal.term_at(len(mine)) == leader.journal.term_at(len(mine))


class Replication(RuleBasedStateMachine):
    """`match` is never above what the follower has on disk, and the entries up to it are equal.
    After any faults the log is repaired within a bounded number of messages.
    """

    @initialize(seed=st.integers(0, 1 << 16), runs=st.integers(0, 6))
    def begin(self, seed: int, runs: int) -> None:
        mine, its = _diverged(seed, runs)
        common = sum(1 for one, other in zip(mine, its, strict=False) if one == other)
        self.leader = Leader(mine, committed=common)
        self.follower = Follower(its, committed=common // 2)
        self.there: deque[Append] = deque()
        self.back: deque[AppendReply] = deque()
        self.round = 0

    @rule(count=st.integers(1, 20), size=st.sampled_from([1, 5_000, 300 * KIB]))
    def add(self, count: int, size: int) -> None:
        for _ in range(count):
            self.leader.add(size)
        self.leader.sync()

    @rule(room=st.sampled_from([1, 100 * KIB, MIB]))
    def send(self, room: int) -> None:
        self.there += self.leader.send(room_bytes=room, round_=self.round)

    @rule(room=st.sampled_from([0, MIB]))
    def read(self, room: int) -> None:
        self.round += 1
        self.there += self.leader.send(asked=True, room_bytes=room, round_=self.round)

    @rule(seconds=st.sampled_from([0.35, 3.0]))
    def beat(self, seconds: float) -> None:
        self.leader.now_s += seconds
        self.there += self.leader.beat()

    @precondition(lambda self: self.there)
    @rule(most=st.integers(1, 5))
    def arrive(self, most: int) -> None:
        for _ in range(min(most, len(self.there))):
            self.follower.hear(self.there.popleft())

    @rule()
    def follower_syncs(self) -> None:
        self.back += self.follower.sync()

    @precondition(lambda self: self.back)
    @rule(most=st.integers(1, 5))
    def answer(self, most: int) -> None:
        for _ in range(min(most, len(self.back))):
            self.leader.hear(self.back.popleft())

    @rule()
    def commit(self) -> None:
        self.leader.commit_index = max(self.leader.commit_index, self.leader.progress.match)

    @rule()
    def reconnect(self) -> None:
        self.there.clear()
        self.back.clear()
        self.follower.lose_answers()
        self.leader.progress.interrupted()

    @rule()
    def follower_crashes(self) -> None:
        self.reconnect()
        self.follower.crash()

    @rule(full=st.booleans())
    def disk(self, full: bool) -> None:
        self.follower.full = full

    @precondition(lambda self: self.leader.commit_index > self.leader.journal.first_index)
    @rule(data=st.data())
    def cut(self, data: Any) -> None:
        first = self.leader.journal.first_index
        cut_head(self.leader, data.draw(st.integers(first, self.leader.commit_index - 1)))

    @invariant()
    def what_is_counted_is_on_disk(self) -> None:
        progress, mine = self.leader.progress, self.leader.journal
        with self.follower.environment.snapshot() as snapshot:
            stored = Journal.open(snapshot, G)
        assert progress.match <= stored.last_index
        assert progress.match < progress.next
        if progress.match >= mine.first_index - 1:
            assert stored.term_at(progress.match) == mine.term_at(progress.match)
        assert progress.state is not ReplicationState.LOST
        assert progress.read_round <= self.round

    def teardown(self) -> None:
        if not hasattr(self, "leader"):
            return
        self.reconnect()
        self.follower.full = False
        for _ in range(200):
            leader, follower = self.leader, self.follower
            if same(leader, follower):
                break
            if leader.progress.state is ReplicationState.SNAPSHOT:
                assert leader.progress.next < leader.journal.first_index
                break
            for message in leader.send() or leader.beat():
                follower.hear(message)
            for reply in follower.sync():
                leader.hear(reply)
        else:
            raise AssertionError("it does not heal")


TestReplication = Replication.TestCase
TestReplication.settings = settings(max_examples=60)
