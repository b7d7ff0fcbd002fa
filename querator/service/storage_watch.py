"""Reads the free space of a node's storage at intervals and on request, for the condition
`storage_full`.

The read asks the file system, which may hang. So a thread of its own does it: the event loop and
the other conditions continue.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from querator import telemetry
from querator.service.conditions import LOOK_S, Conditions
from querator.storage.environment import Environment, StorageError

REFRESH_S = 0.5
"""How long a request waits for a read. Then it gets what was read before."""

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
        self._reading: asyncio.Task[None] | None = None
        self._is_unknown = False
        """Whether the last read failed."""

    def start(self) -> None:
        # Owned: `stop` ends and awaits it.
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Returns when no thread reads the storage."""
        owned = [task for task in (self._task, self._reading) if task is not None]
        for task in owned:
            task.cancel()
        if owned:
            await asyncio.wait(owned)
        # Earlier work of the thread has ended when this call has its turn.
        await asyncio.get_running_loop().run_in_executor(self._thread, int)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        while True:
            await asyncio.wait((self._begin(),))
            await asyncio.sleep(LOOK_S)

    async def refresh(self) -> None:
        """Reads the space, and waits at most `REFRESH_S`: the file system may hang."""
        await asyncio.wait((self._begin(),), timeout=REFRESH_S)

    def _begin(self) -> "asyncio.Task[None]":
        """The read that is on its way, or a new one."""
        if self._reading is None or self._reading.done():
            # Owned: `stop` ends and awaits it.
            self._reading = asyncio.get_running_loop().create_task(self.read())
        return self._reading

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
