"""The group `querator spark`: pipelines between queues and files, on Spark."""

import os
from typing import Final

import click

from querator.cli import LazyCommand, LazyGroup

# This must be set before the commands load gRPC: Spark forks this process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

_COMMANDS: Final = {
    "ingest": LazyCommand("spark.ingest:ingest", "Send the rows of files to a queue."),
    "archive": LazyCommand("spark.archive:archive", "Archive a queue as Parquet files."),
    "copy": LazyCommand("spark.copy:copy", "Copy a queue into another one."),
    "redrive": LazyCommand("spark.redrive:redrive", "Send dead letters back to their queue."),
    "replay": LazyCommand("spark.replay:replay", "Send the items of an archive to a queue."),
    "stats": LazyCommand("spark.stats:stats", "Show the contents of queues, with charts."),
    "demo": LazyCommand("spark.demo:demo", "Push real data through Spark and a local cluster."),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def spark() -> None:
    """Move items between queues and files with Spark, each exactly once.

    Spark needs Java 17 or newer and the extra querator[spark]. Every run ends with a summary.
    The exit code is 1 if the numbers of items taken and items made differ.
    """
