"""A wait queue of tasks: for space to put something, or for something to take."""

import asyncio
from collections import deque


class WaitQueue:
    """A wait queue on one event loop. A task that was woken and is then cancelled passes its turn
    on, so no turn is lost.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, *, first: bool = False) -> None:
        """Waits until it is this task's turn. `first`: before all others, for a task that has had
        its turn and could not use it.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.wake(1)
            raise

    def wake(self, count: int) -> None:
        """Wakes up to `count` waiting tasks, in their order."""
        while count and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        self.wake(len(self._waiting))
