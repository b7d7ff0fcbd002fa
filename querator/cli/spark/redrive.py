"""`querator spark redrive`: dead letters back to the queue they came from."""

from typing import Any

import click

from querator.cli.shared.failures import ExitCode, Failure
from querator.cli.shared.output import note, write_table
from querator.cli.spark.run import At, Engine, rate_option, settings_of, spark_options, where_option
from querator.spark.pipelines.settings import REASONS, RedriveSettings
from querator.spark.pipelines.summary import Control, Summary


@click.command()
@click.argument("queue")
@click.option(
    "--reason",
    "reasons",
    type=click.Choice(REASONS),
    multiple=True,
    help="Only dead letters with this reason; may be given several times.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Only this kind, '' for items without one; may be given several times.",
)
@where_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the dead letters that would be sent back, and send nothing.",
)
@rate_option
@spark_options
def redrive(
    queue: str,
    reasons: tuple[str, ...],
    kinds: tuple[str, ...],
    where: str,
    dry_run: bool,
    rate: float,
    at: At,
    engine: Engine,
) -> None:
    """Send dead letters of QUEUE back to it, and show them by reason and kind.

    --where is over the columns of reads, and reason, died_at and error (the last one). The dead
    queue moves each letter in one step of its own: wherever a run ends, nothing is lost or doubled.
    Letters that a consumer of the dead queue holds are left out.

    \b
    Examples:
      querator spark redrive orders --dry-run
      querator spark redrive orders --reason attempts --rate 100 \\
        --where "error LIKE '%timeout%'"
    """
    with settings_of():
        settings = RedriveSettings(
            queue=at.queue(queue),
            reasons=reasons,
            kinds=kinds,
            where=where,
            dry_run=dry_run,
            rate=rate,
        )

    def run(spark: Any, control: Control) -> Summary:
        from querator.spark import pipelines

        summary = pipelines.redrive(spark, settings, control)
        if not engine.as_json:
            _show(summary.groups)
        return summary

    [found] = engine.queues(reads=[settings.queue])
    if not found.dead_queue:
        raise Failure(
            f"Queue {queue} has no dead queue. Give it one with: querator queue update {queue} "
            "--dead-queue NAME",
            ExitCode.REFUSED,
        )
    engine.run(run)


def _show(groups: Any) -> None:
    if not groups:
        note("No such dead letters.")
        return
    write_table(
        ("reason", "kind", "letters", "first died", "last died", "last error"),
        (
            (
                group.reason,
                group.kind,
                group.items,
                group.first_died_at.isoformat(timespec="seconds"),
                group.last_died_at.isoformat(timespec="seconds"),
                group.error,
            )
            for group in groups
        ),
    )
