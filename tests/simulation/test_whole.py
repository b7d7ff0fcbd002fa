"""Whole nodes: a number of seeds from the first on.

`WHOLE_SEEDS` is their number, and `SEED_START` the first one; `HARSH_SEEDS` is the number of seeds
with more faults at once.
"""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querator.node_core import NodeCore
from tests.simulation import whole
from tests.simulation.seeds import known
from tests.simulation.timeline import MS, SECOND
from tests.simulation.whole import node
from tests.simulation.whole.profile import HARSH_FROM, draw
from tests.simulation.whole.world import WholeWorld, simulate_whole

# Many clusters are run in one test, beside all other tests at the lowest priority.
pytestmark = pytest.mark.timeout(2700)

CHUNK = 10
"""Seeds in one test."""

FIRST = int(os.environ.get("SEED_START", "1"))
COUNT = int(os.environ.get("WHOLE_SEEDS", "60"))
HARSH = int(os.environ.get("HARSH_SEEDS", "10"))
SEEDS = (3, 8, 36)
_PROGRAM = (
    "from tests.simulation.whole.world import simulate_whole\n"
    f"print([simulate_whole(seed).trace for seed in {SEEDS}])"
)


def run(seeds: list[int]) -> None:
    for seed in seeds:
        found = simulate_whole(seed).violations
        assert not found, "\n".join([*found[:5], f"again: make sim WHOLE=1 SEED={seed}"])


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_nothing_is_found(first: int):
    run(list(range(first, min(first + CHUNK, FIRST + COUNT))))


@pytest.mark.parametrize("first", range(HARSH_FROM, HARSH_FROM + HARSH, CHUNK))
def test_nothing_is_found_with_more_at_once(first: int):
    run(list(range(first, min(first + CHUNK, HARSH_FROM + HARSH))))


@pytest.mark.parametrize("seed", known(Path(whole.__file__).parent))
def test_what_was_found_once_is_not_found_again(seed: int):
    run([seed])


def traces(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_one_seed_has_one_trace_whatever_the_hashes_of_the_process():
    first = traces("1")
    assert first == traces("2")
    assert str([simulate_whole(seed).trace for seed in SEEDS]) == first.strip()


def test_telling_what_happens_changes_nothing():
    told: list[str] = []
    assert simulate_whole(3, tell=told.append).trace == simulate_whole(3).trace
    assert any("serves" in line for line in told)
    assert any("SettleReply" in line for line in told)


@pytest.mark.parametrize("fault", ["lost disk", "old copy", "twins"])
def test_no_two_starts_of_nodes_name_leases_alike(fault: str, monkeypatch: pytest.MonkeyPatch):
    """Nor do starts of one node on several copies of its data, which count the same starts."""
    born: list[str] = []

    def noted(*args: Any, **more: Any) -> NodeCore:
        born.append(more["born"])
        return NodeCore(*args, **more)

    monkeypatch.setattr(node, "NodeCore", noted)
    profile = replace(
        draw(1, random.Random(1)),
        nodes=3, faults=(fault,), faulty_us=10 * SECOND, fault_every_us=700 * MS, winding=False,
        stuck=False, readers=False, lapsing=False, retiring=False, removing=False, ranked=False,
    )  # fmt: skip
    world = WholeWorld(1, profile=profile)
    assert world.run().violations == []
    assert world.replacing.lost is not None or world.copies.happened
    assert sorted(born) == sorted(set(born))
