"""Wall clocks of nodes, set forward and back while they run, or before they start."""

import struct
from pathlib import Path

import pytest

from tests import preload
from tests.integration.process_cluster import ProcessCluster


class WallClocks:
    """Clocks of nodes that are started after this: each can be stepped."""

    def __init__(self, cluster: ProcessCluster, library: Path) -> None:
        self._offsets = {}
        for name, member in cluster.by_name.items():
            self._offsets[name] = cluster.home / f"clock-{name}"
            self.step(name, 0)
            member.environment = environment(library, self._offsets[name])

    def step(self, name: str, offset_ms: int) -> None:
        """Sets the node's wall clock at this offset from the machine's."""
        step(self._offsets[name], offset_ms)


def step(offset: Path, offset_ms: int) -> None:
    with offset.open("r+b" if offset.exists() else "wb") as file:
        file.write(struct.pack("=q", offset_ms))


def environment(library: Path, offset: Path) -> dict[str, str]:
    """Environment of a process whose clock can be stepped."""
    return {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}


def built(directory: Path) -> Path:
    """The library that steps clocks."""
    if preload.compiler() is None:
        pytest.skip("no C compiler for the library that steps clocks")
    return preload.build(Path(__file__).with_name("offset.c"), directory)
