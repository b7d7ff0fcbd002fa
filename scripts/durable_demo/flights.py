"""The flights of a run, from the CSV of `make demo`."""

import csv
import io
import zipfile
from pathlib import Path
from typing import Final

import msgspec

FARE_CENTS: Final = 5_000
"""The part of a fare that is the same for each flight."""
MILE_CENTS: Final = 12
DAYS_AHEAD_MOST: Final = 60
DAY_MS: Final = 100
"""How long a day lasts in the demo: the seat of a flight is booked up to 60 days ahead."""
UNKNOWN: Final = "NA"


class Flight(msgspec.Struct, frozen=True):
    """A row of the CSV, as far as the shop knows it."""

    row: int
    """Number of the row, from 0."""
    date: str
    name: str
    """Carrier and number, as `UA 1545`."""
    miles: int
    has_departed: bool
    """False: the data have no departure, so the flight was cancelled."""
    arrival: str
    """Local time of arrival, as `830`; `NA` for a flight that was diverted or cancelled."""

    @property
    def id(self) -> str:
        return f"flight-{self.row}"

    @property
    def cents(self) -> int:
        return FARE_CENTS + MILE_CENTS * self.miles

    @property
    def days_ahead(self) -> int:
        """How many days before its departure its seat is booked."""
        return 1 + self.row % DAYS_AHEAD_MOST


def choose_flights(path: Path, *, month: int | None, count: int | None) -> list[Flight]:
    """Flights of the year, or of a month: all of them, or `count` that are spread evenly over
    these. Raises ValueError for more than there are.
    """
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        reader = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        header = next(reader)
        at_month = header.index("month")
        found = [
            (number, row)
            for number, row in enumerate(reader)
            if month is None or int(row[at_month]) == month
        ]
    if count is None:
        count = len(found)
    if not 1 <= count <= len(found):
        raise ValueError(f"flights is {count}; it must be from 1 to {len(found)}")
    chosen = (found[number * len(found) // count] for number in range(count))
    return [_flight(number, dict(zip(header, row, strict=True))) for number, row in chosen]


def _flight(number: int, row: dict[str, str]) -> Flight:
    return Flight(
        row=number,
        date=f"2013-{int(row['month']):02}-{int(row['day']):02}",
        name=f"{row['carrier']} {row['flight']}",
        miles=int(row["distance"]),
        has_departed=row["dep_time"] != UNKNOWN,
        arrival=row["arr_time"],
    )
