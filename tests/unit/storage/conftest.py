from pathlib import Path
from typing import Protocol

import pytest

from querator.storage.environment import Environment
from querator.storage.lmdb_environment import LmdbEnvironment, open_lmdb
from querator.storage.memory_environment import MEMORY_QUOTA_BYTES_DEFAULT, MemoryEnvironment


class Disk(Protocol):
    """The place of an environment. The suite runs on the disk of each back end; a new back end adds
    its own.
    """

    def open(self, *, quota_bytes: int | None = None) -> Environment:
        """The environment in the state of the last synced commit. An open one becomes invalid."""
        ...

    def close(self) -> None: ...


class LmdbDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._environment: LmdbEnvironment | None = None

    def open(self, *, quota_bytes: int | None = None) -> LmdbEnvironment:
        self.close()
        self._environment = open_lmdb(self.path, quota_bytes=quota_bytes)
        return self._environment

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()


class MemoryDisk:
    def __init__(self) -> None:
        self._environment: MemoryEnvironment | None = None

    def open(self, *, quota_bytes: int | None = None) -> MemoryEnvironment:
        if self._environment is None:
            self._environment = MemoryEnvironment(
                quota_bytes=quota_bytes or MEMORY_QUOTA_BYTES_DEFAULT
            )
        else:
            self._environment = self._environment.crash()
        return self._environment

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()


@pytest.fixture(params=["lmdb", "memory"])
def disk(request, tmp_path):
    disk: Disk = LmdbDisk(tmp_path / "node") if request.param == "lmdb" else MemoryDisk()
    yield disk
    disk.close()


@pytest.fixture
def environment(disk):
    return disk.open()
