"""Fields of stored items, which are given as their tagged, length-prefixed wire bytes."""

from collections.abc import Iterator

from querator.wire.fields import LEN, next_field

_KIND_FIELD = 2
_ATTRIBUTES_FIELD = 5
_NAME_FIELD = 1
_VALUE_FIELD = 2


def kind_of(item: bytes) -> bytes:
    kind = b""
    for number, begin, end in _texts(item, *_content(item)):
        if number == _KIND_FIELD:
            kind = item[begin:end]
    return kind


def attributes_of(item: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for number, begin, end in _texts(item, *_content(item)):
        if number == _ATTRIBUTES_FIELD:
            pair = {_NAME_FIELD: b"", _VALUE_FIELD: b""}
            pair.update({part: item[at:stop] for part, at, stop in _texts(item, begin, end)})
            found[pair[_NAME_FIELD]] = pair[_VALUE_FIELD]
    return found


def _content(item: bytes) -> tuple[int, int]:
    """Begin and end of the item without its tag and length."""
    _, _, begin, end = next_field(item, 0, len(item))
    return begin, end


def _texts(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(number, begin, end) of the fields with a length."""
    at = begin
    while at < end:
        number, wire_type, start, at = next_field(data, at, end)
        if wire_type == LEN:
            yield number, start, at
