"""Settings that the demo passes to its Spark program, and the program's messages: lines of JSON on
standard output.
"""

from pathlib import Path
from typing import Final

import msgspec

from querator.spark.pipelines.summary import Summary

FLIGHTS: Final = "flights"
DEPARTURES: Final = "departures"
BOARDING: Final = "boarding"


class Settings(msgspec.Struct, frozen=True):
    """`parts` is a directory of CSV files. Their header is `fields`, preceded by the number of the
    row. `batch_items` is the size of a micro-batch, `batch_bytes` the size of the files ingested at
    once.
    """

    endpoint: str
    parts: str
    fields: tuple[str, ...]
    home: str
    batch_items: int
    batch_bytes: int

    @property
    def archive(self) -> Path:
        return Path(self.home, "archive")

    @property
    def counts(self) -> Path:
        """The path of `Flights` as JSON, written at the end of the program."""
        return Path(self.home, "counts.json")


SESSION: Final = "session"
COUNT: Final = "count"
"""In place of a pipeline's name: Spark has started; the program begins to count the archive."""


class DriverReport(msgspec.Struct, frozen=True):
    """A micro-batch of a pipeline is done, or its whole run (`summary`), or a step has begun."""

    pipeline: str
    batch: int = -1
    items: int = 0
    summary: Summary | None = None
