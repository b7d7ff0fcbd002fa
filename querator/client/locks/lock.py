"""Locks and semaphores: acquire them, wait for them, list their holders.

A call that waits has a place in the wait queue of the server, and is answered when a token is free
(`service.lease.fair_queue`). It looks again for missing tokens every LOCK_LOOK_MS_MAX, because an
operator may purge the queue meanwhile.
"""

import asyncio
import contextlib
from datetime import timedelta
from types import TracebackType

from querator.client import clock
from querator.client.checks import check_span
from querator.client.errors import (
    LockLost,
    LockTimeout,
    NotFound,
    OutcomeUnknown,
    QueueDeleting,
    Unavailable,
)
from querator.client.locks.block import LockBlock
from querator.client.locks.holding import Holding
from querator.client.locks.token_lease import TokenLease
from querator.client.locks.tokens import LockHolder, TokenQueue
from querator.client.typed import typed
from querator.model import limits
from querator.v1 import items_pb2

LEASE_TIMEOUT_DEFAULT = timedelta(seconds=15)
WAIT_SECONDS = limits.REQUEST_TIMEOUT_MS_MAX / 1000
_DELETING_SECONDS = 0.25
"""Pause of a call that waits until its queue, which is being deleted, can be made again."""
_FIRST_LOOK_SECONDS = 1.0
"""When a call that waits looks for missing tokens first."""


class Semaphore:
    """A number of permits, of which each is held by one program at a time. Made by
    `Client.semaphore`; `Lock` is one with a single permit.

        async with client.semaphore("licences", 10) as holding:
            ...

    The block waits for a permit, and gives it back at its end. It is cancelled when the permit is
    lost, and then raises `LockLost`. It also raises `LockLost` at its end when the permit was lost
    meanwhile. One object has one block at a time; `acquire` may be called from several tasks.
    """

    _words = "semaphore"

    def __init__(
        self,
        tokens: TokenQueue,
        *,
        lease_timeout: timedelta,
        holder: str,
        timeout: timedelta | None,
    ) -> None:
        check_lease_timeout(lease_timeout)
        check_holder(holder)
        if timeout is not None:
            check_span("timeout", timeout)
        self.name = tokens.name
        self.queue = tokens.queue
        self._tokens = tokens
        self._lease_timeout = lease_timeout
        self._holder = holder or tokens.calls.client_id
        self.timeout = timeout
        self._block: LockBlock | None = None

    @property
    def permits(self) -> int:
        return self._tokens.permits

    async def __aenter__(self) -> Holding:
        if self._block is not None:
            raise RuntimeError(
                f"{self._words} {self.name} is in a block already: make another object for a block "
                "in another task"
            )
        self._block = LockBlock(await self._acquire(self.timeout))
        await self._block.__aenter__()
        return Holding(self._block.lease)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block, self._block = self._block, None
        assert block is not None, "a block ends once"
        await block.__aexit__(kind, error, trace)

    @typed
    async def acquire(self, *, timeout: timedelta | None = None) -> Holding:  # noqa: ASYNC109
        """Waits until a permit is free, and holds it until `Holding.release`. Raises `LockTimeout`
        when none was free within `timeout` (None: no limit; 0: do not wait), `LockMismatch` when
        the queue of this name is none of such a lock, and RequestError. While no node answers, the
        call lasts up to the client's `request_timeout` longer. A call that is cancelled gives back
        what it has got.
        """
        if timeout is not None:
            check_span("timeout", timeout)
        return Holding(await self._acquire(timeout))

    async def _acquire(self, timeout: timedelta | None) -> TokenLease:  # noqa: ASYNC109
        return await acquire(
            self._tokens,
            lease_timeout=self._lease_timeout,
            holder=self._holder,
            timeout=timeout,
        )

    async def holders(self) -> list[LockHolder]:
        """The holders of permits now, the earliest first."""
        return await self._tokens.holders()

    @typed
    async def resize(self, permits: int) -> None:
        """Changes the number of permits. If there are fewer from now on, waits until the other ones
        are given back, and takes them away; if it is cancelled before, call it again. Raises
        `VersionConflict` when another program changes the settings of the queue at the same time.

        Other objects for this semaphore that have the former number raise `LockMismatch` when they
        have to wait. Raises ValueError for a number out of range.
        """
        await self._tokens.open()
        calls = self._tokens.calls
        changed = TokenQueue(calls, self.queue[: -len(self.name)], self.name, permits=permits)
        info = await calls.admin.get(self.queue)
        await calls.admin.update(
            self.queue,
            {"partition_items_max": permits},
            expected_version=info.settings_version,
        )
        calls.seen.discard((self.queue, self.permits))
        self._tokens = changed
        while await changed.count() > permits:
            lease = await self._acquire(None)
            await lease.complete()
        await changed.fill()


class Lock(Semaphore):
    """A lock that one program holds at a time, on whichever machine. Made by `Client.lock`.

        async with client.lock("nightly-report") as lock:
            write(..., fence=lock.token)

    The rest is as for `Semaphore`.
    """

    _words = "lock"

    async def holder(self) -> LockHolder | None:
        """The holder of the lock now. None: it is free."""
        holders = await self._tokens.holders()
        return holders[-1] if holders else None

    async def resize(self, permits: int) -> None:
        """A lock has one permit. Raises TypeError."""
        raise TypeError(f"a lock has one permit, not {permits}: use a semaphore")


async def acquire(
    tokens: TokenQueue,
    *,
    lease_timeout: timedelta,
    holder: str,
    timeout: timedelta | None,  # noqa: ASYNC109
) -> TokenLease:
    """Waits until a token is free, and holds it. As `Semaphore.acquire`."""
    calls, loop = tokens.calls, asyncio.get_running_loop()
    until = None if timeout is None else loop.time() + timeout.total_seconds()

    def left() -> float:
        return WAIT_SECONDS if until is None else min(WAIT_SECONDS, until - loop.time())

    wait = 0.0
    while True:
        try:
            await tokens.open()
            began = clock.elapsed()
            batches = await lease_tokens(tokens, 1, wait, lease_timeout, holder)
        except NotFound:
            # The queue was deleted.
            tokens.forget()
            continue
        except QueueDeleting:
            if left() <= 0:
                raise LockTimeout(tokens.name) from None
            await asyncio.sleep(min(left(), _DELETING_SECONDS))
            continue
        if batches:
            lease = TokenLease(
                calls,
                name=tokens.name,
                queue=tokens.queue,
                holder=holder,
                lease_timeout=lease_timeout,
            )
            try:
                await lease.add(batches, began=began)
                tokens.check_tokens(batches)
                return lease
            except LockLost:
                # The answer was too late.
                wait = 0.0
                continue
            except BaseException:
                calls.spawn(lease.give_back())
                raise
        if left() > 0:
            wait = left()
        elif await tokens.fill():
            wait = 0.0
        else:
            raise LockTimeout(tokens.name)


async def lease_tokens(
    tokens: TokenQueue, count: int, wait: float, lease_timeout: timedelta, holder: str
) -> list[items_pb2.LeasedBatch]:
    """Leases up to `count` tokens; makes missing tokens while it waits for the first one."""
    calls = tokens.calls
    leasing = calls.spawn(
        calls.lease(
            tokens.queue, items=count, wait=wait, lease_timeout=lease_timeout, holder=holder
        ),
        waits=True,
    )
    looking = calls.spawn(_look(tokens), waits=True)
    try:
        await asyncio.wait((leasing, looking), return_when=asyncio.FIRST_COMPLETED)
        calls.check_open()
        if looking.done():
            # It ends by an error.
            await looking
        return await leasing
    except BaseException:
        leasing.cancel()
        calls.spawn(_drop(tokens, leasing))
        raise
    finally:
        looking.cancel()


async def _drop(tokens: TokenQueue, leasing: "asyncio.Task[list[items_pb2.LeasedBatch]]") -> None:
    """Gives back what a call has leased although no caller waits for it."""
    (found,) = await asyncio.gather(leasing, return_exceptions=True)
    if not isinstance(found, BaseException):
        await tokens.calls.give_back(tokens.queue, sorted({one.lease_id for one in found}))


async def _look(tokens: TokenQueue) -> None:
    pause = _FIRST_LOOK_SECONDS
    while True:
        await asyncio.sleep(pause)
        with contextlib.suppress(Unavailable, OutcomeUnknown, QueueDeleting):
            # No node answers at the moment. The call that waits says so in time.
            await tokens.fill()
        pause = limits.LOCK_LOOK_MS_MAX / 1000


def check_holder(holder: str) -> None:
    most = limits.CLIENT_ID_CHARS_MAX
    if len(holder) > most:
        raise ValueError(f"holder has {len(holder)} characters; at most {most}")


def check_lease_timeout(lease_timeout: timedelta) -> None:
    least = timedelta(milliseconds=limits.LOCK_TIMEOUT_MS_MIN)
    most = timedelta(milliseconds=limits.LEASE_TIMEOUT_MS_MAX)
    if not least <= lease_timeout <= most:
        raise ValueError(f"lease_timeout is {lease_timeout}; it must be from {least} to {most}")
