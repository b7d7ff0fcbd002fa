"""Receivers of a produce request's outcome, for single items and for bulk calls (see
`window.OutcomeReceiver`).
"""

import asyncio
import re

from querator.client.errors import RequestError, copy_error
from querator.client.values import ProducedItem, ProducedItems, ProducedRun

ITEM_FIELD = re.compile(r"items\[(\d+)\]")
"""How a refusal names the invalid item, by its position in the request."""


class Gathered:
    """A batch of single items, each with its own future: the `OutcomeReceiver` of its request."""

    __slots__ = ("due", "futures", "pieces", "size", "timer")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.futures: list[asyncio.Future[ProducedItem]] = []
        self.size = 0
        self.due = False
        self.timer: asyncio.Handle | None = None

    def done(self, runs: tuple[ProducedRun, ...], durable: bool) -> None:
        futures = self.futures
        for future, item in zip(
            futures, ProducedItems(((len(futures), runs),), durable), strict=True
        ):
            if not future.done():
                future.set_result(item)

    def failed(self, error: RequestError) -> None:
        for future in self.futures:
            self.fail_one(future, error)

    @staticmethod
    def fail_one(future: asyncio.Future[ProducedItem], error: RequestError) -> None:
        if not future.done():
            future.set_exception(copy_error(error))
            # `flush` raises the error of a future that is not awaited: asyncio need not warn.
            future.exception()


class FutureSink:
    """The `OutcomeReceiver` of a whole request: one future for all its items."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[tuple[tuple[ProducedRun, ...], bool]] = loop.create_future()

    def done(self, runs: tuple[ProducedRun, ...], durable: bool) -> None:
        if not self.future.done():
            self.future.set_result((runs, durable))

    def failed(self, error: RequestError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # The call that made the request awaits all its futures, unless it was cancelled.
            self.future.exception()


async def collect(sinks: list[tuple[int, FutureSink]]) -> ProducedItems:
    """Awaits all requests, each with its number of items. Raises the first failure at the end."""
    requests: list[tuple[int, tuple[ProducedRun, ...]]] = []
    durable = True
    first: RequestError | None = None
    start = 0
    for count, sink in sinks:
        try:
            runs, kept = await sink.future
        except RequestError as error:
            if first is None:
                first = error
                _name_items(first, start, count)
        else:
            requests.append((count, runs))
            durable = durable and kept
        start += count
    if first is not None:
        raise first
    return ProducedItems(requests, durable)


def _name_items(error: RequestError, start: int, count: int) -> None:
    """Names in the error of one request the items by their positions in the whole call."""

    def shifted(found: re.Match[str]) -> str:
        return f"items[{start + int(found[1])}]"

    error.field = ITEM_FIELD.sub(shifted, error.field)
    error.message = ITEM_FIELD.sub(shifted, error.message)
    error.add_note(f"the request had the items {start} to {start + count - 1} of those given")
