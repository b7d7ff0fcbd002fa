"""The back-end interface: ordered keys, one write transaction, read snapshots, a synced commit.

Everything Querator keeps goes through this seam. Two forms ship and pass one test suite: LMDB
(`storage.lmdb_environment`) and memory (`storage.memory_environment`, not durable; it is also the
simulator's disk, with crash-to-last-sync and injected errors). A new back end implements these
protocols and runs `tests/unit/storage`.

Rules for callers: only the raft thread writes; keys are at most `KEY_BYTES_STORED_MAX` bytes and
never empty; a snapshot is short-lived (it pins pages); returned bytes are copies and may be kept.

Errors, all `StorageError`:

* StorageFull: the quota, the map or the disk is full; the transaction is unusable, nothing is lost.
* StorageFailed: a write or sync failed. The environment takes no more changes, reads go on; the
  process stops and recovers from disk. A failed sync is never tried again: after it the kernel may
  have dropped the pages and report success.
* StorageLocked: another process, or another environment of this one, has the directory.
* StorageCorrupt: a checksum or a page does not hold.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from querator.model.limits import MIB


class StorageError(Exception):
    """Root of the storage errors; the message is fit for an operator."""


class StorageFull(StorageError):
    pass


class StorageFailed(StorageError):
    pass


class StorageLocked(StorageError):
    pass


class StorageCorrupt(StorageError):
    pass


class Usage(msgspec.Struct, frozen=True):
    """Bytes: `used` holds data, `quota` is the most that may be used, `free` can still be written.

    The last `reserve_bytes` of the free ones are for work that frees space: completes, deletes.
    """

    used_bytes: int
    free_bytes: int
    quota_bytes: int
    reserve_bytes: int

    @property
    def open_bytes(self) -> int:
        """What work that adds data may still write; asked before a turn, so that no commit fails.

        A row costs its key, its value and up to as much again; a value over 2 KB is rounded up to
        pages of 4 KiB.
        """
        return max(0, self.free_bytes - self.reserve_bytes)


RESERVE_BYTES_MAX = 64 * MIB
"""Kept for completes and deletes, so that a full node can be emptied."""
RESERVE_QUOTA_SHARE = 8
"""Of a small quota, this part of it is kept instead."""


def reserve_bytes(quota_bytes: int) -> int:
    return min(RESERVE_BYTES_MAX, quota_bytes // RESERVE_QUOTA_SHARE)


PAGE_BYTES = 4_096
INLINE_BYTES_MAX = 2_000
"""Longer values get pages of their own."""
NODE_BYTES = 28
"""Header of a row in a page, with its slot, rounded up, and the checksum."""


def added_bytes(rows: Iterable[tuple[bytes, bytes | None]], page_bytes: int = PAGE_BYTES) -> int:
    """At most so many bytes rows add when they are put; what they replace is not set off, and what
    is deleted (None) counts nothing.
    """
    need = 0
    for key, value in rows:
        if value is None:
            continue
        size = len(value)
        if size > INLINE_BYTES_MAX:
            need += -(-(size + NODE_BYTES) // page_bytes) * page_bytes
            need += 2 * (len(key) + NODE_BYTES)
        else:
            need += 2 * (len(key) + size + NODE_BYTES)
    return need


class ReadTransaction(Protocol):
    """A view of one committed state (or, for a write transaction, of its own changes on top)."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows with start <= key < stop in key order (or reversed).

        The iterator is not valid after a change in the same transaction: collect first, then
        change.
        """
        ...

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """The keys that `scan` gives, without reading long values."""
        ...


class WriteTransaction(ReadTransaction, Protocol):
    """The one write transaction. Ends by `commit` or `abort`."""

    def changes(self) -> Mapping[bytes, bytes | None]:
        """Every key that was written so far, with its value; None: deleted. Changes with the
        transaction.
        """
        ...

    def before(self, key: bytes) -> bytes | None:
        """What the committed state beneath the transaction holds."""
        ...

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> bool:
        """Whether the key was there."""
        ...

    def added_bytes(self) -> int:
        """At most so many bytes the changes add to what is stored: inside a child, the rows that
        it has changed.
        """
        ...

    def child(self) -> AbstractContextManager["WriteTransaction"]:
        """A nested transaction: kept when the block ends, undone when it raises. The parent waits
        meanwhile.
        """
        ...

    def commit(self, *, sync: bool) -> None:
        """Makes the changes visible to snapshots; with `sync`, durable before it returns.

        Raises StorageFull or StorageFailed; then nothing of the transaction is visible or durable.
        """
        ...

    def abort(self) -> None: ...


class Environment(Protocol):
    @property
    def durable(self) -> bool:
        """Whether a synced commit survives the process and the machine."""
        ...

    def begin(self) -> WriteTransaction:
        """Starts the write transaction; there is at most one (asserted)."""
        ...

    def snapshot(self) -> AbstractContextManager[ReadTransaction]:
        """The last committed state; from any thread."""
        ...

    def usage(self) -> Usage: ...

    def close(self) -> None: ...
