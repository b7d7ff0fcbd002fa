"""Items by column: `ItemColumns`, whose fields are the buffers of Apache Arrow arrays.

Stored items are converted by the block. Items that differ only in their payloads are split without
parsing (`wire.uniform_items`). Other items are parsed, in C, and each column is made by one pass.
The payloads, which are nearly all of the bytes, go into the answer without another copy.
https://arrow.apache.org/docs/format/Columnar.html
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, compress
from typing import Generic, TypeVar

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from querator.model.calls import DeadOrigin, ItemRun, LaterAttributes
from querator.v1 import items_pb2
from querator.wire.fields import prefix
from querator.wire.uniform_items import Alike, cut_alike

_US_PER_MS = 1_000
_US_PER_SECOND = 1_000_000
_NANOS_PER_US = 1_000
_VALUE = items_pb2.ItemColumns.VALUE_FIELD_NUMBER
_OFFSETS = items_pb2.ByteColumn.OFFSETS_FIELD_NUMBER
_DATA = items_pb2.ByteColumn.DATA_FIELD_NUMBER
_TEXTS = ("key", "kind", "encoding", "reference", "group")
"""Names of fields of `Item`, which are also names of columns."""

T = TypeVar("T")


class EncodedColumns(msgspec.Struct, frozen=True):
    """`data` is an encoded `ItemColumns` with `rows` rows."""

    rows: int
    data: bytes


def encode_columns(
    partition: int,
    runs: Sequence[ItemRun],
    *,
    with_value: bool = True,
    kinds: frozenset[str] = frozenset(),
) -> EncodedColumns:
    """Encodes the items of the runs in their order. `kinds`: encodes only items of these kinds;
    empty: all.
    """
    known = _known(runs)
    given = _Given(with_value=with_value)
    wanted: list[bool] = []
    for run in runs:
        count = len(run.seqs)
        alike = cut_alike(run.items, run.lengths)
        if alike is not None:
            chosen = not kinds or alike.sample.kind in kinds
            wanted += [chosen] * count
            if chosen:
                given.take_alike(alike)
            continue
        # By the block: more items at a time would trigger the garbage collector.
        items: Sequence[items_pb2.Item] = items_pb2.LeasedBatch.FromString(run.items).items
        assert len(items) == count, "a run has as many items as it says"
        if kinds:
            of_kinds = [item.kind in kinds for item in items]
            wanted += of_kinds
            items = list(compress(items, of_kinds))
        given.add(list(items))
    if kinds:
        known = known.of(wanted)
    head = _head(partition, given, known)
    value = _value(given.payloads) if with_value else []
    return EncodedColumns(len(known.seq), b"".join((head, *value)))


class _Column(Generic[T]):
    """A column of values that producers gave, by row. Rows between have the value `nothing`."""

    def __init__(self, nothing: T) -> None:
        self._nothing = nothing
        self._values: list[T] = []

    def put(self, row: int, values: Sequence[T]) -> None:
        """Sets the values of rows from `row` on."""
        self._pad(row)
        self._values += values

    def put_same(self, row: int, value: T, count: int) -> None:
        """Sets one value for `count` rows from `row` on."""
        if value:
            self._pad(row)
            self._values += [value] * count

    def of(self, rows: int) -> list[T]:
        """The values of all rows; empty if no row has one."""
        if self._values:
            self._pad(rows)
        return self._values

    def _pad(self, rows: int) -> None:
        self._values += [self._nothing] * (rows - len(self._values))


class _Given:
    """The fields that producers gave, by column; attributes as lists of pairs."""

    def __init__(self, *, with_value: bool) -> None:
        self._with_value = with_value
        self.rows = 0
        self.payloads: list[bytes] = []
        self.texts: dict[str, _Column[str]] = {name: _Column("") for name in _TEXTS}
        self.enqueue_at: _Column[int] = _Column(0)
        self.attributes: _Column[Sequence[tuple[str, str]]] = _Column(())

    def take_alike(self, alike: Alike) -> None:
        sample, count = alike.sample, len(alike.payloads)
        if self._with_value:
            self.payloads += alike.payloads
        for name, column in self.texts.items():
            column.put_same(self.rows, getattr(sample, name), count)
        self.enqueue_at.put_same(self.rows, _us(sample.enqueue_at), count)
        self.attributes.put_same(self.rows, sorted(sample.attributes.items()), count)
        self.rows += count

    def add(self, items: Sequence[items_pb2.Item]) -> None:
        """Adds items of one block."""
        if self._with_value:
            self.payloads += [item.payload for item in items]
        for name, column in self.texts.items():
            column.put(self.rows, [getattr(item, name) for item in items])
        if any([item.HasField("enqueue_at") for item in items]):
            self.enqueue_at.put(self.rows, [_us(item.enqueue_at) for item in items])
        if any([len(item.attributes) for item in items]):
            self.attributes.put(self.rows, [sorted(item.attributes.items()) for item in items])
        self.rows += len(items)


class _Known(msgspec.Struct, frozen=True):
    """The partition's data about each item. `due_at`, `overlays` and `priority` are empty if there
    are none.
    """

    seq: "array[int]"
    state: bytes
    attempts: "array[int]"
    produced_at: "array[int]"
    due_at: "array[int]"
    overlays: Sequence[LaterAttributes | None]
    priority: "array[int]"

    def of(self, wanted: Sequence[bool]) -> "_Known":
        return _Known(
            seq=array("q", compress(self.seq, wanted)),
            state=bytes(compress(self.state, wanted)),
            attempts=array("i", compress(self.attempts, wanted)),
            produced_at=array("q", compress(self.produced_at, wanted)),
            due_at=array("q", compress(self.due_at, wanted)),
            overlays=list(compress(self.overlays, wanted)),
            priority=array("i", compress(self.priority, wanted)),
        )


def _known(runs: Sequence[ItemRun]) -> _Known:
    seq, attempts, produced_at, due_at = array("q"), array("i"), array("q"), array("q")
    priority = array("i")
    prioritized = any(run.priorities for run in runs)
    scheduled = any(run.due_at_ms for run in runs)
    overlaid = any(run.overlays for run in runs)
    overlays: list[LaterAttributes | None] = []
    for run in runs:
        count = len(run.seqs)
        if overlaid:
            by_index = {overlay.index: overlay for overlay in run.overlays}
            overlays += [by_index.get(index) for index in range(count)]
        seq.extend(run.seqs)
        attempts.extend(run.attempts)
        produced_at.extend(array("q", [run.produced_at_ms * _US_PER_MS]) * count)
        if scheduled:
            due_at.extend([ms * _US_PER_MS for ms in run.due_at_ms] or [0] * count)
        if prioritized:
            priority.extend(run.priorities or [0] * count)
    states = b"".join([run.states for run in runs])
    return _Known(
        seq=seq,
        state=states,
        attempts=attempts,
        produced_at=produced_at,
        due_at=due_at,
        overlays=overlays,
        priority=priority,
    )


def _head(partition: int, given: _Given, known: _Known) -> bytes:
    """An encoded `ItemColumns` without the payloads."""
    rows = len(known.seq)
    columns = items_pb2.ItemColumns(
        partition=partition,
        rows=rows,
        seq=_packed(known.seq),
        state=known.state,
        attempts=_numbers("i", known.attempts),
        produced_at=_packed(known.produced_at),
        due_at=_numbers("q", known.due_at),
        priority=_numbers("i", known.priority),
        enqueue_at=_numbers("q", given.enqueue_at.of(rows)),
        attributes=_attributes(_now(given.attributes.of(rows), known.overlays)),
        errors=_errors(known.overlays),
        checkpoint_bytes=_checkpoint_bytes(known.overlays),
    )
    for name, column in given.texts.items():
        texts = _texts(column.of(rows))
        if texts is not None:
            getattr(columns, name).CopyFrom(texts)
    if any(overlay is not None and overlay.dead_letter for overlay in known.overlays):
        columns.dead_letters.CopyFrom(_dead_letters(known.overlays))
    return columns.SerializeToString()


def _value(payloads: Sequence[bytes]) -> list[bytes]:
    """Pieces that, joined, are the `value` of an `ItemColumns`. The payloads are not copied."""
    offsets = array("i", accumulate(map(len, payloads), initial=0))
    packed = _packed(offsets)
    inner = prefix(_OFFSETS, len(packed)) + packed + prefix(_DATA, offsets[-1])
    return [prefix(_VALUE, len(inner) + offsets[-1]), inner, *payloads]


def _us(instant: Timestamp) -> int:
    return instant.seconds * _US_PER_SECOND + instant.nanos // _NANOS_PER_US


def _now(
    given: Sequence[Sequence[tuple[str, str]]], overlays: Sequence[LaterAttributes | None]
) -> Sequence[Sequence[tuple[str, str]]]:
    """The attributes of items, with those that retries have changed."""
    changed = {
        row: overlay.attributes
        for row, overlay in enumerate(overlays)
        if overlay is not None and overlay.attributes is not None
    }
    if not changed:
        return given
    given = given or [()] * len(overlays)
    return [changed.get(row, pairs) for row, pairs in enumerate(given)]


def _attributes(by_item: Sequence[Sequence[tuple[str, str]]]) -> items_pb2.AttributeColumns | None:
    if not any(by_item):
        return None
    return items_pb2.AttributeColumns(
        offsets=_offsets(map(len, by_item)),
        keys=_texts([key for pairs in by_item for key, _ in pairs]),
        values=_texts([value for pairs in by_item for _, value in pairs]),
    )


def _errors(of: Sequence[LaterAttributes | DeadOrigin | None]) -> items_pb2.ErrorColumns | None:
    """The error texts by row; None if there are none."""
    by_item = [() if one is None else one.errors for one in of]
    if not any(by_item):
        return None
    texts = list(chain.from_iterable(by_item))
    return items_pb2.ErrorColumns(offsets=_offsets(map(len, by_item)), texts=_texts(texts))


def _checkpoint_bytes(overlays: Sequence[LaterAttributes | None]) -> bytes:
    sizes = [0 if overlay is None else overlay.checkpoint_bytes for overlay in overlays]
    return _numbers("i", array("i", sizes))


def _dead_letters(overlays: Sequence[LaterAttributes | None]) -> items_pb2.DeadLetterColumns:
    letters = [None if overlay is None else overlay.dead_letter for overlay in overlays]

    def numbers(code: str, field: str, scale: int = 1) -> bytes:
        values = [0 if letter is None else getattr(letter, field) * scale for letter in letters]
        return _packed(array(code, values))

    return items_pb2.DeadLetterColumns(
        reason=numbers("b", "reason"),
        origin_queue=_texts(["" if letter is None else letter.origin_queue for letter in letters]),
        origin_partition=numbers("i", "origin_partition"),
        origin_seq=numbers("q", "origin_seq"),
        attempts=numbers("i", "attempts"),
        produced_at=numbers("q", "produced_at_ms", _US_PER_MS),
        died_at=numbers("q", "died_at_ms", _US_PER_MS),
        errors=_errors(letters),
    )


def _texts(values: Sequence[str]) -> items_pb2.ByteColumn | None:
    """A column of texts; None if all are empty."""
    text = "".join(values)
    if not text:
        return None
    data = text.encode()
    if len(data) == len(text):
        return items_pb2.ByteColumn(offsets=_offsets(map(len, values)), data=data)
    lengths = (len(value.encode()) for value in values)
    return items_pb2.ByteColumn(offsets=_offsets(lengths), data=data)


def _numbers(code: str, values: Sequence[int]) -> bytes:
    """A packed column of numbers; empty if all are 0."""
    return _packed(array(code, values)) if any(values) else b""


def _offsets(lengths: Iterable[int]) -> bytes:
    return _packed(array("i", accumulate(lengths, initial=0)))


def _packed(numbers: "array[int]") -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


assert array("i").itemsize == 4
assert array("q").itemsize == 8
