"""One replica of a Raft group: PySyncObj's class with everything but its terms, states and commit
rule taken out.

What the library still does: terms and votes, the states follower, candidate and leader,
the no-op of a new leader, the leader's commit rule (an entry is committed when a majority has it on
disk and it is of the leader's own term; Ongaro, section 3.6.2), and a leader's stepping down when
no majority answers it (section 6.2).

`raft.stock` says what it never does here.

Order in a turn. The library counts its own log in the commit rule as soon as an entry is in
memory. A group with one voter may use that: append, tick (commits up to the end of the open
transaction), apply, sync, and only then answer. With more voters an entry must be durable before
the tick that counts it: deliver, tick, append, send, sync. `tick` asserts it.
"""

import math
import random
from typing import Final

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.raft import configuration
from querator.raft.clock import Clock
from querator.raft.following import Diverged, place, take
from querator.raft.journal import Journal, Snapshots, Stamped
from querator.raft.library import CANDIDATE, FOLLOWER, Node
from querator.raft.mail import Mail
from querator.raft.messages import (
    Append,
    AppendReply,
    Beat,
    Envelope,
    GroupMessage,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from querator.raft.replication import Progress, entries_bytes
from querator.raft.skew import Skew
from querator.raft.stock import Stock

_FIRST_ELECTION_S: Final = 0.05
"""The replica that is preferred in a new group stands after this."""
_LEADER_GONE_S: Final = 0.25
"""When the connection to the leader breaks, its followers stand within this."""
_WAIVED_MAX: Final = 10
"""Elections in a row that a replica on a node with a wrong clock leaves to the others. Those may
lack what it has, and then nobody else can lead.
"""
_AGAIN_S: Final = (0.15, 0.6)
"""An election that came to nothing is tried again after between so many seconds."""

_TOGETHER_S: Final = 0.1
"""Groups that want to be looked at by and by are looked at together, at multiples of this."""
_TOGETHER_AHEAD_S: Final = 0.5


class Member(Stock):
    """The thread must be bound to `clock` (`library.bind`). `chance` draws election timeouts."""

    def __init__(
        self,
        group: GroupId,
        journal: Journal,
        *,
        applied_index: int,
        clock: Clock,
        chance: random.Random,
        skew: Skew,
        mail: Mail,
        snapshots: Snapshots,
    ) -> None:
        self.group = group
        self.id = journal.replica
        self._journal = journal
        self._clock = clock
        self._chance = chance
        self._skew = skew
        self._mail = mail
        self._snapshots = snapshots
        self.progress: dict[int, Progress] = {}
        """While it leads: of every other replica."""
        self._voters: frozenset[int] = frozenset()
        self._nodes: dict[int, NodeKey] = {}
        self._votes: set[int] = set()
        self._pre_votes: set[int] | None = None
        """Who would vote for it in the next term; None when it does not ask."""
        self._waived = 0
        self._stands = False
        """Whether the next tick may begin an election."""
        self._transferred = False
        self._heard_s = float("-inf")
        self.read_round = 0
        super().__init__(self.id, self._request_vote)
        assert applied_index <= journal.last_index
        self._SyncObj__raftLog = journal
        self._SyncObj__raftCurrentTerm = journal.getCurrentTerm()
        self._SyncObj__votedForNodeId = journal.getVotedForNodeId()
        self._SyncObj__raftCommitIndex = applied_index
        self._SyncObj__raftLastApplied = applied_index
        self.reconfigured()
        self._SyncObj__raftElectionDeadline = self._first_deadline()

    def _first_deadline(self) -> float:
        """Nobody else could lead: a lone voter stands with its first tick. In a new group one
        replica goes before the others.
        """
        if self.alone:
            return float("-inf")
        now_s = self._clock.monotonic_s()
        order = sorted(self._voters)
        if self.id in order and self._journal.last_index == 0:
            if order[self.group % len(order)] == self.id:
                return now_s + _FIRST_ELECTION_S
        return now_s + self._SyncObj__generateRaftTimeout()

    # --- what it is ----------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return bool(self._isLeader())

    @property
    def term(self) -> int:
        return int(self.raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        return int(self.raftCommitIndex)

    @property
    def votes(self) -> bool:
        """Whether it is a voter, by its present configuration."""
        return self.id in self._voters

    @property
    def alone(self) -> bool:
        """Whether it is the only voter."""
        return len(self._voters) == 1 and self.id in self._voters

    def office_index(self) -> int:
        """Index of the no-op of the own term; a leader is in office when it is applied."""
        assert self.leads
        index: int = self._SyncObj__noopIDx
        return index

    @property
    def leader(self) -> int | None:
        """Replica id of the leader as far as this member knows."""
        node = self._getLeader()
        return None if node is None else int(node.id)

    @property
    def leader_node(self) -> NodeKey | None:
        leader = self.leader
        return None if leader is None else self._nodes.get(leader)

    def node_of(self, replica: int) -> NodeKey:
        return self._nodes[replica]

    def has_replica_on(self, node: NodeKey) -> bool:
        return node in self._nodes.values()

    @property
    def wake_s(self) -> float | None:
        """When it wants a tick if nothing happens before, by the monotonic clock."""
        if self.alone and self.leads:
            return None
        now_s = self._clock.monotonic_s()
        if self.leads:
            return _together(now_s + self._getConf().raftMinTimeout / 2)
        if not self.votes:
            return None
        deadline: float = self._SyncObj__raftElectionDeadline
        # It is moved on by each heartbeat: most looks at it find nothing to do.
        return _together(deadline) if deadline > now_s + _TOGETHER_AHEAD_S else deadline

    # --- what the turn calls -------------------------------------------------------

    def append(self, stamped: Stamped) -> int:
        """Puts an entry into the log and returns its index. Only the leader's member."""
        assert self.leads
        index = self._journal.last_index + 1
        self._journal.add(stamped, index, self.term)
        return index

    def reconfigure(self, change: configuration.Change) -> int:
        """Appends the configuration that the change makes; its index."""
        assert self.leads
        index = self._journal.add_configuration(
            configuration.changed(self._journal.replicas, change)
        )
        self.reconfigured()
        return index

    def reconfigured(self) -> None:
        """The journal has another configuration in force."""
        replicas = self._journal.replicas
        self._nodes = {replica.id: replica.node for replica in replicas}
        self._voters = configuration.voters(replicas)
        others = {Node(id_) for id_ in self._voters if id_ != self.id}
        self._SyncObj__otherNodes = others
        if not self.leads:
            return
        now_s = self._clock.monotonic_s()
        for id_ in self._nodes:
            if id_ != self.id and id_ not in self.progress:
                self.progress[id_] = Progress(last_index=self._journal.last_index, now_s=now_s)
        for id_ in [id_ for id_ in self.progress if id_ not in self._nodes]:
            del self.progress[id_]
        self._show_progress()

    def _show_progress(self) -> None:
        """What the library's commit rule and check of the majority look at."""
        self._SyncObj__raftMatchIndex = {
            node: self.progress[int(node.id)].match for node in self._SyncObj__otherNodes
        }
        self._SyncObj__lastResponseTime = {
            node: self.progress[int(node.id)].heard_s for node in self._SyncObj__otherNodes
        }

    def tick(self) -> None:
        """Once per turn: elections, and the commit index."""
        term, commit = self.term, self.commit_index
        if self.leads:
            self._show_progress()
        elif self._SyncObj__raftElectionDeadline < self._clock.monotonic_s():
            self._ask_before_election()
        led = self.leads
        self.doTick(0.0)
        if self.term > term:
            self._votes = {self.id}
        elif led and not self.leads:
            # No majority answers.
            self._become_follower()
            self._set_deadline()
        self._stands = False
        assert self.term >= term
        assert commit <= self.commit_index <= self._journal.last_index
        assert self.alone or self.commit_index <= max(self._journal.durable_index, commit)

    def applied(self, index: int) -> None:
        """Entries up to `index` are applied in the open transaction."""
        assert self._SyncObj__raftLastApplied <= index <= self.commit_index
        self._SyncObj__raftLastApplied = index

    def installed(self, index: int) -> None:
        """The log and the state are those of a snapshot at `index`."""
        assert not self.leads
        assert index > self.commit_index
        self._become_follower()
        self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied = index
        self.reconfigured()

    def commit_to(self, index: int) -> None:
        """Entries up to there are committed, and in the log."""
        if index > self.commit_index:
            assert index <= self._journal.last_index
            self._SyncObj__raftCommitIndex = index

    def send_appends(self, *, asked: frozenset[int] = frozenset()) -> None:
        """Sends what the followers are to have; to those in `asked` one message at least."""
        assert self.leads
        now_s = self._clock.monotonic_s()
        # Nothing that follows from the open transaction may be known outside before its sync.
        commit_index = min(self.commit_index, self._journal.durable_index)
        # A lone voter is elected in the turn in which it appends: the term is not on disk yet.
        post = self._mail.later if self.alone else self._mail.now
        for id_, progress in self.progress.items():
            node = self._nodes[id_]
            room_bytes = self._mail.room_bytes(node)
            if room_bytes > 0 or id_ in asked:
                messages = progress.appends(
                    self._journal,
                    self._snapshots,
                    commit_index=commit_index,
                    read_round=self.read_round,
                    room_bytes=room_bytes,
                    now_s=now_s,
                    asked=id_ in asked,
                )
                for message in messages:
                    size = entries_bytes(message.entries)
                    post(node, Envelope(self.group, id_, self.id, message), bytes_=size)
            if progress.wants_room(self._journal):
                self._mail.finds_no_room(node, self.group)

    def ask_all(self) -> int:
        """Begins a round of reads: every voter is asked for an answer; its number."""
        self.read_round += 1
        self.send_appends(asked=frozenset(self.progress) & self._voters)
        return self.read_round

    def answered(self, round_: int) -> bool:
        """Whether a majority of the voters has answered a message of the round, or of a later one,
        in this term.
        """
        count = 1 if self.votes else 0
        count += sum(
            progress.read_round >= round_
            for id_, progress in self.progress.items()
            if id_ in self._voters
        )
        return count > len(self._voters) / 2

    # --- transfer (Ongaro, section 3.10) -----------------------------------------------

    def may_lead(self, replica: int) -> bool:
        """Whether the replica has all of the log."""
        progress = self.progress.get(replica)
        return (
            progress is not None
            and replica in self._voters
            and progress.match == self._journal.last_index
        )

    def hand_to(self, replica: int) -> None:
        """Tells the replica to stand for election at once."""
        assert self.may_lead(replica)
        self._send(replica, TimeoutNow(self.term))

    # --- heartbeats ----------------------------------------------------------------

    def beats(self) -> list[tuple[NodeKey, Beat]]:
        """The heartbeat of each follower whose log is known; the others get a message each."""
        now_s = self._clock.monotonic_s()
        commit_index = min(self.commit_index, self._journal.durable_index)
        beats = []
        asked = set()
        for id_, progress in self.progress.items():
            if progress.overdue(now_s) or not progress.beats:
                asked.add(id_)
                continue
            commit = min(commit_index, progress.match)
            beats.append((self._nodes[id_], Beat(self.group, id_, self.id, self.term, commit)))
        if asked:
            self.send_appends(asked=frozenset(asked))
        return beats

    def on_beat(self, beat: Beat) -> int | None:
        """Follows the leader; None, or the term to refuse the beat with."""
        if beat.term < self.term:
            return self.term
        self._follow(beat.term, beat.sender)
        if beat.commit_index > self._journal.last_index:
            return beat.term
        self.commit_to(beat.commit_index)
        return None

    def on_beat_followed(self, replica: int, term: int) -> None:
        progress = self.progress.get(replica)
        if self.leads and term == self.term and progress is not None:
            progress.heard_s = self._clock.monotonic_s()

    def on_beat_refused(self, replica: int, term: int) -> None:
        if term > self.term:
            self._step_down(term)
        elif self.leads and term == self.term and replica in self.progress:
            self.progress[replica].lost()

    # --- connections ---------------------------------------------------------------

    def on_connection(self, node: NodeKey, *, up: bool) -> None:
        """A connection came up, or broke: messages on their way are lost."""
        for id_, progress in self.progress.items():
            if self._nodes.get(id_) == node:
                progress.interrupted()
        if not up and not self.leads and self.leader_node == node:
            # Its process may be gone. If it is not, the others will say that they hear it.
            self._heard_s = float("-inf")
            self._SyncObj__raftElectionDeadline = min(
                self._SyncObj__raftElectionDeadline,
                self._clock.monotonic_s() + _LEADER_GONE_S * self._chance.random(),
            )

    # --- messages ------------------------------------------------------------------

    def receive(self, sender: int, node: NodeKey, message: GroupMessage) -> None:
        """A message of another replica that is on `node`. Raises Diverged, StorageCorrupt."""
        if self._nodes.get(sender, node) != node:
            # Another incarnation of that node: it is not the replica that it says.
            return
        match message:
            case Append():
                self._on_append(sender, node, message)
            case AppendReply():
                self._on_append_reply(sender, message)
            case RequestVote():
                self._on_request_vote(sender, node, message)
            case VoteReply():
                self._on_vote_reply(sender, message)
            case TimeoutNow():
                self._on_timeout_now(sender, message)

    def _on_append(self, sender: int, node: NodeKey, message: Append) -> None:
        if message.term < self.term:
            self._reply(sender, node, message, AppendReply(self.term, 0, 0, False, 0))
            return
        self._follow(message.term, sender)
        refusal = place(self._journal, message, self.commit_index)
        if refusal is not None:
            index, conflict_term = refusal
            success = False
        else:
            conflict_term = 0
            before = self._journal.replicas
            take(self._journal, self._snapshots, message, self.commit_index)
            if self._journal.replicas is not before:
                self.reconfigured()
            index, success = message.prev_index + len(message.entries), True
            self.commit_to(min(message.commit_index, index))
        reply = AppendReply(
            self.term, message.sequence, message.read_round, success, index, conflict_term
        )
        self._reply(sender, node, message, reply)

    def _on_append_reply(self, sender: int, reply: AppendReply) -> None:
        if reply.term > self.term:
            self._step_down(reply.term)
        progress = self.progress.get(sender)
        if self.leads and reply.term == self.term and progress is not None:
            progress.on_reply(reply, self._journal, self._clock.monotonic_s())

    def follows(self, sender: int, node: NodeKey, term: int) -> bool:
        """Whether what the sender says as the leader of a term is to be heard; then it is
        recognised. Raises Diverged.
        """
        if self._nodes.get(sender, node) != node or term < self.term:
            return False
        self._follow(term, sender)
        return True

    def _follow(self, term: int, leader: int) -> None:
        """Recognises the leader of a term that is not below the own."""
        if term == self.term and self.leads:
            raise Diverged(f"replica {leader} leads in term {term} as well")
        # What it sent right behind `TimeoutNow` does not take that back.
        told = self._stands and self._transferred and term == self.term
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
        self._become_follower()
        self._waived = 0
        self._SyncObj__raftLeader = Node(leader)
        self._heard_s = self._clock.monotonic_s()
        self._set_deadline()
        if told:
            self._transferred = True
            self._stand()

    def _become_follower(self) -> None:
        self._SyncObj__setState(FOLLOWER)
        self.progress.clear()
        self._pre_votes = None
        self._votes.clear()
        self._stands = self._transferred = False

    def _step_down(self, term: int) -> None:
        """There is a higher term."""
        assert term > self.term
        led = self.leads
        self._SyncObj__setCurrentTerm(term, None)
        self._become_follower()
        self._SyncObj__raftLeader = None
        if led:
            self._set_deadline()

    # --- elections -----------------------------------------------------------------

    def _ask_before_election(self) -> None:
        """The election timeout is over: asks the voters whether they would vote (pre-vote)."""
        if not self.votes:
            return
        if self.alone or self._stands:
            self._stands = True
            return
        self._SyncObj__raftElectionDeadline = self._clock.monotonic_s() + self._again_s()
        self._SyncObj__raftLeader = None
        if self._skew.beyond and self._waived < _WAIVED_MAX:
            self._waived += 1
            return
        # A candidate stays one: votes of its last election may yet come.
        self._pre_votes = {self.id}
        self._transferred = False
        for id_ in sorted(self._voters - {self.id}):
            self._request_vote(id_, pre=True)

    def _again_s(self) -> float:
        least, most = _AGAIN_S
        return least + (most - least) * self._chance.random()

    def _set_deadline(self) -> None:
        timeout_s = self._SyncObj__generateRaftTimeout()
        self._SyncObj__raftElectionDeadline = self._clock.monotonic_s() + timeout_s

    def _request_vote(self, voter: int, *, pre: bool = False) -> None:
        request = RequestVote(
            term=self.term + 1 if pre else self.term,
            last_index=self._journal.last_index,
            last_term=self._journal.last_term,
            pre=pre,
            transfer=self._transferred,
        )
        self._send(voter, request)

    def _on_request_vote(self, sender: int, node: NodeKey, request: RequestVote) -> None:
        heard = self._clock.monotonic_s() - self._heard_s < self._getConf().raftMinTimeout
        follows = self.leads or (heard and self.leader != sender)
        if follows and not request.transfer:
            if request.pre:
                self._answer_vote(sender, node, VoteReply(self.term, False, request.pre))
            return
        journal = self._journal
        complete = (request.last_term, request.last_index) >= (
            journal.last_term,
            journal.last_index,
        )
        if request.pre:
            granted = complete and request.term > self.term
            term = request.term if granted else self.term
            self._answer_vote(sender, node, VoteReply(term, granted, True))
            return
        if request.term > self.term:
            self._step_down(request.term)
        vote = self._SyncObj__votedForNodeId
        granted = request.term == self.term and complete and vote in (None, sender)
        if granted:
            self._SyncObj__setCurrentTerm(self.term, sender)
            self._set_deadline()
        self._answer_vote(sender, node, VoteReply(self.term, granted))

    def _on_vote_reply(self, sender: int, reply: VoteReply) -> None:
        if not reply.granted:
            if reply.term > self.term:
                self._step_down(reply.term)
            return
        if sender not in self._voters:
            return
        if reply.pre:
            if self._pre_votes is None or reply.term != self.term + 1:
                return
            self._pre_votes.add(sender)
            if self._is_majority(self._pre_votes):
                self._stand()
        elif self._SyncObj__raftState == CANDIDATE and reply.term == self.term:
            self._votes.add(sender)
            if self._is_majority(self._votes):
                self._SyncObj__onBecomeLeader()

    def _is_majority(self, ids: set[int]) -> bool:
        return len(ids & self._voters) > len(self._voters) / 2

    def _stand(self) -> None:
        """The next tick begins an election."""
        self._pre_votes = None
        self._stands = True
        self._SyncObj__raftElectionDeadline = float("-inf")

    def _on_timeout_now(self, sender: int, message: TimeoutNow) -> None:
        leader = message.term == self.term and self.leader == sender
        if leader and self.votes and not self._skew.beyond:
            self._transferred = True
            self._stand()

    # --- on the way out ------------------------------------------------------------

    def _send(self, replica: int, message: GroupMessage) -> None:
        self._mail.later(self._nodes[replica], Envelope(self.group, replica, self.id, message))

    def _answer_vote(self, sender: int, node: NodeKey, reply: VoteReply) -> None:
        self._mail.later(node, Envelope(self.group, sender, self.id, reply))

    def _reply(self, sender: int, node: NodeKey, message: Append, reply: AppendReply) -> None:
        self._mail.acknowledge(node, Envelope(self.group, sender, self.id, reply))

    # --- what the library calls, replaced ---------------------------------------------

    def _SyncObj__onBecomeLeader(self) -> None:
        now_s = self._clock.monotonic_s()
        last_index = self._journal.last_index
        self.progress = {
            id_: Progress(last_index=last_index, now_s=now_s)
            for id_ in self._nodes
            if id_ != self.id
        }
        self.read_round = 0
        self._pre_votes = None
        self._transferred = False
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__generateRaftTimeout(self) -> float:
        conf = self._getConf()
        if self._stands:
            return self._again_s()
        spread: float = conf.raftMaxTimeout - conf.raftMinTimeout
        return float(conf.raftMinTimeout) + spread * self._chance.random()

    def _SyncObj__connectedToAnyone(self) -> bool:
        """The gate of an election."""
        return self._stands

    def _SyncObj__sendAppendEntries(self) -> None:
        """Sent by the turn, after the tick."""
        self._SyncObj__newAppendEntriesTime = float("inf")


def _together(instant_s: float) -> float:
    return math.ceil(instant_s / _TOGETHER_S) * _TOGETHER_S
