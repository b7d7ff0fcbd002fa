"""What the commands of `querator spark` say on standard error, from processes of their own."""

import subprocess
import sys
from itertools import count
from typing import Any

import pytest

from querator import SyncClient
from tests.spark.conftest import Nodes

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("java")]
NUMBERS = count()


@pytest.fixture
def queue(client: SyncClient) -> str:
    """A queue of the test's own, with one item."""
    name = f"command-{next(NUMBERS)}"
    client.create_queue(name)
    client.produce(name, b"x")
    return name


def run(node: Nodes, *arguments: Any) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "querator", "spark", *map(str, arguments)]
    command += ["--address", node.endpoint, "--master", "local[1]"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def test_an_archive_with_a_misspelt_column_says_one_line(node, queue, tmp_path):
    arguments = ("archive", queue, tmp_path / "lake", "--reader-id", "lake")
    outcome = run(node, *arguments, "--partition-by", "kindd")
    assert outcome == (
        2,
        "",
        "Error: --partition-by kindd: there is no column kindd; did you mean kind, id, key, group "
        "or queue?\n",
    )


def test_an_ingest_with_a_wrong_priority_says_one_line(node, queue, tmp_path):
    (tmp_path / "in.csv").write_text("id\n5\n")
    outcome = run(node, "ingest", tmp_path / "in.csv", queue, "--format", "csv", "--priority", "id")
    assert outcome == (
        2,
        "",
        "Error: --priority is string: it must be int, as by cast(… AS int).\n",
    )
