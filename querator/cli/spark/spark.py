"""The group `querator spark`: pipelines between queues and files, on Spark."""

import os
from typing import Final

import click

from querator.cli import LazyGroup

# This must be set before the commands load gRPC: Spark forks this process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

_COMMANDS: Final = {
    "ingest": "spark.ingest:ingest",
    "archive": "spark.archive:archive",
    "copy": "spark.copy:copy",
    "redrive": "spark.redrive:redrive",
    "replay": "spark.replay:replay",
    "stats": "spark.stats:stats",
    "demo": "spark.demo:demo",
}
"""Name of the command → its module in this package and its name in that module."""


@click.group(cls=LazyGroup, table=_COMMANDS)
def spark() -> None:
    """Move items between queues and files with Spark, each exactly once.

    Spark needs Java 17 or newer and the extra querator[spark]. Every run ends with a summary.
    The exit code is 1 if the numbers of items taken and items made differ.
    """
