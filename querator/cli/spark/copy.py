"""`querator spark copy`: a queue into another one."""

from datetime import timedelta
from typing import Any

import click

from querator.cli.shared.parameters import DURATION
from querator.cli.spark.paths import check_checkpoint
from querator.cli.spark.run import (
    At,
    Engine,
    column_options,
    settings_of,
    spark_options,
    stream_options,
    where_option,
)
from querator.spark.pipelines.settings import Columns, CopySettings
from querator.spark.pipelines.summary import Control, Summary


@click.command()
@click.argument("source")
@click.argument("target")
@stream_options
@click.option(
    "--checkpoint",
    required=True,
    metavar="DIRECTORY",
    help="Directory that records the progress. It belongs to --reader-id.",
)
@column_options
@where_option
@click.option(
    "--to-address",
    default="",
    metavar="HOST:PORT",
    help="Cluster of TARGET, if it is another one.",
)
@click.option(
    "--every",
    type=DURATION,
    default="0",
    show_default=True,
    help="With --continuous: at most one batch in this time.",
)
@spark_options
def copy(
    source: str,
    target: str,
    reader_id: str,
    continuous: bool,
    adopt: bool,
    skip_released: bool,
    max_items: int,
    min_tasks: int,
    checkpoint: str,
    columns: Columns,
    where: str,
    to_address: str,
    every: timedelta,
    at: At,
    engine: Engine,
) -> None:
    """Take items out of SOURCE and put them into TARGET, each exactly once.

    Fields stay as they are, unless an option gives an expression over the columns of reads. Items
    that --where excludes are taken out of SOURCE as well. A run ends when it has taken the items
    that were ready at its beginning, or continues with later ones (--continuous).

    \b
    Examples:
      querator spark copy orders other --reader-id split --checkpoint /spark/split
      querator spark copy orders audit --reader-id audit --checkpoint /spark/a \\
        --where "kind = 'refund'" --value "upper(cast(value AS string))"
    """
    with settings_of():
        settings = CopySettings(
            source=at.queue(source),
            target=at.queue(target, address=to_address),
            reader_id=reader_id,
            checkpoint=checkpoint,
            columns=columns,
            where=where,
            max_items=max_items,
            min_tasks=min_tasks,
            adopt=adopt,
            continuous=continuous,
            every_seconds=every.total_seconds(),
            skip_released=skip_released,
        )

    def run(spark: Any, control: Control) -> Summary:
        from querator.spark import pipelines

        return pipelines.copy(spark, settings, control)

    engine.queues(reads=[settings.source], fills=[settings.target])
    check_checkpoint(settings.stream, settings.source, engine.master)
    engine.run(run, continuous=continuous)
