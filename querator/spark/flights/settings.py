"""What the demo tells its Spark program, and hears of it: lines of JSON on standard output."""

from pathlib import Path
from typing import Final

import msgspec

from querator.spark.pipelines.summary import Summary

FLIGHTS: Final = "flights"
DEPARTURES: Final = "departures"
BOARDING: Final = "boarding"


class Settings(msgspec.Struct, frozen=True):
    """`parts` has CSV files with a header of `fields`, and rows with their number before them.
    `batch_items`: of a micro-batch, `batch_bytes`: of files that are taken in at once.
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
        """JSON of `Flights`, when all is done."""
        return Path(self.home, "counts.json")


class Said(msgspec.Struct, frozen=True):
    """A micro-batch of a pipeline is done, or (`summary`) all of its run."""

    pipeline: str
    batch: int = -1
    items: int = 0
    summary: Summary | None = None
