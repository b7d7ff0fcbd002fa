"""Locks and semaphores, for programs without an event loop.

A thread cannot be cancelled: the program asks its `SyncHolding` between steps, or waits for the
loss on a thread of its own.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType

from querator.client.errors import LockLost
from querator.client.locks.block import give_back
from querator.client.locks.election import OBSERVE_DEFAULT, Election
from querator.client.locks.holding import Holding
from querator.client.locks.lock import Lock, Semaphore
from querator.client.locks.rw_lock import RwLock
from querator.client.locks.tokens import LockHolder
from querator.client.sync.leases import Runner
from querator.client.sync.loop_thread import iterate


class SyncHolding:
    """A lock that this program holds, as `Holding`. Its client extends the lease on its own thread,
    whatever the program does. All attributes may be read by any thread.
    """

    def __init__(self, runner: Runner, holding: Holding) -> None:
        self._runner = runner
        self.holding = holding

    def __repr__(self) -> str:
        return f"<Sync{repr(self.holding)[1:]}"

    @property
    def name(self) -> str:
        return self.holding.name

    @property
    def holder(self) -> str:
        """The name that others see."""
        return self.holding.holder

    @property
    def token(self) -> int:
        """The fencing token; see `Holding`."""
        return self.holding.token

    @property
    def held(self) -> bool:
        """Whether this program holds the lock now, by its own clock; see `Holding.held`."""
        return self.holding.held

    @property
    def lost(self) -> bool:
        """Whether the lock was lost: it ended before it was released."""
        return self.holding.lost

    @property
    def remaining(self) -> timedelta:
        """How long the lock is held at least, if nothing extends it."""
        return self.holding.remaining

    def check(self) -> None:
        """Raises `LockLost` unless the lock is held: call it between the steps of the work."""
        self.holding.check()

    def until_lost(self, timeout: timedelta | None = None) -> bool:
        """Waits until the lock is lost, at most `timeout` (None: no limit). Returns whether it is
        lost.
        """

        async def waiting() -> bool:
            seconds = None if timeout is None else timeout.total_seconds()
            try:
                async with asyncio.timeout(seconds):
                    await self.holding.until_lost()
            except TimeoutError:
                return self.holding.lost
            return True

        return self._runner.run(waiting())

    def release(self) -> None:
        """Gives the lock back, at once for the next holder. See `Holding.release`."""
        self._runner.run(self.holding.release())


class SyncSemaphore:
    """A number of permits, as `Semaphore`. Made by `SyncClient.semaphore`.

        with client.semaphore("licences", 10) as holding:
            for page in pages:
                holding.check()
                ...

    The block waits for a permit, and gives it back at its end. It raises `LockLost` at its end when
    the permit was lost meanwhile, unless it ends with another exception.
    """

    def __init__(self, runner: Runner, semaphore: Semaphore) -> None:
        self._runner = runner
        self._semaphore = semaphore
        self._holding: SyncHolding | None = None

    @property
    def name(self) -> str:
        return self._semaphore.name

    @property
    def queue(self) -> str:
        """The queue that has the tokens."""
        return self._semaphore.queue

    @property
    def permits(self) -> int:
        return self._semaphore.permits

    def __enter__(self) -> SyncHolding:
        if self._holding is not None:
            raise RuntimeError(
                f"{self.name} is in a block already: make another object for a block in another "
                "thread"
            )
        self._holding = self._acquired(self._semaphore.timeout)
        return self._holding

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        holding, self._holding = self._holding, None
        assert holding is not None, "a block ends once"
        _leave(self._runner, holding, kind)

    def acquire(self, *, timeout: timedelta | None = None) -> SyncHolding:
        """Waits until a permit is free, and holds it. See `Semaphore.acquire`."""
        return self._acquired(timeout)

    def _acquired(self, timeout: timedelta | None) -> SyncHolding:
        return SyncHolding(self._runner, self._runner.run(self._semaphore.acquire(timeout=timeout)))

    def holders(self) -> list[LockHolder]:
        """The holders of permits now, the earliest first."""
        return self._runner.run(self._semaphore.holders())

    def resize(self, permits: int) -> None:
        """Changes the number of permits. See `Semaphore.resize`."""
        self._runner.run(self._semaphore.resize(permits))


class SyncLock(SyncSemaphore):
    """A lock that one program holds at a time, as `Lock`. Made by `SyncClient.lock`; the rest is as
    for `SyncSemaphore`.
    """

    def __init__(self, runner: Runner, lock: Lock) -> None:
        super().__init__(runner, lock)
        self._lock = lock

    def holder(self) -> LockHolder | None:
        """The holder of the lock now. None: it is free."""
        return self._runner.run(self._lock.holder())


class SyncElection(SyncLock):
    """An election of a leader, as `Election`. Made by `SyncClient.election`."""

    def __init__(self, runner: Runner, election: Election) -> None:
        super().__init__(runner, election)
        self._election = election

    def campaign(self, *, timeout: timedelta | None = None) -> SyncHolding:
        """Waits until this program leads. See `Election.campaign`."""
        return self.acquire(timeout=timeout)

    def leader(self) -> LockHolder | None:
        """The leader now. See `Election.leader`."""
        return self.holder()

    def observe(self, *, every: timedelta = OBSERVE_DEFAULT) -> Iterator[LockHolder | None]:
        """Yields the leader now, and then each other one. See `Election.observe`."""
        return iterate(self._runner, self._election.observe(every=every))


class SyncRwLock:
    """A lock for readers or one writer, as `RwLock`. Made by `SyncClient.rw_lock`."""

    def __init__(self, runner: Runner, lock: RwLock) -> None:
        self._runner = runner
        self._lock = lock

    @property
    def name(self) -> str:
        return self._lock.name

    @property
    def readers(self) -> int:
        """How many may read at a time."""
        return self._lock.readers

    @contextlib.contextmanager
    def read(self, *, timeout: timedelta | None = None) -> Iterator[SyncHolding]:
        """A block that reads while no other program writes. See `RwLock.read`."""
        with self._block(self.acquire_read(timeout=timeout)) as holding:
            yield holding

    @contextlib.contextmanager
    def write(self, *, timeout: timedelta | None = None) -> Iterator[SyncHolding]:
        """A block that writes while no other program reads or writes. See `RwLock.write`."""
        with self._block(self.acquire_write(timeout=timeout)) as holding:
            yield holding

    def acquire_read(self, *, timeout: timedelta | None = None) -> SyncHolding:
        """As `read`, without a block."""
        return SyncHolding(self._runner, self._runner.run(self._lock.acquire_read(timeout=timeout)))

    def acquire_write(self, *, timeout: timedelta | None = None) -> SyncHolding:
        """As `write`, without a block."""
        return SyncHolding(
            self._runner, self._runner.run(self._lock.acquire_write(timeout=timeout))
        )

    def holders(self) -> list[LockHolder]:
        """The holders now. See `RwLock.holders`."""
        return self._runner.run(self._lock.holders())

    @contextlib.contextmanager
    def _block(self, holding: SyncHolding) -> Iterator[SyncHolding]:
        try:
            yield holding
        except BaseException as error:
            _leave(self._runner, holding, type(error))
            raise
        _leave(self._runner, holding, None)


def _leave(runner: Runner, holding: SyncHolding, kind: type[BaseException] | None) -> None:
    """Ends a block: gives its lock back, or raises `LockLost` unless the block ends by `kind`."""
    if holding.lost:
        if kind is None:
            holding.check()
        return
    try:
        runner.run(give_back(holding.holding))
    except LockLost:
        if kind is None:
            raise
