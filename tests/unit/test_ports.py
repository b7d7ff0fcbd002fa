"""Tests that run at the same time search for ports in parts of their own."""

import itertools

from querator.cli.demo import local_nodes
from tests.ports import TIERS, WORKERS, part

NODES = 3 * 64
"""Ports that a worker needs at the same time, at most."""


def test_the_parts_do_not_overlap_and_are_all_in_the_range():
    parts = sorted(part(tier, worker) for tier in TIERS for worker in range(WORKERS))
    least, most = vars(local_nodes)["_PORTS"]
    assert parts[0][0] >= least
    assert parts[-1][1] <= most
    for (first, last), (following, _) in itertools.pairwise(parts):
        assert first + NODES < last < following
