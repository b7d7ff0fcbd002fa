"""The SparkSession of the command line: quiet, in this process, with the data source registered."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

JAVA_LEAST: Final = 17
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for Java's quickest start, for programs that end before better code would pay."""
_WORKER_PYTHON: Final = Path(__file__).with_name("worker_python")
_VERSION: Final = re.compile(r'version "(\d+)')
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark's traces take pages; the command prints one line.
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    # Writes files of several directories at a time, instead of a sort of all rows by directory.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
}


class JavaMissing(RuntimeError):
    """Java is missing or too old; the message names the version that is needed."""


def open_session(master: str, settings: Mapping[str, str], *, name: str = "querator") -> Any:
    """A session with `settings` over the defaults of pipelines. Raises ImportError (PySpark is
    missing or unsuitable), JavaMissing and PipelineFailed.
    """
    # It must be set before gRPC is loaded, and before Spark forks this process.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    from querator.spark.requirements import check_requirements

    check_requirements()
    check_java()
    local = master.startswith("local")
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ.update(worker_python() if local else {"PYSPARK_PYTHON": sys.executable})
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from querator.spark.pipelines.failures import explained
    from querator.spark.registration import register

    # These loggers print each SQL error with all frames of Java, and the error is raised as well.
    for each in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(each).disabled = True
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_DEFAULTS, **settings}.items():
        builder = builder.config(key, value)
    with explained():
        session = builder.getOrCreate()
        register(session)
    return session


def worker_python() -> dict[str, str]:
    """Variables that make Spark's workers on this machine use this interpreter and start in half
    the time: see the script. A running Java process does not see its variable.
    """
    from pyspark import SparkContext

    if SparkContext._gateway is not None or not os.access(_WORKER_PYTHON, os.X_OK):
        return {"PYSPARK_PYTHON": sys.executable}
    return {"PYSPARK_PYTHON": str(_WORKER_PYTHON), "QUERATOR_WORKER_PYTHON": sys.executable}


def adopt(spark: Any) -> None:
    """Makes the session active in this thread: Java looks up the targets of writes there."""
    spark.createDataFrame([], "value string")


def check_java() -> None:
    """Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        where = f"JAVA_HOME is {home}, and has no bin/java" if home else "there is no java on PATH"
        raise JavaMissing(f"Spark needs Java {JAVA_LEAST} or newer: {where}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = _VERSION.search(said)
    version = int(found[1]) if found else 0
    if version < JAVA_LEAST:
        raise JavaMissing(f"Spark needs Java {JAVA_LEAST} or newer: {java} is version {version}")
