"""Where Spark finds the format `querator` by itself: it imports every top-level module named
`pyspark_*`, and takes `DefaultSource`. The build puts this into the wheel as `pyspark_querator`.

Nothing is imported here before it is asked for: a module that fails would switch off the discovery
of all others as well, silently.
"""

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from querator.spark import QueratorDataSource
        except ImportError:
            # Whoever registers the source, or imports it, is told why.
            pass
        else:
            return QueratorDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
