"""`querator spark stats`: contents of queues, counted by Spark, as a page with pictures."""

from pathlib import Path

import click

from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import count, note, write_json, write_table
from querator.cli.shared.parameters import WholeNumber
from querator.cli.spark.run import At, Engine, settings_of, spark_options
from querator.spark.pipelines.counting_tables import instant, stats_tables
from querator.spark.pipelines.scans import QueueScan
from querator.spark.pipelines.settings import StatsSettings


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write a report with charts: one file, which opens without a network.",
)
@click.option(
    "--no-sizes", is_flag=True, help="Do not read the payloads: this reads much less data."
)
@click.option(
    "--min-tasks",
    type=WholeNumber(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Least number of tasks; default: one for each partition of the queue.",
)
@spark_options
def stats(
    queues: tuple[str, ...],
    html: Path | None,
    no_sizes: bool,
    min_tasks: int,
    at: At,
    engine: Engine,
) -> None:
    """Count the items of each QUEUE by state, kind, partition, age, attempts and size.

    Nothing is leased, and Spark reads each queue once. The sums must agree with each other. If
    nothing happened in the queue during the scan, they must agree with the queue's own counts as
    well. The exit code is 1 if they do not agree. In the tables, attempts is the mean of the items,
    and most is the largest number.

    \b
    Examples:
      querator spark stats orders orders-dead --html report.html
      querator spark stats orders --no-sizes --output json
    """
    if html is not None and not html.absolute().parent.is_dir():
        raise click.UsageError(f"--html: there is no directory {html.absolute().parent}.")
    with settings_of():
        settings = [
            StatsSettings(at.queue(queue), sizes=not no_sizes, min_tasks=min_tasks)
            for queue in queues
        ]
    engine.queues(reads=[each.source for each in settings])
    scans: list[QueueScan] = []
    with engine.session() as spark:
        from querator.spark import pipelines

        for each in settings:
            note(f"Scanning {each.source.queue}.")
            scans.append(pipelines.stats(spark, each))
    if html is not None:
        _write_page(html, scans, at.namespace)
    for scan in scans:
        if engine.as_json:
            write_json(scan)
        else:
            _write_tables(scan)
    problems = [problem for scan in scans for problem in scan.problems]
    for problem in problems:
        note(f"WRONG: {problem}")
    if problems:
        raise click.exceptions.Exit(ExitCode.WRONG)


def _write_page(path: Path, scans: list[QueueScan], namespace: str) -> None:
    from querator.spark.pipelines.counting_page import stats_page
    from querator.spark.report.page import render

    try:
        path.write_text(render(stats_page(scans, namespace)), encoding="utf-8")
    except OSError as error:
        raise Failure(f"The report cannot be written: {error}.") from error
    note(f"The report is in {path}.")


def _write_tables(scan: QueueScan) -> None:
    stood = "did not change" if scan.stood_still else "changed meanwhile"
    items = count(scan.rows, "item")
    click.echo(f"\n{scan.queue}: {items} at {instant(scan.scanned_at)}; the queue {stood}.")
    for table in stats_tables(scan):
        click.echo()
        write_table(table.columns, table.rows)
