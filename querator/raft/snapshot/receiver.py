"""The follower's side of a snapshot; `raft.snapshot.protocol` describes the protocol, and
`storage.generations` where the rows are.

    row        holds                                                 so that after a crash
    --------   ---------------------------------------------------   -------------------------------
    INCOMING   which snapshot is staged, its last whole chunk, its   it continues where it was; or
               end; which one was installed last                     is known to be installed
    generations which rows are in use, staged, and to be deleted     no row stays for ever

Messages only wait in memory; `write` does all work in the turn's transaction, in bounded steps.
Replies to the leader go out after the sync. A snapshot of which nothing is heard for
`STAGED_KEPT_S` is deleted. A snapshot that is offered while another one is staged takes over its
attachments, which are the same in every snapshot.
"""

from collections import deque
from typing import Any

import msgspec

from querator.model.limits import DELETE_ROWS_TURN_MAX, TURN_BYTES_MAX
from querator.raft.messages import SnapshotChunk, SnapshotOffer, SnapshotReply
from querator.raft.snapshot.incoming import IncomingSnapshot, encode_row, read_row
from querator.raft.snapshot.protocol import (
    VALUE_BYTES_MAX,
    WINDOW_BYTES,
    Content,
    End,
    Listed,
    Piece,
    Position,
    Rows,
    Verdict,
    chain,
    decode,
    entry_index,
    state_tables,
    with_group,
)
from querator.raft.snapshot.staging import (
    TURN_ROWS_MAX,
    Budget,
    Listing,
    LongValue,
    SnapshotRefused,
    Summing,
    some,
)
from querator.storage import generations
from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction
from querator.storage.keys import delete_group
from querator.storage.sealed import seal, unseal
from querator.storage.tables import ATTACHMENTS, INCOMING

STAGED_KEPT_S = 600.0
"""A staged snapshot is kept this long after the last message about it."""
TOLD_S = 1.0
"""The leader gets a sign of life this often while long work continues."""
_WAITING_BYTES_MAX = 2 * WINDOW_BYTES + VALUE_BYTES_MAX


class SnapshotReceiver:
    """Receives the state of one group. Only the raft thread calls it."""

    def __init__(self, group: int, txn: ReadTransaction) -> None:
        """Reads the stored progress. Raises StorageCorrupt."""
        self._group = group
        self._generations = generations.read(txn, group)
        self._row = read_row(txn, group)
        self._tables = state_tables()
        self._key_bytes = {table.letter: table.key_bytes - 8 for table in self._tables}
        self._key_bytes[ATTACHMENTS.letter] = ATTACHMENTS.key_bytes - 8
        self._changed = False
        self._offered: tuple[int, int] | None = None
        self._waiting: deque[tuple[SnapshotChunk, Content]] = deque()
        self._waiting_bytes = 0
        self._last: tuple[int, int] | None = None
        """Sequence and sum of the last chunk accepted since the last offer."""
        self._value: LongValue | None = None
        self._listing: Listing | None = None
        self._summing: Summing | None = None
        self._distrust = False
        self._heard_s: float | None = None
        self._told_s = float("-inf")
        self._owed: list[SnapshotReply] = []
        self.bytes_received = 0

    # --- what the owner calls ------------------------------------------------------

    @property
    def generation(self) -> int:
        """Generation of the rows in use."""
        return self._generations.current

    @property
    def staged(self) -> bool:
        """Whether anything of an incoming snapshot is on disk or in memory."""
        return self._generations.staged is not None or self._offered is not None

    @property
    def busy(self) -> bool:
        """Whether `write` has something to do without a further message."""
        incoming = self._row.incoming
        return bool(
            self._changed
            or self._waiting
            or self._offered is not None
            or self._generations.doomed
            or (incoming is not None and not incoming.cleared)
            or (incoming is not None and incoming.end is not None and self.ready_to_install is None)
        )

    @property
    def ready_to_install(self) -> Position | None:
        """Position of a snapshot that is complete and found to be equal. The owner then calls
        `install` or `not_needed`.
        """
        incoming = self._row.incoming
        if incoming is None or incoming.end is None or self._waiting or self._offered is not None:
            return None
        summed = self._summing is not None and self._summing.done
        return incoming.end.position if summed else None

    @property
    def expires_s(self) -> float | None:
        """When the staged snapshot is given up; None when there is none."""
        if not self.staged:
            return None
        return float("-inf") if self._heard_s is None else self._heard_s + STAGED_KEPT_S

    def check(self, now_s: float) -> None:
        """Gives up a snapshot that no leader has continued. The time counts from the first check
        on.
        """
        if self._heard_s is None:
            self._heard_s = now_s
        elif self.staged and now_s > self._heard_s + STAGED_KEPT_S:
            self.abandon()

    def on_message(self, message: SnapshotOffer | SnapshotChunk) -> None:
        """Handles a message of the leader of the present term."""
        name = (message.term, message.number)
        incoming = self._row.incoming
        if isinstance(message, SnapshotOffer):
            if incoming is None or name >= incoming.name:
                self._offered = name
                self._forget_waiting()
                if incoming is None or name != incoming.name:
                    self._summing = None
            return
        if self._offered is not None or incoming is None or incoming.name != name:
            return
        sequence, crc = self._last or (incoming.sequence, incoming.crc)
        if message.sequence != sequence + 1 or message.crc != chain(crc, message.content):
            # A lost or damaged chunk is sent again when the leader asks where to continue.
            return
        if self._waiting_bytes + len(message.content) > _WAITING_BYTES_MAX:
            return
        try:
            content = decode(message.content)
        except msgspec.MsgspecError as error:
            self._refuse(
                SnapshotRefused(f"chunk {message.sequence} is of another release: {error}")
            )
            return
        self._last = (message.sequence, message.crc)
        self._waiting.append((message, content))
        self._waiting_bytes += len(message.content)
        self.bytes_received += len(message.content)

    def write(
        self, txn: WriteTransaction, *, now_s: float, space_bytes: int, applied_index: int
    ) -> None:
        """Does a bounded step of the pending work. `space_bytes` may be written; `applied_index` is
        that of the rows in use. Raises EnvironmentFull and EnvironmentFailed.
        """
        if self._waiting or self._offered is not None:
            self._heard_s = now_s
        before = self._row.incoming
        try:
            self._work(txn, space_bytes, applied_index)
        except SnapshotRefused as refused:
            self._refuse(refused)
        after = self._row.incoming
        if after is not None:
            moved = before is not None and before.sequence != after.sequence
            if moved or (self.busy and now_s - self._told_s >= TOLD_S):
                self._reply(after.name, Verdict.RECEIVED, sequence=after.sequence)
                self._told_s = now_s
        if self._changed:
            self._store(txn)

    def replies(self) -> list[SnapshotReply]:
        """The replies to send to the leader after the sync."""
        owed, self._owed = self._owed, []
        return owed

    def install(self, txn: WriteTransaction) -> Position:
        """Switches to the staged rows. The caller writes raft's rows in the generation that
        `generation` is from then on, in the same transaction.
        """
        position = self.ready_to_install
        assert position is not None
        row = self._generations
        assert row.staged is not None
        self._generations = msgspec.structs.replace(
            row, current=row.staged, staged=None, doomed=(*row.doomed, row.current)
        )
        self._ended(position.index)
        self._distrust = False
        self._store(txn)
        return position

    def not_needed(self) -> None:
        """Ends the snapshot: the own log and state agree with the leader's up to its index."""
        position = self.ready_to_install
        assert position is not None
        self._ended(position.index)
        self._drop_staged()

    def abandon(self) -> None:
        """Forgets an incoming snapshot, if there is one; the next turns delete the staged rows."""
        self._offered = self._summing = None
        self._forget_waiting()
        if self._row.incoming is not None:
            self._row = msgspec.structs.replace(self._row, incoming=None)
            self._changed = True
        self._drop_staged()

    # --- the state of it -----------------------------------------------------------

    def _ended(self, index: int) -> None:
        incoming = self._row.incoming
        assert incoming is not None
        self._row = msgspec.structs.replace(
            self._row, incoming=None, installed=(*incoming.name, index)
        )
        self._changed = True
        self._summing = None
        self._reply(incoming.name, Verdict.INSTALLED, index=index)

    def _drop_staged(self) -> None:
        row = self._generations
        if row.staged is not None:
            self._generations = msgspec.structs.replace(
                row, staged=None, doomed=(*row.doomed, row.staged)
            )
            self._changed = True

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._last = self._value = self._listing = None

    def _refuse(self, refused: SnapshotRefused) -> None:
        incoming = self._row.incoming
        assert incoming is not None
        self._reply(incoming.name, Verdict.REFUSED, reason=str(refused))
        self._distrust = self._distrust or refused.distrust
        self.abandon()

    def _reply(self, name: tuple[int, int], verdict: Verdict, **fields: Any) -> None:
        self._owed.append(SnapshotReply(*name, verdict, **fields))

    def _set_incoming(self, incoming: IncomingSnapshot) -> None:
        self._row = msgspec.structs.replace(self._row, incoming=incoming)
        self._changed = True

    def _store(self, txn: WriteTransaction) -> None:
        generations.write(txn, self._group, self._generations)
        key = INCOMING.key(self._group)
        txn.put(key, seal(key, encode_row(self._row)))
        self._changed = False

    # --- one turn's work -----------------------------------------------------------

    def _work(self, txn: WriteTransaction, space_bytes: int, applied_index: int) -> None:
        if self._offered is not None:
            self._accept(self._offered)
        if self._generations.doomed and not self._delete_doomed(txn):
            return
        incoming = self._row.incoming
        if incoming is None:
            self._offered = None
            return
        staging = self._staging(txn)
        if not incoming.cleared and not self._clear(staging):
            return
        if self._offered is not None:
            self._offered = None
            incoming = self._incoming()
            self._reply(
                incoming.name,
                Verdict.READY,
                sequence=incoming.sequence,
                index=self._attachments_upto(staging, applied_index),
            )
        self._write_chunks(txn, staging, space_bytes)
        incoming = self._incoming()
        if incoming.end is not None and not self._waiting:
            self._sum_up(staging, incoming.end)

    def _incoming(self) -> IncomingSnapshot:
        incoming = self._row.incoming
        assert incoming is not None
        return incoming

    def _staging(self, txn: WriteTransaction) -> WriteTransaction:
        staged = self._generations.staged
        assert staged is not None
        return generations.write_view(txn, self._group, staged)

    def _accept(self, name: tuple[int, int]) -> None:
        row = self._row
        if row.installed is not None and row.installed[:2] == name:
            self._reply(name, Verdict.INSTALLED, index=row.installed[2])
            return
        if self._generations.staged is None:
            self._generations = msgspec.structs.replace(
                self._generations, staged=self._generations.next()
            )
            self._set_incoming(IncomingSnapshot(*name, cleared=True))
        elif row.incoming is None or row.incoming.name != name:
            self._set_incoming(IncomingSnapshot(*name))

    def _delete_doomed(self, txn: WriteTransaction) -> bool:
        """Deletes doomed generations, one after the other. Returns whether all of them are gone."""
        first, *others = self._generations.doomed
        storage = generations.storage_group(self._group, first)
        if not delete_group(txn, storage, rows_max=DELETE_ROWS_TURN_MAX, bytes_max=TURN_BYTES_MAX):
            return False
        self._generations = msgspec.structs.replace(self._generations, doomed=tuple(others))
        self._changed = True
        return not others

    def _clear(self, staging: WriteTransaction) -> bool:
        """Empties the tables of an earlier snapshot; returns whether they are empty."""
        left = TURN_ROWS_MAX
        for table in self._tables:
            keys = some(staging.keys(*table.bounds(self._group)), left)
            for key in keys:
                staging.delete(key)
            left -= len(keys)
            if left == 0:
                return False
        self._set_incoming(msgspec.structs.replace(self._incoming(), cleared=True))
        return True

    def _attachments_upto(self, staging: ReadTransaction, applied_index: int) -> int:
        """The index up to which all living attachments are staged, or in the rows in use."""
        if self._distrust:
            return 0
        start, stop = ATTACHMENTS.bounds(self._group)
        last = next(staging.scan(start, stop, reverse=True), None)
        # Some attachments of the last entry may be missing.
        staged_upto = 0 if last is None else entry_index(last[0][9:]) - 1
        return max(applied_index, staged_upto)

    # --- chunks --------------------------------------------------------------------

    def _write_chunks(
        self, txn: WriteTransaction, staging: WriteTransaction, space_bytes: int
    ) -> None:
        """Writes waiting chunks, as far as the bounds of a turn allow."""
        budget = Budget(space_bytes)
        while self._waiting:
            chunk, content = self._waiting[0]
            if not budget.open or not self._take_one(txn, staging, content, budget):
                return
            self._waiting.popleft()
            self._waiting_bytes -= len(chunk.content)
            if self._value is None:
                end = content if isinstance(content, End) else None
                self._set_incoming(
                    msgspec.structs.replace(
                        self._incoming(), sequence=chunk.sequence, crc=chunk.crc, end=end
                    )
                )

    def _take_one(
        self, txn: WriteTransaction, staging: WriteTransaction, content: Content, budget: Budget
    ) -> bool:
        """Writes a chunk's content; returns whether the chunk is done."""
        if self._value is not None and not isinstance(content, Piece):
            raise SnapshotRefused("a value ends in its middle")
        match content:
            case Rows(rows):
                return self._take_rows(staging, rows, budget)
            case Piece():
                return self._take_piece(staging, content, budget)
            case Listed():
                return self._take_listed(txn, staging, content, budget)
            case End():
                pass
        return True

    def _take_rows(
        self,
        staging: WriteTransaction,
        rows: tuple[tuple[bytes, bytes | None], ...],
        budget: Budget,
    ) -> bool:
        sizes = [len(key) + len(value) for key, value in rows if value is not None]
        if not budget.has_space(len(sizes), sum(sizes)):
            return False
        for key, value in rows:
            self._put(staging, key, value)
            if value is None:
                budget.spend_deletion()
            else:
                budget.spend(len(key) + len(value))
        return True

    def _put(self, staging: WriteTransaction, key: bytes, value: bytes | None) -> None:
        letter = key[:1]
        if self._key_bytes.get(letter) != len(key):
            raise SnapshotRefused(f"the key {key.hex()} is of no table of this release")
        full = with_group(key, self._group)
        if value is None:
            staging.delete(full)
            return
        if letter == ATTACHMENTS.letter:
            try:
                unseal(full, value, f"attachment {key.hex()} of the snapshot")
            except StorageCorrupt as error:
                raise SnapshotRefused(str(error)) from error
        staging.put(full, value)

    def _take_piece(self, staging: WriteTransaction, piece: Piece, budget: Budget) -> bool:
        if piece.total > VALUE_BYTES_MAX:
            raise SnapshotRefused(f"a value of {piece.total} bytes; the limit is {VALUE_BYTES_MAX}")
        if not budget.has_space(1, len(piece.key) + piece.total):
            return False
        value = self._value
        if value is None:
            value = self._value = LongValue(piece.key, piece.total)
        whole = value.add(piece)
        if whole is not None:
            self._value = None
            self._put(staging, piece.key, whole)
            budget.spend(len(piece.key) + len(whole))
        return True

    def _take_listed(
        self,
        txn: WriteTransaction,
        staging: WriteTransaction,
        content: Listed,
        budget: Budget,
    ) -> bool:
        if self._listing is None:
            self._listing = Listing(self._group, content)
        if not self._listing.delete_others(staging, budget):
            return False
        current = generations.view_of(txn, self._group, self._generations.current)
        if not self._listing.copy_missing(current, staging, budget):
            return False
        self._listing = None
        return True

    def _sum_up(self, staging: ReadTransaction, end: End) -> None:
        if self._summing is None:
            self._summing = Summing(self._group)
        summing = self._summing
        if not summing.sum_more(staging, TURN_ROWS_MAX):
            return
        theirs = (end.rows, end.rows_sum, end.attachments, end.attachments_sum)
        if summing.result != theirs:
            ours = f"{summing.rows.count} rows and {summing.attachments.count} attachments"
            raise SnapshotRefused(
                f"{ours} are here, {end.rows} and {end.attachments} were sent, and they differ",
                distrust=True,
            )
