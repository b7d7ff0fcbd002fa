"""Values of a blocking iterator, passed to the event loop as they arrive.

A thread reads them, because a read from a pipe or a terminal may take for ever. The thread is a
daemon: nothing waits for it when the command ends. It is at most `AHEAD_MAX` values ahead.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

AHEAD_MAX = 4_096

_Value = TypeVar("_Value")


class Feed(Generic[_Value]):
    """Iterates over lists of the available values, at least one value each. Raises the iterator's
    errors.

    `open_source` is called in the thread. Pass a generator function, so that the event loop does
    not open the file.
    """

    def __init__(self, open_source: Callable[[], Iterator[_Value]]) -> None:
        self._open_source = open_source
        self._values: deque[_Value] = deque()
        self._room = threading.Semaphore(AHEAD_MAX)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._told = False
        self._finished = False
        self._error: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[list[_Value]]:
        threading.Thread(target=self._read, name="feed", daemon=True).start()
        while True:
            await self._news.wait()
            self._news.clear()
            # The order matters: the thread signals again for every value that it adds after this
            # line.
            self._told = False
            finished = self._finished
            while chunk := [self._values.popleft() for _ in range(min(len(self._values), 500))]:
                self._room.release(len(chunk))
                yield chunk
            if finished:
                if self._error is not None:
                    raise self._error
                return

    def _read(self) -> None:
        try:
            for value in self._open_source():
                self._room.acquire()
                self._values.append(value)
                self._wake()
        # The top of this thread: the reader of the feed gets any error.
        except Exception as error:  # noqa: BLE001
            self._error = error
        self._finished = True
        self._told = False
        self._wake()

    def _wake(self) -> None:
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: nothing reads the feed.
                self._loop.call_soon_threadsafe(self._news.set)
