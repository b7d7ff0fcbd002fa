"""The block of a lock: its task is cancelled when the lock is lost, as by `asyncio.timeout`.

A cancellation that comes from elsewhere stays one: `end` says whether the block ended only because
the lock was lost.
"""

import asyncio

from querator.client.locks.token_lease import TokenLease


class LockBlock:
    """Begins in the task that runs the block."""

    def __init__(self, lease: TokenLease) -> None:
        task = asyncio.current_task()
        assert task is not None, "a block runs in a task"
        self.lease = lease
        self._task = task
        self._cancelling = task.cancelling()
        self._cancelled = False
        lease.watch(self._on_lost)

    def _on_lost(self) -> None:
        # The block itself may notice the loss, by `Holding.check`: it gets the error from there.
        if asyncio.current_task() is not self._task:
            self._cancelled = True
            self._task.cancel()

    def end(self, kind: type[BaseException] | None) -> bool:
        """Whether `kind`, with which the block ended, comes from the loss alone."""
        self.lease.unwatch(self._on_lost)
        if not self._cancelled:
            return False
        others = self._task.uncancel() > self._cancelling
        return not others and kind is not None and issubclass(kind, asyncio.CancelledError)
