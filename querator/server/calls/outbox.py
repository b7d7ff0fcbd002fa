"""Frames that wait to be written to one stream, and limits of its unanswered requests.

gRPC allows one write at a time per stream, and a slow client delays each write. So answers and
deliveries pass through an outbox to the stream's only writer. A request is read only while the
unanswered requests are below their limits of number and bytes. A delivery is requested only while
the waiting bytes are below their limit. So a slow client delays only itself.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from querator.model import limits

_JOINED_BYTES = 256 * limits.KIB
"""Answers are joined into frames of about this size."""


class Outbox:
    """Outbox of a stream. Answers precede deliveries: they free leases and the client's window."""

    def __init__(
        self, *, requests_max: int = limits.STREAM_UNANSWERED_MAX, joins: bool = False
    ) -> None:
        """`joins`: frames with answers may be joined, and empty ones are left out."""
        self._requests_max = requests_max
        self._joins = joins
        self._answers: deque[tuple[bytes, int]] = deque()
        self._deliveries: deque[tuple[int, Callable[[], bytes | None]]] = deque()
        self._deliveries_bytes = 0
        self._unanswered = 0
        self._unanswered_bytes = 0
        self._writing = asyncio.Event()
        self._written = asyncio.Event()
        self._closed = False

    def took(self, request_bytes: int) -> None:
        """A request was read and will be answered."""
        self._unanswered += 1
        self._unanswered_bytes += request_bytes

    def answer(self, frame: bytes, request_bytes: int) -> None:
        """Adds the answer to a request of `request_bytes`."""
        self._answers.append((frame, request_bytes))
        self._writing.set()

    def deliver(self, size: int, make: Callable[[], bytes | None]) -> None:
        """Adds a delivery of about `size` bytes. `make` makes its frame just before it is written,
        or returns None if nothing remains to be delivered.
        """
        self._deliveries.append((size, make))
        self._deliveries_bytes += size
        self._writing.set()

    def drop_deliveries(self) -> None:
        """Drops all deliveries that are not written yet."""
        self._deliveries.clear()
        self._deliveries_bytes = 0

    def has_room_for_request(self) -> bool:
        return (
            self._unanswered < self._requests_max
            and self._unanswered_bytes < limits.STREAM_UNANSWERED_BYTES_MAX
        )

    def has_room_for_delivery(self) -> bool:
        return self._deliveries_bytes < limits.STREAM_DELIVERIES_BYTES_MAX

    def is_answered(self) -> bool:
        """Whether every answer is written."""
        return not self._unanswered

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until one of the conditions above holds."""
        while not condition():
            self._written.clear()
            await self._written.wait()

    def close(self) -> None:
        """Makes `write_all` return once everything is written."""
        self._closed = True
        self._writing.set()

    async def write_all(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Runs the stream's only writer."""
        while True:
            if self._answers:
                frame, requests, request_bytes = self._next_answers()
                if frame or not self._joins:
                    await write(frame)
                self._unanswered -= requests
                self._unanswered_bytes -= request_bytes
                self._written.set()
            elif self._deliveries:
                size, make = self._deliveries.popleft()
                self._deliveries_bytes -= size
                delivery = make()
                if delivery is not None:
                    await write(delivery)
                self._written.set()
            elif self._closed:
                return
            else:
                self._writing.clear()
                await self._writing.wait()

    def _next_answers(self) -> tuple[bytes, int, int]:
        """The next frame with answers, the number of requests that it answers, and their bytes."""
        frame, request_bytes = self._answers.popleft()
        if not self._joins:
            return frame, 1, request_bytes
        frames, size = [frame], len(frame)
        while self._answers and size < _JOINED_BYTES:
            frame, more_bytes = self._answers.popleft()
            frames.append(frame)
            size += len(frame)
            request_bytes += more_bytes
        return b"".join(frames), len(frames), request_bytes
