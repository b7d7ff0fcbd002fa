"""The block of a lock: its task is cancelled when the lock is lost, as by `asyncio.timeout`.

A cancellation that comes from elsewhere stays one, and an error of the block comes before the loss.
"""

import asyncio
from types import TracebackType
from typing import Self

from querator.client.errors import LockLost, RequestError
from querator.client.locks.holding import Holding
from querator.client.locks.token_lease import LATE, TokenLease
from querator.client.logs import LOCKS


class LockBlock:
    """What the current task does while it has `lease`. The end of the block gives the lease back,
    or raises `LockLost`. `keeps`: gives it back only if the block ends by an exception.
    """

    def __init__(self, lease: TokenLease, *, keeps: bool = False) -> None:
        task = asyncio.current_task()
        assert task is not None, "a block runs in a task"
        self.lease = lease
        self._task = task
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._keeps = keeps

    async def __aenter__(self) -> Self:
        self.lease.watch(self._on_lost)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lease.unwatch(self._on_lost)
        only_loss = self._end(kind)
        if self.lease.lost:
            self.lease.lose(LATE)
            if kind is None or only_loss:
                raise self.lease.error() from error
            return
        if self._keeps and kind is None:
            return
        try:
            await give_back(self.lease)
        except LockLost:
            if kind is None:
                raise

    def _on_lost(self) -> None:
        # The block itself may notice the loss, by `Holding.check`: it gets the error from there.
        if asyncio.current_task() is not self._task:
            self._cancelled = True
            self._task.cancel()

    def _end(self, kind: type[BaseException] | None) -> bool:
        """Whether `kind`, with which the block ended, comes from the loss alone."""
        if not self._cancelled:
            return False
        others = self._task.uncancel() > self._cancelling
        return not others and kind is not None and issubclass(kind, asyncio.CancelledError)


async def give_back(held: TokenLease | Holding) -> None:
    """Releases what a block has held. The work of the block is done: a failure is logged. Raises
    `LockLost`.
    """
    try:
        await held.release()
    except RequestError as refused:
        LOCKS.warning(
            "lock %s was not given back, and is free when its lease ends: %s", held.name, refused
        )
