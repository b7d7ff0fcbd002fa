"""Counts of `querator spark demo`: the contents of the CSV, and what must come out of it again."""

import csv
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from querator.cli.demo.flights import Ledger
from querator.client.values import PartitionStats
from querator.spark.flights.delays import Counter, Flights
from querator.spark.flights.settings import DEPARTURES, FLIGHTS
from querator.spark.pipelines.summary import Summary

PART_ROWS = 60_000
PIPELINES = (f"ingest {FLIGHTS}", "archive", f"ingest {DEPARTURES}", "copy")
"""The names of the pipelines in the messages of the Spark program."""
ROW = "row"
"""The first column, before those of the CSV: the number of the row from 0."""


@dataclass(slots=True)
class Split:
    """The CSV in parts, each with a header and row numbers, and the counts of its contents."""

    directory: Path
    fields: tuple[str, ...]
    parts: int
    part_bytes: int
    """The size of the largest part."""
    flights: Flights
    ledger: Ledger


@dataclass(slots=True)
class PipelineCounts:
    """Items that consumers have confirmed, and items of batches, by pipeline and by number."""

    split: Split
    completed: Ledger = field(default_factory=Ledger)
    batches: dict[str, dict[int, int]] = field(default_factory=dict)
    summaries: dict[str, Summary] = field(default_factory=dict)

    def items(self, pipeline: str) -> int:
        """Items of the finished batches of a pipeline; a repeated batch counts once."""
        return sum(self.batches.get(pipeline, {}).values())


class DemoOutcome(msgspec.Struct, frozen=True):
    """The results at the end; `queues` are the queues' own counts."""

    archived: Flights
    queues: dict[str, PartitionStats]
    drivers_killed: int
    workers_killed: int
    nodes_killed: int
    kills_wanted: int


def split_flights(path: Path, rows: int, directory: Path) -> Split:
    """Writes the first `rows` flights of the zipped CSV into parts."""
    directory.mkdir()
    ledger, counter = Ledger(), Counter()
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        reader = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        fields = tuple(next(reader))
        places = [fields.index(name) for name in ("month", "carrier", "hour")]
        left, delay = fields.index("dep_time"), fields.index("arr_delay")
        numbered = enumerate(islice(reader, rows))
        part_bytes = 0
        parts = -(-rows // PART_ROWS)
        for part in range(parts):
            target = directory / f"flights-{part:02}.csv"
            with target.open("w", encoding="utf-8", newline="") as written:
                writer = csv.writer(written)
                writer.writerow((ROW, *fields))
                for number, row in islice(numbered, PART_ROWS):
                    writer.writerow((number, *row))
                    ledger.add(number, canonical(row))
                    month, carrier, hour = (row[place] for place in places)
                    counter.add(
                        str(number),
                        month=month,
                        carrier=carrier,
                        hour=hour,
                        left=row[left],
                        delay=row[delay],
                    )
            part_bytes = max(part_bytes, target.stat().st_size)
    return Split(
        directory=directory,
        fields=fields,
        parts=parts,
        part_bytes=part_bytes,
        flights=counter.flights(),
        ledger=ledger,
    )


def canonical(values: Sequence[str]) -> bytes:
    """The fields of a flight in their order, independent of their former format."""
    return "\x1f".join(values).encode()


def find_problems(books: PipelineCounts, outcome: DemoOutcome) -> list[str]:
    """One sentence for each imbalance; empty if all counts balance."""
    rows = books.split.flights.rows
    archived, completed = outcome.archived, books.completed
    killed = outcome.drivers_killed, outcome.workers_killed, outcome.nodes_killed
    checks = [
        (archived.rows == rows, f"{archived.rows:,} of {rows:,} flights are in the archive"),
        (
            archived.distinct == archived.rows,
            f"{archived.rows - archived.distinct:,} flights are in the archive more than once",
        ),
        (
            archived.cells == books.split.flights.cells,
            "the archive and the CSV differ in the counts of a month, carrier and hour",
        ),
        (completed.missing(rows) == 0, f"{completed.missing(rows):,} flights were not completed"),
        (completed.repeated == 0, f"{completed.repeated:,} flights were completed twice"),
        (
            completed.digest == books.split.ledger.digest,
            f"the digest of the completed items is {completed.digest}, that of the CSV "
            f"{books.split.ledger.digest}",
        ),
        (
            sum(killed) == outcome.kills_wanted,
            f"{outcome.kills_wanted} were to be killed; drivers, workers and nodes that were: "
            f"{', '.join(map(str, killed))}",
        ),
    ]
    for name in PIPELINES:
        summary = books.summaries.get(name)
        if summary is None:
            checks.append((False, f"{name}: it reported no result"))
            continue
        counts = (
            f"{name}: {summary.taken.value:,} {summary.taken.words}, "
            f"{summary.made.value:,} {summary.made.words}"
        )
        checks.append((summary.balanced, counts))
    for queue, told in outcome.queues.items():
        out = told.completed + told.acknowledged
        left = told.ready + told.leased + told.scheduled + told.moving + told.reserved + told.held
        checks += [
            (told.produced == rows, f"queue {queue} counts {told.produced:,} items produced"),
            (out == rows, f"queue {queue} counts {out:,} items completed or acknowledged"),
            (left == 0, f"queue {queue} has {left:,} items left"),
        ]
    return [sentence for holds, sentence in checks if not holds]
