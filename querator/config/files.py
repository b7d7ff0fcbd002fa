"""Detects changes of files that settings name."""

import os
from collections.abc import Iterable


def times_of(names: Iterable[str]) -> tuple[int, ...]:
    """Modification time of each file; the result differs from the last one when a file has changed.
    Empty names and missing files have values of their own. Blocks.
    """
    times = []
    for name in names:
        try:
            times.append(os.stat(name).st_mtime_ns if name else 0)
        except OSError:
            times.append(-1)
    return tuple(times)
