"""The column `retry` of writes: an item's own retry policy, as a struct."""

from datetime import timedelta
from typing import Any, Final

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DayTimeIntervalType,
    StringType,
    StructType,
)

from querator.client.items import encode_retry
from querator.client.values import RetryPolicy

POLICY_TYPE: Final = (
    "struct<delay: interval, delay_max: interval, backoff: string, jitter: boolean>, as by "
    "named_struct('delay', INTERVAL '60' SECOND); all fields but delay may be left out"
)
"""The type of the column, and an expression that makes it."""
_FIELDS: Final[dict[str, type[DataType]]] = {
    "delay": DayTimeIntervalType,
    "delay_max": DayTimeIntervalType,
    "backoff": StringType,
    "jitter": BooleanType,
}


def is_policy(kind: DataType) -> bool:
    """Whether a column of this type is a retry policy."""
    return (
        isinstance(kind, StructType)
        and "delay" in kind.fieldNames()
        and all(
            isinstance(field.dataType, _FIELDS.get(field.name, type(None))) for field in kind.fields
        )
    )


def encode_policy(given: dict[str, Any]) -> bytes:
    """The message of the protocol. What is null has the default of `RetryPolicy`. Raises
    ValueError.
    """
    delay: timedelta | None = given["delay"]
    if delay is None:
        raise ValueError("delay is null")
    return encode_retry(
        RetryPolicy(**{name: value for name, value in given.items() if value is not None})
    )
