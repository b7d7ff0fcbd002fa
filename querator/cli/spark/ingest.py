"""`querator spark ingest`: files into a queue."""

from typing import Any

import click

from querator.cli.shared.parameters import ATTRIBUTE, WholeNumber
from querator.cli.spark.paths import check_format, check_path, check_several
from querator.cli.spark.run import (
    At,
    Engine,
    column_options,
    settings_of,
    spark_options,
    where_option,
)
from querator.spark.pipelines.settings import (
    FORMATS,
    INGEST_BYTES,
    Columns,
    FileFormat,
    IngestSettings,
)
from querator.spark.pipelines.summary import Control, Summary


@click.command()
@click.argument("path")
@click.argument("queue")
@click.option("--format", "kind_of_file", type=click.Choice(FORMATS), required=True, help="Format.")
@click.option(
    "--schema",
    default="",
    metavar="DDL",
    help=(
        "Columns of the files; default: as Spark infers them (of JSON, from all files). Columns "
        "of CSV are texts unless --option inferSchema=true."
    ),
)
@click.option(
    "--option",
    "options",
    type=ATTRIBUTE,
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of Spark's reader of the format; may be given several times.",
)
@column_options
@where_option
@click.option(
    "--checkpoint",
    default="",
    metavar="DIRECTORY",
    help=(
        "Directory that records which files are done: each is sent once, even if the command is "
        "repeated. PATH is then a directory or a pattern."
    ),
)
@click.option(
    "--continuous",
    is_flag=True,
    help="Continue with new files until a signal ends the command; needs --checkpoint.",
)
@click.option(
    "--max-bytes",
    type=WholeNumber(min=1),
    default=INGEST_BYTES,
    show_default=True,
    metavar="N",
    help=(
        "With --checkpoint: approximate bytes of files in a batch; a file is never in two batches."
    ),
)
@spark_options
def ingest(
    path: str,
    queue: str,
    kind_of_file: FileFormat,
    schema: str,
    options: tuple[tuple[str, str], ...],
    columns: Columns,
    where: str,
    checkpoint: str,
    continuous: bool,
    max_bytes: int,
    at: At,
    engine: Engine,
) -> None:
    """Make an item in QUEUE of each row of the files at PATH, exactly once.

    PATH is a file, a directory or a pattern, wherever Spark can read. Without --checkpoint the
    whole of PATH is one transaction: all rows become visible, or none. The payload is the line
    (text), or all columns as JSON, unless --value gives an expression. A record that cannot be read
    fails the run (--option mode=PERMISSIVE makes nulls of it).

    CSV files have a header, and double a quote within quotes (--option escape=CHARACTER gives
    another way). Give --option multiLine=true if quoted texts have line breaks: each file is then
    read by one task.

    \b
    Examples:
      querator spark ingest flights.csv flights --format csv \\
        --key carrier --kind "'flight'"
      querator spark ingest /in/orders orders --format json \\
        --checkpoint /in/done --continuous
    """
    with settings_of():
        settings = IngestSettings(
            path=path,
            format=kind_of_file,
            target=at.queue(queue),
            columns=columns,
            schema=schema,
            options=dict(options),
            where=where,
            checkpoint=checkpoint,
            continuous=continuous,
            max_bytes=max_bytes,
        )

    def run(spark: Any, control: Control) -> Summary:
        from querator.spark import pipelines

        return pipelines.ingest(spark, settings, control)

    check_path(path, engine.master)
    if checkpoint:
        check_several(path, engine.master)
    check_format(path, engine.master, kind_of_file, settings.options)
    engine.queues(fills=[settings.target])
    engine.run(run, continuous=continuous)
