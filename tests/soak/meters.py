"""Resources of a node: memory, descriptors, bytes in its file, groups; and their growth."""

import asyncio
import os
import statistics
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.process_cluster import ProcessCluster
from tests.soak.faults import STEADY, Ballast

PAUSE_S = 5.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Sample(msgspec.Struct, frozen=True):
    """One node at one instant, in seconds since the run began. `calm`: nothing was wrong, and there
    was no load. `filling`: the disk was being filled, or emptied again. `used_bytes` and `groups`
    are -1 where the node did not answer.
    """

    at_s: float
    node: str
    calm: bool
    filling: bool
    rss_bytes: int
    descriptors: int
    file_bytes: int
    used_bytes: int
    groups: int


class Latency(msgspec.Struct, frozen=True):
    """Latencies of the produces of one bout, in milliseconds."""

    at_s: float
    produces: int
    p50_ms: float
    p99_ms: float


class Meters:
    def __init__(self, cluster: ProcessCluster, admin: dict[str, str], ballast: Ballast) -> None:
        """`admin`: addresses of the admin ports, by node."""
        self._cluster = cluster
        self._admin = admin
        self._ballast = ballast
        self._began_s = time.monotonic()
        self.samples: list[Sample] = []

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self.look(calm=False)
            await asyncio.sleep(PAUSE_S)

    async def look(self, *, calm: bool) -> None:
        for name in self._cluster.by_name:
            # A node that has just been killed is measured the next time.
            with suppress(OSError, AssertionError):
                self.samples.append(await asyncio.to_thread(self._look, name, calm))

    def _look(self, name: str, calm: bool) -> Sample:
        member = self._cluster[name]
        pid = member.pid
        with open(f"/proc/{pid}/statm") as statm:
            resident, shared = map(int, statm.read().split()[1:3])
        # The mapped file has a row of its own; the kernel may take back its pages.
        rss_bytes = (resident - shared) * _PAGE_BYTES
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        file_bytes = sum(
            path.stat().st_blocks * 512 for path in member.data_dir.iterdir() if path.is_file()
        )
        used_bytes, groups = self._metrics(name)
        return Sample(
            at_s=self.now_s(),
            node=name,
            calm=calm,
            filling=self._ballast.filling,
            rss_bytes=rss_bytes,
            descriptors=descriptors,
            file_bytes=file_bytes,
            used_bytes=used_bytes,
            groups=groups,
        )

    def _metrics(self, name: str) -> tuple[int, int]:
        try:
            with urllib.request.urlopen(f"http://{self._admin[name]}/metrics", timeout=2) as page:
                text = page.read().decode()
        except OSError:
            return -1, -1
        sums = {"querator_storage_used_bytes": 0.0, "querator_raft_groups": 0.0}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in sums:
                    sums[sample.name] += sample.value
        return int(sums["querator_storage_used_bytes"]), int(sums["querator_raft_groups"])


Measure = Callable[[Sample], int]
SIZE_OF_FILE = "size of the file, without what fills added"
GROWN: tuple[tuple[str, Measure, float, int], ...] = (
    ("memory without the file", lambda sample: sample.rss_bytes, 1.10, 0),
    ("descriptors", lambda sample: sample.descriptors, 1.0, 20),
    ("bytes in use in the file", lambda sample: sample.used_bytes, 1.10, 4 << 20),
    (SIZE_OF_FILE, lambda sample: sample.file_bytes, 1.10, 16 << 20),
    ("groups", lambda sample: sample.groups, 1.0, 0),
)
"""Allowed growth from the first third to the last one: a factor, and an amount beyond it.

The file may grow while the disk is filled: values of 256 KiB need runs of free pages, and rows that
live elsewhere in the file are in between (docs/storage.md).
"""


def growth(samples: Sequence[Sample]) -> list[tuple[str, float, float, bool]]:
    """Resources of the calm steady node: in the first third after a warm-up of a fifth, in the last
    third (medians), and whether the growth is too much. The backlog is the same each time.
    """
    steady = without_fills([sample for sample in samples if sample.node == STEADY])
    calm = [sample for sample in steady if sample.calm]
    calm = calm[len(calm) // 5 :]
    third = max(1, len(calm) // 3)
    if len(calm) < 2:
        return []
    found = []
    for name, measure, factor, beside in GROWN:
        first = statistics.median(measure(sample) for sample in calm[:third])
        last = statistics.median(measure(sample) for sample in calm[-third:])
        found.append((name, first, last, last > first * factor + beside))
    return found


def without_fills(samples: Sequence[Sample]) -> list[Sample]:
    """Samples of one node, without the growth of its file between two samples of which one saw the
    disk being filled.
    """
    found: list[Sample] = []
    added_bytes = 0
    for before, sample in zip([*samples[:1], *samples], samples, strict=False):
        if before.filling or sample.filling:
            added_bytes += sample.file_bytes - before.file_bytes
        found.append(msgspec.structs.replace(sample, file_bytes=sample.file_bytes - added_bytes))
    return found
