"""The unary calls of ReaderService."""

from collections.abc import Mapping

from querator.server.calls.grpc_calls import (
    Context,
    Unary,
    answer_within_ms,
    waiting_within_deadline,
    within_deadline,
)
from querator.service.reading.readers import ReaderService
from querator.wire import readers


def reader_calls(service: ReaderService) -> Mapping[str, Unary]:
    """A handler by the name of its method."""

    async def open_reader(data: bytes, context: Context) -> bytes:
        call = within_deadline(readers.parse_open_reader(data), context)
        return readers.encode_opened(await service.open(call))

    async def advance_reader(data: bytes, context: Context) -> bytes:
        call = within_deadline(readers.parse_advance_reader(data), context)
        call = waiting_within_deadline(call, context)
        return readers.encode_advanced(await service.advance(call))

    async def list_readers(data: bytes, context: Context) -> bytes:
        queue, stale = readers.parse_list_readers(data)
        found = await service.list(
            queue.namespace, queue.name, stale=stale, timeout_ms=answer_within_ms(context)
        )
        return readers.encode_readers(found)

    async def release_reader(data: bytes, context: Context) -> bytes:
        call = within_deadline(readers.parse_release_reader(data), context)
        return readers.encode_released(await service.release(call))

    return {
        "OpenReader": open_reader,
        "AdvanceReader": advance_reader,
        "ListReaders": list_readers,
        "ReleaseReader": release_reader,
    }
