"""Rows to be written, encoded as items in the protocol's bytes.

Columns have the names and types of the columns of reads. An item is encoded from Arrow's bytes of
its fields, without a Python object for each field: a field is its tag, its length and its bytes.
Null and empty text are encoded as an absent field.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from querator.client.errors import InvalidArgument
from querator.client.items import ITEMS_FIELD
from querator.model.limits import ATTEMPTS_MAX, PRIORITY_MAX, PRIORITY_MIN
from querator.spark.retry_column import POLICY_TYPE, encode_policy, is_policy
from querator.spark.row_words import SHOWN, described, raw_text
from querator.spark.schema import COLUMNS
from querator.wire import fields

DEDUPE_KEY: Final = "dedupe_key"
WRITTEN: Final = (
    "value",
    "key",
    "kind",
    "encoding",
    "reference",
    "headers",
    "priority",
    "group",
    "enqueue_at",
    DEDUPE_KEY,
    "max_attempts",
    "retry",
    "partition",
)
"""The columns that make up an item."""
PASSED_OVER: Final = frozenset(COLUMNS) - frozenset(WRITTEN)
"""Columns that the queue itself sets. They are ignored, so rows that were read may be written as
they are.
"""
_TEXTS: Final = {"kind": 2, "encoding": 3, "reference": 4, "group": 7, "key": 8, DEDUPE_KEY: 12}
"""Field numbers in `Item`."""
_VALUE, _HEADERS, _PRIORITY, _ENQUEUE_AT, _MAX_ATTEMPTS, _RETRY = 1, 5, 6, 9, 13, 14
_INTEGRAL: Final = ("partition", "priority", "max_attempts")
_TWO_TO_64: Final = 1 << 64
_HEADS_MAX: Final = 8_192
_TEXT_TYPES: Final = (StringType, VarcharType, CharType)


class RowsError(ValueError):
    """A column, or a value in it, cannot be written; the message names it and a remedy. `row` is
    the number of the row in its task; None: the column cannot be written at all.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class _WrongValue(ValueError):
    """A value of a column: what is wrong with it, and a remedy."""

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(fault, remedy)
        self.fault = fault
        self.remedy = remedy


class _Heads(dict[int, bytes]):
    """Tag and length of a field, by the number of its bytes."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __missing__(self, size: int) -> bytes:
        head = fields.prefix(self._number, size)
        if len(self) < _HEADS_MAX:
            self[size] = head
        return head


class Layout:
    """The columns of a frame, and their meanings. It is pickled to executors."""

    def __init__(self, schema: StructType, *, dedupe_key: str = "", unique: bool = False) -> None:
        """`dedupe_key` names the column of dedupe keys, if it is not called `dedupe_key`; the
        column keeps the meaning of its own name as well. `unique`: every row must have a key.
        Raises RowsError.
        """
        self._unique = unique
        self._places: dict[str, int] = {}
        self.names: dict[str, str] = {}
        """Names of the frame's columns, by meaning."""
        wanted = dedupe_key.lower()
        faults: list[str] = []
        for place, field in enumerate(schema.fields):
            name = field.name.lower()
            if name == wanted:
                faults += self._place(DEDUPE_KEY, place, field)
            if name in PASSED_OVER or (wanted and name == DEDUPE_KEY):
                continue
            if name in WRITTEN:
                faults += self._place(name, place, field)
            elif name != wanted:
                faults.append(_unknown(field.name))
        if faults:
            raise RowsError("; ".join(faults))
        if "value" not in self._places:
            raise RowsError(
                "there is no column value (binary or string), which is the payload; the columns "
                f"are {', '.join(schema.fieldNames())}: name one of them so, or make it of several "
                "by to_json(struct(…)).alias('value')"
            )
        if wanted and DEDUPE_KEY not in self._places:
            raise RowsError(
                f"option dedupeKeyColumn is {dedupe_key!r}; the columns are "
                f"{', '.join(schema.fieldNames())}"
            )

    def _place(self, meaning: str, place: int, field: StructField) -> list[str]:
        """What is wrong with the column, if anything is."""
        if meaning in self._places:
            return [f"column {field.name} is there twice: select one of them"]
        self._places[meaning] = place
        self.names[meaning] = field.name
        if _fits(meaning, field.dataType):
            return []
        wanted = _wanted(meaning, field.name, field.dataType)
        return [f"column {field.name} is {field.dataType.simpleString()}: it must be {wanted}"]

    def __contains__(self, meaning: str) -> bool:
        return meaning in self._places

    def values(self, batch: Any) -> Any:
        """The column of payloads."""
        return batch.column(self._places["value"])

    def encode(self, batch: Any, first: int) -> list[bytes]:
        """The items of the rows, each with its tag and length. `first` is the number of the first
        row. Raises RowsError.
        """
        parts: list[Iterable[bytes]] = []
        for meaning, place in self._places.items():
            column = batch.column(place)
            needed = meaning == "value" or (meaning == DEDUPE_KEY and self._unique)
            if meaning != "partition" and (needed or column.null_count < len(column)):
                parts.append(self._encoded(meaning, column, first))
        heads = _ITEM_HEADS
        bodies = parts[0] if len(parts) == 1 else map(b"".join, zip(*parts, strict=True))
        return [heads[len(body)] + body for body in bodies]

    def partitions(self, batch: Any, first: int) -> list[int | None] | None:
        """The column `partition`; None if no row has a value. Raises RowsError."""
        place = self._places.get("partition")
        if place is None or batch.column(place).null_count == batch.num_rows:
            return None
        numbers: list[int | None] = batch.column(place).to_pylist()
        for row, number in enumerate(numbers, first):
            if number is not None and not 0 <= number < 1 << 31:
                raise RowsError(
                    f"column {self.names['partition']} is {number} in row {row} of this task: it "
                    "is the number of a partition of the queue, from 0",
                    row,
                )
        return numbers

    def shown(self, batch: Any, index: int) -> str:
        """The row in a few words, so that it can be found in its source: the beginnings of what
        identifies it.
        """
        given = {
            meaning: batch.column(place)[index]
            for meaning, place in self._places.items()
            if meaning in SHOWN
        }
        return described({name: raw_text(value) for name, value in given.items()})

    def _encoded(self, meaning: str, column: Any, first: int) -> list[bytes]:
        name = self.names[meaning]
        if meaning == "value":
            return _values(name, column, first)
        if meaning in _BY_VALUE:
            return _each(name, column.to_pylist(), _BY_VALUE[meaning], first)
        _check_texts(name, column, first)
        if meaning == "headers":
            return _each(name, column.to_pylist(), _headers, first)
        if meaning == "enqueue_at":
            import pyarrow as pa

            instants = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            return _each(name, instants.to_pylist(), _enqueue_at, first)
        if meaning == DEDUPE_KEY and self._unique:
            _check_unique(name, column, first)
        heads = _TEXT_HEADS[meaning]
        return [heads[len(text)] + text if text else b"" for text in _pieces(column)]


_ITEM_HEADS: Final = _Heads(ITEMS_FIELD)
_VALUE_HEADS: Final = _Heads(_VALUE)
_TEXT_HEADS: Final = {name: _Heads(number) for name, number in _TEXTS.items()}


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), WRITTEN, n=2, cutoff=0.6)
    way_out = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"there are {', '.join(WRITTEN)}; drop it, or make it part of value by to_json(…)"
    )
    return f"an item has no column {name!r}: {way_out}"


def _fits(meaning: str, kind: DataType) -> bool:
    if meaning == "value":
        return isinstance(kind, (BinaryType, *_TEXT_TYPES))
    if meaning == "headers":
        return isinstance(kind, ArrayType) and _is_header(kind.elementType)
    if meaning == "enqueue_at":
        return isinstance(kind, TimestampType)
    if meaning in _INTEGRAL:
        return isinstance(kind, IntegralType)
    if meaning == "retry":
        return is_policy(kind)
    return isinstance(kind, _TEXT_TYPES)


def _is_header(kind: DataType) -> bool:
    return (
        isinstance(kind, StructType)
        and kind.fieldNames() == ["key", "value"]
        and isinstance(kind.fields[0].dataType, _TEXT_TYPES)
        and isinstance(kind.fields[1].dataType, (BinaryType, *_TEXT_TYPES))
    )


def _wanted(meaning: str, name: str, kind: DataType) -> str:
    """The type that a column must have, and an expression that makes it of the type that it has."""
    text = isinstance(kind, _TEXT_TYPES)
    nested = isinstance(kind, (ArrayType, MapType, StructType))
    if meaning == "headers":
        way = f", as by map_entries({name})" if isinstance(kind, MapType) else ""
        return f"array<struct<key: string, value: binary>>{way}"
    if meaning == "value":
        return f"binary or string, as by {f'to_json({name})' if nested else _cast(name, 'string')}"
    if meaning == "retry":
        return POLICY_TYPE
    if meaning == "enqueue_at":
        return "timestamp" if nested else f"timestamp, as by {_cast(name, 'timestamp')}"
    if meaning in _INTEGRAL:
        # A text that is no number becomes null, and does not end the write.
        return "int" if nested else f"int, as by {'try_' if text else ''}{_cast(name, 'int')}"
    return f"string, as by {_cast(name, 'string')}"


def _cast(name: str, kind: str) -> str:
    return f"cast({name} AS {kind})"


def _values(name: str, column: Any, first: int) -> list[bytes]:
    if column.null_count:
        row = first + column.is_null().to_pylist().index(True)
        raise RowsError(
            f"column {name} is null in row {row} of this task: an item has a payload, which may be "
            "empty; filter such rows out, or coalesce",
            row,
        )
    heads = _VALUE_HEADS
    return [heads[len(value)] + value if value else b"" for value in _pieces(column)]


def _check_texts(name: str, column: Any, first: int) -> None:
    """Checks that texts are UTF-8: Spark accepts any bytes as text. The server would refuse the
    whole request, without the place of the invalid text.
    """
    try:
        column.validate(full=True)
    except ValueError:
        for row, value in enumerate(column, first):
            try:
                value.as_py()
            except UnicodeDecodeError:
                raise RowsError(
                    f"column {name} is not UTF-8 in row {row} of this task: filter such rows out, "
                    "or make text of it by hex(…) or base64(…)",
                    row,
                ) from None
        raise


def _check_unique(name: str, column: Any, first: int) -> None:
    for row, key in enumerate(_pieces(column), first):
        if not key:
            raise RowsError(
                f"column {name} is null or empty in row {row} of this task: with "
                "guarantee=idempotent each row has a key of its own, the same for each repeat",
                row,
            )


def _pieces(column: Any) -> Iterator[bytes]:
    """The bytes of each row; empty for null."""
    import pyarrow as pa

    if column.null_count:
        column = column.fill_null(b"" if pa.types.is_binary(column.type) else "")
    column = column.cast(pa.binary())
    _, bounds, data = column.buffers()
    at = memoryview(bounds).cast("i")[column.offset : column.offset + len(column) + 1].tolist()
    if data is None:
        return iter([b""] * len(column))
    whole = data.to_pybytes()
    return (whole[start:end] for start, end in pairwise(at))


def _each(
    name: str, values: Sequence[Any], encode: Callable[[Any], bytes], first: int
) -> list[bytes]:
    encoded = []
    for row, value in enumerate(values, first):
        try:
            encoded.append(b"" if value is None else encode(value))
        except _WrongValue as error:
            raise RowsError(
                f"column {name} {error.fault} in row {row} of this task: {error.remedy}", row
            ) from None
    return encoded


def _headers(pairs: Sequence[dict[str, Any] | None]) -> bytes:
    """Encodes headers as a map of texts, in which each name occurs once."""
    found: dict[str, str] = {}
    for pair in pairs:
        if pair is None or pair["key"] is None:
            raise _WrongValue("has a header without a key", "a header is a key and a value")
        key, value = pair["key"], pair["value"]
        if key in found:
            raise _WrongValue(f"has the key {key!r} twice", "an item has each key once")
        try:
            found[key] = value.decode() if isinstance(value, bytes) else value or ""
        except UnicodeDecodeError:
            raise _WrongValue(
                f"has bytes that are not UTF-8 in the value of {key!r}",
                "make text of it by hex(…) or base64(…)",
            ) from None
    return b"".join(_header(key.encode(), value.encode()) for key, value in found.items())


def _header(key: bytes, value: bytes) -> bytes:
    body = fields.prefix(1, len(key)) + key + fields.prefix(2, len(value)) + value
    return fields.prefix(_HEADERS, len(body)) + body


def _priority(number: int) -> bytes:
    if not number:
        return b""
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        raise _WrongValue(f"is {number}", f"it must be from {PRIORITY_MIN} to {PRIORITY_MAX}")
    return fields.varint(_PRIORITY << 3 | fields.VARINT) + fields.varint(number % _TWO_TO_64)


def _max_attempts(number: int) -> bytes:
    """0 is a limit as well: none."""
    if not 0 <= number <= ATTEMPTS_MAX:
        raise _WrongValue(f"is {number}", f"it must be from 0 to {ATTEMPTS_MAX}; 0 is no limit")
    return fields.varint(_MAX_ATTEMPTS << 3 | fields.VARINT) + fields.varint(number)


def _retry(given: dict[str, Any]) -> bytes:
    try:
        body = encode_policy(given)
    except (ValueError, InvalidArgument) as error:
        raise _WrongValue(f"is no retry policy ({error})", f"it must be {POLICY_TYPE}") from None
    return fields.prefix(_RETRY, len(body)) + body


_BY_VALUE: Final[dict[str, Callable[[Any], bytes]]] = {
    "priority": _priority,
    "max_attempts": _max_attempts,
    "retry": _retry,
}
"""Columns that are encoded value by value."""


def _enqueue_at(at_us: int) -> bytes:
    """Instants before 1970 are written as 1970: both are in the past."""
    seconds, rest_us = divmod(max(0, at_us), 1_000_000)
    body = b"\x08" + fields.varint(seconds) + b"\x10" + fields.varint(rest_us * 1_000)
    return fields.prefix(_ENQUEUE_AT, len(body)) + body
