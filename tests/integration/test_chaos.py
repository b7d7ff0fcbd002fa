"""A short run of `make chaos`: load and random faults on three real nodes, then every checker."""

import os
from pathlib import Path

import pytest

from tests.chaos.run import chaos

SEED = int(os.environ.get("CHAOS_SEED", "1"))
MINUTES = 0.4


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [SEED])
async def test_faults_break_no_promise(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    kept = tmp_path / "history"
    request.node.add_report_section("call", "check again", f"python -m tests.checkers {kept}")
    run = await chaos(tmp_path, minutes=MINUTES, seed=seed)
    assert run.report.lines()[:-1] == []
    assert run.faults.total() > 0
    assert {op.queue for op in run.history.operations} == set(run.history.queues)
    assert run.report.operations["complete"] > 100
