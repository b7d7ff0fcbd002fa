"""Ready pipelines between queues and files, each a function and a command `querator spark …`.

- `ingest`: files to a queue; `archive`: a queue to Parquet
- `copy`: a queue to another one; `redrive`: dead letters to the queue they came from
- `replay`: an archive to a queue; `stats`: what is in a queue, as a page with pictures

    from querator.spark.pipelines import ArchiveSettings, QueuePlace, archive
    orders = QueuePlace("a.example:4470", "orders")
    summary = archive(spark, ArchiveSettings(orders, "lake", "/lake/orders"))
    assert summary.balanced

Each takes a SparkSession and its settings, which are checked before data moves, and returns a
`Summary`: what was taken and what was made of it, counted by two that know nothing of each other.
What goes from queue to queue or from files to a queue is written by transactions, what is taken out
of a queue goes through a checkpoint: so each may be killed at any point, and when it is run again
it goes on, without an item lost or doubled. See docs/spark.md.

They need a session in whose process they run (not Spark Connect), for they look at checkpoints.

The modules and sub-packages:

    archiving      queue to Parquet, each item exactly once
    books          counts of the queues, independent of Spark
    copying        queue to queue, each item exactly once
    counting       `stats`: what is in a queue, by one scan
    counting_page  the report of `stats` as a page
    failures       an error of Spark in one line
    files          small files wherever Spark can reach them
    following      a streaming query, batch by batch
    ingesting      files to a queue
    mapping        rows as items: columns, filters, defaults
    pace           a limit of items per second
    redriving      dead letters to the queue they came from
    replaying      an archive to a queue, at a rate
    session        the SparkSession of the command line
    settings       settings of the pipelines, checked when they are made
    summary        progress and summary of a pipeline
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from querator.spark.pipelines.archiving import archive
    from querator.spark.pipelines.copying import copy
    from querator.spark.pipelines.counting import QueueScan, stats
    from querator.spark.pipelines.failures import PipelineFailed
    from querator.spark.pipelines.ingesting import ingest
    from querator.spark.pipelines.redriving import DeadGroup, RedriveSummary, redrive
    from querator.spark.pipelines.replaying import replay
    from querator.spark.pipelines.session import open_session
    from querator.spark.pipelines.settings import (
        ArchiveSettings,
        Columns,
        CopySettings,
        IngestSettings,
        QueuePlace,
        RedriveSettings,
        ReplaySettings,
        SettingsError,
        StatsSettings,
    )
    from querator.spark.pipelines.summary import Control, Count, Progress, Summary

__all__ = [
    "ArchiveSettings", "Columns", "Control", "CopySettings", "Count", "DeadGroup",
    "IngestSettings", "PipelineFailed", "Progress", "QueuePlace", "QueueScan", "RedriveSettings",
    "RedriveSummary", "ReplaySettings", "SettingsError", "StatsSettings", "Summary", "archive",
    "copy", "ingest", "open_session", "redrive", "replay", "stats",
]  # fmt: skip

_HOMES: Final = {
    "archive": "archiving",
    "copy": "copying",
    "ingest": "ingesting",
    "QueueScan": "counting",
    "stats": "counting",
    "open_session": "session",
    "redrive": "redriving",
    "replay": "replaying",
    "DeadGroup": "redriving",
    "RedriveSummary": "redriving",
    "PipelineFailed": "failures",
    "Control": "summary",
    "Count": "summary",
    "Progress": "summary",
    "Summary": "summary",
}
"""Modules of names that are not of `settings`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'settings')}"), name)
