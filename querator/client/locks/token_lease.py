"""The leases of a lock that is held: their extension, and their loss.

    held ──extended in time──► held
      │ ──released──► ended
      │ ──not extended in time, its lease ended, its queue is gone, its client is closed──► lost

The end of what is valid counts from before the request was sent: the server cannot have counted
from an earlier instant. The result of an extension that comes later than that end is not used.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from querator.client import clock
from querator.client.errors import (
    LeaseLost,
    LockLost,
    NotFound,
    QueueDeleting,
    RequestError,
)
from querator.client.locks.calls import LockCalls
from querator.client.locks.fencing import fencing_token
from querator.model.limits import CLOCK_SKEW_MS_MAX, LOCK_DRIFT_PERCENT
from querator.v1 import items_pb2

LATE: Final = "its lease was not extended in time"
_AGAIN_SECONDS: Final = 0.25
"""Pause after an extension that was refused."""
_PARTS: Final = 3
"""An extension is due when one of these parts of the timeout has passed."""


def valid_seconds(remaining: float) -> float:
    """How long a holder may rely on a lease that the server lets live for `remaining` seconds. The
    next leader's clock may be ahead of this one's, and the holder's may be slow.
    """
    drift = remaining * LOCK_DRIFT_PERCENT / 100
    return remaining - CLOCK_SKEW_MS_MAX / 1000 - drift


class TokenLease:
    """The leases of tokens under which a program holds a lock. `token`: their highest fencing
    token. On the event loop of the client, except where a method says otherwise.
    """

    def __init__(
        self,
        calls: LockCalls,
        *,
        name: str,
        queue: str,
        holder: str,
        lease_timeout: timedelta,
    ) -> None:
        self.name = name
        self.holder = holder
        self.token = 0
        self.tokens = 0
        """Number of tokens under the leases."""
        self._calls = calls
        self._queue = queue
        self._timeout = lease_timeout
        self._leases: list[str] = []
        self._ends = float("inf")
        self._trouble: RequestError | None = None
        self._lost: LockLost | None = None
        self._ended = False
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._keeper: asyncio.Task[None] | None = None
        calls.held.add(self)

    @property
    def held(self) -> bool:
        """As `Holding.held`. Any thread may ask."""
        return self._lost is None and not self._ended and clock.elapsed() < self._ends

    @property
    def lost(self) -> bool:
        """As `Holding.lost`. Any thread may ask."""
        if self._lost is not None:
            return True
        return not self._ended and clock.elapsed() >= self._ends

    @property
    def remaining(self) -> timedelta:
        """As `Holding.remaining`. Any thread may ask."""
        if not self.held:
            return timedelta(0)
        return timedelta(seconds=max(0.0, self._ends - clock.elapsed()))

    @property
    def ended(self) -> bool:
        """Whether it was released or lost, as far as anything has noticed."""
        return self._ended

    async def release(self) -> None:
        """As `Holding.release`."""
        if self._ended:
            if self._lost is not None:
                raise self.error()
            return
        if not self.held:
            self.lose(LATE)
            raise self.error()
        self._end()
        # Shielded: a token is given back also if the caller is cancelled.
        await asyncio.shield(self._calls.spawn(self._release()))

    async def _release(self) -> None:
        try:
            await self._calls.release(self._queue, self._leases)
        except LeaseLost:
            if clock.elapsed() < self._ends:
                self._lost = LockLost(self.name, self.token, "its lease was ended by others")
                raise self.error() from None
            # It was held when it was released, and its lease has lapsed during the call.

    async def complete(self) -> None:
        """Takes the token out of its queue. For `Semaphore.resize`."""
        self._end()
        await asyncio.shield(self._calls.spawn(self._calls.complete(self._queue, self._leases)))

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Calls `on_lost` once the lock is known to be lost: now, if it is."""
        if self.lost:
            self.lose(LATE)
            on_lost()
        else:
            self._watchers += (on_lost,)

    def unwatch(self, on_lost: Callable[[], None]) -> None:
        # Two accesses to a method give two objects, which are equal.
        self._watchers = tuple(one for one in self._watchers if one != on_lost)

    def error(self) -> LockLost:
        """Why the lock is lost, as an error to raise. Any thread may ask."""
        found = self._lost
        why = LATE if found is None else found.why
        return LockLost(self.name, self.token, why)

    def lose(self, why: str) -> None:
        """The lock is not held any more. Has no effect when it has ended."""
        if self._ended:
            return
        cause = "" if self._trouble is None else f" (last error: {self._trouble})"
        self._lost = LockLost(self.name, self.token, why + cause)
        self._end()
        watchers, self._watchers = self._watchers, ()
        for on_lost in watchers:
            on_lost()

    async def add(self, batches: list[items_pb2.LeasedBatch], *, began: float) -> None:
        """Takes in leases that were asked for at `began`, by the clock of `clock.elapsed`. Raises
        `LockLost` when they have ended already.
        """
        for batch in batches:
            if batch.lease_id not in self._leases:
                self._leases.append(batch.lease_id)
                self.token = max(self.token, fencing_token(batch.lease_id))
            self.tokens += len(batch.items)
            left = batch.lease_remaining
            ends = began + valid_seconds(left.seconds + left.nanos / 1e9)
            self._ends = min(self._ends, ends)
        half = self._timeout.total_seconds() / 2
        if self._ends - clock.elapsed() < half:
            # The call has waited. The lease counts from a later instant if it is extended.
            await self._extend(until=None)
            if self._lost is not None:
                raise self.error()
        if self._keeper is None:
            # Owned: `_end` cancels it.
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def give_back(self) -> None:
        """Releases the leases of a holding that no caller has got, or whose client is closed."""
        self._end()
        await self._calls.give_back(self._queue, self._leases)

    def _end(self) -> None:
        self._ended = True
        self._calls.held.discard(self)
        if self._keeper is not None and self._keeper is not asyncio.current_task():
            self._keeper.cancel()

    async def _keep(self) -> None:
        pause = self._timeout.total_seconds() / _PARTS
        while not self._ended:
            await asyncio.sleep(max(0.0, min(pause, self._ends - clock.elapsed())))
            try:
                pause = await self._extend(until=self._ends)
            except Exception as defect:  # noqa: BLE001  a task's top: the holder gets it
                self.lose(f"the client failed: {defect!r}")

    async def _extend(self, *, until: float | None) -> float:
        """Extends the leases; returns the seconds to the next extension. The lock is lost when it
        is not extended before `until`, or cannot be.
        """
        began = clock.elapsed()
        if until is not None and began >= until:
            self.lose(LATE)
            return 0.0
        try:
            async with asyncio.timeout(None if until is None else until - began):
                outcomes = await self._calls.extend(self._queue, self._leases, self._timeout)
        except TimeoutError:
            self.lose(LATE)
            return 0.0
        except (NotFound, QueueDeleting) as error:
            self.lose(f"its queue is gone: {error.message}")
            return 0.0
        except RequestError as error:
            if until is None:
                raise
            self._trouble = error
            return _AGAIN_SECONDS
        if until is not None and clock.elapsed() >= until:
            self.lose(LATE)
            return 0.0
        if not all(outcome.remaining for outcome in outcomes):
            self.lose("its lease has ended: it was not extended in time, or was ended by hand")
            return 0.0
        self._trouble = None
        left = min(outcome.remaining.total_seconds() for outcome in outcomes)
        ends = began + valid_seconds(left)
        self._ends = ends if until is None else max(self._ends, ends)
        return self._timeout.total_seconds() / _PARTS
