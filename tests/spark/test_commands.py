"""What the commands of `querator spark` say on standard error, from processes of their own."""

import subprocess
import sys
from itertools import count
from typing import Any

import msgspec
import pytest

from querator import SyncClient
from tests.spark.conftest import Nodes

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("java")]
NUMBERS = count()
STARTS = (
    "Checking queues, then starting Spark on local[1]: half a minute without figures is usual.",
    "Spark runs.",
)


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


def test_a_command_says_at_once_what_it_does(node, queue):
    code, out, error = run(node, "stats", queue, "--output", "json")
    assert code == 0
    assert [msgspec.json.decode(line)["queue"] for line in out.splitlines()] == [queue]
    assert error.splitlines() == [*STARTS, f"Scanning {queue}."]


def test_an_archive_with_a_misspelt_column_says_one_line(node, queue, tmp_path):
    arguments = ("archive", queue, tmp_path / "lake", "--reader-id", "lake")
    code, out, error = run(node, *arguments, "--partition-by", "kindd")
    assert (code, out) == (2, "")
    assert error.splitlines() == [
        *STARTS,
        "Error: --partition-by kindd: there is no column kindd; did you mean kind, id, key, group "
        "or queue?",
    ]


def test_an_ingest_with_a_wrong_priority_says_one_line(node, queue, tmp_path):
    (tmp_path / "in.csv").write_text("id\nurgent\n")
    code, out, error = run(
        node, "ingest", tmp_path / "in.csv", queue, "--format", "csv", "--priority", "id"
    )
    assert (code, out) == (1, "")
    assert error.splitlines() == [
        *STARTS,
        "Error: The value 'urgent' is no int; try_cast(… AS int) makes null of such a value.",
    ]


def test_an_ingest_with_a_priority_from_a_text(node, queue, client, tmp_path):
    (tmp_path / "in.csv").write_text("name,prio\na,5\nb,-5\nc,\n")
    code, _, _ = run(
        node, "ingest", tmp_path / "in.csv", queue, "--format", "csv",
        "--value", "name", "--priority", "prio",
    )  # fmt: skip
    assert code == 0
    found = {one.item.payload: one.priority for one in client.peek(queue)}
    assert found == {b"x": 0, b"a": 5, b"b": -5, b"c": 0}


@pytest.mark.parametrize("command", ["archive", "ingest"])
def test_a_cloud_without_its_package_is_refused(node, queue, client, command):
    arguments = {
        "archive": (queue, "s3a://lake/orders", "--reader-id", "lake"),
        "ingest": ("s3a://lake/orders", queue, "--format", "json"),
    }[command]
    code, out, error = run(node, command, *arguments)
    assert (code, out) == (2, "")
    last = error.splitlines()[-1]
    assert last.startswith(
        "Error: PATH is s3a://lake/orders: Spark has no file system for s3a://, which is in "
        "package org.apache.hadoop:hadoop-aws. Add it with --conf spark.jars.packages="
        "org.apache.hadoop:hadoop-aws:"
    )
    assert "Traceback" not in error
    assert [(one.item.payload, one.state.name) for one in client.peek(queue)] == [(b"x", "READY")]
