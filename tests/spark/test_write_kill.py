"""A driver that is killed between stage and commit: what it wrote balances, and is there once."""

import signal
import subprocess
import sys

import pytest

from querator import SyncClient
from tests.spark.test_write import Texts, create, numbers, values

FILES, LINES = 3, 500


def staged(endpoint: str, queue: str) -> int:
    """Items that are staged and not committed."""
    with SyncClient(endpoint) as client:
        return sum(batch.items for batch in client.staged_batches(queue).batches)


@pytest.mark.timeout(300)
def test_a_driver_killed_between_stage_and_commit_writes_each_row_once(spark, node, tmp_path):
    options = create(node, "killed", partitions=2)
    texts = Texts(spark, tmp_path)
    for number in range(FILES):
        texts.add(str(number), *range(number * LINES, (number + 1) * LINES))
    command = [sys.executable, "-m", "tests.spark.piping", str(tmp_path), *options.values()]
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.run(command, stdout=log, stderr=log, check=False)
    assert run.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()[-4000:]
    assert staged(node.endpoint, "killed") == LINES
    texts.start(texts.frame().writeStream.format("querator").options(**options))
    assert values(spark, node, "killed") == numbers(FILES * LINES)
