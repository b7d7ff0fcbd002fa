"""Ready pipelines between queues and files. Each is a function and a command `querator spark …`.

- `ingest`: files into a queue;
- `archive`: a queue into Parquet files;
- `copy`: a queue into another queue;
- `redrive`: dead letters into the queue that they came from;
- `replay`: an archive into a queue;
- `stats`: contents of a queue, as a page with pictures.

    from querator.spark.pipelines import ArchiveSettings, QueuePlace, archive
    orders = QueuePlace("a.example:4470", "orders")
    summary = archive(spark, ArchiveSettings(orders, "lake", "/lake/orders"))
    assert summary.balanced

Each takes a SparkSession and its settings, and checks the settings before data moves. It returns a
`Summary`: items taken and items made, from two independent counts. Pipelines that write to a queue
use transactions, and pipelines that take items out of a queue use a checkpoint. A pipeline may
therefore be killed at any point: the next run continues, without an item lost or doubled. See
docs/spark.md. Pipelines read the files of checkpoints, so they need a session in their own process
(not Spark Connect).

    archiving        `archive`: a queue into Parquet files
    books            counts of the queues themselves
    checkpoints      whether a checkpoint belongs to a reader
    conditions       errors of Spark in the words of the pipelines
    copying          `copy`: a queue into another queue
    counting         `stats`: a scan of a queue, counted by Spark
    counting_page    the page of `stats`
    counting_tables  the tables of `stats`
    failures         failures of runs, as one line with a remedy
    file_systems     packages that bring Spark the file systems of clouds
    files            files and paths of pipelines
    formats          whether a file fits its format, by its first bytes
    following        runs of streaming queries to their end
    ingesting        `ingest`: files into a queue
    mapping          columns of files as columns of items
    pace             the rate limit of a pipeline
    reader_options   options of Spark's readers of files
    redriving        `redrive`: dead letters back to their queue
    replaying        `replay`: an archive into a queue
    scans            results of `stats`
    session          sessions of Spark for the commands
    setting_types    types of the fields of settings
    settings         settings of all pipelines, and their checks
    summary          the result of a run, and its progress
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from querator.spark.pipelines.archiving import archive
    from querator.spark.pipelines.copying import copy
    from querator.spark.pipelines.counting import stats
    from querator.spark.pipelines.failures import PipelineFailed
    from querator.spark.pipelines.ingesting import ingest
    from querator.spark.pipelines.redriving import redrive
    from querator.spark.pipelines.replaying import replay
    from querator.spark.pipelines.scans import QueueScan
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
    from querator.spark.pipelines.summary import BatchProgress, Control, Count, Summary

__all__ = [
    "ArchiveSettings",
    "BatchProgress",
    "Columns",
    "Control",
    "CopySettings",
    "Count",
    "DeadGroup",
    "IngestSettings",
    "PipelineFailed",
    "QueuePlace",
    "QueueScan",
    "RedriveSettings",
    "RedriveSummary",
    "ReplaySettings",
    "SettingsError",
    "StatsSettings",
    "Summary",
    "archive",
    "copy",
    "ingest",
    "open_session",
    "redrive",
    "replay",
    "stats",
]  # fmt: skip

_HOMES: Final = {
    "archive": "archiving",
    "copy": "copying",
    "ingest": "ingesting",
    "QueueScan": "scans",
    "stats": "counting",
    "open_session": "session",
    "redrive": "redriving",
    "replay": "replaying",
    "DeadGroup": "summary",
    "RedriveSummary": "summary",
    "PipelineFailed": "failures",
    "Control": "summary",
    "Count": "summary",
    "BatchProgress": "summary",
    "Summary": "summary",
}
"""Modules of the names that are not in `settings`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'settings')}"), name)
