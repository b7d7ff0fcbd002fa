"""How long the disk itself takes for a small synced write, repeatedly during a measurement. The
nodes did not cause a pause in which this probe stood still as well.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

PAUSE_SECONDS = 0.05
WRITTEN_BYTES = 4_096


class Disk:
    """Instants are those of the monotonic clock."""

    def __init__(self) -> None:
        self._writes: list[tuple[float, float]] = []

    def write(self, path: Path) -> None:
        """Blocks until the write is on the disk."""
        began_s = time.monotonic()
        with path.open("r+b", buffering=0) as file:
            file.write(os.urandom(WRITTEN_BYTES))
            os.fdatasync(file.fileno())
        self._writes.append((began_s, time.monotonic()))

    def longest(self, since_s: float, until_s: float) -> float:
        """Duration of the slowest write that reaches into the window, in seconds."""
        return max(
            (ended - began for began, ended in self._writes if began < until_s and ended > since_s),
            default=0.0,
        )


@contextlib.asynccontextmanager
async def probing(directory: Path) -> AsyncIterator[Disk]:
    """Writes to a file in the directory while the block runs."""
    disk = Disk()
    path = directory / "probe"
    path.write_bytes(bytes(WRITTEN_BYTES))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_probe(disk, path))
        yield disk
        task.cancel()


async def _probe(disk: Disk, path: Path) -> None:
    while True:
        await asyncio.to_thread(disk.write, path)
        await asyncio.sleep(PAUSE_SECONDS)
