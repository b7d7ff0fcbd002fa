"""A short run of `make grow`: nodes and partitions come and go under flights, and all counts
balance.
"""

from pathlib import Path

import pytest

from tests.growth.__main__ import told
from tests.growth.run import SHORT, grow


@pytest.mark.timeout(SHORT.limit_s + 60)
async def test_nothing_is_lost_or_doubled_while_a_cluster_grows_and_shrinks(tmp_path: Path):
    lines: list[str] = []
    outcome = await grow(tmp_path, SHORT, lines.append)
    assert outcome.problems == [], "\n".join([*lines, *told(outcome)])
    assert len(outcome.books.rounds) > 1
