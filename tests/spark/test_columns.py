"""Columns of the protocol as Arrow, in the schema that is declared to Spark."""

from datetime import UTC, datetime
from struct import pack
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from querator.model.calls import DeadOrigin, ItemRun, LaterAttributes
from querator.spark.answers import parse
from querator.spark.columns import ARROW_SCHEMA, ColumnsError, to_batch
from querator.spark.schema import COLUMNS, SPARK_SCHEMA
from querator.v1 import items_pb2, queue_service_pb2
from querator.wire.columns import encode_columns
from querator.wire.field_checks import timestamp

AT = datetime(2026, 3, 1, 12, 0, 0, 5_000, UTC)
AT_MS = round(AT.timestamp() * 1000)


def columns(*items: items_pb2.Item, with_value: bool = True, **known: Any) -> items_pb2.ItemColumns:
    fields: dict[str, Any] = {
        "seqs": range(5, 5 + len(items)),
        "states": b"\1" * len(items),
        "attempts": [0] * len(items),
        "due_at_ms": (),
        "produced_at_ms": AT_MS,
        "overlays": (),
        **known,
    }
    run = ItemRun(
        items=items_pb2.LeasedBatch(items=items).SerializeToString(),
        lengths=[items_pb2.LeasedBatch(items=[item]).ByteSize() for item in items],
        **fields,
    )
    return items_pb2.ItemColumns.FromString(encode_columns(3, [run], with_value=with_value).data)


def batch_of(columns: items_pb2.ItemColumns) -> Any:
    """The batch as it comes out of an answer."""
    data = queue_service_pb2.BrowseResponse(columns=columns, next_seq=9).SerializeToString()
    answer = parse(data, queue_service_pb2.BrowseResponse)
    assert answer.message.next_seq == 9
    return to_batch(answer.message.columns, answer.payloads, "q")


def test_both_schemas_agree(spark):
    told = spark.createDataFrame([], SPARK_SCHEMA).schema
    assert to_arrow_schema(told, timezone="UTC") == ARROW_SCHEMA
    assert tuple(told.fieldNames()) == COLUMNS


def test_a_bare_item():
    [row] = batch_of(columns(items_pb2.Item(payload=b"x"))).to_pylist()
    there = {name: value for name, value in row.items() if value is not None}
    assert there == {
        "value": b"x", "queue": "q", "partition": 3, "offset": 5, "timestamp": AT, "id": "3-5",
        "priority": 0, "attempts": 0, "state": "ready",
    }  # fmt: skip


def test_an_item_with_everything_beside_one_with_nothing():
    item = items_pb2.Item(
        payload=b"",
        kind="größe",
        encoding="e",
        reference="r",
        attributes={"b": "2", "a": "", "": "3"},
        priority=-4,
        group="g",
        key="k",
        enqueue_at=timestamp(AT_MS + 1),
    )
    letter = DeadOrigin(
        origin_queue="home",
        origin_partition=1,
        origin_seq=2,
        attempts=3,
        reason=items_pb2.DEAD_REASON_EXPIRED,
        errors=("late",),
        produced_at_ms=AT_MS,
        died_at_ms=AT_MS,
    )
    batch = batch_of(
        columns(
            items_pb2.Item(payload=b"y"),
            item,
            states=b"\1\3",
            attempts=[0, 4],
            due_at_ms=[0, AT_MS],
            overlays=(LaterAttributes(1, letter, ("no", "")),),
            priorities=[0, -4],
        )
    )
    batch.validate(full=True)
    assert batch.schema == ARROW_SCHEMA
    bare, row = batch.to_pylist()
    assert row == {
        "key": "k", "value": b"", "queue": "q", "partition": 3, "offset": 6, "timestamp": AT,
        "headers": [
            {"key": "", "value": b"3"}, {"key": "a", "value": b""}, {"key": "b", "value": b"2"},
        ],
        "id": "3-6", "kind": "größe", "encoding": "e", "reference": "r", "priority": -4,
        "group": "g", "attempts": 4, "state": "scheduled",
        "enqueue_at": AT.replace(microsecond=6_000), "due_at": AT, "errors": ["no", ""],
        "dead_letter": {
            "queue": "home", "partition": 1, "offset": 2, "attempts": 3, "reason": "expired",
            "timestamp": AT, "died_at": AT, "errors": ["late"],
        },
    }  # fmt: skip
    assert bare["value"] == b"y"
    assert bare["priority"] == 0
    empty = ("key", "headers", "kind", "enqueue_at", "due_at", "errors", "dead_letter")
    assert [bare[name] for name in empty] == [None] * len(empty)


def test_values_that_were_not_asked_for_are_null():
    batch = batch_of(columns(items_pb2.Item(payload=b"x"), with_value=False))
    assert batch["value"].to_pylist() == [None]


@pytest.mark.parametrize(
    "broken",
    [
        items_pb2.ItemColumns(rows=2, seq=pack("<q", 1)),
        items_pb2.ItemColumns(
            rows=1, seq=pack("<q", 1), value=items_pb2.ByteColumn(offsets=pack("<2i", 0, 5))
        ),
        items_pb2.ItemColumns(
            rows=1, seq=pack("<q", 1), kind=items_pb2.ByteColumn(offsets=pack("<i", 0))
        ),
    ],
)
def test_buffers_that_do_not_fit_are_refused(broken):
    with pytest.raises(ColumnsError):
        batch_of(broken)
