"""Columns of a frame that cannot be written: all are named at once, each with an expression that
makes it of the right type.
"""

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from querator.spark.rows import Layout, RowsError

INT = IntegerType()
TEXT = StringType()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": INT},
         "column value is int: it must be binary or string, as by "
         "cast(value AS string)"),
        ({"value": StructType().add("a", INT)},
         "column value is struct<a:int>: it must be binary or string, as "
         "by to_json(value)"),
        ({"value": TEXT, "priority": TEXT},
         "column priority is string: it must be int, as by "
         "try_cast(priority AS int)"),
        ({"value": TEXT, "Priority": DoubleType()},
         "column Priority is double: it must be int, as by "
         "cast(Priority AS int)"),
        ({"value": TEXT, "partition": ArrayType(INT)},
         "column partition is array<int>: it must be int"),
        ({"value": TEXT, "enqueue_at": DateType()},
         "column enqueue_at is date: it must be timestamp, as by "
         "cast(enqueue_at AS timestamp)"),
        ({"value": TEXT, "kind": INT},
         "column kind is int: it must be string, as by "
         "cast(kind AS string)"),
        ({"value": TEXT, "headers": MapType(TEXT, TEXT)},
         "column headers is map<string,string>: it "
         "must be array<struct<key: string, value: binary>>, as by map_entries(headers)"),
        ({"value": INT, "kee": TEXT, "key": INT},
         "column value is int: it must be binary or string, as "
         "by cast(value AS string); an item has no column 'kee': did you mean key?; "
         "column key is int: it must be string, as by cast(key AS string)"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_written(columns: dict[str, DataType], words: str) -> None:
    with pytest.raises(RowsError) as caught:
        Layout(StructType([StructField(name, kind) for name, kind in columns.items()]))
    assert str(caught.value) == words
