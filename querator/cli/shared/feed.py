"""Values of a blocking iterator, handed to the event loop as they come.

A thread reads, for a read from a pipe or a terminal may take for ever. It is a daemon: nothing
waits for it when the command ends. It is never more than `AHEAD_MAX` values ahead.
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
    """Iterates in lists of what is there, at least one value each. Raises what the iterator raises.

    `open_source` is called in the thread; give a generator function so that opening a file is not
    the event loop's work either.
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
            # In this order: whatever the thread adds after it, it tells again.
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
                self._tell()
        # The top of this thread: whatever it is, the reader of the feed gets it.
        except Exception as error:  # noqa: BLE001
            self._error = error
        self._finished = True
        self._told = False
        self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody listens any more.
                self._loop.call_soon_threadsafe(self._news.set)
