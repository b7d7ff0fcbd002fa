"""The disk probe of the pause measurement: which of its writes count in a window."""

import time
from pathlib import Path

from scripts.bench.disk import Disk


def test_a_write_counts_in_the_windows_that_it_reaches_into(tmp_path: Path):
    path = tmp_path / "probe"
    path.write_bytes(b"")
    disk = Disk()
    before_s = time.monotonic()
    disk.write(path)
    after_s = time.monotonic()
    longest_s = disk.longest(before_s, after_s)
    assert 0 < longest_s <= after_s - before_s
    assert disk.longest(before_s - 2, before_s) == disk.longest(after_s, after_s + 2) == 0.0
