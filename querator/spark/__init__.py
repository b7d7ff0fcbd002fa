"""Queues as a Spark data source: `QueratorDataSource` (format `querator`) and `register`.

    from querator.spark import register
    register(spark)
    spark.read.format("querator").option("endpoint", "…").option("queue", "…").load()
    spark.readStream.format("querator").option("readerId", "…")….load()

The code runs in the processes that Spark starts: schema and partitions on the driver, rows on
executors, which connect directly to the leaders of partitions. Connections are opened at their
first use, because readers are pickled and processes are forked. The package needs the extra
`querator[spark]`. See docs/spark.md. Commands of the command line are in `querator.cli.spark`.

    answers         answers of scans, with the payloads apart from the message
    browsing        the batch reader: a snapshot scan of a queue
    columns         columns of the protocol as Arrow record batches
    offsets         offsets of a stream, as Spark's checkpoint keeps them
    options         options of reads: names, limits and checks
    oversize        rows whose payload is too large: an error, or skipped
    reader_run      one run of a reader, on the driver
    registration    registration of the data source in a session
    requirements    the versions of PySpark and PyArrow that are needed
    retry_column    the column of writes with an item's own retry policy
    row_words       a row in a few words, for errors
    rows            rows to be written, as items in the protocol's bytes
    rpc             synchronous calls of Spark's processes to the nodes
    schema          the columns of reads, without Arrow
    sending         requests of a write, several of them in flight
    sink_options    options of writes
    source          the data source class that Spark instantiates
    streaming       the stream reader: named batches of a reader
    writing         batch and stream writers
    discovery       the module by which Spark finds the format by itself
    flights         the example on real data: `querator spark demo`
    pipelines       ready pipelines between queues and files
    report          HTML reports and their charts
"""

from typing import TYPE_CHECKING, Any

from querator.spark.registration import register

if TYPE_CHECKING:
    from querator.spark.source import QueratorDataSource

__all__ = ["QueratorDataSource", "register"]


def __getattr__(name: str) -> Any:
    if name != "QueratorDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from querator.spark.requirements import check_requirements

    check_requirements()
    from querator.spark.source import QueratorDataSource

    return QueratorDataSource
