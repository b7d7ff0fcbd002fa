"""The first program of docs/spark.md, started by the path of its interpreter: the environment is
not activated, and the `python3` of PATH is another one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from querator import Item, SyncClient

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
ENDPOINT = "a.example:4470,b.example:4470"


@pytest.mark.timeout(300)
def test_the_first_program_runs_its_own_interpreter(java, node, tmp_path):
    with SyncClient(node.endpoint) as client:
        client.create_queue("orders")
        client.produce("orders", Item(b"1", kind="book"), Item(b"2", kind="book"))
    program = PAGE.split("```python\n")[1].split("```")[0]
    assert ENDPOINT in program
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 'not this interpreter' >&2\nexit 97\n")
    other.chmod(0o755)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYSPARK") and name not in ("PYTHONPATH", "QUERATOR_WORKER_PYTHON")
    }
    done = subprocess.run(
        [sys.executable, "-c", f"{program.replace(ENDPOINT, node.endpoint)}\nregister(spark)\n"],
        env={**environment, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "|ready|book|    2|" in done.stdout
    assert "replaced a previously registered data source" not in done.stderr
