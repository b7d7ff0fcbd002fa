"""ReadBatch: one request, answered with the pages of a batch; see `browse_stream`."""

from querator.model.errors import QueratorError
from querator.model.reader_calls import BatchPage
from querator.server.calls.browse_stream import write_pages
from querator.server.calls.grpc_calls import Context, within_deadline
from querator.service.reading.readers import ReaderService
from querator.wire import readers


class BatchStream:
    """One part of a batch; see `streams.LiveStream`."""

    def __init__(self, context: Context, request: bytes, service: ReaderService) -> None:
        self._context = context
        self._request = request
        self._service = service
        self._draining = False

    def drain(self) -> None:
        self._draining = True

    async def run(self) -> QueratorError | None:
        call = within_deadline(readers.parse_read_batch(self._request), self._context)
        reading = await self._service.read(call, self._context.peer())
        try:
            return await write_pages(
                reading.page,
                call.from_index,
                after=lambda page: page.next_index if page.next_index < page.upto_index else None,
                write=self._write,
                draining=lambda: self._draining,
            )
        finally:
            reading.close()

    async def _write(self, page: BatchPage) -> None:
        await self._context.write(readers.encode_batch_page(page))
