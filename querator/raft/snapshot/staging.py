"""Writing of the contents of a snapshot's chunks into the staging generation.

Everything here works in steps of a turn's `Budget`, and may begin again after a crash.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from querator.raft.snapshot.protocol import (
    FIRST,
    Listed,
    Piece,
    Sum,
    attachment_key,
    entry_index,
    state_tables,
    without_group,
)
from querator.storage.environment import ReadTransaction, StorageCorrupt, WriteTransaction
from querator.storage.sealed import unseal
from querator.storage.tables import ATTACHMENTS

TURN_ROWS_MAX = 2_000
"""Most rows written, compared or summed up in one turn."""
TURN_WRITE_BYTES_MAX = 1 << 20
"""Most bytes written in one turn, or one chunk: other groups of the node wait for its sync."""
_SPACE_FACTOR = 2
"""Disk space that a byte of a row may need."""
_ROW_SPACE_BYTES = 128
"""Disk space that a row may need in addition: its place in the page, the group in its key."""
_T = TypeVar("_T")


class SnapshotRefused(Exception):
    """This snapshot cannot be continued; the leader receives the reason.

    `distrust`: nothing that is here may be used for the next snapshot.
    """

    def __init__(self, reason: str, *, distrust: bool = False) -> None:
        super().__init__(reason)
        self.distrust = distrust


class Budget:
    """What a turn may write; `space_bytes` are left on the disk."""

    def __init__(self, space_bytes: int) -> None:
        self._rows = TURN_ROWS_MAX
        self._bytes = TURN_WRITE_BYTES_MAX
        self._space_bytes = space_bytes
        self._written = False

    @property
    def open(self) -> bool:
        return self._rows > 0 and self._bytes > 0

    def has_space(self, rows: int, size: int) -> bool:
        """Whether rows of `size` bytes in total fit on the disk in this turn. Raises
        SnapshotRefused when they would not fit even if they were the only ones.
        """
        if _SPACE_FACTOR * size + _ROW_SPACE_BYTES * rows <= self._space_bytes:
            return True
        if not self._written:
            raise SnapshotRefused(f"{self._space_bytes} bytes may be used for the snapshot")
        return False

    def spend(self, size: int) -> None:
        self._rows -= 1
        self._bytes -= size
        self._space_bytes -= _SPACE_FACTOR * size + _ROW_SPACE_BYTES
        self._written = True

    def spend_deletion(self) -> None:
        self._rows -= 1


class LongValue:
    """A value that arrives in pieces."""

    def __init__(self, key: bytes, total: int) -> None:
        self._key = key
        self._total = total
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: Piece) -> bytes | None:
        """Adds a piece; returns the value when it is complete."""
        self._pieces.append(piece.data)
        self._size += len(piece.data)
        same = (piece.key, piece.total) == (self._key, self._total)
        if not same or not piece.data or self._size > self._total:
            raise SnapshotRefused("the pieces of a value do not fit together")
        return b"".join(self._pieces) if self._size == self._total else None


class Listing:
    """Makes the staged attachments of a range equal to the listed ones, over several turns."""

    def __init__(self, group: int, listed: Listed) -> None:
        self._group = group
        self._listed = listed
        self._keys = frozenset(listed.keys)
        self._after = listed.after
        self._copied = 0

    def delete_others(self, staging: WriteTransaction, budget: Budget) -> bool:
        """Deletes other staged attachments in the range; returns whether none is left."""
        start, last = ATTACHMENTS.bounds(self._group)
        if self._after != FIRST:
            start = attachment_key(self._after, self._group) + b"\0"
        stop = min(last, attachment_key(self._listed.upto, self._group) + b"\0")
        found = some(staging.keys(start, stop), TURN_ROWS_MAX)
        for key in found:
            if key[9:] not in self._keys:
                staging.delete(key)
                budget.spend_deletion()
        if len(found) < TURN_ROWS_MAX:
            self._after = self._listed.upto
            return True
        self._after = found[-1][9:]
        return False

    def copy_missing(
        self, current: ReadTransaction, staging: WriteTransaction, budget: Budget
    ) -> bool:
        """Copies listed attachments that are not staged from the rows in use; returns whether all
        are staged.
        """
        while self._copied < len(self._listed.keys):
            if not budget.open:
                return False
            key = attachment_key(self._listed.keys[self._copied], self._group)
            if next(staging.keys(key, key + b"\0"), None) is not None:
                self._copied += 1
                continue
            value = current.get(key)
            what = f"attachment of entry {entry_index(key[9:])} in group {self._group}"
            if value is None:
                raise SnapshotRefused(f"{what}: missing", distrust=True)
            try:
                unseal(key, value, what)
            except StorageCorrupt as error:
                raise SnapshotRefused(str(error), distrust=True) from error
            if not budget.has_space(1, len(key) + len(value)):
                return False
            staging.put(key, value)
            budget.spend(len(key) + len(value))
            self._copied += 1
        return True


class Summing:
    """Sums up a whole generation, over several turns in which it does not change."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._tables = state_tables()
        self._table = 0
        self._after = b""
        self.rows = Sum()
        self.attachments = Sum()
        self.done = False

    @property
    def result(self) -> tuple[int, bytes, int, bytes]:
        return (
            self.rows.count,
            self.rows.digest(),
            self.attachments.count,
            self.attachments.digest(),
        )

    def sum_more(self, txn: ReadTransaction, rows_max: int) -> bool:
        """Sums up at most `rows_max` rows; returns whether it is done."""
        while self._table < len(self._tables):
            start, stop = self._tables[self._table].bounds(self._group)
            rows = some(txn.scan(self._after or start, stop), rows_max)
            for key, value in rows:
                self.rows.add(without_group(key), value)
            rows_max -= len(rows)
            if rows_max == 0:
                self._after = rows[-1][0] + b"\0" if rows else self._after
                return False
            self._table += 1
            self._after = b""
        start, stop = ATTACHMENTS.bounds(self._group)
        keys = some(txn.keys(self._after or start, stop), rows_max)
        for key in keys:
            self.attachments.add(key[9:], b"")
        self.done = len(keys) < rows_max
        if not self.done:
            self._after = keys[-1] + b"\0"
        return self.done


def some(found: Iterator[_T], count: int) -> list[_T]:
    return list(islice(found, count))
