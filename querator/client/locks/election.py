"""Election of a leader among programs: a lock whose holder leads, and which others observe."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

from querator.client.checks import check_span
from querator.client.locks.holding import Holding
from querator.client.locks.lock import Lock
from querator.client.locks.tokens import LockHolder
from querator.client.typed import typed

OBSERVE_DEFAULT = timedelta(seconds=1)
_OBSERVE_LEAST = timedelta(milliseconds=100)


class Election(Lock):
    """An election: of the programs that campaign, one leads. Made by `Client.election`.

        async with client.election("scheduler", "host-7") as leadership:
            ...

    The block campaigns, and leads until its end. It is cancelled when the leadership is lost, as
    that of a `Lock`. `Holding.release` resigns.
    """

    _words = "election"

    @typed
    async def campaign(self, *, timeout: timedelta | None = None) -> Holding:  # noqa: ASYNC109
        """Waits until this program leads. Arguments and errors are those of `Lock.acquire`."""
        return await self.acquire(timeout=timeout)

    async def leader(self) -> LockHolder | None:
        """The leader now, with its identity as `holder`. None: no program leads. A leader that has
        died is seen until its lease ends.
        """
        return await self.holder()

    @typed
    def observe(self, *, every: timedelta = OBSERVE_DEFAULT) -> AsyncGenerator[LockHolder | None]:
        """Yields the leader now, and then each other one, or None while there is none. Asks the
        cluster `every` so often, at least 100 ms, so it may miss a leader that led for less. Raises
        ValueError for a shorter time, RequestError when no node answers.
        """
        check_span("every", every)
        if every < _OBSERVE_LEAST:
            raise ValueError(f"every is {every}; it must be at least {_OBSERVE_LEAST}")
        return self._observed(every.total_seconds())

    async def _observed(self, pause: float) -> AsyncGenerator[LockHolder | None]:
        last = await self.leader()
        yield last
        while True:
            await asyncio.sleep(pause)
            found = await self.leader()
            if (found and found.token) != (last and last.token):
                last = found
                yield last
