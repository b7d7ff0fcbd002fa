"""Read-write locks: many readers, or one writer.

There are as many tokens as readers at most. A reader has one token, and a writer has all. Both take
them while they hold the *gate*, a lock: a writer keeps it until it has all tokens, and further
readers wait behind it. So a stream of readers cannot keep a writer away, and no two writers wait
for tokens that the other one has.

The gate decides on the order, and the tokens on the exclusion: a writer that has all tokens is
alone whatever has become of the gate. The fencing tokens are those of the leases of tokens. Two
holders of which one writes have had a common token one after the other, so the later one has the
higher number.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from typing import Any

from querator.client import clock
from querator.client.checks import check_span
from querator.client.errors import LockLost, LockTimeout
from querator.client.locks.block import LockBlock
from querator.client.locks.holding import Holding
from querator.client.locks.lock import (
    WAIT_SECONDS,
    acquire,
    check_holder,
    check_lease_timeout,
    lease_tokens,
)
from querator.client.locks.token_lease import TokenLease
from querator.client.locks.tokens import LockHolder, TokenQueue
from querator.client.typed import typed

READERS_DEFAULT = 16


class RwLock:
    """A lock that many programs hold to read, or one to write. Made by `Client.rw_lock`.

        async with client.rw_lock("catalogue").read():
            ...
        async with client.rw_lock("catalogue").write() as holding:
            write(..., fence=holding.token)

    A block is cancelled when its lock is lost, and raises `LockLost`, as that of a `Lock`. One
    object may be used by several tasks. A reader that wants to write must leave its block before:
    it would wait for itself.
    """

    def __init__(
        self, gate: TokenQueue, tokens: TokenQueue, *, lease_timeout: timedelta, holder: str
    ) -> None:
        check_lease_timeout(lease_timeout)
        check_holder(holder)
        self.name = tokens.name
        self.queue = tokens.queue
        self._gate = gate
        self._tokens = tokens
        self._lease_timeout = lease_timeout
        self._holder = holder or tokens.calls.client_id

    @property
    def readers(self) -> int:
        """How many may read at a time."""
        return self._tokens.permits

    @contextlib.asynccontextmanager
    async def read(self, *, timeout: timedelta | None = None) -> AsyncIterator[Holding]:  # noqa: ASYNC109
        """A block that reads while no other program writes. Waits as `Lock.acquire`."""
        async with LockBlock(await self._read(timeout)) as block:
            yield Holding(block.lease)

    @contextlib.asynccontextmanager
    async def write(self, *, timeout: timedelta | None = None) -> AsyncIterator[Holding]:  # noqa: ASYNC109
        """A block that writes while no other program reads or writes. Waits as `Lock.acquire`."""
        async with LockBlock(await self._write(timeout)) as block:
            yield Holding(block.lease)

    @typed
    async def acquire_read(self, *, timeout: timedelta | None = None) -> Holding:  # noqa: ASYNC109
        """As `read`, without a block."""
        return Holding(await self._read(timeout))

    @typed
    async def acquire_write(self, *, timeout: timedelta | None = None) -> Holding:  # noqa: ASYNC109
        """As `write`, without a block."""
        return Holding(await self._write(timeout))

    async def holders(self) -> list[LockHolder]:
        """The holders now: one for each reader, and for a writer one for each of its tokens."""
        return await self._tokens.holders()

    async def _read(self, timeout: timedelta | None) -> TokenLease:  # noqa: ASYNC109
        left = _limited(timeout)
        return await self._behind_the_gate(left, lambda: self._one(self._tokens, left()))

    async def _write(self, timeout: timedelta | None) -> TokenLease:  # noqa: ASYNC109
        left = _limited(timeout)
        return await self._behind_the_gate(left, lambda: self._all(left))

    async def _behind_the_gate(
        self, left: "_Left", take: Callable[[], Coroutine[Any, Any, TokenLease]]
    ) -> TokenLease:
        """What `take` returns while this program has the gate. Begins again when that is lost, or
        what has been taken so far.
        """
        while True:
            taken: TokenLease | None = None
            gate = await self._one(self._gate, left())
            try:
                async with LockBlock(gate):
                    taken = await take()
            except LockLost:
                # The gate is not needed any more if all has been taken.
                if taken is None:
                    continue
            return taken

    async def _one(self, tokens: TokenQueue, timeout: timedelta | None) -> TokenLease:  # noqa: ASYNC109
        return await acquire(
            tokens, lease_timeout=self._lease_timeout, holder=self._holder, timeout=timeout
        )

    async def _all(self, left: "_Left") -> TokenLease:
        """All tokens. Those that are there already are kept and extended while it waits."""
        tokens = self._tokens
        lease = TokenLease(
            tokens.calls,
            name=tokens.name,
            queue=tokens.queue,
            holder=self._holder,
            lease_timeout=self._lease_timeout,
        )
        async with LockBlock(lease, keeps=True):
            await tokens.open()
            while lease.tokens < tokens.permits:
                rest = left()
                wait = WAIT_SECONDS if rest is None else min(WAIT_SECONDS, rest.total_seconds())
                missing = tokens.permits - lease.tokens
                began = clock.elapsed()
                batches = await lease_tokens(
                    tokens, missing, wait, self._lease_timeout, self._holder
                )
                if batches:
                    await lease.add(batches, began=began)
                    tokens.check_tokens(batches)
                elif rest is not None and not rest and not await tokens.fill():
                    raise LockTimeout(tokens.name)
        return lease


_Left = Callable[[], timedelta | None]
"""How long a call may still wait; None: without a limit."""


def _limited(timeout: timedelta | None) -> _Left:
    if timeout is None:
        return lambda: None
    check_span("timeout", timeout)
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout.total_seconds()
    return lambda: timedelta(seconds=max(0.0, until - loop.time()))
