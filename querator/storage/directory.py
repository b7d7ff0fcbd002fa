"""The directory of a durable environment: its lock, and names that survive a power loss.

A synced file is on disk. Its name is on disk once its directory is synced, and the directory's name
once the parent directory is synced.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from querator.storage.environment import EnvironmentFailed, StorageLocked

_LOCK_NAME: Final = "querator.lock"
_USE_BYTES_MAX: Final = 200
"""Of the text in the lock file: the process and what it uses the directory for."""


def lock_directory(path: Path, *, used_by: str) -> tuple[int, Path]:
    """Creates the directory and takes its lock, which lasts as long as the descriptor. `used_by`
    says for what; a process that finds the directory locked reports it.

    The second value is the nearest directory that existed before. Raises StorageLocked and
    EnvironmentFailed.
    """
    try:
        made_in = path.absolute()
        while not made_in.exists():
            made_in = made_in.parent
        path.mkdir(parents=True, exist_ok=True)
        lock_file = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise EnvironmentFailed(f"{path}: {error.strerror}") from error
    try:
        _lock(path, lock_file, fcntl.LOCK_EX)
        # A disk without space for it loses a hint only.
        with contextlib.suppress(OSError):
            os.ftruncate(lock_file, 0)
            os.pwrite(lock_file, f"{os.getpid()} {used_by}".encode(), 0)
    except BaseException:
        os.close(lock_file)
        raise
    return lock_file, made_in


def check_unlocked(path: Path) -> None:
    """Raises StorageLocked if a process uses the directory at this moment. Changes nothing."""
    try:
        lock_file = os.open(path / _LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # Whatever is wrong with the directory, opening it reports it.
    try:
        _lock(path, lock_file, fcntl.LOCK_SH)
    finally:
        os.close(lock_file)


def _lock(path: Path, lock_file: int, how: int) -> None:
    """Raises StorageLocked, which names the process that has the lock, and EnvironmentFailed."""
    try:
        fcntl.flock(lock_file, how | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid, _, used_by = (
            os.pread(lock_file, _USE_BYTES_MAX, 0).decode("utf-8", "replace").partition(" ")
        )
        named = f"{used_by} (pid {pid})" if pid.isdecimal() and used_by else "another process"
        raise StorageLocked(f"{path} is in use by {named}") from error
    except OSError as error:
        raise EnvironmentFailed(f"{path}: {error.strerror}") from error


def sync_names(path: Path, made_in: Path) -> None:
    """Makes durable the names in the directory `path`, and the names on the path to it.

    The name of `made_in` is synced too: an interrupted earlier start may have created it.
    """
    for directory in (path.absolute(), *path.absolute().parents):
        _sync_directory(directory)
        if directory == made_in.parent:
            return


def sync(path: Path) -> None:
    """Waits until the file, or the names in the directory, are on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    try:
        sync(path)
    except PermissionError as error:
        # A directory that may be neither read nor written has no names of this node.
        if os.access(path, os.W_OK):
            raise EnvironmentFailed(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise EnvironmentFailed(f"{path}: {error.strerror}") from error
