"""Rows whose payload exceeds an item's limit. They are found before they are sent: they are an
error, or are left out and counted, as the user has chosen.
"""

from collections.abc import Sequence
from typing import Any

from querator.model.limits import PAYLOAD_BYTES_MAX
from querator.spark.rows import RowsError


def oversized(values: Any) -> list[int]:
    """Indexes of the values (binary or string; null is none) that are too large."""
    import pyarrow.compute as pc

    sizes = pc.binary_length(values)
    if (pc.max(sizes).as_py() or 0) <= PAYLOAD_BYTES_MAX:
        return []
    places: list[int] = pc.indices_nonzero(pc.greater(sizes, PAYLOAD_BYTES_MAX)).to_pylist()
    return places


def refusal(name: str, size: int, row: int) -> RowsError:
    """`name` is the name of the column."""
    return RowsError(
        f"column {name} has {size:,} bytes in row {row} of this task: the payload of an item has "
        f"{PAYLOAD_BYTES_MAX:,} at most. Store such values elsewhere and write where they are, or "
        f'write what fits, .where("octet_length({name}) <= {PAYLOAD_BYTES_MAX}"); '
        '.option("oversizePolicy", "skip") leaves such rows out, and the driver logs '
        "their number",
        row,
    )


def left_out(rows: int, first: str) -> str:
    """The line about them in the driver's log; `first` describes the first one."""
    return (
        f"querator: oversizePolicy=skip has left out {rows:,} rows with a payload larger than "
        f"{PAYLOAD_BYTES_MAX:,} bytes; one of them is {first}\n"
    )


def without(places: Sequence[int], of: Sequence[Any]) -> list[Any]:
    """The elements whose index is not in `places`."""
    gone = set(places)
    return [each for place, each in enumerate(of) if place not in gone]
