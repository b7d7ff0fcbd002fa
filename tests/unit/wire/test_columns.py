"""Items by column: the columns have the fields of the items and their known state."""

from collections.abc import Sequence
from struct import unpack

from hypothesis import given
from hypothesis import strategies as st

from querator.model.calls import DeadOrigin, ItemRun, LaterAttributes
from querator.v1 import items_pb2
from querator.wire.columns import encode_columns
from querator.wire.field_checks import timestamp

instants = st.integers(0, 2**42)
texts = st.text(max_size=4)
items = st.builds(
    items_pb2.Item,
    payload=st.binary(max_size=200),
    kind=st.sampled_from(["", "email", "größe"]),
    encoding=texts,
    reference=texts,
    key=texts,
    group=texts,
    priority=st.integers(-(2**31), 2**31 - 1),
    attributes=st.dictionaries(texts, texts, max_size=3),
    enqueue_at=st.none() | instants.map(timestamp),
)
errors = st.lists(texts, max_size=3).map(tuple)
letters = st.builds(
    DeadOrigin,
    origin_queue=st.text(min_size=1, max_size=4),
    origin_partition=st.integers(0, 1023),
    origin_seq=st.integers(1, 2**62),
    attempts=st.integers(0, 65535),
    reason=st.integers(1, 3),
    errors=errors,
    produced_at_ms=instants,
    died_at_ms=instants,
)


def lengths_of(items: Sequence[items_pb2.Item]) -> list[int]:
    return [items_pb2.LeasedBatch(items=[item]).ByteSize() for item in items]


@st.composite
def alike(draw: st.DrawFn) -> list[items_pb2.Item]:
    """Items that differ only in their payloads."""
    sample = draw(items)
    there = []
    for payload in draw(st.lists(st.binary(max_size=200), min_size=1, max_size=4)):
        item = items_pb2.Item()
        item.CopyFrom(sample)
        item.payload = payload
        there.append(item)
    return there


@st.composite
def runs(draw: st.DrawFn) -> ItemRun:
    there = draw(st.lists(items, min_size=1, max_size=4) | alike())
    rows = range(len(there))
    scheduled = draw(st.booleans())
    prioritized = draw(st.booleans())
    seqs = draw(st.lists(st.integers(1, 2**62), min_size=len(there), max_size=len(there)))
    return ItemRun(
        seqs=seqs,
        states=bytes(draw(st.integers(1, 4)) for _ in rows),
        attempts=[draw(st.integers(0, 3)) for _ in rows],
        due_at_ms=[draw(instants) for _ in rows] if scheduled else (),
        produced_at_ms=draw(instants),
        overlays=tuple(
            LaterAttributes(index, draw(st.none() | letters), draw(errors), draw(changed))
            for index in sorted(draw(st.sets(st.sampled_from(rows))))
        ),
        items=items_pb2.LeasedBatch(items=there).SerializeToString(),
        lengths=lengths_of(there),
        priorities=[draw(st.integers(-(2**31), 2**31 - 1)) for _ in rows] if prioritized else (),
    )


changed = st.sampled_from([None, None, (), (("page", "7"),), (("a", ""), ("b", "x"))])


def numbers(code: str, packed: bytes, rows: int) -> tuple[int, ...]:
    size = {"b": 1, "i": 4, "q": 8}[code]
    return unpack(f"<{len(packed) // size}{code}", packed) if packed else (0,) * rows


def values(column: items_pb2.ByteColumn, rows: int) -> list[bytes]:
    if not column.offsets:
        return [b""] * rows
    offsets = unpack(f"<{rows + 1}i", column.offsets)
    assert offsets[-1] == len(column.data)
    return [column.data[offsets[row] : offsets[row + 1]] for row in range(rows)]


def lists(offsets: bytes, column: list[bytes], rows: int) -> list[list[str]]:
    bounds = unpack(f"<{rows + 1}i", offsets) if offsets else (0,) * (rows + 1)
    return [
        [text.decode() for text in column[bounds[row] : bounds[row + 1]]] for row in range(rows)
    ]


def pairs_of(column: items_pb2.AttributeColumns) -> int:
    return max(unpack(f"<{len(column.offsets) // 4}i", column.offsets), default=0)


def words(column: items_pb2.ErrorColumns, rows: int) -> list[list[str]]:
    count = max(unpack(f"<{len(column.offsets) // 4}i", column.offsets), default=0)
    return lists(column.offsets, values(column.texts, count), rows)


def read(data: bytes) -> list[dict[str, object]]:
    """The rows of the columns, each with the fields that it has."""
    columns = items_pb2.ItemColumns.FromString(data)
    rows, letter, attributes = columns.rows, columns.dead_letters, columns.attributes
    keys = lists(attributes.offsets, values(attributes.keys, pairs_of(attributes)), rows)
    said = lists(attributes.offsets, values(attributes.values, pairs_of(attributes)), rows)
    by_name: dict[str, list[object]] = {
        "seq": [*numbers("q", columns.seq, rows)],
        "state": [*numbers("b", columns.state, rows)],
        "attempts": [*numbers("i", columns.attempts, rows)],
        "produced_at": [*numbers("q", columns.produced_at, rows)],
        "due_at": [*numbers("q", columns.due_at, rows)],
        "priority": [*numbers("i", columns.priority, rows)],
        "enqueue_at": [*numbers("q", columns.enqueue_at, rows)],
        "value": [*values(columns.value, rows)],
        "attributes": [dict(zip(*each, strict=True)) for each in zip(keys, said, strict=True)],
        "errors": [*words(columns.errors, rows)],
        "letter_errors": [*words(letter.errors, rows)],
        "reason": [*numbers("b", letter.reason, rows)],
        "origin_queue": [each.decode() for each in values(letter.origin_queue, rows)],
        "origin_partition": [*numbers("i", letter.origin_partition, rows)],
        "origin_seq": [*numbers("q", letter.origin_seq, rows)],
        "origin_attempts": [*numbers("i", letter.attempts, rows)],
        "origin_produced_at": [*numbers("q", letter.produced_at, rows)],
        "died_at": [*numbers("q", letter.died_at, rows)],
    }
    for name in ("key", "kind", "encoding", "reference", "group"):
        by_name[name] = [each.decode() for each in values(getattr(columns, name), rows)]
    return [{name: column[row] for name, column in by_name.items()} for row in range(rows)]


def expected(run: ItemRun) -> list[dict[str, object]]:
    by_index = {overlay.index: overlay for overlay in run.overlays}
    rows = []
    for index, item in enumerate(items_pb2.LeasedBatch.FromString(run.items).items):
        overlay = by_index.get(index, LaterAttributes(index, None, ()))
        letter = overlay.dead_letter or DeadOrigin(
            origin_queue="",
            origin_partition=0,
            origin_seq=0,
            attempts=0,
            reason=0,
            errors=(),
            produced_at_ms=0,
            died_at_ms=0,
        )
        rows.append(
            {
                "seq": run.seqs[index],
                "state": run.states[index],
                "attempts": run.attempts[index],
                "produced_at": run.produced_at_ms * 1000,
                "due_at": run.due_at_ms[index] * 1000 if run.due_at_ms else 0,
                "priority": run.priorities[index] if run.priorities else 0,
                "enqueue_at": item.enqueue_at.ToMicroseconds(),
                "value": item.payload,
                "attributes": dict(
                    item.attributes if overlay.attributes is None else overlay.attributes
                ),
                "errors": list(overlay.errors),
                "letter_errors": list(letter.errors),
                "reason": letter.reason,
                "origin_queue": letter.origin_queue,
                "origin_partition": letter.origin_partition,
                "origin_seq": letter.origin_seq,
                "origin_attempts": letter.attempts,
                "origin_produced_at": letter.produced_at_ms * 1000,
                "died_at": letter.died_at_ms * 1000,
                "key": item.key,
                "kind": item.kind,
                "encoding": item.encoding,
                "reference": item.reference,
                "group": item.group,
            }
        )
    return rows


@given(st.lists(runs(), max_size=4))
def test_columns_hold_what_the_items_do(some: list[ItemRun]):
    columns = encode_columns(7, some)
    rows = [row for run in some for row in expected(run)]
    assert read(columns.data) == rows
    assert columns.rows == len(rows)
    assert items_pb2.ItemColumns.FromString(columns.data).partition == 7


@given(st.lists(runs(), max_size=4), st.sets(st.sampled_from(["", "email", "sms"]), min_size=1))
def test_items_of_other_kinds_are_left_out(some: list[ItemRun], kinds: set[str]):
    columns = encode_columns(0, some, kinds=frozenset(kinds))
    rows = [row for run in some for row in expected(run) if row["kind"] in kinds]
    assert read(columns.data) == rows
    assert columns.rows == len(rows)


@given(st.lists(runs(), min_size=1, max_size=4))
def test_payloads_stay_behind_when_they_are_not_wanted(some: list[ItemRun]):
    bare = encode_columns(0, some, with_value=False)
    assert not items_pb2.ItemColumns.FromString(bare.data).HasField("value")
    assert read(bare.data) == [{**row, "value": b""} for run in some for row in expected(run)]


def test_a_column_that_no_row_has_takes_no_space():
    payloads = [b"x" * 100] * 200
    there = [items_pb2.Item(payload=each) for each in payloads]
    items = items_pb2.LeasedBatch(items=there).SerializeToString()
    run = ItemRun(
        seqs=range(1, 201),
        states=b"\1" * 200,
        attempts=[0] * 200,
        due_at_ms=(),
        produced_at_ms=1,
        overlays=(),
        items=items,
        lengths=lengths_of(there),
    )
    message = items_pb2.ItemColumns.FromString(encode_columns(0, [run]).data)
    assert {field.name for field, _ in message.ListFields()} == {
        "rows",
        "seq",
        "state",
        "produced_at",
        "value",
    }
