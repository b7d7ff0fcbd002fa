"""The disk of one machine: how long a sync takes, when it fails, and what a crash leaves.

Most disks are in memory. A crash leaves what the last synced commit wrote. A few disks are real
LMDB files. A crash closes them, and the next start opens them again, so a crash comes between
commits.
"""

import random
from collections.abc import Callable
from pathlib import Path

from querator.raft.log.journal import Snapshots
from querator.storage.environment import Environment, EnvironmentFailed
from querator.storage.lmdb_environment import LmdbEnvironment
from querator.storage.memory_environment import MemoryEnvironment
from querator.storage.overlay import Changes
from tests.simulation.clock import NodeClock

QUOTA_BYTES = 1 << 30
KEPT_BYTES = 64 << 10
"""When others have filled a disk and only this much is free, nothing may be written beyond the
reserve.
"""


class PowerLoss(BaseException):
    """The machine stops here. This is not an error: no code may catch it."""


class Disk:
    """`armed` names the point at which the next synced commit fails: `sync` (nothing of it is
    kept), `synced` (all of it is kept, and no caller learns that), or `failed` (an error of the
    device).
    """

    def __init__(self, clock: NodeClock, chance: random.Random, directory: Path | None) -> None:
        self.sync_us = 300
        self.armed = ""
        self.hangs_us = 0
        """Additional time that the next sync takes."""
        self.syncs = 0
        self.damages = False
        """Whether the disk changes what was written to it."""
        self.overfull = False
        """Whether others left so little free space that the process may stop."""
        self._clock = clock
        self._chance = chance
        self._directory = directory
        self.environment = self._open()

    def _open(self) -> Environment:
        if self._directory is None:
            return MemoryEnvironment(quota_bytes=QUOTA_BYTES, faults=self._faults)
        return _Lmdb(self._directory, self._faults)

    @property
    def snapshots(self) -> Snapshots:
        return self.environment.snapshot

    def crash(self) -> None:
        """Keeps only what was synced."""
        self.armed = ""
        self.hangs_us = 0
        if isinstance(self.environment, MemoryEnvironment):
            quota_bytes = self.environment._quota_bytes
            after = self.environment.crash()
            after.faults = self._faults
            after._quota_bytes = quota_bytes
            self.environment = after
        else:
            self.environment.close()
            self.environment = self._open()

    def image(self) -> dict[bytes, bytes]:
        """A copy of the disk, made while no process runs. Only for a disk in memory."""
        assert isinstance(self.environment, MemoryEnvironment)
        return dict(self.environment._rows)

    def put_back(self, image: dict[bytes, bytes]) -> None:
        """Replaces the content of the disk with `image`, while no process runs."""
        assert isinstance(self.environment, MemoryEnvironment)
        restored = MemoryEnvironment(quota_bytes=QUOTA_BYTES)
        txn = restored.begin()
        for key, value in image.items():
            txn.put(key, value)
        txn.commit(sync=True)
        # Set only here: an armed fault waits for a process.
        restored.faults = self._faults
        self.environment = restored

    def fill(self, *, free_bytes: int) -> None:
        """Others fill the disk up to `free_bytes`. Only for a disk in memory."""
        if isinstance(self.environment, MemoryEnvironment):
            used_bytes = self.environment.usage().used_bytes
            self.environment._quota_bytes = used_bytes + free_bytes
            self.overfull = free_bytes < max(KEPT_BYTES, self.environment.usage().reserve_bytes)

    def empty(self) -> None:
        self.overfull = False
        if isinstance(self.environment, MemoryEnvironment):
            self.environment._quota_bytes = QUOTA_BYTES

    def close(self) -> None:
        self.environment.close()

    def _faults(self, point: str) -> None:
        if point == "sync":
            self.syncs += 1
            sync_us = self.sync_us
            self._clock.within_us += sync_us // 2 + self._chance.randrange(sync_us) + self.hangs_us
            self.hangs_us = 0
            if self.armed == "sync":
                raise PowerLoss
            if self.armed == "failed":
                raise EnvironmentFailed("an injected error of the device")
        elif point == "synced" and self.armed == "synced":
            raise PowerLoss


class _Lmdb(LmdbEnvironment):
    def __init__(self, directory: Path, faults: Callable[[str], None]) -> None:
        super().__init__(directory, map_bytes=256 * (1 << 20))
        self._faults = faults

    def _commit(self, txn: object, changes: Changes) -> None:
        try:
            self._faults("sync")
        except BaseException:
            self._abort(txn)  # type: ignore[arg-type]
            raise
        super()._commit(txn, changes)  # type: ignore[arg-type]
        self._faults("synced")
