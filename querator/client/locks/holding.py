"""`Holding`: a lock that is held, as programs see it."""

import asyncio
from datetime import timedelta

from querator.client.locks.token_lease import TokenLease


class Holding:
    """A lock, or a permit of a semaphore, that this program holds until it releases or loses it.

    `token`: the fencing token. It is higher than that of each earlier holder; give it to the stores
    that you write to, and let them refuse a lower one than they have seen. `holder`: the name that
    others see.
    """

    def __init__(self, lease: TokenLease) -> None:
        self._lease = lease
        self.name = lease.name
        self.holder = lease.holder
        self.token = lease.token

    def __repr__(self) -> str:
        state = "lost" if self.lost else "released" if self._lease.ended else "held"
        return f"<Holding of {self.name!r}, token {self.token}, {state}>"

    @property
    def held(self) -> bool:
        """Whether this program holds the lock now, by its own clock: False as soon as another one
        may hold it, also in a process that was stopped and continues.
        """
        return self._lease.held

    @property
    def lost(self) -> bool:
        """Whether the lock was lost: it ended before it was released."""
        return self._lease.lost

    @property
    def remaining(self) -> timedelta:
        """How long the lock is held at least, if nothing extends it; zero when it is not held."""
        return self._lease.remaining

    def check(self) -> None:
        """Raises `LockLost` unless the lock is held, RuntimeError when it was released. Call it
        before each step that must not be done without the lock; only a store that compares fencing
        tokens makes sure.
        """
        if self._lease.held:
            return
        if self._lease.lost:
            raise self._lease.error()
        raise RuntimeError(f"lock {self.name} was released")

    async def until_lost(self) -> None:
        """Returns as soon as the lock is lost. Never, if it is released before: run it beside the
        work, and cancel it.
        """
        gone = asyncio.Event()
        on_lost = gone.set
        self._lease.watch(on_lost)
        try:
            await gone.wait()
        finally:
            self._lease.unwatch(on_lost)

    async def release(self) -> None:
        """Gives the lock back, at once for the next holder. A second call has no effect. Raises
        `LockLost` when the lock was lost before, and RequestError when no node has answered: then
        the lock is free when its lease ends.
        """
        await self._lease.release()
