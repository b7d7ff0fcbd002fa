"""A seed is useful only if it does the same each time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.world import simulate

# Many clusters are run in one test, beside all other tests at the lowest priority.
pytestmark = pytest.mark.timeout(2700)

SEEDS = (3, 8, 99)
_PROGRAM = (
    "from tests.simulation.world import simulate\n"
    f"print([simulate(seed).trace for seed in {SEEDS}])"
)


def traces(hash_seed: str) -> str:
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_one_seed_has_one_trace_whatever_the_hashes_of_the_process():
    first = traces("1")
    assert first == traces("2")
    assert str([simulate(seed).trace for seed in SEEDS]) == first.strip()


def test_two_seeds_have_different_traces():
    assert simulate(1).trace != simulate(2).trace


def test_telling_what_happens_changes_nothing():
    told: list[str] = []
    assert simulate(3, tell=told.append).trace == simulate(3).trace
    assert any("is connected to" in line for line in told)
    assert any("Append" in line for line in told)
