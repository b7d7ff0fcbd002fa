"""The directory of a durable environment: its lock, and names that survive a power loss.

A synced file is on disk. Its name is on disk once its directory is synced, and the directory's name
once the parent directory is synced.
"""

import fcntl
import os
from pathlib import Path
from typing import Final

from querator.storage.environment import EnvironmentFailed, StorageLocked

_LOCK_NAME: Final = "querator.lock"


def lock_directory(path: Path) -> tuple[int, Path]:
    """Creates the directory and takes its lock, which lasts as long as the descriptor.

    The second value is the nearest directory that existed before.
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
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock_file)
        raise StorageLocked(f"{path}: another process has this directory") from error
    except OSError as error:
        os.close(lock_file)
        raise EnvironmentFailed(f"{path}: {error.strerror}") from error
    return lock_file, made_in


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
