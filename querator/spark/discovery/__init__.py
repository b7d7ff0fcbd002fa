"""The module by which Spark finds the format `querator` by itself. The build puts it into the wheel
as `pyspark_querator`.

Spark imports every top-level module named `pyspark_*`, and takes `DefaultSource` from it. Imports
are deferred until that name is read, because a failing module would silently disable the discovery
of all other modules as well. The package has no modules.
"""

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from querator.spark import QueratorDataSource
        except ImportError:
            # A program that registers or imports the source gets the reason.
            pass
        else:
            return QueratorDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
