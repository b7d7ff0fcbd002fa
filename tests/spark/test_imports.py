"""Modules that Spark's short-lived processes load. A query has several processes, and imports are
most of their work.
"""

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from querator.spark.pipelines.session import worker_python

PROGRAM = """
import sys
import pyspark.sql.worker.create_data_source

def loaded(*names):
    print([name for name in names if name in sys.modules])

from querator.spark import QueratorDataSource
source = QueratorDataSource({"endpoint": "h:1", "queue": "q", "readerId": "lake"})
source.schema()
loaded("grpc", "pyarrow", "numpy", "querator.client.client")
import querator.spark.browsing, querator.spark.streaming, querator.spark.writing
loaded("pyarrow", "numpy", "querator.client.client")
"""


def test_schemas_need_no_grpc_and_plans_and_commits_no_arrow():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_workers_of_a_local_session_load_what_is_compiled(monkeypatch):
    """Spark puts a zip of its modules in front: each process would compile them again."""
    lib = Path(pyspark.__path__[0], "python", "lib")
    zips = [str(path) for path in lib.glob("*.zip")]
    assert zips
    path = os.pathsep.join([*zips, "/a b/*", "/c"])
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", None)
    ours = worker_python()
    done = subprocess.run(
        [
            ours["PYSPARK_PYTHON"],
            "-c",
            "import os, sys; print(os.environ['PYTHONPATH'], sys.argv)",
            "a b",
        ],
        env={**os.environ, **ours, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "/a b/*:/c ['-c', 'a b']\n"


def test_a_java_that_runs_already_starts_this_interpreter(monkeypatch):
    """The script's variable would not be in its environment."""
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", object())
    assert worker_python() == {"PYSPARK_PYTHON": sys.executable}
