"""Registration of the data source in a session, such that its queries may begin at the same time.

Spark's runner of a streaming source (`PythonStreamingSourceRunner`, in 4.3) puts four variables of
the environment into a map that belongs to the registered source. All queries of the source use the
same map, each from its own thread, and every task takes a copy of it. When two queries begin at the
same moment, the map may count more entries than it has; every later task then fails with
OptionalDataException. To change the value of an existing entry is safe. `register` therefore
creates the four entries, with Spark's default values.

Spark starts the `python3` of PATH for its Python processes unless PYSPARK_PYTHON names another one.
Where the environment of the program is not activated, that is another interpreter, which may lack
PySpark. With `register` a session on this machine therefore uses the interpreter of the program.

Where the wheel is installed, Spark has found the source by itself when `register` is called, and
warns that the source is replaced. The source replaces itself, so the warning is kept back.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_VARIABLES: Final = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}

_MANAGER: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"
"""Name of the logger that warns."""


def register(spark: Any, source: type | None = None) -> None:
    """Makes the format `querator` known to the session. `source` is a class that replaces
    `QueratorDataSource`. Several streaming queries of the session may begin at the same moment.

    If the session runs on this machine (master `local…`), and neither PYSPARK_PYTHON nor
    `spark.pyspark.python` is set, then the Python processes of the session use this interpreter.

    Over Spark Connect it calls only `spark.dataSource.register`: such queries must begin one by
    one.
    """
    if source is None:
        from querator.spark import QueratorDataSource as source
    from pyspark.sql.utils import is_remote

    if is_remote():
        spark.dataSource.register(source)
        return
    _use_this_python(spark.sparkContext)
    environment = spark.sparkContext.environment
    added = {name: value for name, value in _VARIABLES.items() if name not in environment}
    environment.update(added)
    try:
        with _without_warning(spark):
            spark.dataSource.register(source)
    finally:
        for name in added:
            del environment[name]


@contextmanager
def _without_warning(spark: Any) -> Iterator[None]:
    """Spark does not warn, within the block, that a source replaces another one of its name."""
    log4j = spark._jvm.org.apache.logging.log4j
    configurator = log4j.core.config.Configurator
    level = log4j.LogManager.getLogger(_MANAGER).getLevel()
    if level.isMoreSpecificThan(log4j.Level.ERROR):
        yield
        return
    configurator.setLevel(_MANAGER, log4j.Level.ERROR)
    try:
        yield
    finally:
        configurator.setLevel(_MANAGER, level)


def _use_this_python(context: Any) -> None:
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if context.master.startswith("local") and not chosen:
        context.pythonExec = sys.executable
