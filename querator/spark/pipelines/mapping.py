"""Rows as items: expressions for the columns of an item, and the filter of rows."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pyspark.sql import functions as F

from querator.spark.pipelines.failures import checked
from querator.spark.pipelines.settings import Columns, QueuePlace, SettingsError
from querator.spark.rows import Layout, RowsError
from querator.spark.sink_options import sink_options
from querator.spark.writing import Sink

OBSERVED: Final = "querator"
_LEFT_OUT: Final = "left_out"
_ROWS: Final = "rows"
_PASSES: Final = "querator_passes"
_CASTS: Final = {
    "value": "",
    "headers": "",
    "enqueue_at": "timestamp",
    "priority": "int",
    "max_attempts": "int",
    "retry": "",
}
"""Types of the columns that are not texts; "" keeps the type."""


def to_items(frame: Any, columns: Columns, defaults: Mapping[str, str]) -> Any:
    """Selects the columns by `columns`, and by `defaults` where it has none. Raises
    SettingsError, which names all wrong columns.
    """
    chosen = {**defaults, **{name: said for name, said in _said(columns).items() if said}}
    faults = []
    for name, expression in chosen.items():
        try:
            with checked(f"column {name} = {expression}"):
                frame.select(_column(name, expression))
        except SettingsError as error:
            faults.append(_or_constant(name, expression, str(error)))
    if faults:
        raise SettingsError("; ".join(faults))
    frame = frame.select(*(_column(name, said) for name, said in chosen.items()))
    try:
        Layout(frame.schema)
    except RowsError as error:
        raise SettingsError(str(error)) from error
    return frame


def filtered(frame: Any, where: str, observation: Any = OBSERVED) -> Any:
    """Drops the rows that do not satisfy `where`. All rows and the dropped ones are counted in the
    same pass. Raises SettingsError.
    """
    rows = F.count(F.lit(1)).alias(_ROWS)
    if not where:
        return frame.observe(observation, rows, F.lit(0).cast("long").alias(_LEFT_OUT))
    with checked(f"where {where}"):
        # Spark's own filter refuses what is no condition; `coalesce` would make one of a text.
        _ = frame.where(F.expr(where)).schema
        # A column is evaluated once. It also hides from Spark that a filter lets no row pass: Spark
        # would then skip the count as well.
        judged = frame.withColumn(_PASSES, F.coalesce(F.expr(where), F.lit(False)))
        fails = F.count_if(~F.col(_PASSES)).alias(_LEFT_OUT)
        kept = judged.observe(observation, rows, fails).where(F.col(_PASSES)).drop(_PASSES)
        _ = kept.schema
    return kept


def left_out(observed: Mapping[str, int]) -> int:
    return observed.get(_LEFT_OUT) or 0


def rows(observed: Mapping[str, int]) -> int:
    return observed.get(_ROWS) or 0


def check_target(frame: Any, place: QueuePlace) -> None:
    """Checks that the queue exists and accepts these columns. Raises RequestError, Unreachable,
    OptionError.
    """
    Sink(sink_options(place.options(), of_table={}), frame.schema).check_queue()


def _column(name: str, expression: str) -> Any:
    kind = _CASTS.get(name, "string")
    column = F.expr(expression)
    return (column.cast(kind) if kind else column).alias(name)


def _or_constant(name: str, expression: str, fault: str) -> str:
    """The fault, with how to write a constant if the expression may be one without its quotes."""
    if name in _CASTS or not expression.isidentifier():
        return fault
    if f": there is no column {expression}" not in fault:
        return fault
    link = " For" if fault.endswith("?") else "; for"
    return f"{fault}{link} a constant write \"'{expression}'\""


def _said(columns: Columns) -> dict[str, str]:
    return msgspec.structs.asdict(columns)
