"""Answers of scans: the message, and separately the payloads, in gRPC's own buffer.

Payloads are nearly all of an answer. protobuf copies them into the message and out of it again,
each time into untouched memory; both copies together take longer than to make all Arrow columns.
The payloads are therefore separated before the rest is parsed.
"""

from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from querator.v1 import items_pb2, queue_service_pb2, reader_service_pb2
from querator.wire.fields import LEN, next_field, prefix

_PATH: Final = (
    queue_service_pb2.BrowseResponse.COLUMNS_FIELD_NUMBER,
    items_pb2.ItemColumns.VALUE_FIELD_NUMBER,
    items_pb2.ByteColumn.DATA_FIELD_NUMBER,
)
"""The path to the payloads, in both kinds of answers."""

assert reader_service_pb2.ReadBatchResponse.COLUMNS_FIELD_NUMBER == _PATH[0]

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class MessageType(Protocol[M_co]):
    """A message type."""

    def FromString(self, data: bytes, /) -> M_co: ...


class SplitMessage(NamedTuple, Generic[M]):
    """`message` has no bytes in `columns.value.data`: these bytes are `payloads`."""

    message: M
    payloads: memoryview


def parse(data: bytes, kind: MessageType[M]) -> SplitMessage[M]:
    """Parses a `BrowseResponse` or a `ReadBatchResponse`. Raises MalformedError."""
    rest, payloads = _without(memoryview(data), data, 0, len(data), _PATH)
    return SplitMessage(kind.FromString(rest), payloads)


def _without(
    view: memoryview, data: bytes, at: int, stop: int, path: tuple[int, ...]
) -> tuple[bytes, memoryview]:
    """The message from `at` on without the field at the end of the path, and that field's bytes."""
    found = view[:0]
    kept: list[Any] = []
    while at < stop:
        number, wire_type, start, end = next_field(data, at, stop)
        if number != path[0] or wire_type != LEN:
            kept.append(view[at:end])
        elif len(path) == 1:
            found = view[start:end]
        else:
            rest, found = _without(view, data, start, end, path[1:])
            kept += [prefix(number, len(rest)), rest]
        at = end
    return b"".join(kept), found
