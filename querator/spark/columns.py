"""`ItemColumns` of the protocol as Arrow record batches. Large buffers are not copied.

The schema is the same for every queue and every option: a column that was not requested is null. A
value that an item does not have (empty text, 0) is null as well.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from querator.client.values import DeadReason, ItemState
from querator.v1 import items_pb2

_INSTANT: Final = pa.timestamp("us", "UTC")
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_LETTER: Final = pa.struct(
    [
        pa.field("queue", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("timestamp", _INSTANT),
        pa.field("died_at", _INSTANT),
        pa.field("errors", pa.list_(pa.field("element", pa.string()))),
    ]
)
ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("queue", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _INSTANT),
        pa.field("headers", pa.list_(pa.field("element", _HEADER))),
        pa.field("id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("encoding", pa.string()),
        pa.field("reference", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("group", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("state", pa.string()),
        pa.field("enqueue_at", _INSTANT),
        pa.field("due_at", _INSTANT),
        pa.field("errors", pa.list_(pa.field("element", pa.string()))),
        pa.field("dead_letter", _LETTER),
    ]
)


class ColumnsError(ValueError):
    """The buffers of an answer do not fit its number of rows."""


def _names(members: Sequence[Any]) -> Any:
    """Names by number; 0 is null."""
    names = {int(member): member.name.lower() for member in members}
    return pa.array([names.get(number) for number in range(128)], pa.string())


_STATES: Final = _names(list(ItemState))
_REASONS: Final = _names(list(DeadReason))


def to_batch(columns: items_pb2.ItemColumns, payloads: memoryview, queue: str) -> Any:
    """A record batch of `ARROW_SCHEMA`. It refers to `payloads`, the data of the column `value`
    that `querator.spark.answers` has separated. Raises ColumnsError.
    """
    rows = columns.rows
    seq = _numbers(columns.seq, pa.int64(), rows)
    partition = str(columns.partition)
    arrays = [
        _texts(columns.key, rows),
        _values(columns, payloads),
        pa.repeat(pa.scalar(queue, pa.string()), rows),
        pa.repeat(pa.scalar(columns.partition, pa.int32()), rows),
        seq,
        _numbers(columns.produced_at, _INSTANT, rows),
        _headers(columns.attributes, rows),
        pc.binary_join_element_wise(partition, seq.cast(pa.string()), "-"),
        _texts(columns.kind, rows),
        _texts(columns.encoding, rows),
        _texts(columns.reference, rows),
        _numbers(columns.priority, pa.int32(), rows),
        _texts(columns.group, rows),
        _numbers(columns.attempts, pa.int32(), rows),
        _named(columns.state, _STATES, rows),
        _instants(columns.enqueue_at, rows),
        _instants(columns.due_at, rows),
        _errors(columns.errors, rows),
        _dead_letters(columns.dead_letters, rows),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _numbers(packed: bytes, kind: Any, rows: int) -> Any:
    """A column of numbers without nulls. An unset column consists of zeros."""
    size = kind.bit_width // 8 * rows
    buffer = pa.py_buffer(packed or bytes(size))
    if buffer.size != size:
        raise ColumnsError(f"a column of {rows} rows has {buffer.size} bytes; they are {size}")
    return pa.Array.from_buffers(kind, rows, [None, buffer])


def _instants(packed: bytes, rows: int) -> Any:
    """A column of instants, in which 0 is null."""
    if not packed:
        return pa.nulls(rows, _INSTANT)
    numbers = _numbers(packed, pa.int64(), rows)
    return pa.Array.from_buffers(_INSTANT, rows, [_there(numbers), numbers.buffers()[1]])


def _named(packed: bytes, names: Any, rows: int) -> Any:
    if not packed:
        return pa.nulls(rows, pa.string())
    return names.take(_numbers(packed, pa.int8(), rows))


def _bounds(packed: bytes, rows: int) -> Any:
    """Offsets of a column of lists or bytes. An unset column consists of empty values."""
    return _numbers(packed, pa.int32(), rows + 1)


def _lengths(bounds: Any) -> Any:
    return pc.subtract(bounds[1:], bounds[:-1])


def _there(numbers: Any) -> Any:
    """A validity bitmap, in which 0 is null."""
    return pc.not_equal(numbers, pa.scalar(0, numbers.type)).buffers()[1]


def _values(columns: items_pb2.ItemColumns, payloads: memoryview) -> Any:
    if not columns.HasField("value"):
        return pa.nulls(columns.rows, pa.binary())
    bounds, data = _bounds(columns.value.offsets, columns.rows), pa.py_buffer(payloads)
    _check_end(bounds, data.size)
    return pa.Array.from_buffers(pa.binary(), columns.rows, [None, bounds.buffers()[1], data])


def _bytes(column: items_pb2.ByteColumn, rows: int) -> Any:
    bounds, data = _parts(column, rows)
    return pa.Array.from_buffers(pa.binary(), rows, [None, bounds.buffers()[1], data])


def _texts(column: items_pb2.ByteColumn, rows: int, *, empty: bool = False) -> Any:
    """A column of texts. Empty text is null, unless `empty` is set."""
    if not column.offsets and not empty:
        return pa.nulls(rows, pa.string())
    bounds, data = _parts(column, rows)
    there = None if empty else _there(_lengths(bounds))
    return pa.Array.from_buffers(pa.string(), rows, [there, bounds.buffers()[1], data])


def _parts(column: items_pb2.ByteColumn, rows: int) -> tuple[Any, Any]:
    bounds, data = _bounds(column.offsets, rows), pa.py_buffer(column.data)
    _check_end(bounds, data.size)
    return bounds, data


def _check_end(bounds: Any, size: int) -> None:
    if bounds[-1].as_py() != size:
        raise ColumnsError(f"the last row ends at {bounds[-1]}; there are {size}")


def _headers(attributes: items_pb2.AttributeColumns, rows: int) -> Any:
    kind = ARROW_SCHEMA.field("headers").type
    if not attributes.offsets:
        return pa.nulls(rows, kind)
    bounds = _bounds(attributes.offsets, rows)
    count = bounds[-1].as_py()
    pairs = pa.StructArray.from_arrays(
        [_texts(attributes.keys, count, empty=True), _bytes(attributes.values, count)],
        fields=list(_HEADER),
    )
    return _lists(kind, bounds, pairs, rows)


def _errors(errors: items_pb2.ErrorColumns, rows: int) -> Any:
    kind = ARROW_SCHEMA.field("errors").type
    if not errors.offsets:
        return pa.nulls(rows, kind)
    bounds = _bounds(errors.offsets, rows)
    return _lists(kind, bounds, _texts(errors.texts, bounds[-1].as_py(), empty=True), rows)


def _lists(kind: Any, bounds: Any, elements: Any, rows: int) -> Any:
    """A column of lists. An empty list is null."""
    there = _there(_lengths(bounds))
    buffers = [there, bounds.buffers()[1]]
    return pa.Array.from_buffers(kind, rows, buffers, children=[elements])


def _dead_letters(letters: items_pb2.DeadLetterColumns, rows: int) -> Any:
    if not letters.reason:
        return pa.nulls(rows, _LETTER)
    children = [
        _texts(letters.origin_queue, rows),
        _numbers(letters.origin_partition, pa.int32(), rows),
        _numbers(letters.origin_seq, pa.int64(), rows),
        _numbers(letters.attempts, pa.int32(), rows),
        _named(letters.reason, _REASONS, rows),
        _instants(letters.produced_at, rows),
        _instants(letters.died_at, rows),
        _errors(letters.errors, rows),
    ]
    there = _there(_numbers(letters.reason, pa.int8(), rows))
    return pa.Array.from_buffers(_LETTER, rows, [there], children=children)
