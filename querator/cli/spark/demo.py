"""`querator spark demo`: real data through Spark and a cluster while a driver, a worker and a node
are killed, and the proof that nothing was lost or doubled.
"""

import csv
import io
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from querator.cli.demo import flights
from querator.cli.demo.flights import FlightsMissing, find_flights
from querator.cli.shared.connection import run_to_end
from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import count, note, write_details, write_json
from querator.cli.shared.parameters import WholeNumber
from querator.cli.spark.demo_counts import DemoOutcome, PipelineCounts, find_problems, split_flights
from querator.cli.spark.demo_run import run_demo
from querator.cli.spark.run import failures
from querator.extras import require
from querator.spark.pipelines.session import check_java
from querator.spark.report.page import Section, render
from querator.spark.requirements import check_requirements


class SparkDemoView(msgspec.Struct, frozen=True):
    """The last line of output."""

    flights: int
    archived: int
    copied: int
    completed: int
    lost: int
    duplicated: int
    seconds: float
    drivers_killed: int
    workers_killed: int
    nodes_killed: int
    report: str


@click.command()
@click.option(
    "--nodes",
    type=click.Choice(["1", "3"]),
    default="3",
    show_default=True,
    help="A cluster in which one node is killed, or a single node.",
)
@click.option(
    "--kills/--no-kills",
    default=True,
    show_default=True,
    help="Kill the driver, a worker and, in a cluster, a leader; or kill nothing.",
)
@click.option(
    "--rows",
    type=WholeNumber(1_000, flights.ROWS),
    default=flights.ROWS,
    show_default=True,
    metavar="N",
    help="Number of flights.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="data/spark-demo",
    show_default=True,
    metavar="DIRECTORY",
    help="Archive and report go into a new directory below it.",
)
def demo(rows: int, nodes: str, kills: bool, out: Path) -> None:
    """Push the flights that left New York in 2013 through Spark and three nodes of your own.

    Spark takes 336,776 flights from CSV into a queue by transactions, and from the queue into a
    Parquet archive by month and carrier. At the same time it fills a second queue and copies it
    into a third one. Consumers of the SDK complete the items of the third queue. Meanwhile the
    driver is killed (kill -9) with all of its work and started again. A Python worker and a node
    that leads are killed as well.

    Then Spark counts the archive. For each month, carrier and hour it must agree with the CSV, and
    each flight must have been completed once. The last line is a JSON object; the exit code is 1 if
    there is a problem.
    """
    with failures():
        check_requirements()
        check_java()
        require("server", "querator spark demo")
    try:
        path = find_flights()
    except FlightsMissing as error:
        raise Failure(str(error).replace("make demo", "make spark-demo")) from error
    home = (out / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")).absolute()
    home.mkdir(parents=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="querator-spark-demo-") as scratch:
        split = split_flights(path, rows, Path(scratch, "csv"))
        note(
            f"{count(rows, 'flight')} in {count(split.parts, 'CSV file')}; results go to {home}.\n"
            f"Starting {'a node' if nodes == '1' else f'a cluster of {nodes} nodes'}, and Spark."
        )
        books = PipelineCounts(split)
        with failures():
            outcome = run_to_end(run_demo(Path(scratch), home, books, int(nodes), kills=kills))
    seconds = time.monotonic() - began
    problems = find_problems(books, outcome)
    report = home / "report.html"
    report.write_text(_page(path, books, outcome, problems), encoding="utf-8")
    _write_summary(books, outcome, seconds, report)
    for problem in problems:
        note(f"WRONG: {problem}")
    write_json(_view(books, outcome, seconds, report))
    if problems:
        raise click.exceptions.Exit(ExitCode.WRONG)


def _view(
    books: PipelineCounts, outcome: DemoOutcome, seconds: float, report: Path
) -> SparkDemoView:
    rows = books.split.flights.rows
    return SparkDemoView(
        flights=rows,
        archived=outcome.archived.rows,
        copied=outcome.queues["boarding"].produced,
        completed=books.completed.count,
        lost=rows - outcome.archived.distinct + books.completed.missing(rows),
        duplicated=outcome.archived.rows - outcome.archived.distinct + books.completed.repeated,
        seconds=round(seconds, 1),
        drivers_killed=outcome.drivers_killed,
        workers_killed=outcome.workers_killed,
        nodes_killed=outcome.nodes_killed,
        report=str(report),
    )


def _facts(books: PipelineCounts, outcome: DemoOutcome) -> tuple[tuple[str, int], ...]:
    return (
        ("flights in the CSV", books.split.flights.rows),
        ("in the archive", outcome.archived.rows),
        ("copied from queue to queue", outcome.queues["boarding"].produced),
        ("completed by consumers", books.completed.count),
        ("drivers killed", outcome.drivers_killed),
        ("workers killed", outcome.workers_killed),
        ("nodes killed", outcome.nodes_killed),
    )


def _page(path: Path, books: PipelineCounts, outcome: DemoOutcome, problems: list[str]) -> str:
    from querator.spark.flights.page import flights_page

    with (path.parent / "airlines.csv").open(encoding="utf-8", newline="") as file:
        names = dict(csv.reader(io.StringIO(file.read())))
    run = Section(
        "How the flights came here",
        "From CSV into a queue and from there into the archive; and from CSV through two more "
        "queues to consumers. Processes that were killed on the way were killed by SIGKILL, in "
        "the middle of their work.",
        _facts(books, outcome),
    )
    return render(flights_page(outcome.archived, names, problems, run))


def _write_summary(
    books: PipelineCounts, outcome: DemoOutcome, seconds: float, report: Path
) -> None:
    total = outcome.archived.total
    write_details(
        (
            *_facts(books, outcome),
            ("time", f"{seconds:.0f} s"),
            ("minutes late", f"{total.minutes:,} in sum, of {total.arrived:,} that arrived"),
            ("digest in", books.split.ledger.digest),
            ("digest out", books.completed.digest),
            ("archive", str(report.parent / "archive")),
            ("report", str(report)),
        )
    )
