"""The back end in memory: for tests, for `serve --memory`, and as the simulator's disk.

`crash` returns what a machine would find after a power loss: the state of the last synced commit.
`faults` is called at named points of a commit and may raise to inject an error or a crash there:

    point     when                                   an exception leaves behind
    put       before each put                        the transaction unusable
    commit    before anything is changed             the state before
    sync      with `sync`, before it is durable      the state before; the environment has failed
    synced    with `sync`, after it is durable       the new state; the environment has failed

EnvironmentFull at `commit` or `sync` leaves the environment usable; any other exception there makes
the environment fail.

Snapshots see one committed state: a commit gives each open snapshot the old values of the keys that
it changes. Values are shared, never copied.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice

from sortedcontainers import SortedDict

from querator.model.limits import MIB
from querator.storage.environment import (
    EnvironmentFailed,
    EnvironmentFull,
    ReadTransaction,
    Usage,
    WriteTransaction,
    reserve_bytes,
)
from querator.storage.overlay import Changes, OverlayTransaction, Row, merged

MEMORY_QUOTA_BYTES_DEFAULT = 1024 * MIB
ROW_BYTES = 100
"""Bytes of a row beyond its key and value: two objects and their places in the containers."""
SCAN_ROWS = 128
"""Rows that a scan reads under the lock at a time."""

Faults = Callable[[str], None]


class MemoryEnvironment:
    """An `Environment` that is lost with the process. One thread writes, any thread may read."""

    def __init__(
        self,
        *,
        quota_bytes: int = MEMORY_QUOTA_BYTES_DEFAULT,
        faults: Faults | None = None,
    ) -> None:
        self.faults = faults
        self.commit_points = 0
        """Commits begun so far, including failed ones: a test crashes at each in turn."""
        self._rows: SortedDict[bytes, bytes] = SortedDict()
        self._used_bytes = 0
        self._quota_bytes = quota_bytes
        # Values at the last sync of the keys that have changed since.
        self._unsynced: Changes = {}
        self._snapshots: list[_Snapshot] = []
        self._mutex = threading.RLock()
        self._failure: str | None = None
        self._writing = False
        self._closed = False

    @property
    def durable(self) -> bool:
        return False

    def begin(self) -> WriteTransaction:
        assert not self._closed
        assert not self._writing, "there is one write transaction at a time"
        if self._failure is not None:
            raise EnvironmentFailed(self._failure)
        self._writing = True
        before_put = None if self.faults is None else self._before_put
        return OverlayTransaction(_Base(self._rows), _Ending(self), before_put=before_put)

    def snapshot(self) -> AbstractContextManager[ReadTransaction]:
        assert not self._closed
        return self._snapshot()

    def usage(self) -> Usage:
        return Usage(
            used_bytes=self._used_bytes,
            free_bytes=max(0, self._quota_bytes - self._used_bytes),
            quota_bytes=self._quota_bytes,
            reserve_bytes=reserve_bytes(self._quota_bytes),
        )

    def close(self) -> None:
        self._closed = True

    def crash(self) -> "MemoryEnvironment":
        """A power loss: returns a new environment in the state of the last synced commit. This one
        is unusable. The new one has no faults.
        """
        after = MemoryEnvironment(quota_bytes=self._quota_bytes)
        with self._mutex:
            after._rows.update(self._rows)
            after._used_bytes = self._used_bytes
            after._apply(self._unsynced)
            after._unsynced.clear()
            self._failure = "the machine has crashed"
            self._closed = True
        return after

    @contextmanager
    def _snapshot(self) -> Iterator[ReadTransaction]:
        snapshot = _Snapshot(self._rows, self._mutex)
        with self._mutex:
            self._snapshots.append(snapshot)
        try:
            yield snapshot
        finally:
            with self._mutex:
                self._snapshots.remove(snapshot)

    def _before_put(self) -> None:
        assert self.faults is not None
        self.faults("put")

    def _commit(self, changes: Changes, *, sync: bool) -> None:
        self._writing = False
        assert not self._closed
        self.commit_points += 1
        need = sum(
            len(key) + len(value) + ROW_BYTES for key, value in changes.items() if value is not None
        )
        free = self._quota_bytes - self._used_bytes
        if need and need > free:
            raise EnvironmentFull(
                f"{need} bytes to write, {free} free of a quota of {self._quota_bytes}"
            )
        try:
            self._fault("commit")
            if sync:
                self._fault("sync")
        except EnvironmentFull:
            raise
        except BaseException as error:
            self._failure = f"an earlier commit failed: {error}"
            raise
        with self._mutex:
            self._apply(changes)
            if sync:
                self._unsynced.clear()
        if sync:
            try:
                self._fault("synced")
            except BaseException as error:
                self._failure = f"an earlier commit failed: {error}"
                raise

    def _fault(self, point: str) -> None:
        if self.faults is not None:
            self.faults(point)

    def _apply(self, changes: Changes) -> None:
        rows = self._rows
        for key, value in changes.items():
            old = rows.get(key)
            self._unsynced.setdefault(key, old)
            for snapshot in self._snapshots:
                snapshot.keep(key, old)
            if old is not None:
                self._used_bytes -= len(key) + len(old) + ROW_BYTES
            if value is not None:
                rows[key] = value
                self._used_bytes += len(key) + len(value) + ROW_BYTES
            elif old is not None:
                del rows[key]


class _Base:
    """Reads of the committed rows, for the write transaction: no other code changes them."""

    __slots__ = ("_rows",)

    def __init__(self, rows: "SortedDict[bytes, bytes]") -> None:
        self._rows = rows

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._rows.get(key)
        return value

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[Row]:
        rows = self._rows
        for key in rows.irange(start, stop, inclusive=(True, False), reverse=reverse):
            yield key, rows[key]

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        yield from self._rows.irange(start, stop, inclusive=(True, False))


class _Snapshot:
    """One committed state: the rows, with the old values of the keys changed since on top."""

    def __init__(self, rows: "SortedDict[bytes, bytes]", mutex: threading.RLock) -> None:
        self._rows = rows
        self._mutex = mutex
        self._kept: SortedDict[bytes, bytes | None] = SortedDict()

    def keep(self, key: bytes, value: bytes | None) -> None:
        self._kept.setdefault(key, value)

    def get(self, key: bytes) -> bytes | None:
        with self._mutex:
            value: bytes | None = self._kept[key] if key in self._kept else self._rows.get(key)
            return value

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[Row]:
        while rows := self._piece(start, stop, reverse=reverse):
            yield from rows
            last = rows[-1][0]
            if reverse:
                stop = last
            else:
                start = last + b"\0"

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return (key for key, _ in self.scan(start, stop))

    def _piece(self, start: bytes, stop: bytes, *, reverse: bool) -> list[Row]:
        with self._mutex:
            rows = _Base(self._rows).scan(start, stop, reverse=reverse)
            keys = self._kept.irange(start, stop, inclusive=(True, False), reverse=reverse)
            return list(islice(merged(rows, keys, self._kept, reverse=reverse), SCAN_ROWS))


class _Ending:
    __slots__ = ("_environment",)

    def __init__(self, environment: MemoryEnvironment) -> None:
        self._environment = environment

    def commit(self, changes: Changes, *, sync: bool) -> None:
        self._environment._commit(changes, sync=sync)

    def abort(self) -> None:
        self._environment._writing = False
