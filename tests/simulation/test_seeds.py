"""Seeds: a number of them from the first on, and all that have ever found something.

`SIMULATION_SEEDS` is their number, and `SEED_START` the first one.
"""

import os
from pathlib import Path

import pytest

from tests.simulation.seeds import known
from tests.simulation.world import simulate

# Many clusters are run in one test, beside all other tests at the lowest priority.
pytestmark = pytest.mark.timeout(2700)

CHUNK = 10
"""Seeds in one test."""

FIRST = int(os.environ.get("SEED_START", "1"))
COUNT = int(os.environ.get("SIMULATION_SEEDS", "40"))


def run(seeds: list[int]) -> None:
    for seed in seeds:
        found = simulate(seed).violations
        assert not found, "\n".join([*found[:5], f"again: make sim SEED={seed}"])


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_nothing_is_found(first: int):
    run(list(range(first, min(first + CHUNK, FIRST + COUNT))))


@pytest.mark.parametrize("seed", known(Path(__file__).parent))
def test_what_was_found_once_is_not_found_again(seed: int):
    run([seed])


def test_nothing_is_found_on_real_files():
    run([99])
