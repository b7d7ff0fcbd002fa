"""The registration of the data source in a session, such that its queries may begin together.

Spark's runner of a streaming source (`PythonStreamingSourceRunner`, in 4.3) puts four variables of
the environment into a map that belongs to the registered source. All its queries use the same map,
each from a thread of its own, and every task takes a copy along. When two queries begin at the same
moment, the map may come to count more entries than it has; from then on, every task fails with
OptionalDataException. Entries that are there are only given other values, and that spoils nothing:
so they are there from the beginning. What stands for the values here is what Spark has by default.
"""

from typing import Any, Final

_VARIABLES: Final = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}


def register(spark: Any, source: type | None = None) -> None:
    """Makes format `querator` known to the session; `source`: a class that takes the place of
    `QueratorDataSource`. Several streaming queries of the session may begin at the same moment.

    Over Spark Connect it is `spark.dataSource.register`: there such queries begin one by one.
    """
    if source is None:
        from querator.spark import QueratorDataSource as source
    from pyspark.sql.utils import is_remote

    if is_remote():
        spark.dataSource.register(source)
        return
    environment = spark.sparkContext.environment
    added = {name: value for name, value in _VARIABLES.items() if name not in environment}
    environment.update(added)
    try:
        spark.dataSource.register(source)
    finally:
        for name in added:
            del environment[name]
