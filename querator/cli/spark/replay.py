"""`querator spark replay`: an archive into a queue."""

from datetime import datetime
from typing import Any

import click

from querator.cli.shared.parameters import INSTANT
from querator.cli.spark.paths import check_path
from querator.cli.spark.run import (
    At,
    Engine,
    column_options,
    rate_option,
    settings_of,
    spark_options,
    where_option,
)
from querator.spark.pipelines.settings import Columns, ReplaySettings
from querator.spark.pipelines.summary import Control, Summary


@click.command()
@click.argument("path")
@click.argument("queue")
@click.option(
    "--checkpoint",
    required=True,
    metavar="DIRECTORY",
    help="Directory that records the progress; it belongs to QUEUE and the range.",
)
@click.option(
    "--from",
    "since",
    type=INSTANT,
    metavar="INSTANT",
    help="Items produced then or later: an instant, or a day. UTC, unless it has an offset.",
)
@click.option("--until", type=INSTANT, metavar="INSTANT", help="Items produced before.")
@rate_option
@column_options
@where_option
@spark_options
def replay(
    path: str,
    queue: str,
    checkpoint: str,
    since: datetime | None,
    until: datetime | None,
    rate: float,
    columns: Columns,
    where: str,
    at: At,
    engine: Engine,
) -> None:
    """Put the items of the archive at PATH back into QUEUE, each exactly once.

    `querator spark archive` writes such an archive. To continue an interrupted run, start it again
    with the same --checkpoint; another --rate is possible. Files that were added to the archive
    since then are replayed as well.

    \b
    Examples:
      querator spark replay /lake/orders orders --checkpoint /spark/replay-1
      querator spark replay /lake/orders trial --checkpoint /spark/replay-2 \\
        --from 2026-01-31T08:00:00Z --until 2026-01-31T09:00:00Z \\
        --where "kind = 'refund'" --rate 500
    """
    with settings_of():
        settings = ReplaySettings(
            path=path,
            target=at.queue(queue),
            checkpoint=checkpoint,
            since=since,
            until=until,
            columns=columns,
            where=where,
            rate=rate,
        )

    def run(spark: Any, control: Control) -> Summary:
        from querator.spark import pipelines

        return pipelines.replay(spark, settings, control)

    check_path(path, engine.master)
    engine.queues(fills=[settings.target])
    engine.run(run)
