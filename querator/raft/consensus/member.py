"""One replica of a Raft group. It uses PySyncObj's class for terms, states and the commit rule
only.

The library still does this: terms and votes; the states follower, candidate and leader; the no-op
of a new leader; the leader's commit rule (an entry is committed when a majority has it on disk and
it is of the leader's own term; Ongaro, section 3.6.2); and a leader's stepping down when no
majority answers it (section 6.2).

`raft.engine.engine` lists what the library never does here, and `raft.consensus.voter` describes
elections.

Order in a turn. The library counts its own log in the commit rule as soon as an entry is in memory.
A group with one voter may use that: append, tick (commits up to the end of the open transaction),
apply, sync, and only then answer. With more voters an entry must be durable before the tick that
counts it: deliver, tick, append, send, sync. `tick` asserts it.

The module is longer than 500 lines, because the intake of messages and entries, and the instant at
which they count, follow one order.
"""

import math
import random
from typing import Final

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.raft import configuration
from querator.raft.clock import Clock
from querator.raft.consensus.log_matching import append_entries, check_previous
from querator.raft.consensus.loop_watch import LoopWatch
from querator.raft.consensus.replication import FollowerProgress, ReplicationState, entries_bytes
from querator.raft.consensus.skew import Skew
from querator.raft.consensus.voter import Voter
from querator.raft.log.journal import Journal, Snapshots, Stamped
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
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.status import ReplicaStatus
from querator.storage.attachments import AttachmentDamaged

_TOGETHER_S: Final = 0.1
"""Checks of groups that are not urgent happen together, at multiples of this."""
_TOGETHER_AHEAD_S: Final = 0.5
_LATER_S: Final = 0.001
"""Added to an instant at which something ends, so that rounding cannot make the check too early."""

PROMPT_S: Final = 0.02
"""A follower that was heard within this is expected to answer soon."""
BLOCKING_S_MAX: Final = 3.0
"""A leader that hinders the others waits this long for their entries. It is longer than a node that
is not heard any more still counts as heard.
"""
HOPE_S: Final = 0.8
"""A majority that was not heard for this long has missed two heartbeats."""


class Member(Voter):
    """A `Voter` with the log that it replicates."""

    def __init__(
        self,
        group: GroupId,
        journal: Journal,
        *,
        applied_index: int,
        clock: Clock,
        chance: random.Random,
        skew: Skew,
        loop_watch: LoopWatch,
        outbox: PeerOutbox,
        snapshots: Snapshots,
    ) -> None:
        self._snapshots = snapshots
        self.progress: dict[int, FollowerProgress] = {}
        """The progress of every other replica, while this one leads."""
        self.damaged: list[AttachmentDamaged] = []
        """Attachments that could not be sent; the reader of this list clears it."""
        self._blocking_since_s: float | None = None
        """Since when it leads and hinders the others."""
        self.read_round = 0
        super().__init__(
            group,
            journal,
            clock=clock,
            chance=chance,
            skew=skew,
            loop_watch=loop_watch,
            outbox=outbox,
        )
        assert applied_index <= journal.last_index
        self._certain_index = applied_index
        self._SyncObj__raftCommitIndex = applied_index
        self._SyncObj__raftLastApplied = applied_index

    # --- what it is ----------------------------------------------------------------

    def no_op_index(self) -> int:
        """Index of the no-op of the own term; a leader is ready when it is applied."""
        assert self.leads
        index: int = self._SyncObj__noopIDx
        return index

    def followers(self) -> tuple[ReplicaStatus, ...]:
        """What the leader knows of the other replicas; empty on other replicas."""
        if not self.progress:
            return ()
        known = [
            ReplicaStatus(
                id=replica.id,
                node=replica.node,
                voter=replica.voter,
                state=progress.state,
                match=progress.match,
                applied=progress.applied,
            )
            for replica in self._journal.replicas
            if (progress := self.progress.get(replica.id)) is not None
        ]
        return tuple(known)

    @property
    def certain_index(self) -> int:
        """The last entry that is committed and on the disks of a majority. A lone voter commits in
        the turn that writes.
        """
        return max(self._certain_index, min(self.commit_index, self._journal.durable_index))

    @property
    def others_suffice(self) -> bool:
        """Whether there is a majority without this leader: voters that have just been heard, and
        will soon report what they have written.
        """
        since_s = self._clock.monotonic_s() - PROMPT_S
        prompt = sum(
            progress.state is ReplicationState.REPLICATE and progress.heard_s >= since_s
            for id_, progress in self.progress.items()
            if id_ in self._voters
        )
        return prompt > len(self._voters) / 2

    @property
    def wake_s(self) -> float | None:
        """When it needs a tick if nothing happens before, by the monotonic clock."""
        if self.is_only_voter and self.leads:
            return None
        if self.leads:
            return _together(self._majority_until_s())
        if not self.votes and self.leader is None:
            return None
        now_s = self._clock.monotonic_s()
        deadline: float = self._SyncObj__raftElectionDeadline
        # Each heartbeat postpones the deadline: most checks find nothing to do.
        return _together(deadline) if deadline > now_s + _TOGETHER_AHEAD_S else deadline

    def _majority_until_s(self) -> float:
        """When a leader that hears nothing more must step down, because the majority was heard too
        long ago. Each answer postpones it.
        """
        return float(self._majority_heard_s() + self._getConf().leaderFallbackTimeout + _LATER_S)

    def _majority_heard_s(self) -> float:
        """When a leader that is not alone last heard enough voters for a majority with itself."""
        heard = sorted(self.progress[id_].heard_s for id_ in self._voters if id_ != self.id)
        needed = (len(heard) + 1) // 2
        return heard[-needed]

    @property
    def may_still_commit(self) -> bool:
        """Whether entries in the log may be committed soon, as far as this replica knows: a leader
        hears a majority, a follower knows a leader.
        """
        if self.is_only_voter or not self.leads:
            return self.is_only_voter or self.leader is not None
        return self._majority_heard_s() > self._clock.monotonic_s() - HOPE_S

    @property
    def may_commit(self) -> bool:
        """Whether a leader's next tick finds more to commit: its own log is now on disk, and those
        of others were before.
        """
        commit = self.commit_index
        if self._journal.durable_index <= commit or not self.leads or self.is_only_voter:
            return False
        most = self._majority_index()
        # Entries of earlier terms are committed only by entries of its own term.
        return most > commit and most >= self.no_op_index()

    def _majority_index(self) -> int:
        """The last index that a majority has; this replica counts with its durable entries."""
        matches = [self.progress[id_].match for id_ in self._voters if id_ != self.id]
        ranked = sorted([*matches, self._journal.durable_index], reverse=True)
        return ranked[len(ranked) // 2]

    # --- what the turn calls -------------------------------------------------------

    def append(self, stamped: Stamped) -> int:
        """Appends an entry to the log and returns its index. Only the leader's member."""
        assert self.leads
        index = self._journal.last_index + 1
        self._journal.add(stamped, index, self.term)
        return index

    def note_time(self, now_ms: int) -> None:
        """Appends an entry that carries only the time."""
        assert self.leads
        self._journal.add_time(now_ms)

    def reconfigure(self, change: configuration.Change) -> int:
        """Appends the configuration that results from the change; returns its index."""
        assert self.leads
        index = self._journal.add_configuration(
            configuration.changed(self._journal.replicas, change)
        )
        self.reconfigured()
        return index

    def reconfigured(self) -> None:
        """Called when another configuration of the journal takes effect."""
        super().reconfigured()
        if not self.leads:
            return
        now_s = self._clock.monotonic_s()
        for id_ in self._nodes:
            if id_ != self.id and id_ not in self.progress:
                self.progress[id_] = FollowerProgress(
                    last_index=self._journal.last_index, now_s=now_s
                )
        for id_ in [id_ for id_ in self.progress if id_ not in self._nodes]:
            del self.progress[id_]
        self._show_progress()

    def _show_progress(self) -> None:
        """Sets the values that the library's commit rule and majority check use."""
        # The library counts the leader for every entry of its log. The leader has only durable
        # entries: a majority has them up to this one.
        most = self._majority_index()
        self._SyncObj__raftMatchIndex = {
            node: min(most, self.progress[int(node.id)].match) for node in self._SyncObj__otherNodes
        }
        self._SyncObj__lastResponseTime = {
            node: self.progress[int(node.id)].heard_s for node in self._SyncObj__otherNodes
        }

    def tick(self) -> None:
        """Runs elections, and moves the commit index. Called once per turn."""
        term, commit = self.term, self.commit_index
        if self.leads:
            self._show_progress()
        elif self._SyncObj__raftElectionDeadline < self._clock.monotonic_s():
            self._ask_before_election()
        led = self.leads
        self.doTick(0.0)
        if self.term > term:
            self._votes = {self.id}
        elif led and (not self.leads or self._should_step_down()):
            # No majority answers, or a majority could continue with another leader. No voter that
            # still hears this leader would soon stand for election.
            if (heir := self.transfer_target()) is not None:
                self._send(heir, TimeoutNow(self.term))
            self._become_follower()
            self._SyncObj__raftLeader = None
            self._set_deadline(self._clock.monotonic_s())
        self._may_campaign = False
        assert self.term >= term
        assert commit <= self.commit_index <= self._journal.last_index
        if not self.is_only_voter:
            self._certain_index = max(self._certain_index, self.commit_index)

    def _should_step_down(self) -> bool:
        """Whether a leader has hindered the others for too long: it cannot send a voter an
        uncommitted entry, because its payload is damaged, and the heard voters are a majority
        without the leader.

        If enough of them have the entry, it is committed soon. If one has it whole, that voter can
        send it. If none has it, it was never committed, and is replaced. While the heard voters are
        no majority, a voter without the entry could not be elected: the leader stays until a voter
        with the entry connects.
        """
        others = [self.progress[id_] for id_ in self._voters & self.progress.keys()]
        if not any(one.unsent > self.commit_index for one in others):
            self._blocking_since_s = None
            return False
        now_s = self._clock.monotonic_s()
        heard_after_s = now_s - self._getConf().leaderFallbackTimeout
        heard = sum(one.heard_s > heard_after_s for one in others)
        if heard <= len(self._voters) / 2:
            self._blocking_since_s = None
        elif self._blocking_since_s is None:
            self._blocking_since_s = now_s
        return (
            self._blocking_since_s is not None and now_s - self._blocking_since_s > BLOCKING_S_MAX
        )

    def applied(self, index: int) -> None:
        """Records that entries up to `index` are applied in the open transaction."""
        assert self._SyncObj__raftLastApplied <= index <= self.commit_index
        self._SyncObj__raftLastApplied = index

    def installed(self, index: int) -> None:
        """Takes over the log and the state of a snapshot at `index`."""
        assert not self.leads
        assert index > self.commit_index
        self._become_follower()
        self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied = index
        self.reconfigured()

    def commit_to(self, index: int) -> None:
        """Commits entries up to `index`, which are in the log."""
        if index > self.commit_index:
            assert index <= self._journal.last_index
            self._SyncObj__raftCommitIndex = index

    def send_appends(self, *, asked: frozenset[int] = frozenset()) -> None:
        """Sends the followers their next entries; those in `asked` get at least one message."""
        assert self.leads
        now_s = self._clock.monotonic_s()
        # A commit of a lone voter may be known outside only after the sync.
        commit_index = self.certain_index
        # A lone voter is elected in the turn in which it appends: its term is not on disk yet.
        post = self._outbox.later if self.is_only_voter else self._outbox.now
        for id_, progress in self.progress.items():
            node = self._nodes[id_]
            room_bytes = self._outbox.room_bytes(node)
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
                if progress.unread is not None:
                    self.damaged.append(progress.unread)
                    progress.unread = None
                for message in messages:
                    size = entries_bytes(message.entries)
                    post(node, Envelope(self.group, id_, self.id, message), bytes_=size)
            if progress.wants_room(self._journal):
                self._outbox.finds_no_room(node, self.group)

    def ask_all(self) -> int:
        """Begins a round of reads by asking every voter for an answer; returns the number of the
        round.
        """
        self.read_round += 1
        self.send_appends(asked=frozenset(self.progress) & self._voters)
        return self.read_round

    def has_quorum_for(self, round_: int) -> bool:
        """Whether a majority of the voters has answered a message of this or a later round, in this
        term.
        """
        count = 1 if self.votes else 0
        count += sum(
            progress.read_round >= round_
            for id_, progress in self.progress.items()
            if id_ in self._voters
        )
        return count > len(self._voters) / 2

    # --- transfer (Ongaro, section 3.10) -----------------------------------------------

    def is_caught_up(self, replica: int) -> bool:
        """Whether the replica is a voter and has all of the log."""
        progress = self.progress.get(replica)
        return (
            progress is not None
            and replica in self._voters
            and progress.match == self._journal.last_index
        )

    def unapplied_by(self, replica: int) -> int:
        """The committed entries that another replica has not applied, as far as this leader
        knows.
        """
        return max(0, self.commit_index - self.progress[replica].applied)

    def transfer_target(self, *, able: bool = False) -> int | None:
        """The voter that is best suited to lead next. Criteria, in this order: committed entries, a
        right clock, being heard, few entries to apply, and the log. `able`: only a voter that is
        heard, has a right clock and could serve soon, or None.
        """
        heard_after_s = self._clock.monotonic_s() - self._getConf().leaderFallbackTimeout
        found = []
        for id_ in self._voters & self.progress.keys():
            progress, right = self.progress[id_], self._skew.has_right_clock(self._nodes[id_])
            heard = progress.heard_s > heard_after_s
            complete = progress.match >= self.commit_index
            if not able or (right and heard and progress.heartbeat_suffices):
                soon = progress.serves_soon
                found.append((complete, right, heard, soon, progress.match, -id_))
        return -max(found)[-1] if found else None

    def hand_to(self, replica: int) -> None:
        """Asks the replica to stand for election at once."""
        assert self.is_caught_up(replica)
        self._send(replica, TimeoutNow(self.term))

    # --- heartbeats ----------------------------------------------------------------

    def heartbeats(self, now_s: float) -> list[tuple[NodeKey, Beat]]:
        """The heartbeats of the followers whose log is known; each other follower gets a
        message.
        """
        commit_index = self.certain_index
        beats = []
        asked = set()
        for id_, progress in self.progress.items():
            if progress.overdue(now_s) or not progress.heartbeat_suffices:
                asked.add(id_)
                continue
            commit = min(commit_index, progress.match)
            beat = progress.beat
            if beat is None or beat.commit_index != commit:
                beat = progress.beat = Beat(self.group, id_, self.id, self.term, commit)
            beats.append((self._nodes[id_], beat))
        if asked:
            self.send_appends(asked=frozenset(asked))
        return beats

    def is_plain_heartbeat(self, beat: Beat, now_s: float) -> bool:
        """Whether the beat only shows that a leader lives which this replica already follows."""
        if beat.commit_index > self._SyncObj__raftCommitIndex:
            return False
        return self._hears(beat.term, beat.sender, now_s)

    def on_beat(self, beat: Beat) -> int | None:
        """Follows the leader. Returns None, or the term with which to refuse the beat."""
        if beat.term < self.term:
            return self.term
        self._follow(beat.term, beat.sender)
        if beat.commit_index > self._journal.last_index:
            return beat.term
        self.commit_to(beat.commit_index)
        return None

    def on_beat_followed(self, replica: int, term: int, now_s: float) -> None:
        progress = self.progress.get(replica)
        if self.leads and term == self.term and progress is not None:
            progress.heard_s = now_s

    def on_beat_refused(self, replica: int, term: int, beat_term: int) -> None:
        """Handles a refusal, with `term`, of a beat of `beat_term`. Only a refused beat of the
        present term shows what the follower lacks: a beat of an earlier leadership was too old.
        """
        if term > self.term:
            self._step_down(term)
        elif self.leads and beat_term == term == self.term and replica in self.progress:
            self.progress[replica].lost()

    # --- connections ---------------------------------------------------------------

    def on_connection(self, node: NodeKey, *, up: bool) -> None:
        """A connection came up, or broke: messages on their way are lost."""
        for id_, progress in self.progress.items():
            if self._nodes.get(id_) == node:
                progress.interrupted()
        if not up and not self.leads and self.leader_node == node:
            self._leader_gone()

    def on_quiet(self, node: NodeKey) -> bool:
        """Nothing is heard of the node. A follower of it asks for another leader. A leader without
        a heard majority steps down in its next tick. Returns whether this affects the replica.
        """
        if not self.leads:
            gone = self.leader_node == node
            if gone:
                self._leader_gone()
            return gone
        quiet = [id_ for id_ in self.progress if self._nodes.get(id_) == node]
        too_long_ago_s = self._clock.monotonic_s() - self._getConf().leaderFallbackTimeout
        for id_ in quiet:
            self.progress[id_].heard_s = min(self.progress[id_].heard_s, too_long_ago_s)
        return bool(quiet)

    # --- messages ------------------------------------------------------------------

    def receive(self, sender: int, node: NodeKey, message: GroupMessage) -> None:
        """Handles a message of another replica on `node`. Raises Diverged, StorageCorrupt."""
        if self._nodes.get(sender, node) != node:
            # Another incarnation of that node: it is not the replica that it claims to be.
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
        refusal = check_previous(self._journal, message, self.commit_index)
        if refusal is not None:
            index, conflict_term = refusal
            success = False
        else:
            conflict_term = 0
            before = self._journal.replicas
            append_entries(self._journal, self._snapshots, message, self.commit_index)
            if self._journal.replicas is not before:
                self.reconfigured()
            index, success = message.prev_index + len(message.entries), True
            self.commit_to(min(message.commit_index, index))
        reply = AppendReply(
            term=self.term,
            sequence=message.sequence,
            read_round=message.read_round,
            success=success,
            index=index,
            conflict_term=conflict_term,
            applied=self._SyncObj__raftLastApplied,
        )
        self._reply(sender, node, message, reply)

    def _on_append_reply(self, sender: int, reply: AppendReply) -> None:
        if reply.term > self.term:
            self._step_down(reply.term)
        progress = self.progress.get(sender)
        if self.leads and reply.term == self.term and progress is not None:
            progress.on_reply(reply, self._journal, self._clock.monotonic_s())

    def follows(self, sender: int, node: NodeKey, term: int) -> bool:
        """Whether a message of the sender as the leader of a term counts; if so, the sender is
        recognised as the leader. Raises Diverged.
        """
        if self._nodes.get(sender, node) != node or term < self.term:
            return False
        self._follow(term, sender)
        return True

    def _become_follower(self) -> None:
        super()._become_follower()
        self.progress.clear()

    def _reply(self, sender: int, node: NodeKey, message: Append, reply: AppendReply) -> None:
        self._outbox.acknowledge(node, Envelope(self.group, sender, self.id, reply))

    # --- what the library calls, replaced ---------------------------------------------

    def _SyncObj__onBecomeLeader(self) -> None:
        now_s = self._clock.monotonic_s()
        last_index = self._journal.last_index
        self.progress = {
            id_: FollowerProgress(last_index=last_index, now_s=now_s)
            for id_ in self._nodes
            if id_ != self.id
        }
        self.read_round = 0
        self._pre_votes = None
        self._transferred = False
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__sendAppendEntries(self) -> None:
        """Does nothing: the turn sends after the tick."""
        self._SyncObj__newAppendEntriesTime = float("inf")


def _together(instant_s: float) -> float:
    return math.ceil(instant_s / _TOGETHER_S) * _TOGETHER_S
