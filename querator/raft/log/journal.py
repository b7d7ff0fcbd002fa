"""A group's log, term and vote, in the node's environment.

Rows (`storage.tables`):

    LOG      index → kind, number of attachments, size in the count of bytes, term, now_ms,
                     bytes of the log up to here, command
    MEMBERS  → term, vote, where the log begins, the runs of terms in it, the replica's id, and
               the configurations that are or may come to be in force (`raft.configuration`)
    APPLIED  → index, term and now_ms of the last applied entry (written by `raft.group`)

`raft.log.rows` encodes them. All are sealed: damage in them is StorageCorrupt, and stops only this
group.

Attachments are in `storage.attachments` under (group, index, part). They are written when their
entry is appended, and released when the head of the log passes it.

Memory holds what a turn needs and nothing that grows with the log: the newest entries up to
`LOG_CACHE_BYTES` (including those that are not applied up to `LOG_UNAPPLIED_CACHE_BYTES`), the
first and last index, and the runs of equal terms, which give the term of any index. Each election
begins one run. Sizes are differences of the running count of bytes in each row. So opening a log of
any length reads four rows.

The journal gathers changes in memory; `flush` writes them into the turn's transaction, and `synced`
reports that it was committed. Nothing here is undone: a transaction that fails ends the process,
which recovers from disk. `take_back` drops entries at the end that another leader has replaced; the
next flush deletes the rows of those that were written. The commit index is not stored. A restart
begins at the applied index, which is a committed one, and Raft demands no more (Ongaro, Consensus:
Bridging Theory and Practice, section 3.8).

For the library the log is a list of (command, index, term) whose position 0 is the sentinel: the
entry before the first one kept. The library reads only indexes and terms; `record` reads commands.

The module is longer than 500 lines: every change of the log also changes its sizes, terms and
configurations, which a reader checks by reading these places together.
"""

from bisect import bisect_right
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Self

import msgspec

from querator.model.entries import Entry
from querator.model.ids import GroupId
from querator.model.limits import (
    LOG_CACHE_BYTES,
    LOG_TERMS_MAX,
    LOG_UNAPPLIED_CACHE_BYTES,
    TRUNCATE_ENTRIES_TURN_MAX,
)
from querator.model.nodes import Replicas
from querator.raft import configuration
from querator.raft.engine.library import NO_OP
from querator.raft.engine.library_log import LogOfLibrary
from querator.raft.log.rows import (
    KIND_COMMAND,
    KIND_CONFIGURATION,
    KIND_NO_OP,
    KIND_TIME_BACK,
    MemberRow,
    Record,
    decode_member,
    decode_record,
    entry_size,
    member_row,
    put_member,
    put_record,
    read_applied,
    sent,
)
from querator.raft.messages import LogEntry
from querator.raft.snapshot.protocol import Position
from querator.storage import attachments
from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction
from querator.storage.tables import LOG, MEMBERS

_NO_ENTRY = Entry(b"")
PINNED_WINDOWS = 4
"""Most that the log keeps for followers, in windows."""

Snapshots = Callable[[], AbstractContextManager[ReadTransaction]]
"""Opens a read transaction on what is committed in the environment."""


class Stamped(msgspec.Struct, frozen=True, gc=False):
    """An entry with the leader's time, as the journal accepts it."""

    entry: Entry
    now_ms: int
    time_back: bool = False
    """Whether the log's time goes back to `now_ms`."""


class GroupDeleted(Exception):
    """The group is being deleted; it cannot be opened any more."""


class Journal(LogOfLibrary):
    """The log, term and vote of one group. Only the raft thread calls it."""

    def __init__(
        self,
        group: GroupId,
        *,
        replica: int = 1,
        replicas: Replicas = (),
    ) -> None:
        """An empty log of this replica, not stored yet. Use `open` for a log that may exist."""
        self._group = group
        self.replica = replica
        """Id of this replica in the group."""
        self._configurations: list[tuple[int, Replicas]] = [(0, replicas)]
        self._term = 0
        self._vote: int | None = None
        self._base_index = 0
        self._base_term = 0
        self._base_bytes = 0
        self._base_ms = 0
        self.last_index = 0
        self.last_term = 0
        self.last_ms = 0
        """Time stamped on the last entry, ms since the epoch."""
        self._last_bytes = 0
        self._runs: list[tuple[int, int]] = []
        self._written_index = 0
        self._stored_index = 0
        """The last index that has a row; above `_written_index` when entries were taken back."""
        self.durable_index = 0
        """The last index that a synced commit has covered."""
        self._member_changed = True
        self._cache: dict[int, Record] = {}
        self._cache_bytes = 0

    @classmethod
    def open(
        cls,
        txn: ReadTransaction,
        group: GroupId,
        *,
        replica: int = 1,
        replicas: Replicas = (),
    ) -> Self:
        """The stored log, regardless of `replicas`, or an empty log of this replica with `replicas`
        as the first configuration. Raises GroupDeleted, StorageCorrupt.
        """
        journal = cls(group, replica=replica, replicas=replicas)
        stored = MEMBERS.get(txn, group)
        if stored is None:
            if next(LOG.rows(txn, group), None) is not None:
                raise StorageCorrupt(
                    f"group {group}: there is a log, and its member row is missing"
                )
            return journal
        row = decode_member(group, stored)
        if row.deleting:
            raise GroupDeleted(f"group {group} is being deleted")
        journal._restore(txn, row)
        return journal

    def _restore(self, txn: ReadTransaction, row: MemberRow) -> None:
        self._member_changed = False
        self._term, self._vote = row.term, row.vote
        self._runs = list(row.runs)
        self.replica = row.replica
        self._configurations = list(row.configurations)
        first = next(LOG.rows(txn, self._group), None)
        if first is None:
            self._base_index, self._base_term = row.base_index, row.base_term
            self._base_bytes, self._base_ms = row.base_bytes, row.base_ms
            last_index, last_bytes, last_ms = row.base_index, row.base_bytes, row.base_ms
        else:
            record = decode_record(self._group, *first)
            self._base_index = record.index - 1
            self._base_bytes = record.log_bytes - record.bytes
            last = decode_record(self._group, *next(LOG.rows(txn, self._group, reverse=True)))
            last_index, last_bytes, last_ms = last.index, last.log_bytes, last.now_ms
            self._base_term = row.base_term
            if self._runs and self._runs[0][0] <= self._base_index:
                self._base_term = self.term_at(self._base_index)
        self.last_index, self._last_bytes, self.last_ms = last_index, last_bytes, last_ms
        self._written_index = self._stored_index = self.durable_index = last_index
        self.last_term = self._base_term
        if first is not None:
            self.last_term = self.term_at(last_index)

    # --- the log -------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """Index of the oldest entry kept; `last_index` + 1 when there is none."""
        return self._base_index + 1

    @property
    def bytes_kept(self) -> int:
        """Size of the entries kept, attachments included."""
        return self._last_bytes - self._base_bytes

    def bytes_after(self, index: int) -> int:
        """Size of the entries after this one that are in memory: the newest, without a gap.
        O(1).
        """
        first = self._cache.get(index + 1)
        if first is None and self._cache:
            first = self._cache[next(iter(self._cache))]
        if first is None or first.index <= index:
            return 0
        return self._last_bytes - first.log_bytes + first.bytes

    def term_at(self, index: int) -> int:
        """The term of an entry kept, or of the sentinel before them."""
        assert self._base_index <= index <= max(self.last_index, self._base_index)
        runs = self._runs
        if runs and runs[-1][0] <= index:
            return runs[-1][1]
        position = bisect_right(runs, index, key=itemgetter(0))
        return runs[position - 1][1] if position else self._base_term

    def record(self, txn: ReadTransaction, index: int) -> Record:
        """An entry kept. Raises StorageCorrupt when its row is damaged or missing."""
        assert self.first_index <= index <= self.last_index
        record = self._cache.get(index)
        return record if record is not None else self._read(txn, index)

    def _read(self, txn: ReadTransaction, index: int) -> Record:
        key = LOG.key(self._group, index)
        value = txn.get(key)
        if value is None:
            raise StorageCorrupt(f"group {self._group}: entry {index} of the log is missing")
        return decode_record(self._group, key, value)

    def entries(self, snapshots: Snapshots, first: int, bytes_max: int) -> tuple[LogEntry, ...]:
        """Entries to send, from `first` on: as many as `bytes_max` holds, and at least one.

        Raises StorageCorrupt.
        """
        found: list[LogEntry] = []
        size = 0
        for index in range(first, self.last_index + 1):
            record = self._cache.get(index)
            if record is None:
                # The remaining entries are older than those in memory.
                return (*found, *self._stored_entries(snapshots, index, bytes_max - size, found))
            size += record.bytes
            if found and size > bytes_max:
                break
            found.append(sent(record, record.entry.attachments))
        return tuple(found)

    def _stored_entries(
        self, snapshots: Snapshots, first: int, bytes_max: int, before: list[LogEntry]
    ) -> list[LogEntry]:
        found: list[LogEntry] = []
        with snapshots() as snapshot:
            for index in range(first, self.last_index + 1):
                record = self.record(snapshot, index)
                bytes_max -= record.bytes
                if (found or before) and bytes_max < 0:
                    break
                parts = record.entry.attachments
                if len(parts) < record.attachments_count:
                    parts = self._attachments(snapshot, record)
                found.append(sent(record, parts))
        return found

    def _attachments(self, txn: ReadTransaction, record: Record) -> tuple[bytes, ...]:
        parts = []
        for part in range(record.attachments_count):
            data = attachments.read(txn, self._group, record.index, part)
            if data is None:
                raise StorageCorrupt(
                    f"group {self._group}: attachment {part} of entry {record.index} is missing"
                )
            parts.append(data)
        return tuple(parts)

    # --- configurations ----------------------------------------------------------

    @property
    def replicas(self) -> Replicas:
        """The configuration in force: the last one in the log, committed or not."""
        return self._configurations[-1][1]

    @property
    def replicas_index(self) -> int:
        """Index of the entry that holds the configuration in force."""
        return self._configurations[-1][0]

    # --- what a turn does with it ----------------------------------------------

    @property
    def changed(self) -> bool:
        """Whether `flush` has anything to write."""
        return (
            self._member_changed
            or self.last_index > self._written_index
            or self._stored_index > self._written_index
        )

    @property
    def only_grown(self) -> bool:
        """Whether `flush` only has to write entries after those that are written."""
        return not self._member_changed and self._stored_index <= self._written_index

    def flush(self, txn: WriteTransaction) -> None:
        """Writes the changes since the last flush."""
        for index in range(self._written_index + 1, self._stored_index + 1):
            attachments.discard(txn, self._group, index)
            LOG.delete(txn, self._group, index)
        for index in range(self._written_index + 1, self.last_index + 1):
            record = self._cache[index]
            for part, data in enumerate(record.entry.attachments):
                attachments.write(txn, self._group, index, part, data)
            put_record(txn, self._group, record)
        self._written_index = self._stored_index = self.last_index
        if self._member_changed:
            self._write_member(txn)

    def _write_member(self, txn: WriteTransaction) -> None:
        row = member_row(
            term=self._term,
            vote=self._vote,
            base=(self._base_index, self._base_term, self._base_bytes, self._base_ms),
            runs=tuple(self._runs),
            replica=self.replica,
            configurations=tuple(self._configurations),
        )
        put_member(txn, self._group, row)
        self._member_changed = False

    def position(self, txn: ReadTransaction) -> Position:
        """The position of the state that the transaction sees. Raises StorageCorrupt."""
        applied = read_applied(txn, self._group)
        assert applied is not None, "a leader has applied the first entry of its term"
        index, term, now_ms = applied
        log_bytes = self._base_bytes
        if index > self._base_index:
            log_bytes = self.record(txn, index).log_bytes
        replicas_index, replicas = next(
            found for found in reversed(self._configurations) if found[0] <= index
        )
        return Position(
            index=index,
            term=term,
            now_ms=now_ms,
            log_bytes=log_bytes,
            replicas_index=replicas_index,
            replicas=replicas,
        )

    def replace(self, position: Position) -> None:
        """Makes the log begin after the state of a snapshot, empty. Term, vote and replica stay;
        the next flush writes them into the new generation.
        """
        assert position.index > self._base_index
        self._base_index = self.last_index = position.index
        self._base_term = self.last_term = position.term
        self._base_bytes = self._last_bytes = position.log_bytes
        self._base_ms = self.last_ms = position.now_ms
        self._runs.clear()
        self._configurations = [(position.replicas_index, position.replicas)]
        self._cache.clear()
        self._cache_bytes = 0
        self._written_index = self._stored_index = self.last_index
        self._member_changed = True

    def has(self, index: int, term: int) -> bool:
        """Whether the entry, or the sentinel, is in the log."""
        return self._base_index <= index <= self.last_index and self.term_at(index) == term

    def synced(self, applied_index: int) -> None:
        """The last flush is durable; entries up to `applied_index` are applied."""
        self.durable_index = self._written_index
        spare = min(self.durable_index, applied_index)
        while self._cache_bytes > LOG_CACHE_BYTES:
            oldest = next(iter(self._cache))
            many = self._cache_bytes > LOG_UNAPPLIED_CACHE_BYTES
            if oldest > (self.durable_index if many else spare):
                break
            self._cache_bytes -= self._cache.pop(oldest).bytes

    def truncate_head(
        self,
        txn: WriteTransaction,
        applied_index: int,
        *,
        bytes_max: int,
        needed_from: int | None = None,
        whole: bool = False,
    ) -> None:
        """Drops the oldest entries while more than a window of `bytes_max` is kept, or all of them
        with `whole`. It never drops an entry that is not applied, nor the last applied one. From
        `needed_from` on, where followers need entries, `PINNED_WINDOWS` windows are kept.

        Drops at most `TRUNCATE_ENTRIES_TURN_MAX` in one turn.
        """
        for _ in range(TRUNCATE_ENTRIES_TURN_MAX):
            index = self.first_index
            needed = needed_from is not None and index >= needed_from
            windows = PINNED_WINDOWS if needed else 1
            full = self.bytes_kept > windows * bytes_max or len(self._runs) > LOG_TERMS_MAX
            if not (full or whole) or index >= applied_index:
                return
            record = self.record(txn, index)
            attachments.release(txn, self._group, index, record.attachments_count)
            LOG.delete(txn, self._group, index)
            self._base_index, self._base_term = index, record.term
            self._base_bytes, self._base_ms = record.log_bytes, record.now_ms
            if self._cache.pop(index, None) is not None:
                self._cache_bytes -= record.bytes
            # The run that holds the sentinel stays: it gives the sentinel's term.
            while len(self._runs) > 1 and self._runs[1][0] <= index:
                del self._runs[0]
            while len(self._configurations) > 1 and self._configurations[1][0] <= index:
                del self._configurations[0]

    def take_back(self, snapshots: Snapshots, last: int) -> None:
        """Drops the entries after `last`: another leader has replaced them.

        Raises StorageCorrupt.
        """
        assert self._base_index <= last < self.last_index
        for index in range(last + 1, self.last_index + 1):
            record = self._cache.pop(index, None)
            if record is not None:
                self._cache_bytes -= record.bytes
        if last == self._base_index:
            self._last_bytes, self.last_ms = self._base_bytes, self._base_ms
        else:
            with snapshots() as snapshot:
                newest = self.record(snapshot, last)
            self._last_bytes, self.last_ms = newest.log_bytes, newest.now_ms
        while self._runs and self._runs[-1][0] > last:
            self._runs.pop()
        while self._configurations[-1][0] > last:
            self._configurations.pop()
        self.last_index, self.last_term = last, self.term_at(last)
        self._written_index = min(self._written_index, last)
        self.durable_index = min(self.durable_index, last)
        self._member_changed = True

    def first_of_term(self, index: int) -> int:
        """The first index kept from which all terms up to `index` equal the term at `index`."""
        position = bisect_right(self._runs, index, key=itemgetter(0))
        first = self._runs[position - 1][0] if position else self._base_index
        return max(first, self._base_index)

    def last_of_term(self, term: int) -> int | None:
        """The last index kept of entries of the term, including the sentinel."""
        for position in range(len(self._runs) - 1, -1, -1):
            if self._runs[position][1] == term:
                after = position + 1
                end = self._runs[after][0] - 1 if after < len(self._runs) else self.last_index
                return end if end >= self._base_index else None
            if self._runs[position][1] < term:
                return None
        return self._base_index if self._base_term == term and self._base_index else None

    # --- the library's face ------------------------------------------------------

    def add(self, command: Stamped | bytes, idx: int, term: int) -> None:
        """Appends an entry, or the library's no-op."""
        if isinstance(command, Stamped):
            kind = KIND_TIME_BACK if command.time_back else KIND_COMMAND
            now_ms = command.now_ms if command.time_back else max(command.now_ms, self.last_ms)
            self._append(idx, term, now_ms, kind, command.entry)
        else:
            assert command == NO_OP, "the library appends nothing else"
            self._append(idx, term, self.last_ms, KIND_NO_OP, _NO_ENTRY)

    def add_time(self, now_ms: int) -> None:
        """Appends an entry of the present term that carries only the time."""
        index, now_ms = self.last_index + 1, max(now_ms, self.last_ms)
        self._append(index, self._term, now_ms, KIND_NO_OP, _NO_ENTRY)

    def add_configuration(self, replicas: Replicas) -> int:
        """Appends a configuration in the present term, in force from here on; returns its index."""
        entry = Entry(configuration.encode(replicas))
        self._append(self.last_index + 1, self._term, self.last_ms, KIND_CONFIGURATION, entry)
        return self.last_index

    def append_as_leader(self, entry: LogEntry) -> None:
        """Appends an entry exactly as the leader has it."""
        content = Entry(entry.command, entry.attachments)
        self._append(self.last_index + 1, entry.term, entry.now_ms, entry.kind, content)

    def _append(self, index: int, term: int, now_ms: int, kind: int, entry: Entry) -> None:
        assert index == self.last_index + 1
        assert self.last_term <= term <= self._term
        assert now_ms >= self.last_ms or kind == KIND_TIME_BACK
        size = entry_size(entry)
        self._cache[index] = Record(
            index=index,
            term=term,
            now_ms=now_ms,
            bytes=size,
            log_bytes=self._last_bytes + size,
            entry=entry,
            attachments_count=len(entry.attachments),
            kind=kind,
        )
        self._cache_bytes += size
        self.last_index, self.last_ms = index, now_ms
        self._last_bytes += size
        if term != self.last_term or not self._runs:
            self._runs.append((index, term))
            self.last_term = term
            self._member_changed = True
        if kind == KIND_CONFIGURATION:
            self._configurations.append((index, configuration.decode(entry.command)))
            self._member_changed = True

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:
        assert term >= self._term, "a term never goes back"
        self._term, self._vote = term, votedForNodeId
        self._member_changed = True

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> int | None:
        return self._vote
