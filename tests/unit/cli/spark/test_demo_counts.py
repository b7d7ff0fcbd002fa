"""The proof of `querator spark demo` must fail whenever something is lost, doubled or changed."""

import csv
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from querator.cli.spark.demo_counts import (
    PIPELINES,
    DemoOutcome,
    PipelineCounts,
    canonical,
    find_problems,
    split_flights,
)
from querator.client.values import PartitionStats
from querator.spark.flights.delays import Cell, Delays
from querator.spark.pipelines.summary import Count, Summary

FIELDS = ("month", "carrier", "hour", "dep_time", "arr_delay")
ROWS = [
    ("1", "UA", "5", "517", "11"),
    ("1", "UA", "5", "NA", "NA"),
    ("1", "UA", "5", "530", "15"),
    ("1", "AA", "5", "540", "-20"),
    ("2", "UA", "6", "555", "NA"),
] * 3


def zipped(home: Path) -> Path:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([FIELDS, *ROWS])
    with zipfile.ZipFile(home / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", text.getvalue())
    return home / "flights.csv.zip"


def told(**counts: int) -> PartitionStats:
    values: dict[str, Any] = dict.fromkeys(PartitionStats.__struct_fields__, 0)
    values |= {"oldest_ready_at": None, "oldest_batch_at": None, "produced": len(ROWS)}
    return PartitionStats(**{**values, **counts})


def good_run(home: Path) -> tuple[PipelineCounts, DemoOutcome]:
    books = PipelineCounts(split_flights(zipped(home), len(ROWS), home / "csv"))
    for number, row in enumerate(ROWS):
        books.completed.add(number, canonical(row))
    count = Count(len(ROWS), "items")
    for name in PIPELINES:
        books.summaries[name] = Summary(
            pipeline=name, taken=count, made=count, left_out=0, batches=1, seconds=1.0
        )
    queues = {
        "flights": told(acknowledged=len(ROWS)),
        "departures": told(acknowledged=len(ROWS)),
        "boarding": told(completed=len(ROWS)),
    }
    return books, DemoOutcome(
        archived=books.split.flights,
        queues=queues,
        drivers_killed=1,
        workers_killed=1,
        nodes_killed=1,
        kills_wanted=3,
    )


def test_the_csv_is_split_into_numbered_rows_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("querator.cli.spark.demo_counts.PART_ROWS", 4)
    split = split_flights(zipped(tmp_path), len(ROWS), tmp_path / "csv")
    rows = []
    for part in sorted(split.directory.iterdir()):
        header, *lines = csv.reader(part.read_text().splitlines())
        assert tuple(header) == ("row", *FIELDS)
        rows += lines
        assert part.stat().st_size <= split.part_bytes
    assert [(int(number), *row) for number, *row in rows] == [
        (number, *row) for number, row in enumerate(ROWS)
    ]
    assert len(list(split.directory.iterdir())) == split.parts == 4
    assert (split.flights.rows, split.flights.distinct) == (len(ROWS), len(ROWS))
    assert split.flights.cells == (
        Cell(1, "AA", 5, Delays(3, 0, 3, -60, 0)),
        Cell(1, "UA", 5, Delays(9, 3, 6, 78, 3)),
        Cell(2, "UA", 6, Delays(3, 0, 0, 0, 0)),
    )
    by_carrier = split.flights.by(lambda cell: cell.carrier)
    assert by_carrier == {"AA": Delays(3, 0, 3, -60, 0), "UA": Delays(12, 3, 6, 78, 3)}
    assert split.flights.total == Delays(15, 3, 9, 18, 3)
    assert (split.flights.total.mean, Delays(1).mean, Delays(1).late_share) == (2.0, None, None)


def test_fewer_rows_are_the_first_ones(tmp_path: Path) -> None:
    split = split_flights(zipped(tmp_path), 4, tmp_path / "csv")
    assert split.flights.rows == 4
    assert {cell.month for cell in split.flights.cells} == {1}


def test_books_that_balance_have_no_problems(tmp_path: Path) -> None:
    assert find_problems(*good_run(tmp_path)) == []


def of_archive(outcome: DemoOutcome, **changed: Any) -> DemoOutcome:
    archived = msgspec.structs.replace(outcome.archived, **changed)
    return msgspec.structs.replace(outcome, archived=archived)


def of_queue(outcome: DemoOutcome, queue: str, **changed: int) -> DemoOutcome:
    counts = msgspec.structs.replace(outcome.queues[queue], **changed)
    return msgspec.structs.replace(outcome, queues={**outcome.queues, queue: counts})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda outcome: of_archive(outcome, rows=14, distinct=14),
            "14 of 15 flights are in the archive",
        ),
        (lambda outcome: of_archive(outcome, distinct=14), "1 flights are in the archive more"),
        (lambda outcome: of_archive(outcome, cells=outcome.archived.cells[1:]), "CSV differ"),
        (lambda outcome: of_queue(outcome, "flights", acknowledged=14), "flights counts 14 items"),
        (lambda outcome: of_queue(outcome, "boarding", produced=16), "counts 16 items produced"),
        (lambda outcome: of_queue(outcome, "departures", reserved=1), "departures has 1 items"),
        (lambda outcome: msgspec.structs.replace(outcome, workers_killed=0), "1, 0, 1"),
    ],
)
def test_what_the_archive_and_the_queues_have(
    tmp_path: Path, change: Callable[[DemoOutcome], DemoOutcome], words: str
) -> None:
    books, outcome = good_run(tmp_path)
    [problem] = find_problems(books, change(outcome))
    assert words in problem


def test_what_was_completed(tmp_path: Path) -> None:
    books, outcome = good_run(tmp_path)
    books.completed.add(0, canonical(ROWS[0]))
    twice, digest = find_problems(books, outcome)
    assert twice == "1 flights were completed twice"
    assert digest.startswith("the digest of the completed items")


def test_what_the_pipelines_say(tmp_path: Path) -> None:
    books, outcome = good_run(tmp_path)
    del books.summaries["copy"]
    short = msgspec.structs.replace(books.summaries["archive"], made=Count(14, "rows"))
    books.summaries["archive"] = short
    assert find_problems(books, outcome) == [
        "archive: 15 items, 14 rows",
        "copy: it reported no result",
    ]
