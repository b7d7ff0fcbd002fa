"""What waits to be written to one stream, and how much of its requests may wait for an answer.

gRPC allows one write at a time per stream, and a write takes as long as the client is slow. So
answers and deliveries go through here to the stream's one writer, and whoever would make more of it
waits for room first: a request is read only while few enough are unanswered, in number and bytes;
a delivery is asked for only while few enough bytes wait to be written. A slow client so holds up
itself and nobody else.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from querator.model import limits


class Outbox:
    """Answers go before deliveries: they free leases and the client's window."""

    def __init__(self) -> None:
        self._answers: deque[tuple[bytes, int]] = deque()
        self._deliveries: deque[tuple[int, Callable[[], bytes | None]]] = deque()
        self._deliveries_bytes = 0
        self._unanswered = 0
        self._unanswered_bytes = 0
        self._writing = asyncio.Event()
        self._written = asyncio.Event()
        self._closed = False

    def took(self, request_bytes: int) -> None:
        """A request was read that will be answered."""
        self._unanswered += 1
        self._unanswered_bytes += request_bytes

    def answer(self, frame: bytes, request_bytes: int) -> None:
        """The answer to a request of so many bytes."""
        self._answers.append((frame, request_bytes))
        self._writing.set()

    def deliver(self, size: int, make: Callable[[], bytes | None]) -> None:
        """A delivery of about `size` bytes. `make` makes its frame just before it is written; None:
        there is nothing to be delivered any more.
        """
        self._deliveries.append((size, make))
        self._deliveries_bytes += size
        self._writing.set()

    def drop_deliveries(self) -> None:
        """What is not written yet is not written at all."""
        self._deliveries.clear()
        self._deliveries_bytes = 0

    def has_room_for_request(self) -> bool:
        return (
            self._unanswered < limits.STREAM_UNANSWERED_MAX
            and self._unanswered_bytes < limits.STREAM_UNANSWERED_BYTES_MAX
        )

    def has_room_for_delivery(self) -> bool:
        return self._deliveries_bytes < limits.STREAM_DELIVERIES_BYTES_MAX

    def is_answered(self) -> bool:
        """Every answer is written."""
        return not self._unanswered

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until one of the conditions above holds."""
        while not condition():
            self._written.clear()
            await self._written.wait()

    def close(self) -> None:
        """`write_all` returns when everything is written."""
        self._closed = True
        self._writing.set()

    async def write_all(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """The stream's one writer."""
        while True:
            if self._answers:
                frame, request_bytes = self._answers.popleft()
                await write(frame)
                self._unanswered -= 1
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
