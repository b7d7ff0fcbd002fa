"""The part of a replica that votes and stands for election (Ongaro, sections 3.4, 4.2.3 and 9.6).

    asks before      when no leader is heard for the election timeout: would a majority vote for
                     it in the next term? No replica changes anything because of the question
    stands           when a majority would, or the leader has asked for it: the next tick begins
                     an election, in a new term
    votes            once in a term, for a candidate whose log is as complete as its own; never
                     while it leads or has lately heard a leader, unless the leader asked for it
    waits            when its wall clock is not believed (`raft.consensus.skew`): for some
                     elections, which the others may win, or, when there are no others, until the
                     clock is believed; and for some elections as well while its node's event
                     loop hangs (`raft.consensus.loop_watch`), or while it has many committed
                     entries to apply, because it would not serve before that
    follows          any replica that shows that it leads, in its own term or a later one

A replica also answers candidates that its own configuration does not name, because that
configuration may be older than the candidate's. As a candidate it counts only the votes of voters
in its own configuration. A message that promises a vote leaves after the sync (`raft.peer_outbox`).
"""

import random
from typing import Final

from querator import telemetry
from querator.model.ids import GroupId
from querator.model.limits import UNAPPLIED_ENTRIES_MAX
from querator.model.nodes import NodeKey
from querator.raft import configuration
from querator.raft.clock import Clock
from querator.raft.consensus.log_matching import Diverged
from querator.raft.consensus.loop_watch import LoopWatch
from querator.raft.consensus.skew import Skew
from querator.raft.engine.engine import PySyncObjEngine
from querator.raft.engine.library import CANDIDATE, FOLLOWER, LEADER, Node
from querator.raft.log.journal import Journal
from querator.raft.messages import Envelope, GroupMessage, RequestVote, TimeoutNow, VoteReply
from querator.raft.peer_outbox import PeerOutbox

_log = telemetry.logger(__name__)

_FIRST_ELECTION_S: Final = 0.05
"""The preferred replica in a new group stands after this."""
_LEADER_GONE_S: Final = 0.25
"""When the connection to the leader breaks, its followers stand within this."""
_SKIPPED_ELECTIONS_MAX: Final = 10
"""Elections in a row that an unfit replica leaves to the others. They may lack entries that it has,
and then none of them can lead: it stands, and hands over to a replica that it has brought up to
date.
"""
_AGAIN_S: Final = (0.15, 0.6)
"""A failed election is repeated after between these numbers of seconds."""
_HINT: Final = (
    "the wall clock is far ahead of the data and no majority of clocks agrees with it: set the "
    "clock; or, if it is right, start the node with --trust-clock"
)
_LOOK_AT_CLOCK_S: Final = 1.0
"""A lone voter whose clock is not believed checks it again after this."""


class Voter(PySyncObjEngine):
    """A voting replica. The thread must be bound to `clock` (`library.bind`). `chance` draws
    election timeouts.
    """

    def __init__(
        self,
        group: GroupId,
        journal: Journal,
        *,
        clock: Clock,
        chance: random.Random,
        skew: Skew,
        loop_watch: LoopWatch,
        outbox: PeerOutbox,
    ) -> None:
        self.group = group
        self.id = journal.replica
        self._journal = journal
        self._clock = clock
        self._chance = chance
        self._skew = skew
        self._loop_watch = loop_watch
        self._outbox = outbox
        self._voters: frozenset[int] = frozenset()
        self.is_only_voter = False
        """Whether it is the only voter, by its present configuration."""
        self._nodes: dict[int, NodeKey] = {}
        self.other_voters: tuple[NodeKey, ...] = ()
        """Nodes of the other voters."""
        self.waits_for_clock = False
        """Whether it does not stand because its wall clock is not believed."""
        self._votes: set[int] = set()
        self._pre_votes: set[int] | None = None
        """Replicas that would vote for it in the next term; None when it does not ask."""
        self._skipped_elections = 0
        self._may_campaign = False
        """Whether the next tick may begin an election."""
        self._transferred = False
        self._asks_until_s = float("-inf")
        """Until when messages of its leader do not end the questions that it caused."""
        self._heard_s = float("-inf")
        super().__init__(self.id, self._request_vote)
        self._SyncObj__raftLog = journal
        self._SyncObj__raftCurrentTerm = journal.getCurrentTerm()
        self._SyncObj__votedForNodeId = journal.getVotedForNodeId()
        self.reconfigured()
        self._SyncObj__raftElectionDeadline = self._first_deadline()

    def _first_deadline(self) -> float:
        """The first election deadline. A lone voter stands with its first tick, because no other
        replica could lead. In a new group one replica goes before the others.
        """
        if self.is_only_voter:
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
        state: int = self._SyncObj__raftState
        return state == LEADER

    @property
    def term(self) -> int:
        term: int = self._SyncObj__raftCurrentTerm
        return term

    @property
    def commit_index(self) -> int:
        index: int = self._SyncObj__raftCommitIndex
        return index

    @property
    def votes(self) -> bool:
        """Whether it is a voter, by its present configuration."""
        return self.id in self._voters

    @property
    def leader(self) -> int | None:
        """Replica id of the leader as far as this member knows."""
        node = self._SyncObj__raftLeader
        return None if node is None else int(node.id)

    @property
    def leader_node(self) -> NodeKey | None:
        leader = self.leader
        return None if leader is None else self._nodes.get(leader)

    def node_of(self, replica: int) -> NodeKey:
        return self._nodes[replica]

    def has_replica_on(self, node: NodeKey) -> bool:
        return node in self._nodes.values()

    # --- configuration, term and leader ---------------------------------------------

    def reconfigured(self) -> None:
        """Called when another configuration of the journal takes effect."""
        replicas = self._journal.replicas
        self._nodes = {replica.id: replica.node for replica in replicas}
        self._voters = configuration.voters(replicas)
        self.is_only_voter = self._voters == {self.id}
        others = {Node(id_) for id_ in self._voters if id_ != self.id}
        self._SyncObj__otherNodes = others
        self.other_voters = tuple(self._nodes[id_] for id_ in sorted(self._voters - {self.id}))
        own = self._nodes.get(self.id)
        self._skew.of_group(self.group, set(self._nodes.values()) - {own})

    def _hears(self, term: int, leader: int, now_s: float) -> bool:
        """Whether this is the leader that the replica follows in the term, with no election under
        way; if so, it counts as heard.
        """
        followed = self._SyncObj__raftLeader
        if (
            self._SyncObj__raftState != FOLLOWER
            or self._SyncObj__raftCurrentTerm != term
            or self._may_campaign
            or self._pre_votes is not None
            or followed is None
            or followed.id != leader
        ):
            return False
        self._skipped_elections = 0
        self._heard_s = now_s
        self._set_deadline(now_s)
        return True

    def _follow(self, term: int, leader: int) -> None:
        """Recognises the leader of a term that is not below the own term."""
        now_s = self._clock.monotonic_s()
        if self._hears(term, leader, now_s):
            return
        if term == self.term and self.leads:
            raise Diverged(f"replica {leader} leads in term {term} as well")
        # A message that the leader sent right after `TimeoutNow` does not cancel that.
        told = self._may_campaign and self._transferred and term == self.term
        asks = self._pre_votes if self._transferred and term == self.term else None
        self.waits_for_clock = False
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
        self._become_follower()
        self._skipped_elections = 0
        self._SyncObj__raftLeader = Node(leader)
        self._heard_s = now_s
        self._set_deadline(now_s)
        if told:
            self._transferred = True
            self._stand()
        elif asks is not None and now_s < self._asks_until_s:
            self._transferred = True
            self._pre_votes = asks

    def _become_follower(self) -> None:
        self._SyncObj__setState(FOLLOWER)
        self._pre_votes = None
        self._votes.clear()
        self._may_campaign = self._transferred = False

    def _step_down(self, term: int) -> None:
        """Adopts a higher term."""
        assert term > self.term
        led = self.leads
        self._SyncObj__setCurrentTerm(term, None)
        self._become_follower()
        self._SyncObj__raftLeader = None
        if led:
            self._set_deadline(self._clock.monotonic_s())

    def _leader_gone(self) -> None:
        """The leader's process may have ended. If it has not, the other voters will answer that
        they hear it.
        """
        self._heard_s = float("-inf")
        self._SyncObj__raftElectionDeadline = min(
            self._SyncObj__raftElectionDeadline,
            self._clock.monotonic_s() + _LEADER_GONE_S * self._chance.random(),
        )

    # --- elections -----------------------------------------------------------------

    def _ask_before_election(self) -> None:
        """The election timeout is over: asks the voters whether they would vote (pre-vote)."""
        if not self.votes:
            # A replica that is no voter does not ask. The next leader will send it messages.
            self._SyncObj__raftLeader = None
            return
        if self.is_only_voter and not self._clock_allows():
            self._SyncObj__raftElectionDeadline = self._clock.monotonic_s() + _LOOK_AT_CLOCK_S
            return
        if self.is_only_voter or self._may_campaign:
            self._may_campaign = True
            return
        self._SyncObj__raftElectionDeadline = self._clock.monotonic_s() + self._again_s()
        self._SyncObj__raftLeader = None
        if self._unfit and self._skipped_elections < _SKIPPED_ELECTIONS_MAX:
            self._skipped_elections += 1
            return
        # A candidate stays a candidate: votes of its last election may still arrive.
        self._transferred = False
        self._ask_voters()

    def _ask_voters(self) -> None:
        self._pre_votes = {self.id}
        for id_ in sorted(self._voters - {self.id}):
            self._request_vote(id_, pre=True)

    @property
    def _unfit(self) -> bool:
        """Whether it leads only when no other replica can."""
        unapplied = self.commit_index - self._SyncObj__raftLastApplied
        return (
            self._skew.clock_is_wrong or self._loop_watch.hangs or unapplied > UNAPPLIED_ENTRIES_MAX
        )

    def _clock_allows(self) -> bool:
        """Whether the wall clock allows it to stand. While too few other clocks have been heard,
        it does not, but nothing is known against the clock.
        """
        last_ms = self._journal.last_ms
        begins_alone = not (last_ms or self.other_voters)
        waits = not begins_alone and not self._skew.believes(self.other_voters, last_ms)
        if waits and not self._skew.knows(self.other_voters):
            return False
        if waits and not self.waits_for_clock:
            ahead_ms = self._clock.wall_ms() - last_ms
            _log.error("clock.rejected", group=self.group, ahead_of_log_ms=ahead_ms, hint=_HINT)
        elif self.waits_for_clock and not waits:
            _log.info("clock.accepted", group=self.group)
        self.waits_for_clock = waits
        return not waits

    def _again_s(self) -> float:
        least, most = _AGAIN_S
        return least + (most - least) * self._chance.random()

    def _set_deadline(self, now_s: float) -> None:
        self._SyncObj__raftElectionDeadline = now_s + self._SyncObj__generateRaftTimeout()

    def _request_vote(self, voter: int, *, pre: bool = False) -> None:
        request = RequestVote(
            term=self.term + 1 if pre else self.term,
            last_index=self._journal.last_index,
            last_term=self._journal.last_term,
            pre=pre,
            transfer=self._transferred,
            wall_ms=self._clock.wall_ms(),
        )
        self._send(voter, request)

    def _on_request_vote(self, sender: int, node: NodeKey, request: RequestVote) -> None:
        heard = self._clock.monotonic_s() - self._heard_s < self._getConf().raftMinTimeout
        follows = self.leads or (heard and self.leader != sender)
        if follows and not request.transfer:
            if request.pre:
                self._answer_vote(sender, node, self.term, granted=False, pre=True)
            return
        journal = self._journal
        complete = (request.last_term, request.last_index) >= (
            journal.last_term,
            journal.last_index,
        )
        if request.pre:
            granted = complete and request.term > self.term
            term = request.term if granted else self.term
            self._answer_vote(sender, node, term, granted=granted, pre=True)
            return
        if request.term > self.term:
            self._step_down(request.term)
        vote = self._SyncObj__votedForNodeId
        granted = request.term == self.term and complete and vote in (None, sender)
        if granted:
            self._SyncObj__setCurrentTerm(self.term, sender)
            self._set_deadline(self._clock.monotonic_s())
        self._answer_vote(sender, node, self.term, granted=granted)

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
            if not self._is_majority(self._pre_votes):
                return
            if self._clock_allows() or self._skipped_elections >= _SKIPPED_ELECTIONS_MAX:
                self._stand()
            else:
                # It asks again with the next deadline.
                self._skipped_elections += 1
                self._pre_votes = None
        elif self._SyncObj__raftState == CANDIDATE and reply.term == self.term:
            self._votes.add(sender)
            if self._is_majority(self._votes):
                self._SyncObj__onBecomeLeader()

    def _is_majority(self, ids: set[int]) -> bool:
        return len(ids & self._voters) > len(self._voters) / 2

    def _stand(self) -> None:
        """Lets the next tick begin an election."""
        self._pre_votes = None
        self._may_campaign = True
        self._SyncObj__raftElectionDeadline = float("-inf")

    def _on_timeout_now(self, sender: int, message: TimeoutNow) -> None:
        leader = message.term == self.term and self.leader == sender
        if not leader or not self.votes or self._unfit:
            return
        if self._clock_allows():
            self._transferred = True
            self._stand()
        elif not self._skew.knows(self.other_voters):
            # Its node has just started. The answers carry the other clocks.
            self._transferred = True
            self._asks_until_s = self._clock.monotonic_s() + self._getConf().raftMinTimeout
            self._ask_voters()

    # --- on the way out ------------------------------------------------------------

    def _send(self, replica: int, message: GroupMessage) -> None:
        self._outbox.later(self._nodes[replica], Envelope(self.group, replica, self.id, message))

    def _answer_vote(
        self, sender: int, node: NodeKey, term: int, *, granted: bool, pre: bool = False
    ) -> None:
        reply = VoteReply(term, granted, pre, self._clock.wall_ms())
        self._outbox.later(node, Envelope(self.group, sender, self.id, reply))

    # --- what the library calls, replaced ---------------------------------------------

    def _SyncObj__generateRaftTimeout(self) -> float:
        conf = self._getConf()
        if self._may_campaign:
            return self._again_s()
        spread: float = conf.raftMaxTimeout - conf.raftMinTimeout
        return float(conf.raftMinTimeout) + spread * self._chance.random()

    def _SyncObj__connectedToAnyone(self) -> bool:
        """Allows or blocks an election in the library."""
        return self._may_campaign
