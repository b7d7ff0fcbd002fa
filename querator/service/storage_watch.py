"""Reads the free space of a node's storage at intervals, for the condition `storage_full`.

The read asks the file system, which may hang. So a thread of its own does it: the event loop and
the other conditions continue.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from querator import telemetry
from querator.service.conditions import LOOK_S, Conditions
from querator.storage.environment import Environment, StorageError

_log = telemetry.logger(__name__)


class StorageWatch:
    """The watch of one node, on its event loop. Call `start` once, and `stop` before the storage is
    closed.
    """

    def __init__(self, environment: Environment, conditions: Conditions) -> None:
        self._environment = environment
        self._conditions = conditions
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="storage-watch")
        self._task: asyncio.Task[None] | None = None
        self._is_unknown = False
        """Whether the last read failed."""

    def start(self) -> None:
        # Owned: `stop` ends and awaits it.
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Returns when no thread reads the storage."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        # Earlier work of the thread has ended when this call has its turn.
        await asyncio.get_running_loop().run_in_executor(self._thread, int)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(LOOK_S)

    async def read(self) -> None:
        """Reads the space once."""
        loop = asyncio.get_running_loop()
        try:
            usage = await loop.run_in_executor(self._thread, self._environment.usage)
        except (StorageError, OSError) as error:
            # The raft thread meets the same error at its next write, and the node ends.
            if not self._is_unknown:
                _log.error("storage.space_unknown", reason=str(error))
            self._is_unknown, self._conditions.storage = True, None
            return
        self._is_unknown, self._conditions.storage = False, usage
