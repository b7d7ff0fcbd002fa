"""What Spark's short-lived processes load: a query has several, and imports are most of what such a
process does.
"""

import subprocess
import sys

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
