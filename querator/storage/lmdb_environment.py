"""The durable back end: one LMDB environment per node directory.

LMDB writes in its own order: data pages, sync, then the page that makes them valid, sync. No flag
weakens this order: NOSYNC may leave a valid root above pages that never reached the disk, and
WRITEMAP lets a stray write reach the file. So there are no unsynced commits: `commit(sync=False)`
syncs as well. Two commits in a row cost two syncs; callers make one per turn.

The map is virtual and has its final size from the start, because a resize under a live reader is
not safe. The quota and the free disk decide what is full. Used bytes are those of the pages of the
tree. The file also holds the free pages and never shrinks. It may be created with space allocated,
because a sync that also records a new file length takes longer. With three nodes on one disk, the
p99 of 1,000 single produces a second is 5 to 10 ms with that space and 8 to 12 without.

LMDB 0.9 checks no page. Every row is sealed (`storage.sealed`), by the package that owns it or else
here, and checked when it is read from LMDB. A read of a row with a flipped bit raises
StorageCorrupt. A flipped bit in the structure of a page is an error of LMDB, or an assertion that
ends the process; `check_pages` (`storage.data_file`) finds it. A damaged key makes a lookup miss
its row; only a scan that meets the row detects it. The seal costs 0.6 µs a row each way.

py-lmdb releases the interpreter lock around every call into LMDB, also for each row of a
`putmulti`. While another thread computes, getting the lock back takes up to a switch interval.
Measured on two cores, 30 rows of 3.3 KB and a synced commit, median ms per turn:

    alone                                                     0.5
    beside a busy thread, switch interval 0.5 ms             12 to 17
    the same at 0.2, 0.1, 0.05 ms                             7, 4, 3
    at 0.5 ms, but 0.01 ms while the rows are written         1.5

A single put or get takes 1.3 µs alone; 30 gets beside that thread take 4.6 ms. Hence changes wait
in memory, and only the net changes are written. Small rows that were written or read lately are
served from memory. The switch interval is short only while a commit writes: a short interval
throughout would interrupt Python code too often and cost both threads more than it saves.
"""

import contextlib
import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import lmdb

from querator.model.limits import MIB
from querator.storage.data_file import (
    DATA_NAME,
    LMDB_ENGINE,
    ROOM_SHARE,
    check_length,
    check_meta,
    make_data_file,
    translated,
)
from querator.storage.directory import lock_directory, sync_names
from querator.storage.environment import (
    EnvironmentFailed,
    EnvironmentFull,
    ReadTransaction,
    StorageCorrupt,
    StorageError,
    Usage,
    WriteTransaction,
    added_bytes,
    reserve_bytes,
)
from querator.storage.overlay import Changes, OverlayTransaction, Row
from querator.storage.sealed import seal, unseal
from querator.storage.switch_interval import SHORT_SWITCHES
from querator.storage.tables import SEALED_LETTERS

MAP_BYTES_DEFAULT = 1 << 40
MAP_SPARE_SHARE = 8
"""Part of the map outside the quota: for the pages of the last two states, and for gaps."""
READERS_MAX = 512
"""Limit of snapshots that are open at the same time in the node."""
SPARE_SNAPSHOTS = 8
DISK_CHECK_BYTES = 16 * MIB
DISK_CHECK_SECONDS = 0.5
"""Free disk space is read again after this many bytes or seconds: other programs fill the disk
too."""
CACHE_ROWS = 16_384
CACHE_VALUE_BYTES_MAX = 1_024
"""Rows kept in memory for the write transaction: their number, and the longest value."""

_META_PAGES: Final = 2
_NEARLY_EMPTY_PART: Final = 8
"""A file is nearly empty when the used bytes are at most this part of the others."""


def open_lmdb(
    path: Path | str,
    *,
    map_bytes: int = MAP_BYTES_DEFAULT,
    quota_bytes: int | None = None,
    room_bytes: int = 0,
    used_by: str = "another process",
) -> "LmdbEnvironment":
    """Opens or creates the environment in the directory `path`. `used_by` names this use to other
    processes that find the directory locked.

    `quota_bytes` bounds the used bytes; without it, most of the map does. `room_bytes` is the first
    length of a new data file, which is less where the quota or the disk is small. Raises
    StorageLocked, StorageCorrupt or EnvironmentFailed.
    """
    return LmdbEnvironment(
        path,
        map_bytes=map_bytes,
        quota_bytes=quota_bytes,
        room_bytes=room_bytes,
        used_by=used_by,
    )


class LmdbEnvironment:
    """An `Environment` on disk. One thread writes; any thread may read snapshots and usage."""

    def __init__(
        self,
        path: Path | str,
        *,
        map_bytes: int = MAP_BYTES_DEFAULT,
        quota_bytes: int | None = None,
        room_bytes: int = 0,
        used_by: str = "another process",
    ) -> None:
        assert quota_bytes is None or 0 < quota_bytes
        self.path = Path(path)
        quota_bytes_max = map_bytes - map_bytes // MAP_SPARE_SHARE
        self._quota_bytes = min(quota_bytes or quota_bytes_max, quota_bytes_max)
        self._reserve_bytes = reserve_bytes(self._quota_bytes)
        self._failure: str | None = None
        self._writing = False
        self._closed = False
        self._lock_file, made_in = lock_directory(self.path, used_by=used_by)
        try:
            room_bytes = min(room_bytes, self._quota_bytes // ROOM_SHARE)
            make_data_file(self.path, map_bytes=map_bytes, room_bytes=room_bytes)
            sync_names(self.path, made_in)
            self._lmdb = _open(self.path, map_bytes)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._page_bytes = self._lmdb.stat()["psize"]
        self._disk_free_bytes = 0
        self._disk_checked_at = 0.0
        self._written_bytes = 0
        self._counting = threading.Lock()
        """Held while the figures of the free space change, and while they are read together: other
        threads read them, too.
        """
        self._checking = threading.Lock()
        """Held while one thread asks the disk."""
        self._reusable_bytes = 0
        self._cache = _Cache()
        self._used_bytes = self._tree_bytes(self._lmdb.stat())
        self._check_disk()

    @property
    def durable(self) -> bool:
        return True

    def begin(self) -> WriteTransaction:
        assert not self._closed
        assert not self._writing, "there is one write transaction at a time"
        if self._failure is not None:
            raise EnvironmentFailed(self._failure)
        try:
            txn = self._lmdb.begin(write=True)
        except lmdb.Error as error:
            raise translated(error) from error
        self._writing = True
        return OverlayTransaction(_CachedBase(txn, self._cache), _Ending(self, txn))

    def snapshot(self) -> AbstractContextManager[ReadTransaction]:
        assert not self._closed
        return self._snapshot()

    def usage(self) -> Usage:
        """Cheap enough for every turn: arithmetic, and at intervals the free disk. Raises
        StorageCorrupt when nothing is free because a meta page is damaged.
        """
        now = time.monotonic()
        if (
            self._written_bytes >= DISK_CHECK_BYTES
            or now - self._disk_checked_at >= DISK_CHECK_SECONDS
        ):
            self._check_disk()
        free_bytes, idle_bytes, least_bytes = self._space()
        if not free_bytes:
            check_meta(self.path, self._lmdb)
        return Usage(
            used_bytes=self._used_bytes,
            free_bytes=free_bytes,
            quota_bytes=self._quota_bytes,
            reserve_bytes=self._reserve_bytes,
            idle_bytes=idle_bytes,
            idle_until_bytes=least_bytes if idle_bytes else 0,
        )

    def close(self) -> None:
        """Drops open transactions; no other thread may be reading. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._lmdb.close()
        os.close(self._lock_file)

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[ReadTransaction]:
        try:
            txn = self._lmdb.begin()
        except lmdb.Error as error:
            raise translated(error) from error
        with txn:
            yield _Base(txn)

    def _commit(self, txn: "lmdb.Transaction[bytes]", changes: Changes) -> None:
        """Gives LMDB the net changes in key order, and commits."""
        self._writing = False
        need = self._need_bytes(changes)
        if need and need > self._free_bytes():
            txn.abort()
            check_meta(self.path, self._lmdb)
            raise EnvironmentFull(
                f"{self.path}: {need} bytes to write, {max(0, self._free_bytes())} free "
                f"of a quota of {self._quota_bytes}"
            )
        if not changes:
            txn.abort()
            return
        # This stays set if anything stops the write half-way.
        self._failure = f"{self.path}: an earlier commit did not end"
        try:
            with SHORT_SWITCHES:
                used_bytes = self._write(txn, changes)
        except lmdb.MapFullError as error:
            # LMDB found no page before it changed anything on disk.
            self._failure = None
            raise EnvironmentFull(f"{self.path}: the map is full") from error
        except lmdb.Error as error:
            self._failure = f"{self.path}: an earlier commit failed: {error}"
            raise self._commit_error(error, need) from error
        self._failure = None
        for key, value in changes.items():
            self._cache.write(key, value)
        self._used_bytes = used_bytes
        with self._counting:
            self._written_bytes += need

    def _write(self, txn: "lmdb.Transaction[bytes]", changes: Changes) -> int:
        """Writes and commits the changes. Returns the used bytes afterwards."""
        keys = sorted(changes)
        rows = [
            (key, value if key[0] in SEALED_LETTERS else seal(key, value))
            for key in keys
            if (value := changes[key]) is not None
        ]
        try:
            for key in keys:
                if changes[key] is None:
                    txn.delete(key)
            if rows:
                with txn.cursor() as cursor:
                    cursor.putmulti(rows)
            used_bytes = self._tree_bytes(txn.stat())
        except BaseException:
            txn.abort()
            raise
        txn.commit()
        return used_bytes

    def _commit_error(self, error: lmdb.Error, need: int) -> StorageError:
        """LMDB reports EIO for a short write, which is the first sign of most full disks."""
        if error.code == errno.EIO:
            stat = os.statvfs(self.path)
            if stat.f_bavail * stat.f_frsize < need + MIB:
                return EnvironmentFull(f"{self.path}: the disk is full")
        return translated(error)

    def _abort(self, txn: "lmdb.Transaction[bytes]") -> None:
        self._writing = False
        txn.abort()

    def _need_bytes(self, changes: Changes) -> int:
        """Upper bound of the bytes that the changes add; replaced values are not subtracted."""
        return added_bytes(changes.items(), self._page_bytes)

    def _tree_bytes(self, stat: "lmdb._StatDict") -> int:
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return (pages + _META_PAGES) * self._page_bytes

    def _free_bytes(self) -> int:
        return self._space()[0]

    def _space(self) -> tuple[int, int, int]:
        """The free bytes of the quota or of the disk, whichever are fewer. Then the bytes inside
        the file that do not count in them, and what the disk must have free so that all count.

        A long value needs adjacent pages, so it may go to the end of the file although there are
        free pages. So these count only while the disk has most of the reserve free, and half of
        them down to half of the reserve. In a file that is nearly empty there are long runs of free
        pages: there they count down to a quarter, below which nothing is written. The file grows
        into the reserve in this way, and never shrinks. It must not be full for ever when it is
        emptied.
        """
        with self._counting:
            disk, inside = self._disk_free_bytes - self._written_bytes, self._reusable_bytes
        nearly_empty = self._used_bytes <= inside // _NEARLY_EMPTY_PART
        least = self._reserve_bytes // 4 if nearly_empty else self._reserve_bytes * 3 // 4
        counted = inside
        if disk < least:
            counted = inside // 2 if disk >= self._reserve_bytes // 2 else 0
        left = self._quota_bytes - self._used_bytes
        free = min(left, disk + counted)
        return max(0, free), 0 if free == left else inside - counted, least

    def _check_disk(self) -> None:
        """Reads the free space, unless another thread does: the disk may hang. What is written
        meanwhile may not be in that figure, and stays counted.
        """
        if not self._checking.acquire(blocking=False):
            return
        try:
            written_bytes = self._written_bytes
            stat = os.statvfs(self.path)
            file_bytes = max(
                (self._lmdb.info()["last_pgno"] + 1) * self._page_bytes,
                (self.path / DATA_NAME).stat().st_size,
            )
            with self._counting:
                self._disk_free_bytes = stat.f_bavail * stat.f_frsize
                self._reusable_bytes = max(0, file_bytes - self._used_bytes)
                self._written_bytes -= written_bytes
            self._disk_checked_at = time.monotonic()
        finally:
            self._checking.release()


def _opened(key: bytes, stored: bytes) -> bytes:
    """The value of a row as LMDB stores it."""
    if key[0] in SEALED_LETTERS:
        return stored
    try:
        return unseal(key, stored, "row")
    except StorageCorrupt:
        raise StorageCorrupt(f"row {key.hex()}: wrong checksum") from None


class _Base:
    """Reads in one LMDB transaction."""

    __slots__ = ("_txn",)

    def __init__(self, txn: "lmdb.Transaction[bytes]") -> None:
        self._txn = txn

    def get(self, key: bytes) -> bytes | None:
        try:
            stored = self._txn.get(key)
        except lmdb.Error as error:
            raise translated(error) from error
        return None if stored is None else _opened(key, stored)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[Row]:
        try:
            with self._txn.cursor() as cursor:
                if reverse:
                    found = cursor.prev() if cursor.set_range(stop) else cursor.last()
                    if found:
                        for row in cursor.iterprev():
                            if row[0] < start:
                                return
                            yield row[0], _opened(*row)
                elif cursor.set_range(start):
                    for row in cursor.iternext():
                        if row[0] >= stop:
                            return
                        yield row[0], _opened(*row)
        except lmdb.Error as error:
            raise translated(error) from error

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        try:
            with self._txn.cursor() as cursor:
                if cursor.set_range(start):
                    for key in cursor.iternext(keys=True, values=False):
                        if key >= stop:
                            return
                        yield key
        except lmdb.Error as error:
            raise translated(error) from error


class _Cache:
    """LRU cache of small rows of the last committed state. Raft thread only."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: OrderedDict[bytes, bytes] = OrderedDict()

    def get(self, key: bytes) -> bytes | None:
        value = self._rows.get(key)
        if value is not None:
            self._rows.move_to_end(key)
        return value

    def write(self, key: bytes, value: bytes | None) -> None:
        if value is None or len(value) > CACHE_VALUE_BYTES_MAX:
            self._rows.pop(key, None)
            return
        self._rows[key] = value
        self._rows.move_to_end(key)
        if len(self._rows) > CACHE_ROWS:
            self._rows.popitem(last=False)


class _CachedBase(_Base):
    """Reads below the write transaction. No other thread changes rows, so the cache is valid."""

    __slots__ = ("_cache",)

    def __init__(self, txn: "lmdb.Transaction[bytes]", cache: _Cache) -> None:
        super().__init__(txn)
        self._cache = cache

    def get(self, key: bytes) -> bytes | None:
        value = self._cache.get(key)
        if value is None:
            value = super().get(key)
            if value is not None:
                self._cache.write(key, value)
        return value


class _Ending:
    __slots__ = ("_environment", "_txn")

    def __init__(self, environment: LmdbEnvironment, txn: "lmdb.Transaction[bytes]") -> None:
        self._environment = environment
        self._txn = txn

    def commit(self, changes: Changes, *, sync: bool) -> None:
        self._environment._commit(self._txn, changes)

    def abort(self) -> None:
        self._environment._abort(self._txn)


def _open(path: Path, map_bytes: int) -> lmdb.Environment:
    data = path / DATA_NAME
    try:
        environment = lmdb.open(
            str(path),
            map_size=map_bytes,
            max_readers=READERS_MAX,
            max_spare_txns=SPARE_SNAPSHOTS,
            lib_version=LMDB_ENGINE,
        )
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
        raise StorageCorrupt(f"{data}: {error}") from error
    except lmdb.Error as error:
        raise translated(error) from error
    try:
        check_meta(path, environment)
        check_length(path, environment)
    except BaseException:
        environment.close()
        raise
    return environment
