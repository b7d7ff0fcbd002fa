"""Queues as a data source of Spark: `QueratorDataSource`, format `querator`, and `register`.

    from querator.spark import register
    register(spark)
    spark.read.format("querator").option("endpoint", "…").option("queue", "…").load()
    spark.readStream.format("querator").option("readerId", "…")….load()

It runs in the processes that Spark starts: schema and partitions on the driver, rows on executors,
which go straight to the leaders of partitions. Nothing here opens a connection before it is used:
readers are pickled, and processes forked. See docs/spark.md. Needs the extra `querator[spark]`.
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
