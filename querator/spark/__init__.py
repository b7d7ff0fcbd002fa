"""Queues as a data source of Spark: `QueratorDataSource`, format `querator`, and `register`.

    from querator.spark import register
    register(spark)
    spark.read.format("querator").option("endpoint", "…").option("queue", "…").load()
    spark.readStream.format("querator").option("readerId", "…")….load()

It runs in the processes that Spark starts: schema and partitions on the driver, rows on executors,
which go straight to the leaders of partitions. Nothing here opens a connection before it is used:
readers are pickled, and processes forked. See docs/spark.md. Needs the extra `querator[spark]`.

The modules and sub-packages:

    answers       answers of scans, with payloads kept apart
    browsing      the batch reader: a scan, planned on the driver
    columns       answers as Arrow record batches
    discovery     lets Spark find the data source by its name
    flights       the example on real data, `querator spark demo`
    offsets       positions of a stream in Spark's checkpoint
    options       options of the data source
    oversize      rows that are larger than an item may be
    pipelines     ready pipelines between queues and files
    reader_run    one run of a reader, in the driver
    registration  registers the data source in a session
    report        reports as one HTML file each
    requirements  the PySpark that is required
    rows          rows that are written, as items in the protocol's bytes
    rpc           synchronous calls from Spark's processes
    schema        the columns of reads
    sending       items on their way from a task to the nodes
    sink_options  options of writes
    source        the data source as Spark knows it
    streaming     the stream reader: named batches of a reader
    writing       writers: what tasks and the driver do of a write
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
