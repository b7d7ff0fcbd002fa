"""Signals that have arrived and that the code has not received, by name."""

import asyncio
from collections import deque

from querator.durable.folds import CodeEvent
from querator.durable.loop import Loop


class Mailbox:
    """The signals of one name, in the order of their arrival, and the tasks that wait for one."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._signals: deque[tuple[bytes, CodeEvent]] = deque()

    @property
    def indexes(self) -> list[int]:
        """The places of its signals in the journal."""
        return [event.index for _, event in self._signals]

    def put(self, payload: bytes, event: CodeEvent) -> None:
        self._signals.append((payload, event))
        self._wake()

    async def take(self, loop: Loop) -> tuple[bytes, CodeEvent]:
        """The oldest signal. A task that is cancelled while it waits takes none."""
        while not self._signals:
            waiter: asyncio.Future[None] = loop.create_future()
            self.waiting.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in self.waiting:
                    self.waiting.remove(waiter)
                elif self._signals:
                    # It had been woken: the next one takes the signal.
                    self._wake()
                raise
        return self._signals.popleft()

    def _wake(self) -> None:
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
