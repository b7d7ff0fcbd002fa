"""Ports of nodes that run at the same time: in two tiers (`make test`), and in two workers of one.

A port is free when it is searched for, and its node takes it a moment later. So each tier and each
of its workers searches in a part of the ports of its own.
"""

import os
from typing import Final

from querator.cli.demo import local_nodes

TIERS: Final = ("integration", "spark", "clients", "powerloss", "conformance")
WORKERS: Final = 2
"""Workers of a tier, of which no two search for the same ports."""
_LEAST, _MOST = vars(local_nodes)["_PORTS"]


def part(tier: str, worker: int) -> tuple[int, int]:
    """The first and the last port in which a worker of this tier searches."""
    size = (_MOST + 1 - _LEAST) // (len(TIERS) * WORKERS)
    first = _LEAST + size * (TIERS.index(tier) * WORKERS + worker % WORKERS)
    return first, first + size - 1


def keep_to_part(tier: str) -> None:
    """Makes this process search only in its part."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    vars(local_nodes)["_PORTS"] = part(tier, worker)
