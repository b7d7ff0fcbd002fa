"""`querator spark archive`: a queue into Parquet files."""

from datetime import timedelta
from typing import Any

import click

from querator.cli.shared.parameters import DURATION
from querator.cli.spark.paths import check_archive, check_checkpoint
from querator.cli.spark.run import At, Engine, settings_of, spark_options, stream_options
from querator.spark.pipelines.settings import ARCHIVE_PARTITIONS, ArchiveSettings
from querator.spark.pipelines.summary import Control, Summary


@click.command()
@click.argument("queue")
@click.argument("path")
@stream_options
@click.option(
    "--partition-by",
    multiple=True,
    default=ARCHIVE_PARTITIONS,
    show_default=", ".join(ARCHIVE_PARTITIONS),
    metavar="COLUMN|NAME=SQL",
    help="Column that names the directories, the outer one first; may be given several times.",
)
@click.option("--flat", is_flag=True, help="No directories below PATH.")
@click.option(
    "--checkpoint",
    default="",
    metavar="DIRECTORY",
    help="Directory that records the progress; default: _checkpoint below PATH.",
)
@click.option(
    "--every",
    type=DURATION,
    default="60s",
    show_default=True,
    help="With --continuous: at most one batch in this time.",
)
@spark_options
def archive(
    queue: str,
    path: str,
    reader_id: str,
    continuous: bool,
    adopt: bool,
    skip_released: bool,
    max_items: int,
    min_tasks: int,
    partition_by: tuple[str, ...],
    flat: bool,
    checkpoint: str,
    every: timedelta,
    at: At,
    engine: Engine,
) -> None:
    """Take items out of QUEUE into Parquet files below PATH, each exactly once.

    A run takes the items that are ready when it begins, and then ends, which suits cron. With
    --continuous it takes later items as well. Consumers may work on the same queue; each item goes
    to one of them or into the archive.

    \b
    Examples:
      querator spark archive orders /lake/orders --reader-id lake
      querator spark archive orders /lake/orders --reader-id lake \\
        --partition-by "month=date_format(timestamp, 'yyyy-MM')" \\
        --partition-by kind
    """
    with settings_of():
        settings = ArchiveSettings(
            source=at.queue(queue),
            reader_id=reader_id,
            path=path,
            partition_by=() if flat else partition_by,
            checkpoint=checkpoint,
            max_items=max_items,
            min_tasks=min_tasks,
            adopt=adopt,
            continuous=continuous,
            every_seconds=every.total_seconds(),
            skip_released=skip_released,
        )

    def run(spark: Any, control: Control) -> Summary:
        from querator.spark import pipelines

        return pipelines.archive(spark, settings, control)

    check_archive(path, engine.master)
    engine.queues(reads=[settings.source])
    check_checkpoint(settings.stream, settings.source, engine.master)
    engine.run(run, continuous=continuous)
