"""Programs against their twins in plain asyncio; `python -m tests.unit.durable.random_programs`
compares more of them.
"""

import os
import subprocess
import sys

import pytest

from querator.durable.machine import living
from tests.unit.durable.random_programs import compare, replay_prefixes

SEEDS = 200
PREFIXES_OF = 40


def test_programs_do_what_their_twins_in_plain_asyncio_do():
    counts = [compare(seed) for seed in range(SEEDS)]
    assert sum(folded for _, folded in counts) > 100, "the programs have calls that are folded"
    assert living() == 0


def test_each_prefix_of_a_journal_replays_to_where_the_code_was():
    assert sum(replay_prefixes(seed) for seed in range(PREFIXES_OF)) > 500


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_programs_do_the_same_under_other_hash_seeds(hash_seed):
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.durable.random_programs", "--seeds", "20"],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "20 programs as their twins" in done.stdout
