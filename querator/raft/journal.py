"""A group's log, term and vote, kept in the node's environment.

Rows (`storage.tables`):

    LOG      index → kind, number of attachments, bytes it counts for, term, now_ms,
                     bytes of the log up to here, command
    MEMBERS  → term, vote, where the log begins, and the runs of terms in it
    APPLIED  → index, term and now_ms of the last applied entry (written by `raft.group`)

All are sealed (`storage.sealed`): damage in them is StorageCorrupt, and stops the one group.
`tests/unit/raft/test_damage.py` holds golden bytes.

Attachments are in `storage.attachments` under (group, index, part): written when their entry is
appended, released when the head of the log passes it.

Memory holds what a turn needs and nothing that grows with the log: the newest entries up to
`LOG_CACHE_BYTES` (and all that are not applied), the first and last index, and for the term of
any index the runs of equal terms, of which each election begins one. Sizes are differences of the
running count of bytes that each row carries. So opening a log of any length reads four rows.

The journal gathers changes in memory; `flush` writes them into the turn's transaction and
`synced` says that it was committed. Nothing here is undone: a transaction that fails ends the
process, which recovers from disk. The commit index is not stored. A restart begins at the applied
index, which is a committed one, and Raft demands no more (Ongaro, Consensus: Bridging Theory and
Practice, section 3.8).

To the library the log is a list of (command, index, term) whose position 0 is the sentinel: the
entry before the first one kept. It asks for indexes and terms only; commands are read by
`record`.
"""

import struct
from bisect import bisect_right
from typing import Any, Self, overload

import msgspec

from querator.model.entries import Entry
from querator.model.ids import GroupId
from querator.model.limits import (
    LOG_BYTES_KEPT,
    LOG_CACHE_BYTES,
    LOG_ENTRY_OVERHEAD_BYTES,
    LOG_TERMS_MAX,
    TRUNCATE_ENTRIES_TURN_MAX,
)
from querator.raft.library import NO_OP, LibraryJournal
from querator.storage import attachments
from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction
from querator.storage.sealed import seal, unseal
from querator.storage.tables import LOG, MEMBERS

_HEAD = struct.Struct(">BIIQQQ")
_KIND_NO_OP = 1
_KIND_COMMAND = 2
_NO_ENTRY = Entry(b"")
_MEMBER_FORMAT = 1


class Stamped(msgspec.Struct, frozen=True, gc=False):
    """An entry with the leader's time, as the journal takes it on."""

    entry: Entry
    now_ms: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """One entry of the log.

    `bytes` is what the entry counts for, attachments included; `log_bytes` is the sum of this and
    all entries before it. `attachments_count` tells how many
    attachments belong to it; `entry.attachments` holds them only while the record stays in
    memory. The library's no-op has no command and is not for the machine.
    """

    index: int
    term: int
    now_ms: int
    bytes: int
    log_bytes: int
    entry: Entry
    attachments_count: int
    is_command: bool


class _MemberRow(msgspec.Struct, frozen=True, array_like=True):
    format: int
    deleting: bool
    term: int
    vote: int | None
    base_index: int
    base_term: int
    base_bytes: int
    base_ms: int
    runs: tuple[tuple[int, int], ...]


_decode_member = msgspec.msgpack.Decoder(_MemberRow).decode
_encode = msgspec.msgpack.Encoder().encode


class GroupDeleted(Exception):
    """The group is being deleted; it cannot be opened any more."""


class Journal(LibraryJournal):  # type: ignore[misc]
    """The log, term and vote of one group. Only the raft thread calls it."""

    def __init__(self, group: GroupId, *, bytes_kept: int = LOG_BYTES_KEPT) -> None:
        """An empty log, not stored yet. Use `open` for one that may exist."""
        self._group = group
        self._bytes_kept = bytes_kept
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
        self.durable_index = 0
        """The last index that a synced commit has covered."""
        self._member_changed = True
        self._cache: dict[int, Record] = {}
        self._cache_bytes = 0

    @classmethod
    def open(
        cls, txn: ReadTransaction, group: GroupId, *, bytes_kept: int = LOG_BYTES_KEPT
    ) -> Self:
        """The stored log, or an empty one. Raises GroupDeleted, StorageCorrupt."""
        journal = cls(group, bytes_kept=bytes_kept)
        stored = MEMBERS.get(txn, group)
        if stored is None:
            if next(LOG.rows(txn, group), None) is not None:
                raise StorageCorrupt(
                    f"group {group}: there is a log, and its member row is missing"
                )
            return journal
        row = _decode_member(unseal(MEMBERS.key(group), stored, f"member row of group {group}"))
        if row.deleting:
            raise GroupDeleted(f"group {group} is being deleted")
        if row.format != _MEMBER_FORMAT:
            raise StorageCorrupt(f"group {group}: member row of unknown format {row.format}")
        journal._restore(txn, row)
        return journal

    def _restore(self, txn: ReadTransaction, row: _MemberRow) -> None:
        self._member_changed = False
        self._term, self._vote = row.term, row.vote
        self._runs = list(row.runs)
        first = next(LOG.rows(txn, self._group), None)
        if first is None:
            self._base_index, self._base_term = row.base_index, row.base_term
            self._base_bytes, self._base_ms = row.base_bytes, row.base_ms
            last_index, last_bytes, last_ms = row.base_index, row.base_bytes, row.base_ms
        else:
            record = self._decode(*first)
            self._base_index = record.index - 1
            self._base_bytes = record.log_bytes - record.bytes
            last = self._decode(*next(LOG.rows(txn, self._group, reverse=True)))
            last_index, last_bytes, last_ms = last.index, last.log_bytes, last.now_ms
            self._base_term = row.base_term
            if self._runs and self._runs[0][0] <= self._base_index:
                self._base_term = self.term_at(self._base_index)
        self.last_index, self._last_bytes, self.last_ms = last_index, last_bytes, last_ms
        self._written_index = self.durable_index = last_index
        self.last_term = self._base_term
        if first is not None:
            self.last_term = self.term_at(last_index)

    # --- the log -------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """Of the oldest entry kept; one above `last_index` when there is none."""
        return self._base_index + 1

    @property
    def bytes_kept(self) -> int:
        """Size of the entries kept, attachments included."""
        return self._last_bytes - self._base_bytes

    def term_at(self, index: int) -> int:
        """The term of an entry kept, or of the sentinel before them."""
        assert self._base_index <= index <= max(self.last_index, self._base_index)
        position = bisect_right(self._runs, index, key=_run_first)
        return self._runs[position - 1][1] if position else self._base_term

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
        return self._decode(key, value)

    def _decode(self, key: bytes, value: bytes) -> Record:
        (index,) = LOG.parts(key)
        assert isinstance(index, int)
        body = unseal(key, value, f"entry {index} in the log of group {self._group}")
        kind, parts, size, term, now_ms, log_bytes = _HEAD.unpack_from(body)
        return Record(
            index=index,
            term=term,
            now_ms=now_ms,
            bytes=size,
            log_bytes=log_bytes,
            entry=Entry(body[_HEAD.size :]),
            attachments_count=parts,
            is_command=kind == _KIND_COMMAND,
        )

    # --- what a turn does with it ----------------------------------------------

    @property
    def changed(self) -> bool:
        """Whether `flush` has anything to write."""
        return self._member_changed or self.last_index > self._written_index

    def flush(self, txn: WriteTransaction) -> None:
        """Writes what has changed since the last flush."""
        for index in range(self._written_index + 1, self.last_index + 1):
            record = self._cache[index]
            for part, data in enumerate(record.entry.attachments):
                attachments.write(txn, self._group, index, part, data)
            key = LOG.key(self._group, index)
            head = _HEAD.pack(
                _KIND_COMMAND if record.is_command else _KIND_NO_OP,
                record.attachments_count,
                record.bytes,
                record.term,
                record.now_ms,
                record.log_bytes,
            )
            txn.put(key, seal(key, head + record.entry.command))
        self._written_index = self.last_index
        if self._member_changed:
            self._write_member(txn)

    def _write_member(self, txn: WriteTransaction) -> None:
        row = _MemberRow(
            format=_MEMBER_FORMAT,
            deleting=False,
            term=self._term,
            vote=self._vote,
            base_index=self._base_index,
            base_term=self._base_term,
            base_bytes=self._base_bytes,
            base_ms=self._base_ms,
            runs=tuple(self._runs),
        )
        _put_member(txn, self._group, row)
        self._member_changed = False

    def synced(self, applied_index: int) -> None:
        """The last flush is durable; entries up to `applied_index` are applied."""
        self.durable_index = self._written_index
        spare = min(self.durable_index, applied_index)
        while self._cache_bytes > LOG_CACHE_BYTES:
            oldest = next(iter(self._cache))
            if oldest > spare:
                break
            self._cache_bytes -= self._cache.pop(oldest).bytes

    def truncate_head(
        self, txn: WriteTransaction, applied_index: int, *, whole: bool = False
    ) -> None:
        """Lets the oldest entries go while more than the window is kept, or with `whole` all; never
        one that is not applied, nor the last that is.

        At most `TRUNCATE_ENTRIES_TURN_MAX` of them: the rest goes with the next turns.
        """
        for _ in range(TRUNCATE_ENTRIES_TURN_MAX):
            index = self.first_index
            full = whole or self.bytes_kept > self._bytes_kept or len(self._runs) > LOG_TERMS_MAX
            if not full or index >= applied_index:
                return
            record = self.record(txn, index)
            attachments.release(txn, self._group, index, record.attachments_count)
            LOG.delete(txn, self._group, index)
            self._base_index, self._base_term = index, record.term
            self._base_bytes, self._base_ms = record.log_bytes, record.now_ms
            if self._cache.pop(index, None) is not None:
                self._cache_bytes -= record.bytes
            # The run that holds the sentinel stays: it tells the sentinel's term.
            while len(self._runs) > 1 and self._runs[1][0] <= index:
                del self._runs[0]

    # --- the library's face ------------------------------------------------------

    def add(self, command: Stamped | bytes, idx: int, term: int) -> None:
        """Appends an entry, or the library's no-op."""
        assert idx == self.last_index + 1
        assert self.last_term <= term <= self._term
        if isinstance(command, Stamped):
            entry, now_ms, is_command = command.entry, max(command.now_ms, self.last_ms), True
        else:
            assert command == NO_OP, "the library appends nothing else"
            entry, now_ms, is_command = _NO_ENTRY, self.last_ms, False
        size = _entry_size(entry)
        self._cache[idx] = Record(
            index=idx,
            term=term,
            now_ms=now_ms,
            bytes=size,
            log_bytes=self._last_bytes + size,
            entry=entry,
            attachments_count=len(entry.attachments),
            is_command=is_command,
        )
        self._cache_bytes += size
        self.last_index, self.last_ms = idx, now_ms
        self._last_bytes += size
        if term != self.last_term or not self._runs:
            self._runs.append((idx, term))
            self.last_term = term
            self._member_changed = True

    def __len__(self) -> int:
        return self.last_index - self._base_index + 1

    @overload
    def __getitem__(self, item: int) -> tuple[bytes, int, int]: ...

    @overload
    def __getitem__(self, item: slice) -> list[tuple[bytes, int, int]]: ...

    def __getitem__(self, item: int | slice) -> Any:
        """(nothing, index, term) of positions, the sentinel's being 0. Commands are not read this
        way."""
        if isinstance(item, slice):
            positions = range(*item.indices(len(self)))
            return [self[position] for position in positions]
        if item == -1:
            return b"", self.last_index, self.last_term
        if not 0 <= item < len(self):
            raise IndexError(item)
        index = self._base_index + item
        return b"", index, self.term_at(index)

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:
        assert term >= self._term, "a term never goes back"
        self._term, self._vote = term, votedForNodeId
        self._member_changed = True

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> int | None:
        return self._vote

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Not stored (see the module's docstring)."""

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        raise AssertionError("a log with one member has no conflicts")

    def deleteEntriesTo(self, entryTo: int) -> None:
        raise AssertionError("stock compaction never runs")

    def clear(self) -> None:
        raise AssertionError("stock snapshots are never loaded")

    def onOneSecondTimer(self) -> None:
        """Nothing is written behind the turn's back."""

    def _destroy(self) -> None:
        """The environment belongs to the node."""


def mark_deleting(txn: WriteTransaction, group: GroupId) -> None:
    """From now on `Journal.open` refuses the group: half of its rows may be gone."""
    _put_member(txn, group, _MemberRow(_MEMBER_FORMAT, True, 0, None, 0, 0, 0, 0, ()))


def _put_member(txn: WriteTransaction, group: GroupId, row: _MemberRow) -> None:
    key = MEMBERS.key(group)
    txn.put(key, seal(key, _encode(row)))


def _run_first(run: tuple[int, int]) -> int:
    return run[0]


def _entry_size(entry: Entry) -> int:
    return LOG_ENTRY_OVERHEAD_BYTES + len(entry.command) + sum(map(len, entry.attachments))
