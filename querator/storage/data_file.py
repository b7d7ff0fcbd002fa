"""The file of an LMDB environment: made whole, found cut short, walked."""

import errno
import os
from pathlib import Path
from typing import Final

import lmdb
import lmdb.verify

from querator.model.limits import MIB
from querator.storage.directory import sync
from querator.storage.environment import (
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageFull,
)

DATA_NAME: Final = "data.mdb"
_NEW_DATA_NAME: Final = "data.new"
ROOM_SHARE = 16
"""At most this part of the quota, and of the free disk, is room in a file that is made."""
LMDB_ENGINE: Final = 0
"""py-lmdb brings LMDB 0.9 and 1.0, which cannot read each other's files. The choice is part of our
format, so it is not left to the library's default or an environment variable.
"""
_FULL_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def make_data_file(path: Path, *, map_bytes: int, room_bytes: int) -> None:
    """Makes an empty data file in the directory `path` unless there is one; all of it or nothing.

    It is filled with zeros up to `room_bytes`, or less on a disk that is nearly full; the blocks of
    a hole would have to be noted when they are written. Raises StorageCorrupt for a file that is
    empty, StorageFailed.

    LMDB leaves its first two pages unsynced, and does not open a file of which power loss left
    one.
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
        raise StorageFailed(f"{data}: {error.strerror}") from error
    except lmdb.Error as error:
        raise translated(error) from error


def check_pages(path: Path | str) -> list[str]:
    """Walks the data file in the directory `path` and says, in sentences, what is wrong with it.

    Every page in use is read, but for the bytes of long values. Nothing may write meanwhile.
    """
    try:
        return list(lmdb.verify.verify(str(path), subdir=True))  # type: ignore[no-untyped-call]
    except lmdb.verify.VerifyError as error:
        return [str(error)]


def check_length(path: Path, environment: lmdb.Environment) -> None:
    """Raises StorageCorrupt if pages in use lie beyond the end of the data file.

    Reading one would end the process with SIGBUS. Free pages may lie there: those that were
    allocated and freed in one transaction are never written. So a file that is a little short is
    walked, and then made longer. The walk does not see the one long value that may straddle the
    end; its missing bytes read as zeros, which the checksum of an attachment tells.
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
    """Raises StorageCorrupt if the tree is said to have more pages than there are. It is the newest
    meta page that says so: it is damaged. LMDB has no checksum for it.
    """
    stat, last_page = environment.stat(), environment.info()["last_pgno"]
    pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    if pages > last_page + 1:
        raise StorageCorrupt(
            f"{path / DATA_NAME}: a meta page is damaged: it counts {pages} pages in use, "
            f"and the last page is number {last_page}"
        )


def translated(error: lmdb.Error) -> StorageError:
    if isinstance(error, lmdb.MapFullError) or error.code in _FULL_ERRNOS:
        return StorageFull(str(error))
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
        return StorageCorrupt(str(error))
    return StorageFailed(str(error))
