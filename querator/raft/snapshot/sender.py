"""The leader's side of a snapshot to one follower; `raft.snapshot.protocol` describes the protocol.

    OFFERING    sends the offer, again every `RETRY_S`, until READY says where to continue
    SENDING     sends chunks within the window and the transport's space, and keeps them until they
                are acknowledged; OFFERING again when nothing is heard for `RETRY_S`, or the
                connection breaks
    done        the follower has the state at this index
    failed      the reason; the owner may try again with another sender

A step reads in this order, in one transaction and within one budget. When it does not use up the
budget, everything is copied: the end is sent.

    keys of attachments up to where the receiver has some     (Listed)
    attachments after them, up to the applied index
    rows of the state after the cursor
    attachments that died behind their cursor, rows that changed behind theirs
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from querator.raft.messages import SnapshotChunk, SnapshotOffer, SnapshotReply
from querator.raft.snapshot.protocol import (
    CHANGES_MAX,
    CHUNK_BYTES,
    FIRST,
    LAST,
    PIECE_BYTES,
    STEP_BYTES_MAX,
    STEP_ROWS_MAX,
    WINDOW_BYTES,
    Content,
    End,
    Listed,
    Piece,
    Position,
    Rows,
    Sum,
    Verdict,
    after_entry,
    attachment_key,
    chain,
    encode,
    state_tables,
    with_group,
    without_group,
)
from querator.storage import attachments
from querator.storage.environment import (
    Environment,
    ReadTransaction,
    StorageCorrupt,
    WriteTransaction,
)
from querator.storage.generations import storage_group, view_of
from querator.storage.tables import ATTACHMENTS, ATTACHMENTS_DEAD

RETRY_S = 2.0
"""After this long without an answer, a message counts as lost."""
SILENCE_S = 60.0
"""After this long without progress, the attempt is given up."""
_ROW_BYTES = 16
"""Bytes of a row in a chunk in addition to its key and value."""


class SnapshotSender:
    """Sends the state of one group to one follower. Only the raft thread calls it."""

    def __init__(
        self,
        environment: Environment,
        group: int,
        generation: int,
        position: Callable[[ReadTransaction], Position],
        *,
        term: int,
        number: int,
        now_s: float,
    ) -> None:
        """`position` reads the position of the applied index, in a transaction on the generation.

        The leader has applied everything that was committed before its term.
        """
        self._environment = environment
        self._group = group
        self._generation = generation
        self._position = position
        self._ours = storage_group(group, generation).to_bytes(8, "big")
        self._tables = state_tables()
        self._letters = frozenset(table.letter for table in self._tables)
        self.done: int | None = None
        """The follower's log and state agree with the leader's up to this index."""
        self.failed: str | None = None
        self.damaged: attachments.AttachmentDamaged | None = None
        """The damage by which it has failed, if that can be mended."""
        self.end: Position | None = None
        """Position of the snapshot, once it is known: the log is needed from there on."""
        self._stream = _Stream(term, number)
        self._ready = False
        self._offer_at_s = now_s
        self._heard_s = self._moved_s = now_s
        # How far rows have been copied, and which of them must go again. Keys are without the
        # group.
        self._has_upto = 0
        self._listed: bytes | None = FIRST
        self._attachments = FIRST
        self._row = FIRST
        self._dead: dict[bytes, None] = {}
        self._changed: dict[bytes, None] = {}
        self._attachments_sum = Sum()
        self._rows_sum = Sum()

    # --- what the owner calls ------------------------------------------------------

    def step(self, now_s: float, room_bytes: int) -> list[SnapshotOffer | SnapshotChunk]:
        """The messages to send, within `room_bytes` of the transport. Reads at most once."""
        if not self.over and now_s - self._moved_s > SILENCE_S:
            self.failed = f"no progress for {SILENCE_S:.0f} s"
        if self.over or room_bytes <= 0:
            return []
        if self._ready and now_s - self._heard_s > RETRY_S:
            self.interrupted(now_s)
        if not self._ready:
            if now_s < self._offer_at_s:
                return []
            self._offer_at_s = now_s + RETRY_S
            return [self._stream.offer()]
        messages, room_bytes = self._stream.send(room_bytes)
        if self._can_read and room_bytes > 0:
            self._read()
            messages += self._stream.send(room_bytes)[0]
        if messages and self._stream.alone(messages):
            # Nothing was on its way: the time for an answer begins here.
            self._heard_s = now_s
        return [*messages]

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until `step` may have something to do, if there is space and nothing else
        happens; None when it is over.
        """
        if self.over:
            return None
        if not self._ready:
            return max(0.0, self._offer_at_s - now_s)
        if self._can_read or self._stream.can_send:
            return 0.0
        return max(0.0, self._heard_s + RETRY_S - now_s)

    @property
    def over(self) -> bool:
        return self.done is not None or self.failed is not None

    @property
    def bytes_sent(self) -> int:
        return self._stream.bytes_sent

    @property
    def _can_read(self) -> bool:
        return self.end is None and self._stream.can_take

    def interrupted(self, now_s: float) -> None:
        """The connection broke: messages on their way are lost. The sender asks the receiver where
        to continue.
        """
        self._ready = False
        self._offer_at_s = now_s

    def on_reply(self, reply: SnapshotReply, now_s: float) -> None:
        if self.over or not self._stream.is_about(reply):
            return
        self._heard_s = now_s
        if reply.verdict == Verdict.REFUSED:
            self.failed = reply.reason
        elif reply.verdict == Verdict.INSTALLED:
            self.done = reply.index
        elif not self._stream.acknowledge(reply.sequence):
            self.failed = (
                f"the follower has chunks up to {reply.sequence}, "
                f"and had acknowledged {self._stream.acknowledged}"
            )
        elif reply.verdict == Verdict.READY and not self._ready:
            self._ready = True
            self._stream.go_on_after(reply.sequence)
            if reply.sequence == 0 and self._listed == FIRST:
                self._has_upto = reply.index
        if reply.verdict == Verdict.RECEIVED or self._stream.moved:
            self._moved_s = now_s

    def before_commit(self, txn: WriteTransaction) -> None:
        """Notes which copied rows the transaction changes. It is called with every transaction,
        right before the commit.
        """
        if self.over or self.end is not None:
            return
        for key, value in txn.changes().items():
            if key[1:9] != self._ours:
                continue
            letter = key[:1]
            if letter in self._letters:
                self._row_changes(txn, key)
            elif letter == ATTACHMENTS_DEAD.letter:
                if value is not None and txn.before(key) is None:
                    self._attachment_dies(key[9:])
            elif letter == ATTACHMENTS.letter and value is None:
                # An attachment that was marked dead died before.
                if txn.before(ATTACHMENTS_DEAD.letter + key[1:]) is None:
                    self._attachment_dies(key[9:])
        if len(self._changed) + len(self._dead) > CHANGES_MAX:
            self.failed = f"more than {CHANGES_MAX} rows have changed since they were copied"

    def _row_changes(self, txn: WriteTransaction, key: bytes) -> None:
        short = without_group(key)
        if short > self._row or short in self._changed:
            return
        self._changed[short] = None
        before = txn.before(key)
        if before is not None:
            self._rows_sum.remove(short, before)

    def _attachment_dies(self, key: bytes) -> None:
        if key <= self._attachments and key not in self._dead:
            self._dead[key] = None
            self._attachments_sum.remove(key, b"")

    # --- reading -------------------------------------------------------------------

    def _read(self) -> None:
        """Does one step. Sends the end when its transaction leaves nothing to be copied."""
        with self._environment.snapshot() as snapshot:
            view = view_of(snapshot, self._group, self._generation)
            position = self._position(view)
            batch = _Batch(self._stream)
            try:
                left = (
                    self._list_attachments(view, position.index)
                    or self._copy_attachments(view, position.index, batch)
                    or self._copy_rows(view, batch)
                    or self._send_deaths(batch)
                    or self._send_changes(view, batch)
                )
            except StorageCorrupt as error:
                self.failed = str(error)
                if isinstance(error, attachments.AttachmentDamaged):
                    self.damaged = error
                return
        batch.flush()
        if not left:
            self._end(position)

    def _list_attachments(self, view: ReadTransaction, applied: int) -> bool:
        """This and the next four methods return whether something is left."""
        if self._listed is None:
            return False
        upto = min(self._has_upto, applied)
        keys = list(islice(self._living(view, self._listed, upto), STEP_ROWS_MAX))
        left = len(keys) == STEP_ROWS_MAX
        if left:
            self._stream.put(Listed(self._listed, keys[-1], tuple(keys)))
            self._listed = self._attachments = keys[-1]
        else:
            # Attachments of the receiver after these are of an earlier attempt.
            self._stream.put(Listed(self._listed, LAST, tuple(keys)))
            self._listed = None
            self._attachments = after_entry(upto)
        for key in keys:
            self._attachments_sum.add(key, b"")
        return left

    def _living(self, view: ReadTransaction, after: bytes, upto: int) -> Iterator[bytes]:
        """Attachments that the state holds, of entries up to `upto`, which are applied."""
        start = attachment_key(after, self._group) + b"\0" if after else None
        first, last = ATTACHMENTS.bounds(self._group)
        stop = min(last, attachment_key(after_entry(upto), self._group))
        dead = ATTACHMENTS_DEAD.letter
        marks = view.keys(dead + (start or first)[1:], dead + stop[1:])
        mark = next(marks, None)
        for key in view.keys(start or first, stop):
            while mark is not None and mark[1:] < key[1:]:
                mark = next(marks, None)
            if mark is None or mark[1:] != key[1:]:
                yield key[9:]

    def _copy_attachments(self, view: ReadTransaction, applied: int, batch: "_Batch") -> bool:
        for key in self._living(view, self._attachments, applied):
            if batch.full:
                return True
            stored = attachment_key(key, self._group)
            value = view.get(stored)
            assert value is not None
            index, part = map(int, ATTACHMENTS.parts(stored))
            attachments.check(self._group, index, part, value)
            batch.add(ATTACHMENTS.letter + key, value)
            self._attachments_sum.add(key, b"")
            self._attachments = key
        return False

    def _copy_rows(self, view: ReadTransaction, batch: "_Batch") -> bool:
        for table in self._tables:
            start, stop = table.bounds(self._group)
            if self._row[:1] > table.letter:
                continue
            if self._row[:1] == table.letter:
                start = with_group(self._row, self._group) + b"\0"
            for key, value in view.scan(start, stop):
                if batch.full:
                    return True
                self._row = without_group(key)
                batch.add(self._row, value)
                self._rows_sum.add(self._row, value)
        self._row = LAST
        return False

    def _send_deaths(self, batch: "_Batch") -> bool:
        while self._dead:
            if batch.full:
                return True
            key = next(iter(self._dead))
            del self._dead[key]
            batch.add(ATTACHMENTS.letter + key, None)
        return False

    def _send_changes(self, view: ReadTransaction, batch: "_Batch") -> bool:
        while self._changed:
            if batch.full:
                return True
            key = next(iter(self._changed))
            del self._changed[key]
            value = view.get(with_group(key, self._group))
            batch.add(key, value)
            if value is not None:
                self._rows_sum.add(key, value)
        return False

    def _end(self, position: Position) -> None:
        self.end = position
        self._stream.put(
            End(
                position,
                self._rows_sum.count,
                self._rows_sum.digest(),
                self._attachments_sum.count,
                self._attachments_sum.digest(),
            )
        )


class _Batch:
    """The rows of one step, on their way into chunks."""

    def __init__(self, stream: "_Stream") -> None:
        self._stream = stream
        self._rows: list[tuple[bytes, bytes | None]] = []
        self._bytes = 0
        self._count = 0
        self._step_bytes = 0

    @property
    def full(self) -> bool:
        return self._count >= STEP_ROWS_MAX or self._step_bytes >= STEP_BYTES_MAX

    def add(self, key: bytes, value: bytes | None) -> None:
        size = _ROW_BYTES + len(key) + (0 if value is None else len(value))
        self._count += 1
        self._step_bytes += size
        if self._bytes + size > PIECE_BYTES:
            self.flush()
        if value is not None and size > PIECE_BYTES:
            for start in range(0, len(value), PIECE_BYTES):
                piece = Piece(key, len(value), value[start : start + PIECE_BYTES])
                self._stream.put(piece, goes_on=start + PIECE_BYTES < len(value))
            return
        self._rows.append((key, value))
        self._bytes += size

    def flush(self) -> None:
        if self._rows:
            self._stream.put(Rows(tuple(self._rows)))
            self._rows.clear()
            self._bytes = 0


class _Stream:
    """The chunks that are not acknowledged: numbered, sent, and sent again after a loss."""

    def __init__(self, term: int, number: int) -> None:
        self._term = term
        self._number = number
        self.acknowledged = 0
        self.moved = False
        """Whether the last acknowledgement acknowledged anything new."""
        self.bytes_sent = 0
        self._kept: deque[SnapshotChunk] = deque()
        self._last = 0
        self._crc = 0
        self._sent = 0
        self._flying_bytes = 0
        # Chunks that must follow their predecessor whatever the window: the receiver acknowledges a
        # long value as a whole.
        self._continued: set[int] = set()

    def offer(self) -> SnapshotOffer:
        return SnapshotOffer(self._term, self._number)

    def is_about(self, reply: SnapshotReply) -> bool:
        return (reply.term, reply.number) == (self._term, self._number)

    @property
    def can_take(self) -> bool:
        """Whether to make more chunks: all are sent, and the window is open."""
        return self._sent == self._last and self._flying_bytes < WINDOW_BYTES

    @property
    def can_send(self) -> bool:
        following = self._sent + 1
        return following <= self._last and (
            self._flying_bytes < WINDOW_BYTES or following in self._continued
        )

    def put(self, content: Content, *, goes_on: bool = False) -> None:
        encoded = encode(content)
        assert len(encoded) <= CHUNK_BYTES
        self._last += 1
        self._crc = chain(self._crc, encoded)
        chunk = SnapshotChunk(self._term, self._number, self._last, self._crc, encoded)
        self._kept.append(chunk)
        if goes_on:
            self._continued.add(self._last + 1)

    def send(self, room_bytes: int) -> tuple[list[SnapshotChunk], int]:
        """Chunks that window and space allow, and the remaining space."""
        messages: list[SnapshotChunk] = []
        while self.can_send and room_bytes > 0:
            chunk = self._kept[self._sent - self.acknowledged]
            self._sent += 1
            size = len(chunk.content)
            self._flying_bytes += size
            self.bytes_sent += size
            room_bytes -= size
            messages.append(chunk)
        return messages, room_bytes

    def alone(self, messages: list[SnapshotChunk]) -> bool:
        """Whether no other chunks are on their way."""
        return messages[0].sequence == self.acknowledged + 1

    def acknowledge(self, sequence: int) -> bool:
        """Returns False for an impossible value: less than acknowledged before, or more than was
        made.
        """
        self.moved = sequence > self.acknowledged
        if not self.acknowledged <= sequence <= self._last:
            return False
        while self.acknowledged < sequence:
            chunk = self._kept.popleft()
            self.acknowledged += 1
            self._continued.discard(self.acknowledged)
            if self.acknowledged <= self._sent:
                self._flying_bytes -= len(chunk.content)
        self._sent = max(self._sent, sequence)
        return True

    def go_on_after(self, sequence: int) -> None:
        """Marks all chunks after `sequence` to be sent again."""
        assert sequence == self.acknowledged
        self._sent = sequence
        self._flying_bytes = 0
