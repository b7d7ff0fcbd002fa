"""What a leader knows of each other replica, and what it sends to it next.

    state       sends                                   becomes
    ---------   -------------------------------------   -------------------------------------------
    PROBE       one message at (next - 1), and an       REPLICATE when it succeeds
                empty one with each heartbeat until     PROBE further back when it is refused
                it is answered                          PROBE after a heartbeat when the follower
                                                        did not take its entries (the disk is full)
                                                        SNAPSHOT when next is no longer in the log
                                                        LOST when it is refused at match
    REPLICATE   entries as they come, several           PROBE when one is refused, when the
                messages ahead of the answers,          connection breaks, when nothing is answered
                up to a window in bytes                 for REPLY_TIMEOUT_S, when next is no longer
                                                        in the log, and after a heartbeat when the
                                                        follower did not take entries
    both        an empty message with each heartbeat    SNAPSHOT after UNREAD_S, if the entry is
                while an entry is unreadable because    committed: its damaged payload may be gone
                its payload is damaged; the entry is    from the state. If it is not committed, no
                reported and mended                     state has it, and another replica may lead
                                                        (see `raft.consensus.member`)
    SNAPSHOT    the state instead of entries, and an    PROBE when it is installed or given up
                empty message with each heartbeat and
                read round: any answer counts as a
                sign of life
    LOST        nothing                                 stays: the replica no longer has entries
                                                        that it has acknowledged; it must be
                                                        replaced

While the follower has many acknowledged entries to apply, each heartbeat is a message. The reply
says how far the follower has come.

`match` is the index that the follower has acknowledged in this term: up to there its log is on its
disk and equals the leader's. It never goes back. `next` is the entry to be sent next. It is
optimistic in REPLICATE, and a success never moves it back. Replies carry the term and the number of
the message that they answer. Within one term there is one leader, so a late reply is never false.
Of several refusals of messages in flight only the first counts, because otherwise each would undo
the step back of another (for that reason a follower of the unmodified library never recovers).

A refusal names the term that the follower has at that index, and where that term begins. So one
round trip goes back by one term of either log, not by one entry (Ongaro, section 3.5, last
paragraph).
"""

import math
from collections import deque
from enum import StrEnum
from functools import partial
from typing import Final

from querator.model.limits import (
    APPEND_BYTES_MAX,
    REPLICATION_MESSAGES_MAX,
    REPLICATION_WINDOW_BYTES,
    UNAPPLIED_ENTRIES_MAX,
)
from querator.raft.log.journal import Journal, Snapshots
from querator.raft.messages import Append, AppendReply, Beat, LogEntry
from querator.storage.attachments import AttachmentDamaged

REPLY_TIMEOUT_S: Final = 2.0
"""Entries that are not acknowledged within this are considered lost."""
UNREAD_S: Final = 10.0
"""How long a leader waits for a damaged entry to be mended before it sends a snapshot."""
_PROBE_BYTES: Final = 16 * 1024
"""Most bytes of entries in a probe that may be refused."""


class ReplicationState(StrEnum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"
    LOST = "lost"


class FollowerProgress:
    """One other replica, as a leader sees it in one term."""

    __slots__ = (
        "_flying",
        "_flying_bytes",
        "_flying_since_s",
        "_probe",
        "_probe_sequence",
        "_unread_s",
        "_waits",
        "applied",
        "beat",
        "heard_s",
        "match",
        "next",
        "read_round",
        "sequence",
        "state",
        "unread",
        "unsent",
    )

    def __init__(self, *, last_index: int, now_s: float) -> None:
        self.state = ReplicationState.PROBE
        self.match = 0
        self.applied = 0
        """The last entry that it has applied, by its last reply."""
        self.next = last_index + 1
        self.sequence = 0
        """Number of the last message sent."""
        self.read_round = 0
        """The last round of reads that the replica has answered."""
        self.heard_s = now_s
        self.beat: Beat | None = None
        """The last heartbeat, which is sent again while its content is the same."""
        self._flying: deque[tuple[int, int]] = deque()
        """(sequence, bytes) of unanswered messages."""
        self._flying_bytes = 0
        self._flying_since_s = now_s
        self._probe: tuple[int, int] | None = None
        """Sequence of the probe on its way, and the last index that it carries."""
        self._waits = False
        """Whether the probe waits for the next heartbeat; messages until then are empty."""
        self._probe_sequence = 1
        """Refusals of messages before this one are out of date."""
        self.unread: AttachmentDamaged | None = None
        """The attachment that could not be read for sending; its reader clears it."""
        self._unread_s: float | None = None
        """Since when a committed entry is unreadable."""
        self.unsent = 0
        """Index of an unreadable entry that was not committed when it should have been sent; 0:
        none.
        """

    # --- sending -----------------------------------------------------------------

    def appends(
        self,
        journal: Journal,
        snapshots: Snapshots,
        *,
        commit_index: int,
        read_round: int,
        room_bytes: int,
        now_s: float,
        asked: bool,
    ) -> list[Append]:
        """The messages to send now; with `asked` at least one message, so that it is answered.
        Raises StorageCorrupt, but not for a damaged payload.
        """
        appends = partial(
            self._appends,
            journal,
            snapshots,
            commit_index=commit_index,
            read_round=read_round,
            now_s=now_s,
            asked=asked,
        )
        try:
            messages = appends(room_bytes=room_bytes)
        except AttachmentDamaged as error:
            self._wait_for_mending(error, journal.last_index, commit_index, now_s)
            # These messages need nothing from the log.
            return appends(room_bytes=0)
        if messages and messages[-1].entries:
            self._unread_s = None
            self.unsent = 0
        return messages

    def _wait_for_mending(
        self, error: AttachmentDamaged, last_index: int, commit_index: int, now_s: float
    ) -> None:
        self.unread = error
        self._to_probe(wait=True, at_next=self.state is ReplicationState.PROBE and not self.match)
        if error.index > commit_index:
            self._unread_s = None
            if self.unsent != error.index:
                # The follower may have it: its acknowledgement may have been lost.
                self.next = last_index + 1
            self.unsent = error.index
            return
        self.unsent = 0
        if self._unread_s is None:
            self._unread_s = now_s
        elif now_s - self._unread_s >= UNREAD_S:
            self._unread_s = None
            self.state = ReplicationState.SNAPSHOT

    def _appends(
        self,
        journal: Journal,
        snapshots: Snapshots,
        *,
        commit_index: int,
        read_round: int,
        room_bytes: int,
        now_s: float,
        asked: bool,
    ) -> list[Append]:
        if self.state is ReplicationState.REPLICATE and self.next < journal.first_index:
            # The log has dropped the entry while the window was full.
            self._to_probe()
        if self.state is ReplicationState.PROBE:
            messages = self._probes(
                journal, snapshots, commit_index, read_round, room_bytes, asked=asked
            )
            if self.state is ReplicationState.PROBE:
                return messages
        if self.state is ReplicationState.SNAPSHOT and asked:
            last = journal.last_index
            return [self._append(journal, (), commit_index, read_round, previous=last)]
        if self.state is not ReplicationState.REPLICATE:
            return []
        messages = []
        while self.next <= journal.last_index and self._open(room_bytes):
            entries = journal.entries(snapshots, self.next, APPEND_BYTES_MAX)
            message = self._append(journal, entries, commit_index, read_round)
            self.next += len(entries)
            size = entries_bytes(entries)
            room_bytes -= size
            self._fly(size, now_s)
            messages.append(message)
        if asked and not messages:
            messages.append(self._append(journal, (), commit_index, read_round))
            self._fly(0, now_s)
        return messages

    def _probes(
        self,
        journal: Journal,
        snapshots: Snapshots,
        commit_index: int,
        read_round: int,
        room_bytes: int,
        *,
        asked: bool,
    ) -> list[Append]:
        if (self._waits or self._probe is not None) and not asked:
            return []
        if self.next < journal.first_index:
            self.state = ReplicationState.SNAPSHOT
            return []
        entries: tuple[LogEntry, ...] = ()
        waits = self._waits or room_bytes <= 0
        if not waits and self._probe is None and self.next <= journal.last_index:
            # Entries right after `match` are not refused, and only an answer for all of them shows
            # success.
            sure = self.next == self.match + 1
            entries = journal.entries(
                snapshots, self.next, APPEND_BYTES_MAX if sure else _PROBE_BYTES
            )
            if not sure and entries_bytes(entries) > _PROBE_BYTES:
                entries = ()
        message = self._append(journal, entries, commit_index, read_round)
        if not waits and self._probe is None:
            self._probe = message.sequence, message.prev_index + len(entries)
        return [message]

    def _append(
        self,
        journal: Journal,
        entries: tuple[LogEntry, ...],
        commit_index: int,
        read_round: int,
        *,
        previous: int | None = None,
    ) -> Append:
        """A message with entries that follow `previous`; None: the entry before `next`."""
        self.sequence += 1
        previous = self.next - 1 if previous is None else previous
        return Append(
            term=journal.getCurrentTerm(),
            sequence=self.sequence,
            read_round=read_round,
            prev_index=previous,
            prev_term=journal.term_at(previous),
            commit_index=commit_index,
            entries=entries,
        )

    def _open(self, room_bytes: int) -> bool:
        """Whether more may be sent ahead of the answers."""
        return room_bytes > 0 and (not self._flying or self._window_open)

    @property
    def _window_open(self) -> bool:
        return (
            self._flying_bytes < REPLICATION_WINDOW_BYTES
            and len(self._flying) < REPLICATION_MESSAGES_MAX
        )

    def wants_room(self, journal: Journal) -> bool:
        """Whether there was more to send than there was space for."""
        if self.state is ReplicationState.PROBE:
            return self._probe is None and not self._waits
        return (
            self.state is ReplicationState.REPLICATE
            and self.next <= journal.last_index
            and self._window_open
        )

    def _fly(self, size: int, now_s: float) -> None:
        if not self._flying:
            self._flying_since_s = now_s
        self._flying.append((self.sequence, size))
        self._flying_bytes += size

    # --- what comes back -----------------------------------------------------------

    def on_reply(self, reply: AppendReply, journal: Journal, now_s: float) -> bool:
        """Handles a reply of the present term; returns whether `match` has moved."""
        if reply.sequence > self.sequence or self.state is ReplicationState.LOST:
            return False
        self.heard_s = now_s
        self.read_round = max(self.read_round, reply.read_round)
        self.applied = max(self.applied, reply.applied)
        while self._flying and self._flying[0][0] <= reply.sequence:
            self._flying_bytes -= self._flying.popleft()[1]
            self._flying_since_s = now_s
        if reply.success:
            return self._on_success(reply)
        if reply.sequence >= self._probe_sequence and self.state is not ReplicationState.SNAPSHOT:
            self._on_refusal(reply, journal)
        return False

    def _on_success(self, reply: AppendReply) -> bool:
        moved = reply.index > self.match
        self.match = max(self.match, reply.index)
        if self.state is ReplicationState.PROBE:
            sequence, last = self._probe if self._probe is not None else (math.inf, 0)
            if reply.sequence < sequence:
                # It answers a message from before the probe.
                return moved
            if reply.sequence == sequence and reply.index < last:
                self._to_probe(wait=True)
                return moved
            self.state = ReplicationState.REPLICATE
            self.next = self.match + 1
        elif self.state is ReplicationState.REPLICATE:
            if reply.sequence == self.sequence and self.match + 1 < self.next:
                # All messages are answered, and some entries were not taken.
                self._to_probe(wait=True)
            self.next = max(self.next, self.match + 1)
        return moved

    def _on_refusal(self, reply: AppendReply, journal: Journal) -> None:
        """Moves `next` back to where the logs may agree."""
        after = reply.index
        if reply.conflict_term:
            if self.state is ReplicationState.PROBE and self.next == self.match + 1:
                # It has another entry in the place of an acknowledged one.
                self.state = ReplicationState.LOST
                return
            last = journal.last_of_term(reply.conflict_term)
            if last is not None:
                after = max(after, last + 1)
        elif after <= self.match:
            # Its log ends before the acknowledged index.
            self.state = ReplicationState.LOST
            return
        self.next = min(max(after, self.match + 1), journal.last_index + 1)
        # Consecutive entries are refused only when an entry before them was not taken.
        self._to_probe(at_next=True, wait=self.state is ReplicationState.REPLICATE)

    def _to_probe(self, *, wait: bool = False, at_next: bool = False) -> None:
        """Enters PROBE. `wait`: the probe waits for the next heartbeat. `at_next`: `next` stays."""
        self.state = ReplicationState.PROBE
        if not at_next:
            self.next = self.match + 1
        self._flying.clear()
        self._flying_bytes = 0
        self._probe = None
        self._waits = wait
        self._probe_sequence = self.sequence + 1

    def interrupted(self) -> None:
        """The connection broke: messages on their way are lost."""
        if self.state is ReplicationState.REPLICATE or self.state is ReplicationState.PROBE:
            self._to_probe(at_next=not self.match)

    def lost(self) -> None:
        """The replica does not have entries that it has acknowledged."""
        self.state = ReplicationState.LOST

    def snapshot_ended(self, index: int | None) -> None:
        """The follower has a snapshot at `index`, or (None) the attempt was given up."""
        assert self.state is ReplicationState.SNAPSHOT
        if index is not None:
            self.match = max(self.match, index)
        self._to_probe(wait=index is None)

    # --- time --------------------------------------------------------------------

    def overdue(self, now_s: float) -> bool:
        """Called with each heartbeat. Returns whether overdue answers were given up."""
        self._waits = False
        if self.state is ReplicationState.REPLICATE and self._flying:
            if now_s - self._flying_since_s > REPLY_TIMEOUT_S:
                self._to_probe()
                return True
        return False

    @property
    def heartbeat_suffices(self) -> bool:
        """Whether a heartbeat is enough, because nothing must be sent again, and no progress has to
        be asked for.
        """
        return self.state is ReplicationState.REPLICATE and self.serves_soon

    @property
    def serves_soon(self) -> bool:
        """Whether it has applied most of what it has acknowledged."""
        return self.match - self.applied <= UNAPPLIED_ENTRIES_MAX


def entries_bytes(entries: tuple[LogEntry, ...]) -> int:
    return sum(len(entry.command) + sum(map(len, entry.attachments)) for entry in entries)
