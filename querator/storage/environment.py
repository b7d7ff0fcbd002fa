"""The back-end interface: ordered keys, one write transaction, read snapshots, a synced commit.

All of Querator's storage goes through this interface. Two back ends ship and pass one test suite:
LMDB (`storage.lmdb_environment`) and memory (`storage.memory_environment`). The one in memory is
not durable; it is also the simulator's disk, with crash-to-last-sync and injected errors. A new
back end implements these protocols and runs `tests/unit/storage`.

Rules for callers: only the raft thread writes; keys are at most `KEY_BYTES_STORED_MAX` bytes and
never empty; a snapshot is short-lived (it pins pages); returned bytes are copies and may be kept.

Errors, all `StorageError`:

* EnvironmentFull: the quota, the map or the disk is full; the transaction is unusable, nothing is
  lost.
* EnvironmentFailed: a write or sync failed. The environment accepts no more changes and still
  serves reads; the process stops and recovers from disk. A failed sync is never repeated, because
  the kernel may have dropped the pages and then report success.
* StorageLocked: another process, or another environment of this process, has the directory.
* StorageCorrupt: a checksum does not match, or a page is damaged.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from querator.model.limits import MIB


class StorageError(Exception):
    """Root of the storage errors. The message is written for operators."""


class EnvironmentFull(StorageError):
    pass


class EnvironmentFailed(StorageError):
    pass


class StorageLocked(StorageError):
    pass


class StorageCorrupt(StorageError):
    pass


class Usage(msgspec.Struct, frozen=True):
    """Used bytes hold data, the quota is their limit, and free bytes can still be written.

    The last `reserve_bytes` of the free bytes are for work that frees space: completes, deletes.
    `idle_bytes` are free inside the data file, and do not count before the disk has
    `idle_until_bytes` free; 0: there are none.
    """

    used_bytes: int
    free_bytes: int
    quota_bytes: int
    reserve_bytes: int
    idle_bytes: int = 0
    idle_until_bytes: int = 0

    @property
    def by_quota(self) -> bool:
        """Whether the quota is the limit of the free bytes, not the disk."""
        return self.quota_bytes - self.used_bytes <= self.free_bytes

    @property
    def open_bytes(self) -> int:
        """Bytes that work which adds data may still write; read before a turn, so no commit fails.

        A row costs up to twice its key and value. A value over 2 KB is rounded up to pages of
        4 KiB.
        """
        return max(0, self.free_bytes - self.reserve_bytes)


RESERVE_BYTES_MAX = 64 * MIB
"""Reserve for completes and deletes, so that a full node can be emptied."""
RESERVE_QUOTA_SHARE = 8
"""Part of a small quota that is the reserve instead."""


def reserve_bytes(quota_bytes: int) -> int:
    return min(RESERVE_BYTES_MAX, quota_bytes // RESERVE_QUOTA_SHARE)


PAGE_BYTES = 4_096
INLINE_BYTES_MAX = 2_000
"""Values over this limit get pages of their own."""
NODE_BYTES = 28
"""Bytes for the header of a row in a page, its slot and the checksum, rounded up."""


def added_bytes(rows: Iterable[tuple[bytes, bytes | None]], page_bytes: int = PAGE_BYTES) -> int:
    """Upper bound of the bytes that `rows` add when they are put. Replaced values are not
    subtracted; deletions (None) count as 0.
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
    """Reads of one committed state; in a write transaction, with its own changes on top."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows with start <= key < stop in key order (or reversed).

        A change in the same transaction makes the iterator invalid: collect first, then change.
        """
        ...

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """The keys of the rows that `scan` returns, without reading long values."""
        ...


class WriteTransaction(ReadTransaction, Protocol):
    """The only write transaction. It ends by `commit` or `abort`."""

    def changes(self) -> Mapping[bytes, bytes | None]:
        """Every key written so far, with its value; None: deleted. The mapping changes with the
        transaction.
        """
        ...

    def before(self, key: bytes) -> bytes | None:
        """The value in the committed state below the transaction."""
        ...

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> bool:
        """Returns whether the key existed."""
        ...

    def added_bytes(self) -> int:
        """Upper bound of the bytes that the changes add to the stored data; inside a child, only
        those of the rows that the child has changed.
        """
        ...

    def child(self) -> AbstractContextManager["WriteTransaction"]:
        """A nested transaction. It is kept when the block ends, and undone when the block raises.
        The parent is not used meanwhile.
        """
        ...

    def commit(self, *, sync: bool) -> None:
        """Makes the changes visible to snapshots; with `sync`, also durable before it returns.

        Raises EnvironmentFull or EnvironmentFailed; then nothing of the transaction is visible or
        durable.
        """
        ...

    def abort(self) -> None: ...


class Environment(Protocol):
    @property
    def durable(self) -> bool:
        """Whether a synced commit survives the process and the machine."""
        ...

    def begin(self) -> WriteTransaction:
        """Starts the write transaction. There is at most one (asserted)."""
        ...

    def snapshot(self) -> AbstractContextManager[ReadTransaction]:
        """The last committed state. Callable from any thread."""
        ...

    def usage(self) -> Usage:
        """The space that is used and free. Callable from any thread."""
        ...

    def close(self) -> None: ...
