"""Browse: one request, answered with the pages of a scan.

The next page is made while the current page is being sent, so at most two are in memory. For a
client that reads slowly, no further pages are made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from querator.model.calls import BrowsedPage
from querator.model.errors import ErrorCode, QueratorError
from querator.model.limits import SCAN_IDLE_MS_MAX
from querator.server.calls.grpc_calls import DRAINING, Context, within_deadline
from querator.service.queue_service import QueueService
from querator.service.reading.browsing import Browsing
from querator.wire import browse

P = TypeVar("P")


class BrowseStream:
    """One scan; see `streams.LiveStream`."""

    def __init__(self, context: Context, request: bytes, service: QueueService) -> None:
        self._context = context
        self._request = request
        self._service = service
        self._draining = False

    def drain(self) -> None:
        self._draining = True

    async def run(self) -> QueratorError | None:
        call = within_deadline(browse.parse_browse(self._request), self._context)
        browsing = await self._service.browse(call, self._context.peer())
        try:
            return await self._pages(browsing, call.from_seq)
        finally:
            browsing.close()

    async def _pages(self, browsing: Browsing, from_seq: int) -> QueratorError | None:
        return await write_pages(
            browsing.page,
            from_seq,
            after=lambda page: page.next_seq if page.next_seq <= page.upto_seq else None,
            write=self._write,
            draining=lambda: self._draining,
        )

    async def _write(self, page: BrowsedPage) -> None:
        await self._context.write(browse.encode_browsed(page))


async def write_pages(
    make: Callable[[int], Coroutine[Any, Any, P]],
    first: int,
    *,
    after: Callable[[P], int | None],
    write: Callable[[P], Awaitable[None]],
    draining: Callable[[], bool],
) -> QueratorError | None:
    """Writes pages from `first` on; `after` returns the start of the next page, or None after the
    last. Raises DEADLINE_EXCEEDED when the client reads nothing for SCAN_IDLE_MS_MAX.
    """

    async def write_soon(page: P) -> None:
        try:
            async with asyncio.timeout(SCAN_IDLE_MS_MAX / 1000):
                await write(page)
        except TimeoutError:
            raise QueratorError(
                ErrorCode.DEADLINE_EXCEEDED,
                f"the client has read nothing for {SCAN_IDLE_MS_MAX // 1000} s; continue after "
                "the last item that was read",
                limit=f"{SCAN_IDLE_MS_MAX} ms",
            ) from None

    page = await make(first)
    while (following := after(page)) is not None:
        if draining():
            return DRAINING
        # Owned: awaited below, also when the write fails.
        ahead = asyncio.get_running_loop().create_task(make(following))
        try:
            await write_soon(page)
        except BaseException:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
            raise
        page = await ahead
    await write_soon(page)
    return None
