"""Runs seeds until one finds something, and prints the result as one line of JSON.

`python -m tests.simulation.defects.trial SIMULATOR START SEEDS NEEDS MUTANT`, in the copy of the
project that has the defect; NEEDS and MUTANT may be empty.
"""

import contextlib
import logging
import random
import sys
from typing import Any

import msgspec

from tests.simulation import mutants
from tests.simulation.profile import draw as draw_core
from tests.simulation.whole import mutants as whole_mutants
from tests.simulation.whole.profile import draw as draw_whole
from tests.simulation.whole.world import simulate_whole
from tests.simulation.world import simulate


class Found(msgspec.Struct):
    """`seed` 0: no seed of the run found anything."""

    seed: int
    run: int
    violations: list[str]


def may_find(simulator: str, seed: int, needs: str) -> bool:
    """Whether the seed has any of what is needed."""
    name, draw = ("whole", draw_whole) if simulator == "whole" else ("world", draw_core)
    profile = draw(seed, random.Random(f"{name} {seed}"))
    wanted = [one.strip() for one in needs.split(",") if one.strip()]
    return not wanted or any(
        one in profile.faults or getattr(profile, one, False) for one in wanted
    )


def search(simulator: str, start: int, seeds: int, needs: str = "", mutant: str = "") -> Found:
    run = simulate_whole if simulator == "whole" else simulate
    broken: Any = contextlib.nullcontext
    if mutant:
        broken = getattr(whole_mutants if simulator == "whole" else mutants, mutant)
    with broken():
        for seed in range(start, start + seeds):
            if not may_find(simulator, seed, needs):
                continue
            violations = run(seed).violations
            if violations:
                return Found(seed, seed - start + 1, violations[:5])
    return Found(0, seeds, [])


if __name__ == "__main__":
    logging.disable()
    simulator, start, seeds, *more = sys.argv[1:]
    found = search(simulator, int(start), int(seeds), *more)
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
