"""One replica of a Raft group: PySyncObj's class with everything but its terms, states and commit
rule taken out.

What the library still does: terms and votes, the states follower, candidate and leader,
the no-op of a new leader, the leader's commit rule (an entry is committed when a majority has it on
disk and it is of the leader's own term; Ongaro, section 3.6.2), and a leader's stepping down when
no majority answers it (section 6.2).

`raft.engine.engine` says what it never does here, `raft.consensus.voter` how elections come about.

Order in a turn. The library counts its own log in the commit rule as soon as an entry is in
memory. A group with one voter may use that: append, tick (commits up to the end of the open
transaction), apply, sync, and only then answer. With more voters an entry must be durable before
the tick that counts it: deliver, tick, append, send, sync. `tick` asserts it.

Longer than 500 lines: what a replica takes in, and when it may count it, has one order.
"""

import math
import random
from typing import Final

from querator.model.ids import GroupId
from querator.model.nodes import NodeKey
from querator.raft import configuration
from querator.raft.clock import Clock
from querator.raft.consensus.log_matching import place, take
from querator.raft.consensus.loop_watch import LoopWatch
from querator.raft.consensus.replication import Progress, State, entries_bytes
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
from querator.raft.peer_outbox import Mail
from querator.raft.status import ReplicaStatus
from querator.storage.attachments import AttachmentDamaged

_TOGETHER_S: Final = 0.1
"""Groups that want to be looked at by and by are looked at together, at multiples of this."""
_TOGETHER_AHEAD_S: Final = 0.5
_LATER_S: Final = 0.001
"""What is over at an instant is certainly over so much later, whatever is rounded."""

PROMPT_S: Final = 0.02
"""A follower that was heard so lately is expected to answer soon."""
GIVES_WAY_S: Final = 3.0
"""So long a leader that hinders the others waits for what they have. Longer than nodes count as
heard that are not.
"""
HOPE_S: Final = 0.8
"""A majority that was not heard for so long has missed two heartbeats."""


class Member(Voter):
    """As `Voter`; with what it replicates."""

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
        mail: Mail,
        snapshots: Snapshots,
    ) -> None:
        self._snapshots = snapshots
        self.progress: dict[int, Progress] = {}
        """While it leads: of every other replica."""
        self.damaged: list[AttachmentDamaged] = []
        """What could not be sent; whoever takes note of it clears it."""
        self._hinders_s: float | None = None
        """Since when it leads and hinders the others."""
        self.read_round = 0
        super().__init__(
            group,
            journal,
            clock=clock,
            chance=chance,
            skew=skew,
            loop_watch=loop_watch,
            mail=mail,
        )
        assert applied_index <= journal.last_index
        self._certain_index = applied_index
        self._SyncObj__raftCommitIndex = applied_index
        self._SyncObj__raftLastApplied = applied_index

    # --- what it is ----------------------------------------------------------------

    def office_index(self) -> int:
        """Index of the no-op of the own term; a leader is in office when it is applied."""
        assert self.leads
        index: int = self._SyncObj__noopIDx
        return index

    def followers(self) -> tuple[ReplicaStatus, ...]:
        """What it knows of the others, while it leads."""
        return tuple(
            ReplicaStatus(
                id=replica.id,
                node=replica.node,
                voter=replica.voter,
                state=progress.state.value,
                match=progress.match,
            )
            for replica in (self._journal.replicas if self.progress else ())
            if (progress := self.progress.get(replica.id)) is not None
        )

    @property
    def certain_index(self) -> int:
        """The last entry that is committed and on the disks of a majority. A lone voter commits in
        the turn that writes.
        """
        return max(self._certain_index, min(self.commit_index, self._journal.durable_index))

    @property
    def others_suffice(self) -> bool:
        """Whether a majority is there without this leader: voters that have just been heard, and
        will tell what they have written before long.
        """
        since_s = self._clock.monotonic_s() - PROMPT_S
        prompt = sum(
            progress.state is State.REPLICATE and progress.heard_s >= since_s
            for id_, progress in self.progress.items()
            if id_ in self._voters
        )
        return prompt > len(self._voters) / 2

    @property
    def wake_s(self) -> float | None:
        """When it wants a tick if nothing happens before, by the monotonic clock."""
        if self.alone and self.leads:
            return None
        if self.leads:
            return _together(self._majority_until_s())
        if not self.votes and self.leader is None:
            return None
        now_s = self._clock.monotonic_s()
        deadline: float = self._SyncObj__raftElectionDeadline
        # It is moved on by each heartbeat: most looks at it find nothing to do.
        return _together(deadline) if deadline > now_s + _TOGETHER_AHEAD_S else deadline

    def _majority_until_s(self) -> float:
        """When a leader that hears nothing more has to step down: the majority is then too long
        ago. Each answer moves it on.
        """
        return float(self._majority_heard_s() + self._getConf().leaderFallbackTimeout + _LATER_S)

    def _majority_heard_s(self) -> float:
        """When a leader with others last heard so many that they are a majority with it."""
        heard = sorted(self.progress[id_].heard_s for id_ in self._voters if id_ != self.id)
        needed = (len(heard) + 1) // 2
        return heard[-needed]

    @property
    def hopes(self) -> bool:
        """Whether what is in the log may be committed before long, as far as is known here: a
        leader hears a majority, a follower knows of a leader.
        """
        if self.alone or not self.leads:
            return self.alone or self.leader is not None
        return self._majority_heard_s() > self._clock.monotonic_s() - HOPE_S

    @property
    def may_commit(self) -> bool:
        """Whether a leader's next tick finds more to be committed: its own copy is on disk now, and
        those of others were before.
        """
        commit = self.commit_index
        if self._journal.durable_index <= commit or not self.leads or self.alone:
            return False
        most = self._majority_index()
        # Entries of earlier terms are committed by those of its own alone.
        return most > commit and most >= self.office_index()

    def _majority_index(self) -> int:
        """A majority has the log up to there, this replica what is durable."""
        matches = [self.progress[id_].match for id_ in self._voters if id_ != self.id]
        ranked = sorted([*matches, self._journal.durable_index], reverse=True)
        return ranked[len(ranked) // 2]

    # --- what the turn calls -------------------------------------------------------

    def append(self, stamped: Stamped) -> int:
        """Puts an entry into the log and returns its index. Only the leader's member."""
        assert self.leads
        index = self._journal.last_index + 1
        self._journal.add(stamped, index, self.term)
        return index

    def note_time(self, now_ms: int) -> None:
        """Appends an entry that says the time and nothing else."""
        assert self.leads
        self._journal.add_time(now_ms)

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
        super().reconfigured()
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
        # The library counts the leader for every entry of its log. It has those that are durable:
        # up to this one a majority has them.
        most = self._majority_index()
        self._SyncObj__raftMatchIndex = {
            node: min(most, self.progress[int(node.id)].match) for node in self._SyncObj__otherNodes
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
        elif led and (not self.leads or self._gives_way()):
            # No majority answers, or one could go on with another leader. Where this one is still
            # heard nobody would stand for long.
            if (heir := self.heir()) is not None:
                self._send(heir, TimeoutNow(self.term))
            self._become_follower()
            self._SyncObj__raftLeader = None
            self._set_deadline(self._clock.monotonic_s())
        self._stands = False
        assert self.term >= term
        assert commit <= self.commit_index <= self._journal.last_index
        if not self.alone:
            self._certain_index = max(self._certain_index, self.commit_index)

    def _gives_way(self) -> bool:
        """Whether a leader has hindered the others for too long: it cannot send a voter an entry
        that is not committed, for its payload is damaged, and those that are heard are a majority
        without it. If enough of them have the entry, it is committed soon. If one has it whole,
        that one can send it; if none has, it was never committed, and is replaced. While they are
        no majority, none of them that lacks it could be elected: it stays, until one comes that has
        it.
        """
        others = [self.progress[id_] for id_ in self._voters & self.progress.keys()]
        if not any(one.unsent > self.commit_index for one in others):
            self._hinders_s = None
            return False
        now_s = self._clock.monotonic_s()
        heard_after_s = now_s - self._getConf().leaderFallbackTimeout
        heard = sum(one.heard_s > heard_after_s for one in others)
        if heard <= len(self._voters) / 2:
            self._hinders_s = None
        elif self._hinders_s is None:
            self._hinders_s = now_s
        return self._hinders_s is not None and now_s - self._hinders_s > GIVES_WAY_S

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
        # What a lone voter commits may be known outside only after the sync.
        commit_index = self.certain_index
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
                if progress.unread is not None:
                    self.damaged.append(progress.unread)
                    progress.unread = None
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

    def heir(self, *, able: bool = False) -> int | None:
        """The voter that is most likely to lead next: by what is committed, its clock, whether it
        is heard, and its log, in this order. `able`: it is heard and its clock is right, or none.
        """
        heard_after_s = self._clock.monotonic_s() - self._getConf().leaderFallbackTimeout
        found = []
        for id_ in self._voters & self.progress.keys():
            progress, right = self.progress[id_], self._skew.may_lead(self._nodes[id_])
            heard = progress.heard_s > heard_after_s
            complete = progress.match >= self.commit_index
            if not able or (right and heard and progress.beats):
                found.append((complete, right, heard, progress.match, -id_))
        return -max(found)[-1] if found else None

    def hand_to(self, replica: int) -> None:
        """Tells the replica to stand for election at once."""
        assert self.may_lead(replica)
        self._send(replica, TimeoutNow(self.term))

    # --- heartbeats ----------------------------------------------------------------

    def beats(self, now_s: float) -> list[tuple[NodeKey, Beat]]:
        """The heartbeat of each follower whose log is known; the others get a message each."""
        commit_index = self.certain_index
        beats = []
        asked = set()
        for id_, progress in self.progress.items():
            if progress.overdue(now_s) or not progress.beats:
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

    def hears(self, beat: Beat, now_s: float) -> bool:
        """Whether the beat says nothing but that the leader lives, and is followed already."""
        if beat.commit_index > self._SyncObj__raftCommitIndex:
            return False
        return self._hears(beat.term, beat.sender, now_s)

    def on_beat(self, beat: Beat) -> int | None:
        """Follows the leader; None, or the term to refuse the beat with."""
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
        """A beat of `beat_term` was refused with `term`. Only of one of the present term that tells
        what the follower lacks: one of an earlier leadership was too old.
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
        """Nothing is heard of the node: followers ask for another leader, and a leader without a
        majority that is heard steps down with its next tick. Whether this matters here.
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

    def _become_follower(self) -> None:
        super()._become_follower()
        self.progress.clear()

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

    def _SyncObj__sendAppendEntries(self) -> None:
        """Sent by the turn, after the tick."""
        self._SyncObj__newAppendEntriesTime = float("inf")


def _together(instant_s: float) -> float:
    return math.ceil(instant_s / _TOGETHER_S) * _TOGETHER_S
