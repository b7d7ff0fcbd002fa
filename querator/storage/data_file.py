"""The file of an LMDB environment: its creation, and checks of its length and its pages."""

import errno
import os
from pathlib import Path
from typing import Final

import lmdb
import lmdb.verify

from querator.model.limits import MIB
from querator.storage.directory import sync
from querator.storage.environment import (
    EnvironmentFailed,
    EnvironmentFull,
    StorageCorrupt,
    StorageError,
)

DATA_NAME: Final = "data.mdb"
_NEW_DATA_NAME: Final = "data.new"
ROOM_SHARE = 16
"""A file is created with at most this part of the quota, and of the free disk, allocated."""
LMDB_ENGINE: Final = 0
"""py-lmdb brings LMDB 0.9 and 1.0, which cannot read each other's files. The choice is part of
Querator's format, so the library's default and environment variables do not decide it.
"""
_FULL_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def make_data_file(path: Path, *, map_bytes: int, room_bytes: int) -> None:
    """Creates an empty data file in the directory `path`, atomically, unless there is one.

    The file is filled with zeros up to `room_bytes`, or less on a disk that is nearly full. A hole
    would not do, because the file system would have to allocate its blocks at later writes. Raises
    StorageCorrupt for a file that is empty, and EnvironmentFailed.

    LMDB does not sync its first two pages, and does not open a file if power loss left only one of
    them.
    """
    data, new = path / DATA_NAME, path / _NEW_DATA_NAME
    try:
        if data.exists():
            if data.stat().st_size == 0:
                raise StorageCorrupt(f"{data}: the file is empty; what it held is lost")
            return
        new.unlink(missing_ok=True)
        lmdb.open(
            str(new), subdir=False, lock=False, map_size=map_bytes, lib_version=LMDB_ENGINE
        ).close()
        stat = os.statvfs(path)
        room_bytes = min(room_bytes, stat.f_bavail * stat.f_frsize // ROOM_SHARE)
        with new.open("ab") as file:
            while (missing := room_bytes - file.tell()) > 0:
                file.write(bytes(min(missing, MIB)))
        sync(new)
        new.rename(data)
    except OSError as error:
        raise EnvironmentFailed(f"{data}: {error.strerror}") from error
    except lmdb.Error as error:
        raise translated(error) from error


def check_pages(path: Path | str) -> list[str]:
    """Walks the data file in the directory `path` and returns one sentence for each problem.

    Every page in use is read, except the bytes of long values. Nothing may write meanwhile.
    """
    try:
        return list(lmdb.verify.verify(str(path), subdir=True))  # type: ignore[no-untyped-call]
    except lmdb.verify.VerifyError as error:
        return [str(error)]


def check_length(path: Path, environment: lmdb.Environment) -> None:
    """Raises StorageCorrupt if pages in use lie beyond the end of the data file.

    Reading such a page would end the process with SIGBUS. Free pages may lie there: pages that were
    allocated and freed in one transaction are never written. So a file that is a little short is
    walked and then extended. The walk misses a single long value that straddles the end. Its
    missing bytes read as zeros, which the checksum of an attachment detects.
    """
    data = path / DATA_NAME
    info, page_bytes = environment.info(), environment.stat()["psize"]
    file_bytes, map_bytes = data.stat().st_size, (info["last_pgno"] + 1) * page_bytes
    if info["last_txnid"] == 0 or file_bytes >= map_bytes:
        return
    if problems := check_pages(path):
        raise StorageCorrupt(
            f"{data}: the file is cut short at {file_bytes} bytes of {map_bytes}: {problems[0]}"
        )
    os.truncate(data, map_bytes)


def check_meta(path: Path, environment: lmdb.Environment) -> None:
    """Raises StorageCorrupt if the newest meta page counts more pages in use than there are. The
    meta page is damaged then; LMDB has no checksum for it.
    """
    stat, last_page = environment.stat(), environment.info()["last_pgno"]
    pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    if pages > last_page + 1:
        raise StorageCorrupt(
            f"{path / DATA_NAME}: a meta page is damaged: it counts {pages} pages in use, "
            f"and the last page is number {last_page}"
        )


def translated(error: lmdb.Error) -> StorageError:
    if isinstance(error, lmdb.MemoryError):
        return EnvironmentFailed(
            f"{error}: the data file maps 1 TiB of addresses, which take no memory; remove the "
            "limit of the process's address space (ulimit -v unlimited)"
        )
    if isinstance(error, lmdb.MapFullError) or error.code in _FULL_ERRNOS:
        return EnvironmentFull(str(error))
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
        return StorageCorrupt(str(error))
    return EnvironmentFailed(str(error))
