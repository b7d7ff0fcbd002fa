"""Whether files that settings name have changed."""

import os
from collections.abc import Iterable


def times_of(names: Iterable[str]) -> tuple[int, ...]:
    """When each was last written, in whatever unit: two calls differ when one has changed. Empty
    names, and files that are not there, have a time of their own. Blocks.
    """
    times = []
    for name in names:
        try:
            times.append(os.stat(name).st_mtime_ns if name else 0)
        except OSError:
            times.append(-1)
    return tuple(times)
