"""A short run of `make spark-chaos`: a worker, a leader and the driver are killed under load. Every
produced item is archived once, and copied once.
"""

from pathlib import Path

import pytest

from tests.spark_chaos.__main__ import told
from tests.spark_chaos.run import SHORT, chaos


@pytest.mark.timeout(900)
async def test_each_item_is_archived_and_copied_once_whoever_is_killed(java, tmp_path: Path):
    lines: list[str] = []
    outcome = await chaos(tmp_path, SHORT, seed=1, say=lines.append)
    assert outcome.problems == [], "\n".join([*lines, *told(outcome)])
    assert outcome.kills == {"worker": 1, "leader": 1, "driver": 1}
