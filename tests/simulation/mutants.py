"""Mutants: the core, broken on purpose in the ways that matter. The simulator must find each.

A mutant is a context manager: within it the real classes do one thing wrong.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from querator.partition import readers, staging, transactions, txn_producers
from querator.raft import configuration
from querator.raft.consensus import log_matching, member
from querator.raft.consensus.member import Member
from querator.raft.consensus.skew import Skew
from querator.raft.group.group import Group
from querator.raft.log.journal import Journal
from querator.raft.messages import Append, AppendReply, VoteReply
from querator.raft.peer_outbox import PeerOutbox
from querator.raft.turn.turn import Turns
from querator.storage.overlay import OverlayTransaction


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def acknowledges_before_the_sync() -> Any:
    """Acknowledgements leave with the entries, before these are on disk."""
    return replaced(PeerOutbox, "acknowledge", PeerOutbox.now)


def answers_before_the_sync() -> Any:
    """Callers that wait for an entry are answered before it is on disk."""
    return replaced(Group, "_may_tell_early", lambda self, record, applied: True)


@contextmanager
def forgets_batches() -> Iterator[None]:
    """No partition remembers which batches of a producer are committed."""
    load = txn_producers.load_producer

    def forgetful(*arguments: Any) -> Any:
        row = load(*arguments)
        if row is not None:
            row.committed = -1
        return row

    with (
        replaced(transactions, "load_producer", forgetful),
        replaced(staging, "load_producer", lambda *_: None),
    ):
        yield


def forgets_what_is_finished() -> Any:
    """Participants do not remember which transactions are over."""
    return replaced(staging, "load_producer", lambda *_: None)


def fences_nobody() -> Any:
    """Earlier epochs of a reader are not refused."""
    refuses = readers.refuses

    def lenient(row: Any, command: Any, **more: Any) -> Any:
        if row is not None:
            command = msgspec.structs.replace(command, epoch=row.epoch)
        return refuses(row, command, **more)

    return replaced(readers, "refuses", lenient)


def gives_names_twice() -> Any:
    """The batch after a released one gets its number."""
    put = readers._put

    def forgetful(turn: Any, row: Any) -> Any:
        if row.batch is None:
            row = msgspec.structs.replace(row, last_seq=row.acked_seq)
        return put(turn, row)

    return replaced(readers, "_put", forgetful)


def loses_what_is_released() -> Any:
    """Items of a released batch are lost."""

    def gone(turn: Any, row: Any, *, dead: bool) -> None:
        readers._acknowledge(turn, row)

    return replaced(readers, "_release", gone)


def gives_back_what_is_given_up() -> Any:
    """Items of a batch that was given up become ready again."""
    release = readers._release

    def given_back(turn: Any, row: Any, *, dead: bool) -> None:
        release(turn, row, dead=False)

    return replaced(readers, "_release", given_back)


def counts_itself_before_the_sync() -> Any:
    """The commit rule counts entries of the leader that are not on its disk."""
    show = Member._show_progress

    def hopeful(self: Member) -> None:
        durable_index = self._journal.durable_index
        self._journal.durable_index = self._journal.last_index
        show(self)
        self._journal.durable_index = durable_index

    return replaced(Member, "_show_progress", hopeful)


def commits_what_nobody_has() -> Any:
    """The leader alone is a majority of three."""

    def show(self: Member) -> None:
        shown(self)
        for node in self._SyncObj__otherNodes:
            self._SyncObj__raftMatchIndex[node] = self._journal.durable_index

    shown = Member._show_progress
    return replaced(Member, "_show_progress", show)


def cuts_the_log_without_conflict() -> Any:
    """Every message with entries truncates the log after its position."""
    take = log_matching.append_entries

    def cut(journal: Journal, snapshots: Any, message: Append, commit_index: int) -> None:
        if message.entries and journal.first_index <= message.prev_index < journal.last_index:
            journal.take_back(snapshots, message.prev_index)
        take(journal, snapshots, message, commit_index)

    return replaced(member, "append_entries", cut)


def commits_what_is_not_verified() -> Any:
    """A follower commits up to the leader's commit index, or to the end of its own log."""
    on_append = Member._on_append

    def unclamped(self: Member, sender: int, node: Any, message: Append) -> None:
        on_append(self, sender, node, message)
        if message.term == self.term and not self.leads:
            self.commit_to(min(message.commit_index, self._journal.last_index))

    return replaced(Member, "_on_append", unclamped)


def forgets_its_votes() -> Any:
    """Term and vote are written only together with other data."""
    changed = Journal.setCurrentTerm

    def unwritten(self: Journal, term: int, votedForNodeId: int | None) -> None:
        before = self._member_changed
        changed(self, term, votedForNodeId)
        self._member_changed = before

    return replaced(Journal, "setCurrentTerm", unwritten)


def votes_for_everybody() -> Any:
    """A node votes for every candidate that asks in the same term."""
    on_request = Member._on_request_vote

    def forgetful(self: Member, sender: int, node: Any, message: Any) -> None:
        if not self.leads:
            self._SyncObj__votedForNodeId = None
            self._journal._vote = None
        on_request(self, sender, node, message)

    return replaced(Member, "_on_request_vote", forgetful)


def ignores_the_term_of_replies() -> Any:
    """An acknowledgement of an earlier leadership counts in the present one."""

    def any_term(self: Member, sender: int, reply: AppendReply) -> None:
        progress = self.progress.get(sender)
        if self.leads and progress is not None:
            progress.sequence = max(progress.sequence, reply.sequence)
            progress.on_reply(reply, self._journal, self._clock.monotonic_s())

    return replaced(Member, "_on_append_reply", any_term)


def counts_refusals_as_votes() -> Any:
    """Every answer to a request for a vote counts as a vote."""
    on_reply = Member._on_vote_reply

    def generous(self: Member, sender: int, reply: VoteReply) -> None:
        if not reply.pre and reply.term <= self.term:
            reply = VoteReply(self.term, True)
        on_reply(self, sender, reply)

    return replaced(Member, "_on_vote_reply", generous)


def believes_any_clock() -> Any:
    """State time follows the wall clock, whatever it shows."""
    return replaced(Skew, "believed_ms", lambda self, wall_ms, others, last_ms: wall_ms)


def reads_without_asking() -> Any:
    """The leader answers a read from its own state, without asking a majority."""
    return replaced(Member, "has_quorum_for", lambda self, round_: True)


def takes_the_office_too_early() -> Any:
    """A new leader believes that every follower has its whole log."""
    become = Member._SyncObj__onBecomeLeader

    def hopeful(self: Member) -> None:
        last_index = self._journal.last_index
        become(self)
        for progress in self.progress.values():
            progress.match = last_index

    return replaced(Member, "_SyncObj__onBecomeLeader", hopeful)


def keeps_what_is_removed() -> Any:
    """A removed group that has written into the open transaction still has turns."""
    return replaced(Turns, "_is_here", lambda self, group: True)


def does_not_sync() -> Any:
    """The process sees commits that are not on disk."""
    commit = OverlayTransaction.commit

    def unsynced(self: OverlayTransaction, *, sync: bool) -> None:
        commit(self, sync=False)

    return replaced(OverlayTransaction, "commit", unsynced)


def counts_by_the_configuration_before() -> Any:
    """A change of the replicas does not count until it is committed."""
    reconfigured = Member.reconfigured

    def late(self: Member) -> None:
        reconfigured(self)
        held = [one for one in self._journal._configurations if one[0] <= self.commit_index]
        if held:
            self._voters = configuration.voters(held[-1][1])

    return replaced(Member, "reconfigured", late)


def keeps_a_configuration_that_is_taken_back() -> Any:
    """A configuration stays in force although another leader has replaced its entry."""
    take_back = Journal.take_back

    def forgetful(self: Journal, snapshots: Any, last: int) -> None:
        held = list(self._configurations)
        take_back(self, snapshots, last)
        self._configurations = held

    return replaced(Journal, "take_back", forgetful)
